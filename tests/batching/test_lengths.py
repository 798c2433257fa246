"""Tensors whose number of rows the instance decides: every operator is right for every number."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stretto
from stretto.batching.instance_program import BlockStep, StaticBlock
from stretto.batching.levels.tables import least_lengths, length_groups
from stretto.errors import CaptureError
from stretto.ir.data import OperandPlaceholder, Operation
from stretto.ir.types import DType, RowsType, TensorType
from tests.batching.test_batched import check

VECTOR = TensorType(DType.F32, (4,))
SCALARS = TensorType(DType.F32, ())


def lists(lengths: tuple[int, ...]) -> list[list[torch.Tensor]]:
    torch.manual_seed(sum(lengths))
    return [[torch.randn(4) for _ in range(length)] for length in lengths]


class Pooled(nn.Module):
    """Attention over the rows, and other operators that take several tensors of one length."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(4, 4)
        self.query = nn.Parameter(torch.randn(4))

    def forward(self, rows: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        x = torch.stack(rows)
        weights = torch.softmax(torch.tanh(self.key(x)) @ self.query, 0)
        return (
            (weights[:, None] * x).sum(0),
            weights @ x,
            torch.where(x > 0, x, 0.5).sum(),
            (x * x.mean(0, keepdim=True)).amax(0),
            F.layer_norm(x + torch.tanh(x), (4,)),
        )


def reduced(rows: list[torch.Tensor]) -> tuple[Any, ...]:
    x = torch.stack(rows)
    best, place = x.max(0)
    return best, place, x.sum(1).argmax(), x[torch.tensor([0, -1])], x.std(0, correction=0)


def ordered(rows: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Operators that have no kernel of their own."""
    x = torch.stack(rows)
    return x.sort(0).values, x.sum(1).topk(1).values


class Recurrent(nn.Module):
    """A module that is two loops over the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3, bidirectional=True)

    def forward(self, rows: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        x = torch.stack(rows)
        every, (last, _) = self.lstm(x[:, None])
        return every[:, 0], last


def at_least_three(rows: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    x = torch.stack(rows)
    return x.narrow(0, 0, 3).sum(0), x.topk(2, 0).values


def test_operators_that_need_several_rows() -> None:
    many = stretto.batch(at_least_three)
    check(many, at_least_three, lists((3, 4, 9)))
    for length in (1, 2):
        instances = lists((5, length, 3))
        with pytest.raises(RuntimeError) as wanted:
            at_least_three(instances[1])
        with pytest.raises(RuntimeError) as found:
            many(instances)
        assert str(wanted.value).splitlines()[0] in str(found.value)
    check(many, at_least_three, lists((3, 3)))


@pytest.mark.whole
@pytest.mark.parametrize("function", [Pooled(), reduced, ordered, Recurrent()])
def test_operators_on_any_number_of_rows(function: Callable[..., Any]) -> None:
    if isinstance(function, nn.Module):
        function.eval()
    many = stretto.batch(function)
    instances = lists((3, 1, 7, 3, 2, 1, 40))
    check(many, function, instances)
    random.Random(3).shuffle(instances)
    check(many, function, instances)
    check(many, function, instances[:1])
    with pytest.raises(RuntimeError):  # stack
        many([instances[0], []])
    check(many, function, instances[1:2])


def test_a_tensor_without_rows_ends_its_instance_alone() -> None:
    def largest(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).max(0).values

    many = stretto.batch(largest)
    check(many, largest, [torch.randn(3, 4), torch.randn(1, 4)])
    with pytest.raises(IndexError) as wanted:
        largest(torch.empty(0, 4))
    with pytest.raises(IndexError) as found:
        many([torch.randn(3, 4), torch.empty(0, 4)])
    assert str(wanted.value).splitlines()[0] in str(found.value)
    check(many, largest, [torch.randn(2, 4), torch.randn(3, 4)])


def block(*steps: BlockStep, inputs: tuple[Any, ...], outputs: tuple[int, ...]) -> StaticBlock:
    return StaticBlock("block", inputs, steps, outputs)


def added(first: int, second: int) -> BlockStep:
    operation = Operation(
        torch.add, (OperandPlaceholder(0), OperandPlaceholder(1)), (), (RowsType(VECTOR),)
    )
    return BlockStep(operation, (first, second))


def test_groups_of_one_length() -> None:
    rows = (RowsType(VECTOR),) * 4
    found = block(added(2, 3), added(1, 4), inputs=rows, outputs=(4, 5))
    assert length_groups(found) == {0: 0, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1}
    apart = block(added(0, 1), added(2, 3), inputs=rows, outputs=(4, 5))
    assert length_groups(apart) == {0: 0, 1: 0, 2: 2, 3: 2, 4: 0, 5: 2}


def test_groups_that_are_not_empty() -> None:
    largest = BlockStep(Operation(torch.amax, (OperandPlaceholder(0), 0), (), (VECTOR,)), (0,))
    total = BlockStep(Operation(torch.sum, (OperandPlaceholder(0), 0), (), (VECTOR,)), (1,))
    found = block(largest, total, inputs=(RowsType(VECTOR),) * 2, outputs=(2, 3))
    assert least_lengths(found) == {0: 1, 1: 0}


def test_an_operator_for_some_numbers_of_rows_only_is_refused() -> None:
    many = stretto.batch(lambda rows: torch.stack(rows).narrow(0, 0, 20))
    with pytest.raises(CaptureError, match="some numbers of rows only") as found:
        many(lists((21, 22)))
    assert "narrow" in str(found.value)
