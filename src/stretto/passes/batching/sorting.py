"""Sorting small whole numbers of a length that the run decides, by ops that every machine has."""

from __future__ import annotations

from collections.abc import Callable

import torch

from stretto.ir.core import Block, Value
from stretto.ir.ops import ForOp, IfOp
from stretto.ir.sizes import Size
from stretto.ir.types import INDEX
from stretto.passes.batching.batch import Batch

MOST_COMPARED = 512
"""Items of which each is compared with each."""


def sorted_places(out: Batch, numbers: Value, number: Value) -> Value:
    """The place of each item in sorted order, equal ones in theirs. number: of items, which none of
    them exceeds.

    Few items are compared each with each, many are counted.
    """
    few = Batch(0)
    rank = compared_places(few, numbers)
    many, counted = _counted(numbers, number)
    found = Value(rank.type)
    is_few = out.emit("aten.le.Scalar", number, MOST_COMPARED)
    arms = Block((), few.ops, (rank,)), Block((), many.ops, (counted,))
    out.add(IfOp(is_few, *arms, results=(found,)))
    return found


def compared_places(out: Batch, numbers: Value) -> Value:
    """The same, each item compared with each."""
    place = out.emit("aten.arange.default", numbers.tensor.shape[0])
    earlier = compared(out, "aten.lt.Tensor", place, place)
    same = compared(out, "aten.eq.Tensor", numbers, numbers)
    lower = compared(out, "aten.lt.Tensor", numbers, numbers)
    before = out.emit("aten.logical_and.default", same, earlier)
    before = out.emit("aten.logical_or.default", lower, before)
    return out.emit("aten.sum.dim_IntList", before, (1,))


def not_above(out: Batch, numbers: Value) -> Value:
    """For each item how many are not above it."""
    found = compared(out, "aten.le.Tensor", numbers, numbers)
    return out.emit("aten.sum.dim_IntList", found, (1,))


def _counted(numbers: Value, number: Value) -> tuple[Batch, Value]:
    """The same, by the numbers of items below each one. No one is above the number."""
    out = Batch(0)
    size = (Size.of(numbers.tensor.shape[0]) + 2).dim
    below = out.emit("aten.zeros.default", (size,), dtype=torch.int64)

    def count(body: Batch, index: Value, carried: list[Value]) -> list[Value]:
        above = body.emit("aten.add.Tensor", _item(body, numbers, index), 1)
        more = body.emit("aten.add.Tensor", _item(body, carried[0], above), 1)
        return [_replaced(body, carried[0], above, more)]

    def sum_up(body: Batch, index: Value, carried: list[Value]) -> list[Value]:
        above = body.emit("aten.add.Tensor", index, 1)
        items = (_item(body, carried[0], one) for one in (index, above))
        return [_replaced(body, carried[0], above, body.emit("aten.add.Tensor", *items))]

    def place(body: Batch, index: Value, carried: list[Value]) -> list[Value]:
        one = _item(body, numbers, index)
        rank = _item(body, carried[0], one)
        behind = body.emit("aten.add.Tensor", rank, 1)
        places = _replaced(body, carried[1], index, rank)
        return [_replaced(body, carried[0], one, behind), places]

    (below,) = _loop(out, number, [below], count)
    (below,) = _loop(out, number, [below], sum_up)
    places = out.emit("aten.zeros.default", (numbers.tensor.shape[0],), dtype=torch.int64)
    return out, _loop(out, number, [below, places], place)[1]


def _loop(
    out: Batch,
    stop: Value,
    inits: list[Value],
    step: Callable[[Batch, Value, list[Value]], list[Value]],
) -> tuple[Value, ...]:
    """The results of a loop from 0 whose body `step` emits."""
    body, index = Batch(0), Value(INDEX, "i")
    carried = [Value(value.type) for value in inits]
    yields = tuple(step(body, index, carried))
    block = Block((index, *carried), body.ops, yields)
    results = tuple(Value(value.type) for value in inits)
    return out.add(ForOp(0, stop, 1, tuple(inits), block, results=results)).results


def _item(out: Batch, table: Value, index: Value) -> Value:
    return out.emit("aten.select.int", table, 0, index)


def _replaced(out: Batch, table: Value, index: Value, item: Value) -> Value:
    """The table with another item at the index."""
    return out.emit("aten.select_scatter.default", table, item, 0, index)


def compared(out: Batch, target: str, columns: Value, rows: Value) -> Value:
    """At [i, j] the comparison of columns[j] with rows[i]."""
    wide = out.emit("aten.unsqueeze.default", columns, 0)
    return out.emit(target, wide, out.emit("aten.unsqueeze.default", rows, 1))
