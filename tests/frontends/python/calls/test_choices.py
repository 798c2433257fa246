"""What is chosen by a tensor: modules, functions, the order of items."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stretto.ir.ops import IfOp
from tests.frontends.python.checks import check, count, run_captured

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        rows = []
        for row in x:
            rows.append(self.experts[self.gate(row).argmax()](row))
        return torch.stack(rows)


def test_a_module_is_chosen_by_a_gate() -> None:
    torch.manual_seed(0)
    captured = check(Experts().requires_grad_(False).eval(), (X,), (-X,), (X * 5 - 1,))
    assert count(captured, IfOp) >= 2


def chosen(x: Tensor, i: Tensor) -> Any:
    functions = (torch.sin, lambda v: v + 1, nn.ReLU())
    table = {0: torch.cos, -2: torch.tanh, 1: torch.exp, -1: torch.abs, 2: torch.neg, -3: torch.abs}
    mixed = [x, x[0], 3][int(i)] * 2
    return functions[i](x), table[i.item()](x), mixed


def test_functions_and_values_of_different_kinds() -> None:
    check(chosen, *((X, torch.tensor(i)) for i in (0, 1, 2, -1, -2, -3)))


def test_a_position_out_of_range_raises_as_in_python() -> None:
    fns = (torch.sin, torch.cos)
    captured = check(lambda x, i: fns[i](x), (X, torch.tensor(1)))
    with pytest.raises(IndexError, match="tuple index out of range"):
        run_captured(captured, (X, torch.tensor(2)), {})
    table = {1: torch.sin, 5: torch.cos}
    captured = check(lambda x, i: table[int(i)](x), (X, torch.tensor(5)))
    with pytest.raises(KeyError, match="3"):
        run_captured(captured, (X, torch.tensor(3)), {})


def ordered(x: Tensor, a: Tensor, b: Tensor) -> Any:
    numbers = (a.item(), b.item(), 4)
    pairs = [(int(a), "a"), (int(b), "b"), (4, "c")]
    return (
        min(numbers), max(numbers), sorted(numbers), sorted(numbers, reverse=True), max(int(a), 2),
        min([int(a), int(b)]), sorted([a * 0.5, b.item()]), max(pairs, key=lambda p: p[0])[0],
        sorted([x[0], x[1], x[2]], key=lambda row: (row.sum() * a).item()),
        max([x[0], x[1], x[2]], key=lambda row: (row.sum() * a).item()),
        [x * n for n, _ in sorted(pairs, key=lambda p: p[0])],
    )  # fmt: skip


def test_order_by_numbers_of_tensors() -> None:
    cases = [(3, 5), (5, 3), (4, 4), (-1, 9)]
    check(ordered, *((X, torch.tensor(a), torch.tensor(b)) for a, b in cases))


def of_math(x: Tensor) -> Any:
    one, other = x[0, 0].item(), x[0, 1].item()
    tests = math.isnan(one), math.isinf(one), math.isfinite(one)
    return tests, math.fabs(one), math.atan2(one, 2.0), math.hypot(3, other), math.trunc(one * 9)


def test_functions_of_math() -> None:
    check(of_math, (X,), (X + 3,))


class Checked:
    def __init__(self, x: Tensor) -> None:
        if x.sum() > 0:
            self.x = x
        else:
            self.x = x * 2

    def value(self) -> Tensor:
        return self.x + 1


def test_the_constructor_of_a_class_may_branch_on_a_tensor() -> None:
    check(lambda x: Checked(x).value(), (X,), (X + 1,), (X - 1,))
