"""How long a list may become: abstract interpretation of list lengths in a function."""

from __future__ import annotations

from stretto.ir.core import Block, Function, Value
from stretto.ir.ops import (
    CallOp,
    ForOp,
    IfOp,
    ListNewOp,
    ListPopOp,
    ListPushOp,
    ListSetOp,
    WhileOp,
)


class Unbounded(Exception):
    """The list grows by a number of items that is not known before the run."""


def capacity_of(function: Function, new: ListNewOp) -> int | None:
    """The most items that the list made by `new` (and what it grows into) ever has; None when unbounded."""
    lengths: dict[Value, int] = {}
    try:
        _run(function.body, new, lengths)
    except Unbounded:
        return None
    return max(lengths.values(), default=0)


def returned_lists(function: Function, new: ListNewOp) -> set[Value]:
    """{new.result} when the list, or what it grows into, is a result of the function, else nothing."""
    lengths: dict[Value, int] = {}
    try:
        _run(function.body, new, lengths)
    except Unbounded:
        return {new.result}
    return {new.result} if any(value in lengths for value in function.body.yields) else set()


def _run(block: Block, new: ListNewOp, lengths: dict[Value, int]) -> None:
    for op in block.ops:
        match op:
            case ListNewOp():
                if op is new:
                    lengths[op.result] = len(op.items)
            case ListPushOp(list=source):
                if source in lengths:
                    lengths[op.result] = lengths[source] + 1
            case ListSetOp(list=source) | ListPopOp(list=source):
                if source in lengths:
                    lengths[op.results[0]] = lengths[source]
            case IfOp():
                _run_if(op, new, lengths)
            case ForOp() | WhileOp():
                _run_loop(op, new, lengths)
            case CallOp():
                if any(value in lengths for value in op.arguments):
                    raise Unbounded
            case _:
                pass


def _run_if(op: IfOp, new: ListNewOp, lengths: dict[Value, int]) -> None:
    for block in op.blocks:
        _run(block, new, lengths)
    for number, result in enumerate(op.results):
        found = [lengths[b.yields[number]] for b in op.blocks if b.yields[number] in lengths]
        if found:
            lengths[result] = max(found)


def _run_loop(op: ForOp | WhileOp, new: ListNewOp, lengths: dict[Value, int]) -> None:
    trips = op.trip_count() if isinstance(op, ForOp) else None
    params = op.carried if isinstance(op, ForOp) else op.body.params
    tracked = [n for n, init in enumerate(op.inits) if init in lengths]
    for number in tracked:
        lengths[params[number]] = lengths[op.inits[number]]
    _run(op.body, new, lengths)
    grows = False
    for number in tracked:
        init = lengths[op.inits[number]]
        growth = lengths.get(op.body.yields[number], 0) - init
        if growth > 0 and trips is None:
            raise Unbounded
        lengths[params[number]] = init + growth * max((trips or 1) - 1, 0) if growth > 0 else init
        grows = grows or growth > 0
    if grows:
        _run(op.body, new, lengths)
    for number, result in enumerate(op.results):
        ends = [lengths[v] for v in (op.inits[number], op.body.yields[number]) if v in lengths]
        if ends:
            lengths[result] = max(ends)
