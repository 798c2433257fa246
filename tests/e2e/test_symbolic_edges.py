"""Sizes of 0 and 1 where eager PyTorch gives another rank, or an error: guards tell them apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import stretto
from tests.frontends.python.checks import assert_same

SHAPES = ((5, 3), (1, 4), (0, 3), (4, 0), (1, 1), (2, 7))

REDUCTIONS: tuple[Callable[[Tensor], object], ...] = (
    lambda x: x.max(), lambda x: x.max(-1), lambda x: x.amin(0), lambda x: x.amax((0, 1)),
    lambda x: x.argmax(-1), lambda x: x.argmin(), torch.aminmax, lambda x: x.min(0).values,
    lambda x: x.median(0).values, lambda x: x.mode().values,
)  # fmt: skip
SQUEEZES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: (x + 1).squeeze(),
    lambda x: (x + 1).squeeze(0),
    lambda x: (x + 1).squeeze((0, 1)),
)


def outcome(function: Callable[[Tensor], object], x: Tensor) -> object:
    """The results, or the class of the error."""
    try:
        return function(x)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("function", [*REDUCTIONS, *SQUEEZES])
def test_every_size_gives_what_eager_gives(function: Callable[[Tensor], object]) -> None:
    compiled = stretto.compile(function, backend="interpreter", dynamic=True)
    for shape in SHAPES:
        x = torch.randn(shape)
        found, expected = outcome(compiled, x), outcome(function, x)
        if isinstance(expected, type):
            assert isinstance(found, type) and issubclass(found, expected)
        else:
            assert_same(found, expected)
    assert len(compiled.signatures) < len(SHAPES)


DIVISIONS: tuple[Callable[[Tensor, int], object], ...] = (
    lambda x, n: x.select(-1, n % x.shape[-1]),
    lambda x, n: x[n // 2 % len(x)],
    lambda x, n: x * (2 if len(x) % n == 0 else 3),
    lambda x, n: x[: len(x) // n],
)


@pytest.mark.parametrize("function", DIVISIONS)
def test_a_size_that_divides_may_be_zero(function: Callable[[Tensor, int], object]) -> None:
    compiled = stretto.compile(function, backend="interpreter", dynamic=True)
    for size, n in ((5, 3), (3, 7), (0, 5), (1, 0), (4, 4), (8, 2)):
        x = torch.randn(size)
        found = outcome(lambda t, n=n: compiled(t, n), x)
        expected = outcome(lambda t, n=n: function(t, n), x)
        if isinstance(expected, type):
            assert isinstance(found, type) and issubclass(found, expected)
        else:
            assert_same(found, expected)


def test_printed_code_never_looks_for_the_largest_of_nothing() -> None:
    """It would read a row that has no elements."""

    def largest(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.max(-1)

    compiled = stretto.compile(largest, dynamic=True)
    for shape in SHAPES:
        x = torch.randn(shape)
        if shape[1] == 0:
            with pytest.raises(IndexError, match="non-zero size"):
                compiled(x)
        else:
            assert_same(compiled(x), largest(x))


def test_a_squeezed_size_that_data_decide_may_be_one() -> None:
    compiled = stretto.compile(lambda x: x.nonzero().squeeze() * 2)
    for count in (0, 2, 3, 1, 2):
        x = torch.arange(6) < count
        assert_same(compiled(x), x.nonzero().squeeze() * 2)
