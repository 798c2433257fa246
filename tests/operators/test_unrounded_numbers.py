"""Products and quotients in half precision by a tensor of one element of another dtype: ATen takes
this element as it is, and rounds once. All other operators round it first. Bit by bit as eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stretto
from tests.sampling import every

HALVES = (torch.bfloat16, torch.float16)
NUMBERS = ((torch.float32, 0.123456), (torch.float64, 1.23456789), (torch.int64, 257))
OTHER_HALVES = ((torch.bfloat16, 0.3), (torch.float16, 0.3))


def operators(x: torch.Tensor, s: torch.Tensor) -> list[torch.Tensor]:
    return [
        x * s,
        s * x,
        x / s,
        s / x,
        x + s,
        s - x,
        torch.sub(x, s, alpha=2),
        torch.floor_divide(x, s),
        torch.div(x, s, rounding_mode="trunc"),
        torch.div(s, x, rounding_mode="trunc"),
        torch.div(x, 0.123456, rounding_mode="trunc"),
        torch.div(x, x.flip(0), rounding_mode="trunc"),
        x * 0.123456,
        torch.maximum(x, s),
        torch.where(x > 0, x, s),
        x < s,
        x == s,
        x.mul(s.reshape(1)) if s.dtype is torch.int64 else x,
    ]


def assert_same(found: Any, wanted: Any) -> None:
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one.dtype == other.dtype
        assert torch.equal(one, other), (place, int((one != other).sum()))


@pytest.mark.parametrize(("dtype", "number"), every(5, HALVES, (*NUMBERS, *OTHER_HALVES)))
def test_numbers_as_tensors(dtype: torch.dtype, number: tuple[torch.dtype, Any]) -> None:
    torch.manual_seed(0)
    x = torch.randn(300).to(dtype)
    scalar = torch.tensor(number[1], dtype=number[0])
    found = stretto.compile(operators, backend="cpu")(x, scalar)
    assert_same(found, operators(x, scalar))


def products(x: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * s, x / s, x + s, s * x, torch.floor_divide(x, s)


def of_rows(x: torch.Tensor, numbers: torch.Tensor) -> list[torch.Tensor]:
    """A loop whose iterations run at once."""
    found: list[torch.Tensor] = []
    for k in range(6):
        found.extend(products(x[k], numbers[k]))
    return found


def one_by_one(x: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return products(x, s)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("run", [of_rows, one_by_one])
def test_numbers_in_a_batch(run: Callable[..., Any], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, numbers = torch.randn(6, 40).to(dtype), torch.randn(6)
    wanted = of_rows(x, numbers)
    if run is of_rows:
        assert_same(stretto.compile(run, backend="cpu")(x, numbers), wanted)
        return
    found = stretto.batch(run, backend="cpu")(list(x), list(numbers))
    assert_same([item for row in found for item in row], wanted)
