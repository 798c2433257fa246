"""Slices of fixed lists, tuples and modules at positions that the run decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.frontends.python.checks import check, refused

X = torch.arange(6.0).view(3, 2) + 1
CASES = [(X, torch.tensor(k)) for k in (2, 0, 3, 7, -1, -9)]


def prefix(x: Tensor, n: Tensor) -> Tensor:
    total = torch.zeros(2)
    for row in [x[0], x[1], x[2]][: int(n)]:
        total = total * 0.5 + row
    return total


def suffix_from_behind(x: Tensor, n: Tensor) -> Tensor:
    total = torch.zeros(2)
    for row in reversed([x[0], x[1], x[2]][n:]):
        total = total * 0.5 + row
    return total


def of_a_tuple(x: Tensor, n: Tensor) -> Tensor:
    total = torch.zeros(2)
    for place, row in enumerate((x[0], x[1], x[2])[: int(n)]):
        total = total + row * place
    return total


def functions(x: Tensor, n: Tensor) -> Tensor:
    for function in [torch.tanh, torch.relu, torch.sigmoid][: int(n)]:
        x = function(x) + 0.1
    return x


def pairs(x: Tensor, n: Tensor) -> Tensor:
    total = torch.zeros(2)
    for weight, row in [(1, x[0]), (2.5, x[1]), (3, x[2])][int(n) :]:
        total = total + weight * row
    return total


def numbers(x: Tensor, n: Tensor) -> Tensor:
    return sum([0.5, 0.25, 0.125][: int(n)]) * x


def lengths(x: Tensor, n: Tensor) -> tuple[int, int]:
    return len((x, x, x)[: int(n)]), len([torch.tanh, 3][int(n) :])


def with_a_step(x: Tensor, n: Tensor) -> list[Tensor]:
    return [row * 2 for row in [x[0], x[1], x[2]][int(n) :: -1]]


def functions_with_a_step(x: Tensor, n: Tensor) -> Tensor:
    for function in (torch.tanh, torch.relu, torch.sigmoid)[int(n) :: -2]:
        x = function(x) + 0.1
    return x


def a_list_of_its_own(x: Tensor, n: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    rows = [x[0], x[1], x[2]]
    part = rows[: int(n)]
    part.append(x[2])
    part[0] = x[1]
    return part, rows


def in_a_loop(x: Tensor, n: Tensor) -> Tensor:
    for first in range(3):
        for function in [torch.tanh, torch.relu, torch.sigmoid][first : int(n)]:
            x = function(x) + 0.1
    return x


@pytest.mark.parametrize(
    "f",
    [
        prefix, suffix_from_behind, of_a_tuple, functions, pairs, numbers, lengths, with_a_step,
        functions_with_a_step, a_list_of_its_own, in_a_loop,
    ],
)  # fmt: skip
def test_equals_eager(f: Callable[..., Any]) -> None:
    check(f, *CASES)


def test_two_bounds() -> None:
    def f(x: Tensor, n: Tensor, m: Tensor) -> Tensor:
        total = torch.zeros(2)
        for row in [x[0], x[1], x[2]][int(n) : int(m)]:
            total = total * 2 + row
        return total

    bounds = [(0, 2), (1, 3), (2, 1), (-2, 9), (-9, -1)]
    check(f, *[(X, torch.tensor(n), torch.tensor(m)) for n, m in bounds])


def test_items_of_a_part() -> None:
    def f(x: Tensor, n: Tensor) -> Tensor:
        part = [x[0], x[1], x[2]][: int(n)]
        return part[-1] + part[0]

    check(f, *CASES[:1], *CASES[2:5])
    with pytest.raises(IndexError):
        check(f, *CASES[:2])


def test_modules_of_a_list() -> None:
    layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)])

    def f(x: Tensor, n: Tensor) -> Tensor:
        for layer in layers[: int(n)]:
            x = torch.tanh(layer(x))
        return x

    check(f, *CASES)


def test_a_write_to_an_item_is_refused() -> None:
    def f(x: Tensor, n: Tensor) -> Tensor:
        rows = [x[0] * 1, x[1] * 1, x[2] * 1]
        for row in rows[: int(n)]:
            row.add_(1)
        return torch.stack(rows)

    assert "is changed in place that may share memory" in str(refused(f, *CASES[0]))


def test_a_part_of_a_sequential_is_refused() -> None:
    layers = nn.Sequential(nn.Linear(2, 2), nn.Tanh())

    def f(x: Tensor, n: Tensor) -> Tensor:
        return layers[: int(n)](x)

    assert "a Sequential is sliced" in str(refused(f, *CASES[0]))


def test_a_long_slice_of_a_list_that_grew_in_a_loop_is_a_loop() -> None:
    def f(x: Tensor) -> tuple[Tensor, list[Tensor], int]:
        rows = []
        for i in range(x.shape[0]):
            rows.append(x[i] * i)
        return torch.stack(rows[::2]).sum(0), rows[-2:2:-3], len(rows[5:-3])

    captured = check(f, (torch.randn(300, 2),))
    assert len(str(captured.program)) < 10_000
