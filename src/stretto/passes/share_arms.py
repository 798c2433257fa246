"""Sharing between arms: work that both arms of a branch do is done once, before or after the
branch.

An op of one arm moves before the branch if the other arm has an equal one, both read only
values from outside the arms, and neither can stop the run. It then runs beside the other
ops there, whichever arm is taken, and needs one kernel. A product stays if an arm has the
elementwise op that follows it: this is done while the product's result is in registers.

An op moves after the branch if both arms yield its result on different values: the branch
then yields these values. This is done for products, which cost more than a branch, if no
large value must be copied for it; and for pushes to a list, which then need no branch.

    %y = if %c {                                %p = aten.mm.default(%x, %w)
      %a = aten.mm.default(%x, %w)              %r = if %c {
      %b = aten.softmax.int(%a, 0)                %b = aten.softmax.int(%p, 0)
      %s = aten.mm.default(%b, %v)                yield %b
      yield %s                         =>       } else {
    } else {                                      %e = aten.cumsum.default(%p, 0)
      %d = aten.mm.default(%x, %w)                yield %e
      %e = aten.cumsum.default(%d, 0)           }
      %t = aten.mm.default(%e, %v)              %y = aten.mm.default(%r, %v)
      yield %t
    }

Needs equal ops merged within each arm. Guarantees the same numbers; types and checks stay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from stretto.ir.core import Block, Op, Program, Value
from stretto.ir.ops import IfOp, ListPushOp, TensorOp
from stretto.ir.rewrite import (
    Definitions,
    Replacement,
    clone_op,
    defined_values,
    rewrite_program,
    substitute,
    users,
    uses,
)
from stretto.ir.symbols import bound_symbols, symbols_of_types
from stretto.ops.properties import is_contraction, properties
from stretto.passes.analyses.op_facts import keeps_types, may_stop, names_own_sizes
from stretto.passes.cse import keep_reason, op_key

_MOST_COPIED = 4096
"""Largest number of bytes of a value from outside the arms that is copied because a branch yields
it."""


@dataclass(frozen=True, slots=True)
class ShareArms:
    name: ClassVar[str] = "share_arms"

    def apply(self, program: Program) -> bool:
        return rewrite_program(program, _visit)


def _visit(op: Op, _: Definitions) -> Replacement | None:
    if not isinstance(op, IfOp):
        return None
    before = _common(op)
    results = op.results
    behind: list[Op] = []
    while (sunk := _sink_one(op)) is not None:
        behind.insert(0, sunk)  # an op that was sunk earlier may read it
    return ([*before, op, *behind], results) if before or behind else None


# ---- before the branch -----------------------------------------------------------------------


def _common(op: IfOp) -> list[Op]:
    """Remove from both arms the ops that both compute, and return them in an order in which they
    can run."""
    inside = {value for block in op.blocks for value in defined_values(block)}
    others: dict[Hashable, list[Op]] = defaultdict(list)
    for other in op.orelse.ops:
        if _may_move(other, op.blocks):
            others[_kind(other)].append(other)
    moved: list[Op] = []
    taken: set[Op] = set()
    renamed: dict[Value, Value] = {}
    for one in op.then.ops:
        if not others.get(_kind(one)) or not inside.isdisjoint(one.operands):
            continue
        if not _may_move(one, op.blocks):
            continue
        twin = _equal(one, others[_kind(one)], inside, renamed)
        if twin is None or _has_epilogue(one, op.then) or _has_epilogue(twin, op.orelse):
            continue
        others[_kind(one)].remove(twin)
        taken |= {one, twin}
        inside.difference_update(one.results, twin.results)
        renamed.update(zip(twin.results, one.results, strict=True))
        moved.append(one)
    for block in op.blocks:
        block.ops = [item for item in block.ops if item not in taken]
    substitute(op.orelse, renamed)
    return moved


def _may_move(op: Op, arms: tuple[Block, ...]) -> bool:
    return keep_reason(op) is None and not may_stop(op) and not names_own_sizes(op, arms)


def _has_epilogue(op: Op, arm: Block) -> bool:
    """True if a product's only reader is an elementwise op of the arm."""
    if not is_contraction(op):
        return False
    readers = users(arm).get(op.results[0], [])
    return (
        len(readers) == 1
        and op.results[0] not in arm.yields
        and isinstance(readers[0], TensorOp)
        and properties(readers[0].target).elementwise
    )


