"""Modules and objects that the compiled function makes itself, and changes in control flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from tests.frontends.python.checks import assert_same

X = torch.tensor([0.5, 1.5])
CALLS = (X, -X, X * 4)


class Part(nn.Module):
    """A module of the user."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: Any = 1.0
        self.register_buffer("memory", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.memory


class Plain:
    """An object without a base class."""

    def __init__(self) -> None:
        self.scale: Any = 1.0
        self.memory = torch.zeros(2)


def number_in_one_arm(part: Any, x: Tensor) -> Tensor:
    if x.sum() > 0:
        part.scale = 2.0
    return x * part.scale


def tensor_in_both_arms(part: Any, x: Tensor) -> Tensor:
    if x.sum() > 0:
        part.scale = x * 2
    else:
        part.scale = x
    return part.scale + 1


def buffer_in_one_arm(part: Any, x: Tensor) -> Tensor:
    if x.sum() > 0:
        part.memory = part.memory + x
    return x + part.memory


def in_a_loop(part: Any, x: Tensor) -> Tensor:
    while x.abs().sum() > 1:
        part.memory = part.memory + x
        part.scale = part.scale * 0.5
        x = x * 0.5
    return x * part.scale + part.memory


def in_place(part: Any, x: Tensor) -> Tensor:
    if x.sum() > 0:
        part.memory += x
    return part.memory * 2


CHANGES = (number_in_one_arm, tensor_in_both_arms, buffer_in_one_arm, in_a_loop, in_place)


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize("make", [Part, Plain])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_made_in_the_function(change: Callable[..., Tensor], make: Any, backend: str) -> None:
    def function(x: Tensor) -> Tensor:
        return change(make(), x)

    compiled = stretto.compile(function, backend=backend)
    with torch.no_grad():
        for x in CALLS:
            assert_same(compiled(x), function(x))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_part_of_a_new_module_that_is_called(change: Callable[..., Tensor]) -> None:
    def function(x: Tensor) -> Tensor:
        parts = nn.ModuleList([Part(), Part()])
        total = change(parts[1], x)
        for part in parts:
            total = total + part(x)
        return total

    compiled = stretto.compile(function, backend="cpu")
    with torch.no_grad():
        for x in CALLS:
            assert_same(compiled(x), function(x))
