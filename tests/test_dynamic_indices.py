"""Indices and slices that sizes of the call decide, and parts of tensors of such sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.frontends.python.checks import assert_same

TABLE = torch.linspace(-1, 1, 200).reshape(50, 4)


def row_of_a_constant(x: Tensor) -> Tensor:
    return TABLE[x.shape[0]] + 1


def row_from_the_end(x: Tensor) -> Tensor:
    return TABLE[-x.shape[0]]


def among_others(x: Tensor) -> Tensor:
    return TABLE[None, x.shape[0], ..., None]


def middle(x: Tensor) -> Tensor:
    return x[x.shape[0] // 2, 1:3]


def last(x: Tensor) -> Tensor:
    return x[x.shape[0] - 1] * 2


def first_of_a_constant(x: Tensor) -> Tensor:
    return TABLE[: x.shape[0]] * x


def part(x: Tensor) -> Tensor:
    return x[1:3] + 1


def part_of_columns(x: Tensor) -> Tensor:
    return x[:, 1:3]


def from_the_end(x: Tensor) -> Tensor:
    return x[-3:-1]


def rows_one_by_one(x: Tensor) -> Tensor:
    """Each iteration writes a tensor of a symbolic size into another one, at an index of
    the loop."""
    made = torch.zeros(3, x.shape[0])
    step = 0
    while step < 3 and x.sum() < 1000:
        made[step] = x[:, step]
        x, step = x + 1, step + 1
    return made


FUNCTIONS = [
    rows_one_by_one,
    row_of_a_constant,
    row_from_the_end,
    among_others,
    middle,
    last,
    first_of_a_constant,
    part,
    part_of_columns,
    from_the_end,
]


@pytest.mark.parametrize("backend", ["interpreter", "emulator", "cpu"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_one_program(function: Callable[[Tensor], Tensor], backend: str) -> None:
    compiled = stretto.compile(function, backend=backend, dynamic=True)
    for rows in (5, 9, 4, 12):
        x = torch.randn(rows, 4)
        assert_same(compiled(x), function(x))
    assert len(compiled.signatures) == 1, compiled.explain()


@pytest.mark.parametrize("rows", [0, 1, 2, 3])
@pytest.mark.parametrize("function", [part, part_of_columns, from_the_end])
def test_slices_that_end_early(function: Callable[[Tensor], Tensor], rows: int) -> None:
    compiled = stretto.compile(function, dynamic=True)
    for x in (torch.randn(7, 4), torch.randn(rows, 4), torch.randn(4, rows)):
        assert_same(compiled(x), function(x))


def unused(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x[int(i)]
    return x * 2


def unused_in_an_arm(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    if i > 2:
        x.select(0, int(i))
    return x + 1


def selected(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x.select(0, int(i)) + torch.select(x.t(), -1, i.item())


def unused_in_a_loop(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    for k in range(x.shape[0] - 1):
        x[k + int(i)]
    return x + 1


@pytest.mark.parametrize("function", [unused, unused_in_an_arm, unused_in_a_loop, selected])
@pytest.mark.parametrize("backend", ["interpreter", "emulator", "cpu"])
def test_a_position_that_nobody_reads_is_checked(function: Any, backend: str) -> None:
    fast = stretto.compile(function, backend=backend, dynamic=True)
    for size, position in ((5, 2), (5, -5), (5, -6), (7, 6), (7, 7), (3, 4), (1, 1), (0, 0)):
        x, i = torch.randn(size, 4), torch.tensor(position)
        try:
            wanted = function(x, i)
        except IndexError:
            with pytest.raises(IndexError):
                fast(x, i)
        else:
            torch.testing.assert_close(fast(x, i), wanted)
    assert len(fast.signatures) == 1