def _kind(op: Op) -> Hashable:
    return op.target if isinstance(op, TensorOp) else type(op)


def _equal(
    one: Op, candidates: list[Op], inside: set[Value], renamed: dict[Value, Value]
) -> Op | None:
    key = op_key(one)
    for other in candidates:
        other.substitute(lambda value: renamed.get(value, value))
        if inside.isdisjoint(other.operands) and op_key(other) == key:
            return other
    return None


# ---- behind the branch -----------------------------------------------------------------------


def _sink_one(op: IfOp) -> Op | None:
    """Remove an op from the end of both arms and return the op that replaces it; None if there is
    none."""
    counts = [uses(block) for block in op.blocks]
    for place in range(len(op.results)):
        one, other = (
            _last(block, block.yields[place], count)
            for block, count in zip(op.blocks, counts, strict=True)
        )
        if one is None or other is None or not keeps_types(op, place):
            continue
        pair = _differing(op, one, other)
        if pair is not None and _pays(op, one, pair):
            return _sunk(op, place, (one, other), pair)
    return None


def _last(block: Block, value: Value, count: dict[Value, int]) -> TensorOp | ListPushOp | None:
    """Return the op of the block that defines a value which nothing else in the block reads, if it
    may move; else None."""
    maker = next((op for op in block.ops if value in op.results), None)
    if not isinstance(maker, TensorOp | ListPushOp) or len(maker.results) != 1:
        return None
    return None if count[value] != 1 or may_stop(maker) else maker


def _differing(op: IfOp, one: Op, other: Op) -> tuple[Value, Value] | None:
    """Return the one pair of values in which two ops differ; None if they differ in more, or the
    pair cannot be yielded."""
    if names_own_sizes(one, op.blocks) or names_own_sizes(other, op.blocks):
        return None
    pairs = dict.fromkeys(
        (mine, theirs)
        for mine, theirs in zip(one.operands, other.operands, strict=False)
        if mine is not theirs
    )
    if len(pairs) != 1:
        return None
    ((mine, theirs),) = pairs
    joined = Value(mine.type)
    same = op_key(_reading(one, mine, joined)) == op_key(_reading(other, theirs, joined))
    if not same or mine.type != theirs.type:
        return None
    inside = {value for block in op.blocks for value in defined_values(block)}
    kept = {value for item in (one, other) for value in item.operands} - {mine, theirs}
    sizes = symbols_of_types((mine.type,))
    owned = any(not sizes.isdisjoint(bound_symbols(block)) for block in op.blocks)
    return (mine, theirs) if inside.isdisjoint(kept) and not owned else None


def _reading(op: Op, old: Value, new: Value) -> Op:
    """Return a copy of the op that reads `new` instead of `old`."""
    return clone_op(op, {old: new})


def _pays(op: IfOp, one: Op, pair: tuple[Value, Value]) -> bool:
    if isinstance(one, ListPushOp):
        return one.item is pair[0] and one.list is not pair[0]
    assert isinstance(one, TensorOp)
    if not properties(one.target).is_product:
        return False
    for block, value in zip(op.blocks, pair, strict=True):
        if not any(value in item.results for item in block.ops) and not _is_small(value):
            return False
    return True


def _is_small(value: Value) -> bool:
    kind = value.tensor
    size = kind.dtype.itemsize
    for dim in kind.shape:
        if not isinstance(dim, int):
            return False
        size *= dim
    return size <= _MOST_COPIED


def _sunk(op: IfOp, place: int, ops: tuple[Op, Op], pair: tuple[Value, Value]) -> Op:
    """Return the op that replaces both; the branch yields its operand instead of its result."""
    joined = Value(pair[0].type, pair[0].hint)
    new = _reading(ops[0], pair[0], joined)
    new.results = (op.results[place],)
    op.results = (*op.results[:place], joined, *op.results[place + 1 :])
    for block, gone, value in zip(op.blocks, ops, pair, strict=True):
        block.ops = [item for item in block.ops if item is not gone]
        block.yields = (*block.yields[:place], value, *block.yields[place + 1 :])
    return new
