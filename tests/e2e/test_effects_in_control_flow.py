"""Changes of the user's objects in branches, loops and recursion on tensors."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from tests.e2e.objects import State, Step, check

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


def optional(s: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        s.other = x * 2
    return x


def optional_read(s: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        s.other = x * 2
    if s.other is not None:
        x = x + s.other
    return x


def reset_none(s: Any, x: Tensor) -> Any:
    if s.other is None:
        s.other = x * 1
    else:
        s.other = s.other + x
    if s.other.sum() > 10:
        s.other = None
    return x


def dict_new_key(s: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        s.d["k"] = x * 2
    return x


def new_attr(s: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        s.late = x * 2
    return x


def text(s: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        s.name = "b"
    return x


def new_object(s: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        s.child = State(x * 2)
    return x


def set_arg(s: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        s.other = x
    return x


def swap_shape(s: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        s.h = x[:2]
    return x


ATTRIBUTES = [
    flag_in_branch,
    numbers_in_loop,
    tensor_in_loop,
    items_in_loop,
    optional,
    optional_read,
    reset_none,
    dict_new_key,
    new_attr,
    text,
    new_object,
    set_arg,
    swap_shape,
]


@pytest.mark.parametrize("step", ATTRIBUTES, ids=lambda step: step.__name__)
def test_attributes_and_items(step: Step) -> None:
    check(step)
