"""The static zoo: models that run straight through, measured in Rammer's and Opara's papers.

GoogLeNet, Inception-v3, ResNeXt-50 and AlexNet are torchvision's (`real.py`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from . import deepfm, lstm, nasbench, nasnet, nmt, resnext, wide
from .counted import counted_work
from .deepfm import DeepFMConfig
from .entry import Made, ZooEntry
from .lstm import LSTMConfig
from .nasbench import NASBenchConfig
from .nasnet import NASNetConfig
from .nmt import NMTConfig
from .real import REAL
from .resnext import ResNeXtConfig
from .wide import WideConfig


def _entry(
    name: str, summary: str, make: Callable[[Any, int], Made], full: Any, small: Any
) -> ZooEntry:
    presets = {"full": full, "small": small}
    return ZooEntry(name, summary, make, presets, partial(counted_work, make))


_ENTRIES = (
    _entry(
        "resnext29",
        "ResNeXt-29 for CIFAR, 16 chains of convolutions",
        resnext.make,
        ResNeXtConfig.full(),
        ResNeXtConfig.small(),
    ),
    _entry(
        "resnext29_grouped",
        "ResNeXt-29 for CIFAR, grouped convolutions",
        resnext.make,
        ResNeXtConfig(grouped=True),
        ResNeXtConfig(3, 4, 8, 2, 1, 8, grouped=True),
    ),
    _entry(
        "nasnet_cifar",
        "NASNet-A for CIFAR, 18 cells",
        nasnet.make,
        NASNetConfig.full(),
        NASNetConfig.small(),
    ),
    _entry(
        "nasnet_mobile",
        "NASNet-A for ImageNet, mobile, 12 cells",
        nasnet.make,
        NASNetConfig.mobile_size(),
        NASNetConfig.small_mobile(),
    ),
    ZooEntry(
        "lstm_tc",
        "10-layer LSTM, 100 steps, a product per gate",
        nmt.make_lstm_tc,
        {"full": LSTMConfig(length=100), "small": LSTMConfig.small()},
        lstm.work,
        loop=True,
    ),
    ZooEntry(
        "nmt",
        "encoder of 8 LSTM layers and 100 steps, decoder of 4 and 30",
        nmt.make_nmt,
        {"full": NMTConfig.full(), "small": NMTConfig.small()},
        nmt.nmt_work,
        loop=True,
    ),
    _entry(
        "deepfm",
        "DeepFM, 32 categories and 16 numbers",
        deepfm.make,
        DeepFMConfig.full(),
        DeepFMConfig.small(),
    ),
    _entry(
        "nasbench",
        "a random cell of NASBench-101",
        nasbench.make,
        NASBenchConfig.full(),
        NASBenchConfig.small(),
    ),
    _entry(
        "wide",
        "a transformer of 4 layers, products in 8 shards",
        wide.make,
        WideConfig.full(),
        WideConfig.small(),
    ),
)
OWN: dict[str, ZooEntry] = {entry.name: entry for entry in _ENTRIES}
_VISION = ("resnext50_32x4d", "alexnet", "googlenet", "inception_v3")
STATIC: dict[str, ZooEntry] = {**OWN, **{name: REAL[name] for name in _VISION}}
