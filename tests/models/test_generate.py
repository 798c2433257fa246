"""Whole greedy decodes by transformers' own `generate`, as one program, token for token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import stretto
from tests.models.configs import TRANSFORMERS
from tests.sampling import sampled

TOKENS = 9


def model_of(name: str) -> Any:
    known = TRANSFORMERS[name]
    layers = {"n_layer": 1} if name == "gpt2" else {"num_hidden_layers": 1}
    model: Any = replace(known, sizes={**known.sizes, **layers}).make()
    settings = model.generation_config
    settings.pad_token_id, settings.eos_token_id, settings.disable_compile = 98, 98, True
    return model


def prompts(*sizes: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(5, 90, (1, size), generator=generator) for size in sizes]


def varied(model: Any) -> Any:
    """The same model with larger weights, so that it does not give one token all the time."""
    generator = torch.Generator().manual_seed(5)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.normal_(0, 0.3, generator=generator)
    return model


def decoding(model: Any, **options: Any) -> Callable[..., Any]:
    def decode(ids: torch.Tensor) -> Any:
        return model.generate(ids, max_new_tokens=TOKENS, do_sample=False, **options)

    return decode


def check(decode: Callable[..., Any], *calls: torch.Tensor, backend: str = "interpreter") -> Any:
    fast = stretto.compile(decode, backend=backend)
    for ids in calls:
        wanted, found = decode(ids), fast(ids)
        assert found.dtype is wanted.dtype and torch.equal(found, wanted)
    return fast


CACHES: dict[str, dict[str, Any]] = {"growing": {}, "static": {"cache_implementation": "static"}}
CASES = [(name, cache) for name in ("gpt2", "llama") for cache in CACHES]


@pytest.mark.whole
def test_prompts_of_any_length() -> None:
    fast = check(decoding(model_of("gpt2")), *prompts(5, 7, 3, 12))
    assert len(fast.signatures) == 2, fast.explain()


@pytest.mark.whole
@pytest.mark.parametrize(("name", "cache"), sampled(CASES, [("llama", "static")]))
def test_a_token_that_ends_the_text(name: str, cache: str) -> None:
    """It is one that the model gives in the middle."""
    model = model_of(name)
    decode = decoding(model, **CACHES[cache])
    (ids,) = prompts(5)
    last = int(decode(ids)[0, ids.shape[1] + 3])
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = last
    assert decode(ids).shape[1] < ids.shape[1] + TOKENS
    check(decode, ids, backend="cpu")


@pytest.mark.whole
def test_padding_on_the_left() -> None:
    """`generate(**tokenizer(texts))`, where the rows end at different steps. A mask of ones is
    dropped: calls with such a mask have a program of their own."""
    model = varied(model_of("gpt2"))

    def decode(ids: torch.Tensor, mask: torch.Tensor) -> Any:
        return model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False
        )

    fast = stretto.compile(decode, backend="cpu", dynamic=False)
    ids = torch.cat(prompts(6, 6))
    ids[0, :2] = 98
    mask = (ids != 98).long()
    wanted = decode(ids, mask)
    model.generation_config.eos_token_id = [98, int(wanted[0, 8])]
    wanted = decode(ids, mask)
    assert (wanted[0, -4:] == 98).all() and not (wanted[1, -4:] == 98).any()
    assert torch.equal(fast(ids, mask), wanted)
    everything = torch.ones_like(mask)
    assert torch.equal(fast(ids, everything), decode(ids, everything))
    assert torch.equal(fast(ids, mask), wanted) and len(fast.signatures) == 2


@pytest.mark.whole
def test_a_pad_token_that_ends_nothing() -> None:
    model = varied(model_of("gpt2"))
    model.generation_config.pad_token_id = 0
    ids = torch.cat(prompts(6, 6))
    ids[0, :2] = 0
    check(decoding(model), ids)


@pytest.mark.whole
@pytest.mark.parametrize("backend", sampled(["interpreter", "cpu"], ["interpreter"]))
def test_t5(backend: str) -> None:
    """The encoder once, then a decoder with two caches, of which one grows."""
    known = TRANSFORMERS["t5"]
    sizes = {**known.sizes, "num_layers": 1, "tie_word_embeddings": False}
    model = varied(replace(known, sizes=sizes).make())
    settings = model.generation_config
    settings.decoder_start_token_id, settings.pad_token_id, settings.eos_token_id = 0, 0, 98
    assert len(set(decoding(model)(known.args[0])[0].tolist())) > 3
    check(decoding(model), known.args[0], backend=backend)


@pytest.mark.parametrize("most", sampled([0, 50], []))
def test_sampled_tokens(most: int) -> None:
    """With one seed they are those of eager PyTorch. most: of how many tokens one is drawn."""
    model = varied(model_of("gpt2"))

    def decode(ids: torch.Tensor) -> Any:
        return model.generate(ids, max_new_tokens=TOKENS, do_sample=True, top_k=most)

    ids = torch.cat(prompts(6, 6))
    torch.manual_seed(3)
    wanted = decode(ids)
    torch.manual_seed(3)
    assert torch.equal(stretto.compile(decode, backend="interpreter")(ids), wanted)
