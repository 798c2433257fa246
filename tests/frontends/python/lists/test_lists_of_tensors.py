"""`tolist()` of tensors whose length data decide: lists of Python numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.frontends.python.checks import check, refused

VALUES = ([1, 2, 3, -1, 0], [-1, 5, 1, 3, -2], [0, 0, 0, 0, 0], [3, 3, 3, 3, 3], [1, 2, 3, 4, 5])
CASES = tuple((torch.tensor(values),) for values in VALUES)

W = torch.arange(10.0).reshape(2, 5)


def what_lists_do(x: Tensor) -> Any:
    items = x[x > 0].tolist()
    total = 0
    for number in items:
        total += number
    found = [i for i, number in enumerate(items) if number >= 3]
    return (
        total,
        sum(items),
        len(items),
        items,
        [n * 2 for n in items],
        found,
        3 in items,
        9 in items,
    )


def slices(x: Tensor) -> Any:
    items = x[x > 0].tolist()
    last = len(items) // 2
    return (
        items[1:],
        items[-2:],
        items[:-1],
        items[last:],
        items[:-last],
        items[::-1],
        items[-last:2],
    )


def comparisons(x: Tensor) -> Any:
    items = x[x > 0].tolist()
    flags = [number >= 3 for number in items]
    return (
        flags[-2:] == [False, True],
        items[-2:] != [1, 3],
        [1, 2, 3] == items,  # noqa: SIM300
        items == items[:3],
        items == [],
        flags == [1, 0],
        items == [True, 2, 3],
        items == ["a", None, 2],
        items == (1, 2, 3),
        items != items,
    )


def orders(x: Tensor) -> Any:
    items = x[x > 0].tolist()
    return (
        items < [1, 3],
        items <= [1, 2, 3],
        items > [],
        items >= items[:2],
        [2] < items,  # noqa: SIM300
        [] < items,  # noqa: SIM300
    )


def searches(x: Tensor) -> Any:
    items = x[x >= 0].tolist()
    return items.count(3), items.count("a"), items.index(0) if 0 in items else -1


def a_branch_on_a_comparison(x: Tensor) -> Tensor:
    items = x[x > 0].tolist()
    for _ in range(3):
        if items[:2] == [1, 2]:
            items = items[1:]
        elif items:
            items.append(len(items))
            x = x + items[0]
    return x + len(items)


def tensors_again(x: Tensor) -> Any:
    items = x[x >= 0].tolist()
    made = torch.tensor(items)
    y = torch.zeros(2, 6)
    y[:, items] = 2.0
    return made, x[items[:1]], torch.arange(6.0)[made], y, torch.tensor([n > 2 for n in items])


def positions(x: Tensor) -> Any:
    items = (x > 2).nonzero().flatten().tolist()
    y = x.clone()
    y[items] = 7
    return x[items], W[:, items], y, x[[i == i % 2 for i in (0, 1, 2, 3, 4)]]


@pytest.mark.parametrize(
    "function",
    [
        *(what_lists_do, slices, comparisons, orders, searches, a_branch_on_a_comparison),
        *(tensors_again, positions),
    ],
)
def test_of_a_length_that_data_decide(function: Callable[..., Any]) -> None:
    cases = CASES if function not in (searches, tensors_again) else (*CASES[:1], *CASES[3:])
    check(function, *cases)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.bool])
def test_numbers_of_every_dtype(dtype: torch.dtype) -> None:
    def listed(x: Tensor, mask: Tensor) -> Any:
        items = x.to(dtype)[mask].tolist()
        return items, [0 if item else 1 for item in items]

    check(listed, *((CASES[0][0], torch.arange(5) < n) for n in (3, 0, 5)))


def test_rows_and_columns() -> None:
    def listed(x: Tensor) -> Any:
        return torch.stack([x[x > 0], x[x > 0] * 2]).tolist()

    check(listed, *CASES)


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
def test_on_machines(backend: str) -> None:
    fast = stretto.compile(comparisons, backend=backend)
    for case in CASES:
        assert fast(*case) == comparisons(*case)


def test_lists_of_floats_are_not_compared() -> None:
    """Python compares doubles, and finds an object that is not a number equal to itself."""

    def compared(x: Tensor) -> Any:
        return (x[x > 0] * 0.1).tolist() == [0.1]

    error = refused(compared, *CASES[0])
    assert "not all items are integers or flags" in str(error) and error.remedy
