"""Small models of transformers and torchvision with random weights, their code unchanged.

The packages are not among stretto's requirements; tests that need one skip where it is absent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

IDS = torch.randint(5, 90, (1, 7), generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
WAVE = torch.randn(1, 800, generator=torch.Generator().manual_seed(2))
MEL = torch.randn(1, 16, 40, generator=torch.Generator().manual_seed(3))
SIZES = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48,
}  # fmt: skip
TEXT = {**SIZES, "max_position_embeddings": 64}


@dataclass(frozen=True)
class Model:
    """A class of a package by name, the arguments of its configuration, and its inputs."""

    name: str
    config: str
    sizes: dict[str, Any]
    args: tuple[Any, ...] = (IDS,)
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])

    def make(self) -> nn.Module:
        package = transformers()
        torch.manual_seed(0)
        config = getattr(package, self.config)(**self.sizes)
        return getattr(package, self.name)(config).eval().requires_grad_(False)


_SPEECH = {
    **SIZES, "vocab_size": 32, "conv_dim": (16, 16, 16), "conv_kernel": (10, 3, 3),
    "conv_stride": (5, 2, 2), "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
_WHISPER = {
    "vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "num_mel_bins": 16, "max_source_positions": 20, "pad_token_id": 0,
    "max_target_positions": 32, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
_T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
_GPT2 = {
    "vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_VIT = {**SIZES, "image_size": 64, "patch_size": 16}
del _VIT["vocab_size"]
_MASK = torch.tensor([[1, 1, 1, 1, 1, 0, 0]])
_START = {"decoder_input_ids": IDS[:, :4]}
_EXPERTS = {**TEXT, "num_key_value_heads": 2, "num_local_experts": 4}
_MAMBA = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}

TRANSFORMERS = {
    "bert": Model("BertModel", "BertConfig", TEXT),
    "bert masked": Model("BertModel", "BertConfig", TEXT, (IDS,), {"attention_mask": _MASK}),
    "gpt2": Model("GPT2LMHeadModel", "GPT2Config", _GPT2),
    "llama": Model("LlamaForCausalLM", "LlamaConfig", {**TEXT, "num_key_value_heads": 2}),
    "t5": Model("T5ForConditionalGeneration", "T5Config", _T5, (IDS,), _START),
    "vit": Model("ViTModel", "ViTConfig", _VIT, (IMAGE,)),
    "wav2vec2": Model("Wav2Vec2Model", "Wav2Vec2Config", _SPEECH, (WAVE,)),
    "whisper": Model("WhisperForConditionalGeneration", "WhisperConfig", _WHISPER, (MEL,), _START),
    "mixtral": Model("MixtralForCausalLM", "MixtralConfig", _EXPERTS),
    "mamba": Model("MambaForCausalLM", "MambaConfig", _MAMBA),
}

TORCHVISION: dict[str, tuple[Callable[[Any], nn.Module], int]] = {
    "resnet18": (lambda m: m.resnet18(), 64),
    "mobilenet_v3": (lambda m: m.mobilenet_v3_small(), 64),
    "googlenet": (lambda m: m.googlenet(init_weights=False), 64),
    "inception_v3": (lambda m: m.inception_v3(init_weights=False), 96),
    "efficientnet_b0": (lambda m: m.efficientnet_b0(), 64),
    "resnext50": (lambda m: m.resnext50_32x4d(), 64),
    "vit": (lambda m: m.VisionTransformer(32, 16, 2, 4, 32, 64), 32),
    "swin": (lambda m: m.SwinTransformer([2, 2], 16, [1, 2], [2, 4], [4, 4]), 64),
}


def transformers() -> Any:
    prepare_torchvision()
    package = pytest.importorskip("transformers", reason="transformers is not installed")
    package.logging.set_verbosity_error()
    return package


def torchvision() -> Any:
    prepare_torchvision()
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    return pytest.importorskip("torchvision.models")


_library: list[torch.library.Library] = []


def prepare_torchvision() -> None:
    """A torchvision that was built for another torch lacks operators, which its import names."""
    if _library:
        return
    _library.append(torch.library.Library("torchvision", "FRAGMENT"))
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            _library[0].define(f"{name}(Tensor dets, Tensor scores, float threshold) -> Tensor")
