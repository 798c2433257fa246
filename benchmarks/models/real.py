"""Published models at their real sizes and batch 1: transformers with random weights, and
torchvision.

The transformers are made from configurations. Their packages are an extra: `pip install
'stretto[models]'`.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from .counted import counted_work
from .entry import Made, ZooEntry, generator
from .weights import seed_weights


class MissingPackage(ImportError):
    """Raised if the package of a model is not installed; the message tells how to get it."""


@dataclass(frozen=True, slots=True)
class RealConfig:
    """The configuration of a model. size: pixels of an image's side, samples or words."""

    size: int
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])


class _First(nn.Module):
    """Return the first tensor of a model's result; the model takes `names` by keyword."""

    def __init__(self, model: nn.Module, *names: str, **fixed: Any) -> None:
        super().__init__()
        self.model, self.names, self.fixed = model, names, fixed

    def forward(self, *inputs: Tensor) -> Tensor:
        found = self.model(**dict(zip(self.names, inputs, strict=True)), **self.fixed)
        return found[0]


class _Generated(nn.Module):
    """A whole greedy decode: the words of a prompt, then `tokens` more, by the package's own
    `generate` with a growing cache."""

    def __init__(self, model: Any, tokens: int) -> None:
        super().__init__()
        self.model, self.tokens = model, tokens

    def forward(self, words: Tensor) -> Tensor:
        return self.model.generate(words, max_new_tokens=self.tokens, do_sample=False)

    def by_torch_compile(self, mode: str) -> Callable[[Tensor], Tensor]:
        """Compile as the package's guide recommends: a cache of fixed size, and a compiled step."""
        model = copy.copy(self.model)
        model.forward = torch.compile(self.model.forward, mode=mode)
        options: Any = {"max_new_tokens": self.tokens, "cache_implementation": "static"}
        return lambda words: model.generate(words, do_sample=False, **options)


def import_torchvision() -> Any:
    """Import torchvision, even if its native operators are of another build: these models use
    none."""
    if importlib.util.find_spec("torchvision") is None:
        raise MissingPackage("torchvision is not installed (pip install 'stretto[models]')")
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        _KEPT.append(library)
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return importlib.import_module("torchvision")


_KEPT: list[Any] = []


def import_transformers() -> Any:
    """Import transformers, which imports torchvision if it is installed."""
    if importlib.util.find_spec("transformers") is None:
        raise MissingPackage("transformers is not installed (pip install 'stretto[models]')")
    if importlib.util.find_spec("torchvision") is not None:
        import_torchvision()
    return importlib.import_module("transformers")


def _vision(name: str, config: RealConfig, seed: int) -> Made:
    changes = dict(config.changes)
    if name in ("googlenet", "inception_v3"):
        changes |= {"init_weights": False}
    if name == "vit_b_16":
        changes |= {"image_size": config.size}
    model = getattr(import_torchvision().models, name)(weights=None, **changes)
    seed_weights(model, seed)
    return model.eval(), (torch.randn(1, 3, config.size, config.size, generator=generator(seed)),)


def _text(
    kind: str, model: str, config: RealConfig, seed: int, *, names: tuple[str, ...], **fixed: Any
) -> Made:
    package = import_transformers()
    settings = getattr(package, f"{kind}Config")(**config.changes)
    made = _seeded(partial(getattr(package, model), settings), seed)
    words = torch.randint(0, settings.vocab_size, (1, config.size), generator=generator(seed))
    return _First(made, *names, **fixed).eval(), (words,) * len(names)


def _audio(config: RealConfig, seed: int) -> Made:
    package = import_transformers()
    settings = package.Wav2Vec2Config(**config.changes)
    made = _seeded(partial(package.Wav2Vec2Model, settings), seed)
    samples = torch.randn(1, config.size, generator=generator(seed))
    return _First(made, "input_values").eval(), (samples,)


