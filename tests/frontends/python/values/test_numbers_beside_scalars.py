"""A number that the run knows, beside a 0-d tensor: the dtype of the tensor counts, as in eager."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto

OPERATORS: tuple[Callable[[Any, Any], Any], ...] = (
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.mod),
    *(operator.floordiv, operator.lt, operator.le, operator.eq, operator.ne),
)
DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64),
    *(torch.uint8, torch.bool),
)


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except (RuntimeError, TypeError, ValueError) as error:
        return type(error)


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize("number", [torch.float32, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype: torch.dtype, number: torch.dtype, backend: str) -> None:
    x = torch.tensor([3.3 if dtype.is_floating_point else 3, 1]).to(dtype)
    y = torch.tensor(2.7).to(number)
    fitting = [
        function
        for function in OPERATORS
        if isinstance(outcome(lambda x, y, f=function: f(x[0], y.item()), x, y), Tensor)
        and isinstance(outcome(lambda x, y, f=function: f(y.item(), x[0]), x, y), Tensor)
    ]

    def every(x: Tensor, y: Tensor) -> list[Tensor]:
        n = y.item()
        return [function(x[0], n) for function in fitting] + [
            function(n, x[0]) for function in fitting
        ]

    found: list[Tensor] = stretto.compile(every, backend=backend)(x, y)
    assert len(fitting) > 4
    for one, other in zip(found, every(x, y), strict=True):
        torch.testing.assert_close(one, other)


def test_in_place() -> None:
    def scaled(x: Tensor, y: Tensor) -> Tensor:
        total = x.half().sum()
        total *= y.item()
        total -= float(y)
        return total

    args = torch.arange(4.0), torch.tensor(2.7).double()
    torch.testing.assert_close(stretto.compile(scaled)(*args), scaled(*args))


def test_a_constant() -> None:
    one = torch.tensor(1.5).half()

    def function(y: Tensor) -> tuple[Tensor, ...]:
        n = y.item()
        return one * n, n - one, one > n

    y = torch.tensor(2.7).double()
    for found, wanted in zip(stretto.compile(function)(y), function(y), strict=True):
        torch.testing.assert_close(found, wanted)
