"""`sorted`, `min` and `max` of tuples that hold numbers of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.frontends.python.checks import assert_same

X = torch.tensor([[1.0, 2.0], [0.5, 0.5], [2.0, 1.0], [0.25, 0.75]])


def by_two(x: Tensor) -> Any:
    pairs = sorted((float(row.sum()), -i) for i, row in enumerate(x))
    return pairs, x * pairs[0][0]


def backwards(x: Tensor) -> Any:
    return sorted(((float(row.sum()), i, row) for i, row in enumerate(x)), reverse=True)


def best(x: Tensor) -> Any:
    least = min((float(row.sum()), name) for row, name in zip(x, "dcba", strict=True))
    most = max((int(row.max()), i) for i, row in enumerate(x))
    return least[0], most


def by_key_of_two(x: Tensor) -> Any:
    rows = list(x)
    return max(rows, key=lambda row: (row.sum(), row[0])), sorted(
        rows, key=lambda row: (float(row.sum()), -float(row[1]))
    )


@pytest.mark.parametrize("function", [by_two, backwards, best, by_key_of_two])
def test_tuples_are_compared_item_by_item(function: Callable[..., Any]) -> None:
    fast = stretto.compile(function, backend="interpreter")
    for x in (X, -X, X.flip(0), torch.ones(4, 2)):
        assert_same(fast(x), function(x))


@pytest.mark.filterwarnings("ignore:.*requires grad")
@pytest.mark.parametrize("fallback", [False, True])
def test_gradients_inside_run_eager(fallback: bool) -> None:
    def slope(x: Tensor) -> Tensor:
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            (found,) = torch.autograd.grad((y**3).sum(), y)
        return found * 2

    with torch.no_grad():
        fast = stretto.compile(slope, backend="interpreter", fallback=fallback)
        for _ in range(2):
            assert_same(fast(X), slope(X))
