"""Changes of the user's objects in branches, loops and recursion on tensors.

After each call the objects are as after the original function, and share what they share then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.capture.checks import assert_same

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


def objects(value: Any) -> list[int]:
    """Ids of the objects in a value, in the order of a walk through it."""
    if isinstance(value, list | tuple):
        return [id(value)] * isinstance(value, list) + [i for x in value for i in objects(x)]
    if isinstance(value, dict):
        return [id(value), *(i for x in value.values() for i in objects(x))]
    if isinstance(value, State):
        return [id(value), *objects(vars(value))]
    return [id(value)] if isinstance(value, Tensor) else []


def sharing(value: Any) -> list[int]:
    """For each object, which of the objects is the same first."""
    found = objects(value)
    return [found.index(item) for item in found]


def check(step: Step, backend: str = "interpreter") -> stretto.api.Compiled:
    """Compare some calls with eager PyTorch; tensors and objects stay the same ones, too."""
    fast = stretto.compile(step, backend=backend)
    mine, other = State(), State()
    for given in INPUTS:
        x, y = torch.tensor(given), torch.tensor(given)
        actual, expected = fast(mine, x), step(other, y)
        assert_same(content([actual, mine, x]), content([expected, other, y]))
        assert sharing([actual, mine, x]) == sharing([expected, other, y])
    return fast


# ---- attributes and items ---------------------------------------------------------------------


def flag_in_branch(s: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        s.flag = True
    return x * 2


def numbers_in_loop(s: Any, x: Tensor) -> Any:
    while x.sum() < 5:
        x = x + 1
        s.n += 1
        s.scale *= 0.5
    return x * s.scale


def tensor_in_loop(s: Any, x: Tensor) -> Any:
    for _ in range(8):
        s.h *= 0.5
        s.d["h"] = s.d["h"] + x
    return x * 2


def items_in_loop(s: Any, x: Tensor) -> Any:
    while x.sum() < 5:
        x = x + 1
        s.pair[0], s.pair[1] = s.pair[1] * 0.25, s.pair[0] * 0.5
    return x * 2


ATTRIBUTES = [flag_in_branch, numbers_in_loop, tensor_in_loop, items_in_loop]


@pytest.mark.parametrize("step", ATTRIBUTES, ids=lambda step: step.__name__)
def test_attributes_and_items(step: Step) -> None:
    check(step)
