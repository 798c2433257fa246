"""A torch.Size with entries that the content of a tensor decides."""

# ruff: noqa: RUF005
# the sums are what is tested

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.frontends.python.checks import assert_same


def count(x: Tensor) -> int:
    return int(x.max())


def added_in_place(x: Tensor) -> Tensor:
    size = x.size()
    size += (count(x),)
    return x.new_zeros(size)


CALLS: list[Callable[[Tensor], Any]] = [
    lambda x: x.new_zeros(x.size()[:0] + (count(x) + 1,) + x.size()[1:]),
    lambda x: x.new_ones((count(x),) + x.size()),
    lambda x: torch.zeros(torch.Size([count(x), 2])),
    lambda x: torch.ones(1).expand((x.shape + torch.Size((count(x),)))[1:]),
    lambda x: x + (x.size() + (count(x),)).numel(),
    lambda x: x + (x.size() + (count(x),))[-1] + len((x.size() + (count(x),))[1:]),
    lambda x: x + isinstance(x.size() + (count(x),), torch.Size),
    lambda x: x.new_ones((*x.size(), count(x))) + sum(x.size() + (count(x),)),
    added_in_place,
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_sizes(number: int) -> None:
    fast = stretto.compile(CALLS[number], backend="interpreter")
    one = torch.tensor([1.0, 2.0, 3.0])
    for x in (one, torch.tensor([-1.0, 5.0, 2.0]), one):
        assert_same(fast(x), CALLS[number](x))


RANGES: list[Callable[[Tensor], Tensor]] = [
    lambda x: torch.linspace(0, x.shape[0] - 1, x.shape[0], dtype=x.dtype),
    lambda x: torch.linspace(2, -3.5, steps=2 * x.shape[0] + 1),
    lambda x: torch.linspace(0, 1, x.shape[0] - 1, dtype=torch.float64),
    lambda x: torch.logspace(-1, 2, x.shape[0], 2.0),
    lambda x: torch.signal.windows.hann(x.shape[0]),
]


@pytest.mark.parametrize("number", range(len(RANGES)))
def test_ranges_of_as_many_numbers_as_a_size(number: int) -> None:
    fast = stretto.compile(RANGES[number], backend="interpreter")
    for size in (4, 6, 7, 2, 33):
        x = torch.zeros(size)
        torch.testing.assert_close(fast(x), RANGES[number](x))


def test_only_tuples_are_added() -> None:
    with pytest.raises(TypeError, match=r"can only concatenate tuple \(not list\)"):
        stretto.compile(lambda x: x.new_zeros(x.size() + [1]), backend="interpreter")(torch.ones(2))


def test_operators_made_of_others_that_have_no_operands() -> None:
    """`affine_grid` begins with `linspace` of a size of the call."""

    def warped(matrix: Tensor, image: Tensor) -> Tensor:
        grid = torch.nn.functional.affine_grid(matrix, list(image.shape), align_corners=False)
        return torch.nn.functional.grid_sample(image, grid, align_corners=False)

    fast = stretto.compile(warped, backend="interpreter")
    for size in ((2, 2, 4, 5), (3, 2, 6, 3), (4, 2, 5, 7)):
        matrix, image = torch.randn(size[0], 2, 3), torch.randn(size)
        torch.testing.assert_close(fast(matrix, image), warped(matrix, image))
