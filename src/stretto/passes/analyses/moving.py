"""Which ops may run earlier, later or where they would not have run."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.ir.core import Block, Op, Value
from stretto.ir.ops import (
    ConstantOp,
    ForOp,
    IfOp,
    ListExtendOp,
    ListLengthOp,
    ListNewOp,
    ListPushOp,
    LiteralOp,
    TensorOp,
)
from stretto.ir.rewrite import free_values_of_op
from stretto.ir.symbols import bound_symbols, symbols_bound_by, symbols_of_op
from stretto.ops.properties import stay_reason

LIST_OPS = (ListNewOp, ListPushOp, ListExtendOp, ListLengthOp)
"""Ops on lists that take every list."""


def may_stop(op: Op) -> bool:
    """Whether the op may stop the run, never end, or draw random numbers, which all are seen by
    who runs the program; or whether it binds a symbol, which holds behind a check only."""
    match op:
        case ConstantOp() | LiteralOp():
            return False
        case TensorOp():
            return stay_reason(op) is not None
        case IfOp() | ForOp():
            return any(may_stop(inner) for block in op.blocks for inner in block.ops)
        case _:
            return not isinstance(op, LIST_OPS)


def any_may_stop(ops: Iterable[Op]) -> bool:
    return any(may_stop(op) for op in ops)


def reads(op: Op) -> tuple[Value, ...]:
    """What the op and its blocks read from outside of it."""
    return free_values_of_op(op) if op.blocks else op.operands


def needed_for(ops: Iterable[Op], wanted: Iterable[Value]) -> set[Op]:
    """Those of some ops, given in order, that others of them or `wanted` are made from."""
    found: set[Op] = set()
    values = set(wanted)
    for op in reversed(list(ops)):
        if not values.isdisjoint(op.results):
            found.add(op)
            values.update(reads(op))
    return found


def made_from(ops: Iterable[Op], sources: Iterable[Value]) -> set[Op]:
    """Those of some ops, given in order, that read `sources`, or what is made from these."""
    found: set[Op] = set()
    values = set(sources)
    for op in ops:
        if not values.isdisjoint(reads(op)):
            found.add(op)
            values.update(op.results)
    return found


def names_own_sizes(op: Op, blocks: Iterable[Block]) -> bool:
    """Whether the op binds symbols, or names symbols that are bound in the blocks."""
    if symbols_bound_by(op):
        return True
    named = symbols_of_op(op)
    return bool(named) and any(not named.isdisjoint(bound_symbols(block)) for block in blocks)


def keeps_types(op: IfOp, place: int | None = None) -> bool:
    """Whether the arms yield the types of the results (of one of them) as they are, not renamed."""
    places = range(len(op.results)) if place is None else (place,)
    return all(arm.yields[one].type == op.results[one].type for arm in op.blocks for one in places)
