"""`return` of a structure inside a loop that is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import stretto
from stretto.options import Debug, Options
from tests.frontends.python.checks import check, structure


class Pair(NamedTuple):
    value: Tensor
    name: str


@dataclass
class Record:
    value: Tensor
    count: int


def in_while(x: Tensor, n: Tensor) -> tuple[Tensor, int]:
    k = 0
    while k < n:
        k += 1
        x = x * 2
        if x.sum() > 20:
            return x - 1, k
    return x, -1


def in_while_true(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    k = 0
    while True:
        k += 1
        if k > n or x.sum() > 30:
            return x, torch.tanh(x)
        x = x + k


def in_for(x: Tensor, n: Tensor) -> Any:
    for i in range(n):
        for j in range(3):
            x = x + j
            if x.sum() > 25:
                return Pair(x, "early"), [x * 2, None, i], {"a": (x, 1.5)}
    return Pair(x * 3, "early"), [x, None, 7], {"a": (x, 2.5)}


def in_for_over_rows(x: Tensor, n: Tensor) -> Record:
    rows = x.repeat(9, 1)
    for i, row in enumerate(rows):
        x = x + row * n
        if x.max() > 30:
            return Record(x, i)
    return Record(-x, 0)


def of_a_list(x: Tensor, n: Tensor) -> tuple[Tensor, list[Tensor]]:
    items = [x]
    while len(items) < n:
        items.append(items[-1] + 1)
        if items[-1].sum() > 20:
            return x, [items[0], items[-1]]
    return x, [x, x]


CALLS = [(torch.ones(3), torch.tensor(n)) for n in (5, 0, 1, 9)]


@pytest.mark.parametrize("function", [in_while, in_while_true, in_for, in_for_over_rows, of_a_list])
@pytest.mark.parametrize("unroll", [0, 2])
def test_a_structure_is_returned(function: Any, unroll: int) -> None:
    calls = [*CALLS, (torch.ones(3) * 9, torch.tensor(4))]
    captured = check(function, *calls, options=Options(debug=Debug(unroll=unroll)))
    assert "while" in structure(captured)


def returned_and_changed(y: Tensor, z: Tensor) -> tuple[int, Tensor]:
    """What is returned is, in another round, memory that is changed behind it."""
    v = torch.ones_like(y)
    if z.sum() > 0.5:
        for _ in range(9):
            if v.sum() > 0:
                return 0, y
            y = v
            y *= 0.5
    return 0, y.clamp(1.0)


def kept_and_changed(y: Tensor, z: Tensor) -> Tensor:
    v, kept = torch.ones_like(y), (y, 0)
    for _ in range(9):
        if v.sum() > z:
            kept = (v, 1)
        v = v * 0.5 if z > 0 else v
        v += 0.5
    return kept[0] + 1


@pytest.mark.parametrize("function", [returned_and_changed, kept_and_changed])
def test_a_part_of_a_structure_that_is_not_known_is_no_other(function: Any) -> None:
    for number in (0.0, 1.0):
        inputs = torch.tensor([0.3]), torch.tensor(number)
        try:
            found = stretto.compile(function, backend="interpreter")(*map(torch.clone, inputs))
        except stretto.CaptureError as error:
            assert "may share memory" in str(error)
        else:
            torch.testing.assert_close(found, function(*inputs))
