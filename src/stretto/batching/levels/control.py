"""Loops of a block for many instances at once.

A loop whose bounds are the same for all rows runs once for all of them. A carried value that is the
same for all rows in each iteration stays one for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from stretto.ir.core import Block, Op, Value
from stretto.ir.ops import ForOp
from stretto.ir.sizes import Size
from stretto.ir.types import INDEX, TensorType
from stretto.passes.batching.batch import Batch, Stays


class Region(Protocol):
    """What makes the twins of the ops of one region (levels/batched.py)."""

    batch: Batch
    loops: list[Any]
    """The operators that run once per row."""

    def inner(self, params: Sequence[Value]) -> Region:
        """The same for a region inside, whose params these are."""
        ...

    def visit(self, op: Op) -> None: ...


def batched_for(region: Region, op: ForOp) -> None:
    """A loop, for all rows. Raises Stays where rows differ in its bounds."""
    batch = region.batch
    start, stop = _bound(batch, op.start), _bound(batch, op.stop)
    inits = list(op.inits)
    differs = {n for n, init in enumerate(inits) if batch.is_batched(init)}
    index = Value(INDEX, op.index.hint)
    while True:
        params = [Value(_type(batch, v, n in differs), v.hint)
                  for n, v in enumerate(op.carried)]  # fmt: skip
        inner = region.inner((index, *params))
        inner.batch.invariants[op.index] = index
        for n, (value, param) in enumerate(zip(op.carried, params, strict=True)):
            known = inner.batch.twins if n in differs else inner.batch.invariants
            known[value] = param
        for body_op in op.body.ops:
            inner.visit(body_op)
        changed = {n for n, v in enumerate(op.body.yields) if inner.batch.is_batched(v)} - differs
        if not changed:
            break
        differs |= changed
    region.loops += inner.loops
    given = tuple(
        batch.expanded(v) if n in differs else batch.operand(v) for n, v in enumerate(inits)
    )
    yields = tuple(
        inner.batch.expanded(v) if n in differs else inner.batch.operand(v)
        for n, v in enumerate(op.body.yields)
    )
    results = tuple(Value(param.type, v.hint) for param, v in zip(params, op.results, strict=True))
    body = Block((index, *params), inner.batch.ops, yields)
    batch.add(ForOp(start, stop, op.step, given, body, results=results))
    for n, (value, result) in enumerate(zip(op.results, results, strict=True)):
        known = batch.twins if n in differs else batch.invariants
        known[value] = result


def _bound(batch: Batch, bound: int | Size | Value) -> int | Size | Value:
    if isinstance(bound, Value):
        if batch.is_batched(bound):
            raise Stays("the number of iterations differs from row to row")
        return batch.operand(bound)
    return bound


def _type(batch: Batch, value: Value, differs: bool) -> TensorType:
    type_ = value.type
    if not isinstance(type_, TensorType):
        raise Stays("it carries a list")
    return TensorType(type_.dtype, (batch.length, *type_.shape)) if differs else type_
