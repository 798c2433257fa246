"""Decoding by transformers in its modes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.models.configs import transformers
from tests.outside.registry import Case, program

SIZES: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_BART: dict[str, Any] = {
    "vocab_size": 60, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
_T5: dict[str, Any] = {
    "vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2,
    "decoder_start_token_id": 0,
}  # fmt: skip
_GPT2: dict[str, Any] = {
    "vocab_size": 60, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def _model(kind: str, name: str, sizes: dict[str, Any]) -> Any:
    """A model whose weights are large enough to give different tokens."""
    package = transformers()
    model = getattr(package, name)(getattr(package, f"{kind}Config")(**sizes)).eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.normal_(0, 0.3)
    return model


def _ids(rows: int, length: int) -> Tensor:
    return torch.randint(5, 60, (rows, length))


def _decoded(model: Any, rows: int = 1, **options: Any) -> Case:
    def decode(ids: Tensor) -> Tensor:
        return model.generate(ids, max_new_tokens=6, **options)

    return Case(decode, (_ids(rows, 4),), (_ids(rows, 7),), model)


@program("transformers")
def gemma2_greedy() -> Case:
    sizes = {**SIZES, "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 4}
    return _decoded(_model("Gemma2", "Gemma2ForCausalLM", sizes), do_sample=False)


@program("transformers")
def llama_beams() -> Case:
    sizes = {**SIZES, "num_key_value_heads": 1}
    return _decoded(_model("Llama", "LlamaForCausalLM", sizes), num_beams=3, do_sample=False)


@program("transformers")
def bart_beams() -> Case:
    model = _model("Bart", "BartForConditionalGeneration", _BART)
    return _decoded(model, num_beams=2, do_sample=False)


@program("transformers")
def t5_beams() -> Case:
    model = _model("T5", "T5ForConditionalGeneration", _T5)
    return _decoded(model, num_beams=2, do_sample=False, length_penalty=0.8)


@program("transformers")
def gpt2_samples() -> Case:
    return _decoded(_model("GPT2", "GPT2LMHeadModel", _GPT2), 2, do_sample=True, top_k=5, top_p=0.9)


@program("transformers")
def gpt2_rules() -> Case:
    return _decoded(
        _model("GPT2", "GPT2LMHeadModel", _GPT2), do_sample=False, repetition_penalty=1.3,
        no_repeat_ngram_size=2, min_new_tokens=3,
    )  # fmt: skip


@program("transformers")
def gpt2_prompt_lookup() -> Case:
    model = _model("GPT2", "GPT2LMHeadModel", _GPT2)
    return _decoded(model, do_sample=False, prompt_lookup_num_tokens=2)


@program("transformers")
def qwen2_scores() -> Case:
    sizes = {**SIZES, "num_key_value_heads": 1}
    return _decoded(
        _model("Qwen2", "Qwen2ForCausalLM", sizes), do_sample=False, output_scores=True,
        return_dict_in_generate=True,
    )  # fmt: skip


@program("transformers")
def speech_t5() -> Case:
    sizes = {
        "vocab_size": 60, "hidden_size": 16, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24, "num_mel_bins": 8, "speech_decoder_prenet_units": 8,
        "speech_decoder_postnet_units": 8, "speech_decoder_postnet_layers": 2,
        "speaker_embedding_dim": 8, "max_text_positions": 40, "max_speech_positions": 40,
        "speech_decoder_prenet_dropout": 0.0, "reduction_factor": 2,
    }  # fmt: skip
    model = _model("SpeechT5", "SpeechT5ForTextToSpeech", sizes)

    def speak(ids: Tensor, speaker: Tensor) -> Tensor:
        return model.generate_speech(ids, speaker, threshold=0.9, maxlenratio=2.0)

    first = (_ids(1, 5), torch.randn(1, 8))
    return Case(speak, first, (_ids(1, 8), torch.randn(1, 8)), model)


@program("transformers", fast=True)
def bert_padded() -> Case:
    model = _model("Bert", "BertForSequenceClassification", SIZES)

    def classified(ids: Tensor, mask: Tensor) -> Tensor:
        return model(ids, attention_mask=mask).logits.softmax(-1)

    mask = torch.ones(2, 6, dtype=torch.int64)
    mask[1, 4:] = 0
    return Case(classified, (_ids(2, 6), mask), (_ids(3, 8), torch.ones(3, 8).long()), model)


@program("transformers", fast=True)
def longformer() -> Case:
    model = _model("Longformer", "LongformerModel", {**SIZES, "attention_window": [4]})

    def encoded(ids: Tensor, mask: Tensor) -> Tensor:
        return model(ids, attention_mask=mask).last_hidden_state

    def masked(rows: int, length: int) -> tuple[Tensor, Tensor]:
        return _ids(rows, length), torch.ones(rows, length, dtype=torch.int64)

    return Case(encoded, masked(1, 8), masked(2, 11), model)


@program("transformers", fast=True)
def gpt2_loss() -> Case:
    model = _model("GPT2", "GPT2LMHeadModel", _GPT2)

    def loss(ids: Tensor, labels: Tensor) -> Any:
        return model(ids, labels=labels)

    def labelled(rows: int, length: int) -> tuple[Tensor, Tensor]:
        ids = _ids(rows, length)
        return ids, torch.where(ids > 40, -100, ids)

    return Case(loss, labelled(2, 6), labelled(1, 9), model)


@program("transformers", fast=True)
def llama_cached_steps() -> Case:
    model = _model("Llama", "LlamaForCausalLM", {**SIZES, "num_key_value_heads": 1})
    from transformers import DynamicCache

    def continued(ids: Tensor, count: int) -> Tensor:
        cache, tokens = DynamicCache(config=model.config), ids
        for _ in range(count):
            logits = model(tokens, past_key_values=cache, use_cache=True).logits
            tokens = logits[:, -1:].argmax(-1)
            ids = torch.cat([ids, tokens], 1)
        return ids

    return Case(continued, (_ids(1, 4), 3), (_ids(1, 6), 5), model)


@program("transformers")
def switch_experts() -> Case:
    sizes = {**_T5, "num_experts": 3, "expert_capacity": 4}
    model = _model("SwitchTransformers", "SwitchTransformersEncoderModel", sizes)

    def encoded(ids: Tensor) -> Tensor:
        return model(ids).last_hidden_state

    return Case(encoded, (_ids(1, 6),), (_ids(2, 9),), model)


@program("transformers", fast=True)
def logits_rules() -> Case:
    transformers()
    from transformers import (
        LogitsProcessorList,
        NoRepeatNGramLogitsProcessor,
        RepetitionPenaltyLogitsProcessor,
        TopPLogitsWarper,
    )

    rules = LogitsProcessorList(
        [RepetitionPenaltyLogitsProcessor(1.2), NoRepeatNGramLogitsProcessor(2),
         TopPLogitsWarper(0.8)]
    )  # fmt: skip

    def ruled(ids: Tensor, logits: Tensor) -> Tensor:
        return rules(ids, logits)

    first, second = ((torch.randint(0, 4, (n, 5)), torch.randn(n, 9)) for n in (1, 3))
    return Case(ruled, first, second)
