"""Objects that functions change, and the comparison of what they hold afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import stretto
from tests.frontends.python.checks import assert_same

Step = Callable[[Any, Tensor], Any]


class State:
    """What the functions of this file change."""

    def __init__(self, v: Any = None) -> None:
        self.v = v
        self.h = torch.zeros(3)
        self.n = 0
        self.scale = 1.0
        self.flag = False
        self.other: Any = None
        self.child: Any = None
        self.name = "first"
        self.items: list[Any] = []
        self.pair = [torch.zeros(3), torch.ones(3)]
        self.d: dict[str, Any] = {"h": torch.zeros(3)}


INPUTS = ([0.1, 0.2, 0.3], [-1.0, 0.2, 0.1], [2.0, 3.0, 0.3], [0.5, 0.2, 0.1])


def content(value: Any) -> Any:
    """The state of an object as plain containers."""
    if isinstance(value, list | tuple):
        return type(value)(map(content, value))
    if isinstance(value, dict):
        return {key: content(item) for key, item in value.items()}
    if isinstance(value, State):
        return content(vars(value))
    return value


def objects(value: Any, *, tensors: bool) -> list[int]:
    """Ids of the objects in a value, in the order of a walk through it."""
    if isinstance(value, dict):
        return [id(value), *objects(list(value.values()), tensors=tensors)]
    if isinstance(value, list | tuple):
        found = [i for item in value for i in objects(item, tensors=tensors)]
        return [id(value), *found] if isinstance(value, list) else found
    if isinstance(value, State):
        return [id(value), *objects(vars(value), tensors=tensors)]
    return [id(value)] if isinstance(value, Tensor) and tensors else []


def sharing(result: Any, kept: Any) -> list[int]:
    """For each object, and each tensor that is kept, which of them is the same first."""
    found = [*objects(result, tensors=False), *objects(kept, tensors=True)]
    return [found.index(item) for item in found]


def check(step: Step, backend: str = "interpreter") -> stretto.call.compiled.Compiled:
    """Compare some calls with eager PyTorch; tensors and objects stay the same ones, too."""
    fast = stretto.compile(step, backend=backend)
    mine, other = State(), State()
    for given in INPUTS:
        x, y = torch.tensor(given), torch.tensor(given)
        actual, expected = fast(mine, x), step(other, y)
        assert_same(content([actual, mine, x]), content([expected, other, y]))
        assert sharing(actual, [mine, x]) == sharing(expected, [other, y])
    return fast
