"""The zoo: dynamic models in plain PyTorch, with seeded weights and inputs.

>>> model, inputs = build("lstm", "small")
>>> model(*inputs).shape
torch.Size([8])
"""

from dataclasses import replace
from typing import Any

from . import (
    attention,
    blockdrop,
    deepspeech2,
    lstm,
    nasrnn,
    rae,
    seq2seq,
    skipnet,
)
from .attention import AttentionConfig
from .blockdrop import BlockDropConfig
from .deepspeech2 import DeepSpeech2Config
from .entry import Made, Phase, ZooEntry
from .lstm import LSTMConfig
from .nasrnn import NASRNNConfig
from .rae import RAEConfig
from .seq2seq import Seq2SeqConfig
from .skipnet import SkipNetConfig

__all__ = ["CORE", "ZOO", "Made", "Phase", "ZooEntry", "build"]


def _presets(config: Any, **changes: Any) -> dict[str, Any]:
    return {"full": replace(config.full(), **changes), "small": config.small()}


_ENTRIES = (
    ZooEntry(
        "lstm",
        "10-layer LSTM, 64 steps",
        lstm.make,
        _presets(LSTMConfig),
        lstm.work,
        loop=True,
    ),
    ZooEntry(
        "lstm100",
        "10-layer LSTM, 100 steps",
        lstm.make,
        _presets(LSTMConfig, length=100),
        lstm.work,
        loop=True,
    ),
    ZooEntry(
        "nasrnn",
        "NASRNN, 1000 steps",
        nasrnn.make,
        _presets(NASRNNConfig),
        nasrnn.work,
        loop=True,
    ),
    ZooEntry(
        "attention",
        "12 heads, 32 tokens into a cache of 64",
        attention.make,
        _presets(AttentionConfig),
        attention.work,
        loop=True,
    ),
    ZooEntry(
        "seq2seq",
        "greedy decoder, about 10 tokens",
        seq2seq.make,
        _presets(Seq2SeqConfig),
        seq2seq.work,
        loop=True,
    ),
    ZooEntry(
        "blockdrop",
        "ResNet-32, 7 of 15 blocks run",
        blockdrop.make,
        _presets(BlockDropConfig),
        blockdrop.work,
    ),
    ZooEntry(
        "blockdrop_policy",
        "ResNet-32, blocks chosen by a policy net",
        blockdrop.make_with_policy,
        _presets(BlockDropConfig),
        blockdrop.work_with_policy,
    ),
    ZooEntry(
        "skipnet",
        "ResNet-101 with recurrent gates, 23 of 33 blocks run",
        skipnet.make,
        _presets(SkipNetConfig),
        skipnet.work,
        batched=False,
    ),
    ZooEntry(
        "rae",
        "recursive autoencoder, 65 nodes",
        rae.make,
        _presets(RAEConfig),
        rae.work,
        batched=False,
    ),
    ZooEntry(
        "deepspeech2",
        "2 convolutions, 7 LSTM layers of 75 steps",
        deepspeech2.make,
        _presets(DeepSpeech2Config),
        deepspeech2.work,
        loop=True,
    ),
    *(
        ZooEntry(
            f"blockdrop_{percent}",
            f"ResNet-32, {percent} % of the blocks run",
            blockdrop.make,
            {"full": BlockDropConfig.at_rate(percent), "small": BlockDropConfig.small()},
            blockdrop.work,
        )
        for percent in (0, 25, 50, 75, 100)
    ),
)

ZOO: dict[str, ZooEntry] = {entry.name: entry for entry in _ENTRIES}

# The models of a benchmark when none is named: all but BlockDrop's sweep over rates.
CORE: tuple[str, ...] = tuple(
    name for name in ZOO if not (name.startswith("blockdrop_") and name[-1].isdigit())
)


def build(name: str, preset: str = "full", seed: int = 0, **changes: Any) -> Made:
    """Return the model `name` and its inputs; `changes` replace fields of the preset's
    configuration."""
    entry = ZOO[name]
    return entry.make(replace(entry.presets[preset], **changes), seed)