class _Logits(nn.Module):
    """words [1, T] -> logits [1, T, vocabulary]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def double(self) -> Self:
        """Convert to float64, with one product per expert: the package's grouped product does not
        support it."""
        self.model.set_experts_implementation("eager")
        return super().double()

    def forward(self, words: Tensor) -> Tensor:
        return self.model(words, use_cache=False).logits


def make_mixtral(config: RealConfig, seed: int) -> Made:
    """transformers' Mixtral: each word is processed by two experts that a layer's gate chooses."""
    package = import_transformers()
    settings = package.MixtralConfig(**config.changes)
    made = _seeded(partial(package.MixtralForCausalLM, settings), seed)
    words = torch.randint(settings.vocab_size, (1, config.size), generator=generator(seed))
    return _Logits(made).eval(), (words,)


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return the model, in eval mode, with weights initialised by its package."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().eval()


def _decode(config: RealConfig, seed: int) -> Made:
    from ..streams.models import STREAMS, made

    stream = STREAMS["decode"]
    module = made(stream, bool(config.changes))
    return module, stream.inputs(module, config.size, generator(seed))


def _generate(config: RealConfig, seed: int) -> Made:
    package = import_transformers()
    changes = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, **config.changes}
    settings = package.GPT2Config(**changes)
    model: Any = _seeded(partial(package.GPT2LMHeadModel, settings), seed)
    words = torch.randint(2, settings.vocab_size, (1, config.size), generator=generator(seed))
    return _Generated(model, 64).eval(), (words,)


_SMALL_TEXT = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2}
_SMALL_TEXT |= {"intermediate_size": 64, "vocab_size": 99}
_SMALL_GPT2 = {"n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 99}
_SMALL_T5 = {"num_layers": 2, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_heads": 2}
_SMALL_T5 |= {"vocab_size": 99}
_SMALL_AUDIO = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2}
_SMALL_AUDIO |= {"intermediate_size": 64, "conv_dim": (16,) * 7, "num_conv_pos_embeddings": 16}
_SMALL_AUDIO |= {"num_conv_pos_embedding_groups": 2}


def _entry(
    name: str,
    summary: str,
    make: Callable[[RealConfig, int], Made],
    full: RealConfig,
    small: RealConfig,
) -> ZooEntry:
    presets = {"full": full, "small": small}
    return ZooEntry(name, summary, make, presets, partial(counted_work, make), batched=False)


_VISION = {
    "alexnet": ("AlexNet", 227, 64),
    "resnet18": ("ResNet-18", 224, 64),
    "resnet50": ("ResNet-50", 224, 64),
    "mobilenet_v3_large": ("MobileNetV3", 224, 64),
    "googlenet": ("GoogLeNet", 224, 64),
    "inception_v3": ("Inception-v3", 299, 96),
    "efficientnet_b0": ("EfficientNet-B0", 224, 64),
    "resnext50_32x4d": ("ResNeXt-50", 224, 64),
    "vit_b_16": ("ViT-B/16", 224, 32),
    "swin_t": ("Swin-T", 224, 64),
}
_ENTRIES = (
    _entry(
        "bert_base",
        "BERT-base, 128 tokens",
        partial(_text, "Bert", "BertModel", names=("input_ids",)),
        RealConfig(128),
        RealConfig(9, _SMALL_TEXT),
    ),
    _entry(
        "gpt2_decode",
        "GPT-2-small, a token with 64 in the cache",
        _decode,
        RealConfig(64),
        RealConfig(5, {"small": True}),
    ),
    _entry(
        "gpt2_generate",
        "GPT-2-small, a whole greedy decode of 64 tokens after 32",
        _generate,
        RealConfig(32),
        RealConfig(5, _SMALL_GPT2),
    ),
    _entry(
        "t5_small",
        "T5-small, 32 tokens in and out",
        partial(_text, "T5", "T5Model", names=("input_ids", "decoder_input_ids"), use_cache=False),
        RealConfig(32),
        RealConfig(7, _SMALL_T5),
    ),
    _entry(
        "wav2vec2_base",
        "Wav2Vec2-base, one second",
        _audio,
        RealConfig(16_000),
        RealConfig(1_000, _SMALL_AUDIO),
    ),
    *(
        _entry(name, summary, partial(_vision, name), RealConfig(full), RealConfig(small))
        for name, (summary, full, small) in _VISION.items()
    ),
)
REAL: dict[str, ZooEntry] = {entry.name: entry for entry in _ENTRIES}
