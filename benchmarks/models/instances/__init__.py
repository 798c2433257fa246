"""Models written for one instance: a tree, a list or a graph as Python data.

>>> model, trees = build("treelstm", "small", count=3)
>>> [model(tree).shape for tree in trees]
[torch.Size([8]), torch.Size([8]), torch.Size([8])]
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from . import (
    act,
    berxit,
    birnn,
    dagrnn,
    drnn,
    experts,
    expression,
    graphrnn,
    mvrnn,
    nestedrnn,
    stackrnn,
    treelstm,
)
from .entry import InstanceEntry, ManyFunction, Wrap, as_it_is

__all__ = ["INSTANCE_ZOO", "InstanceEntry", "ManyFunction", "Wrap", "as_it_is", "build"]

_MODULES = (
    treelstm,
    mvrnn,
    birnn,
    nestedrnn,
    drnn,
    berxit,
    stackrnn,
    graphrnn,
    dagrnn,
    experts,
    act,
    expression,
)

INSTANCE_ZOO: dict[str, InstanceEntry] = {module.ENTRY.name: module.ENTRY for module in _MODULES}


def build(
    name: str, preset: str, count: int, seed: int = 0, **changes: Any
) -> tuple[nn.Module, list[Any]]:
    """Return the model `name` in eval mode and `count` instances; `changes` replace fields of the
    preset's configuration."""
    entry = INSTANCE_ZOO[name]
    config = replace(entry.presets[preset], **changes)
    return entry.make(config, seed), entry.instances(config, count, seed)
