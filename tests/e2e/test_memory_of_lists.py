"""Lists and tensors written at run-time positions, where all memory is shared that may be."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from checks.fuzz.machines import MACHINES, spread
from tests.frontends.python.checks import assert_same


def first_item_again(a: Tensor, rows: Tensor) -> Any:
    items = [a, a * a]
    for row in rows:
        row[..., 0] = a * 3
        items = items + [items[0]]  # noqa: RUF005
        items = items + [items[0]]  # noqa: RUF005
        a = a - 1
    return a, items[0]


def copied_in_one_arm(a: Tensor, rows: Tensor) -> Any:
    items = [a, a * a]
    for row in rows:
        row[..., 0] = a * 3
        more = [a, a * 2, a * 3] if row.sum() > 4 else items + [a]  # noqa: RUF005
        more.append(more[0])
        items.append(more[-1])
        a = a - more[1]
    return a, items[0]


def _written_at_a_position(a: Tensor, n: Tensor) -> Tensor:
    if n <= 0:
        return a.max() + a
    a[n % 3] += -1.0
    return _written_at_a_position(a * 0.5, n - 1)


def argument_written_in_recursion(a: Tensor, rows: Tensor) -> Any:
    made, result = rows[0, 0].sqrt(), a
    n = (a * 3).long()
    for row in rows:
        result = _written_at_a_position(made, n) + row
    return made, result


@pytest.mark.parametrize("machine", ["emulator", "cpu-2"])
@pytest.mark.parametrize(
    "function", [first_item_again, copied_in_one_arm, argument_written_in_recursion]
)
def test_same(function: Callable[..., Any], machine: str, tmp_path: Path) -> None:
    with spread():
        fast = MACHINES[machine].compile(function, seed=0, folder=str(tmp_path))
        for value in (0.7, -0.4, 1.2):
            given = torch.tensor(value), torch.linspace(0.1, 0.9, 27).view(3, 3, 3)
            eager = copy.deepcopy(given)
            assert_same(fast(*given), function(*eager))
            assert_same(given, eager)
