"""Branch merging: neighbouring branches on one condition become one.

Of the ops between two branches, those that the second one needs and that do not need the first one
move before both; those that it needs and that need the first one are copied into both arms; all
others move after both. Ops that may stop the run or draw random numbers keep their order among each
other. A branch on the negation of a condition has its arms exchanged, and within an arm its
condition becomes a literal, so that `fold` resolves branches on it there.

    %a = if %c { ... yield %p }                %u = aten.sin.default(%x)
      else { ... yield %q }                    %b = if %c { ...
    %s = aten.exp.default(%a)           ->       %s = aten.exp.default(%p)
    %u = aten.sin.default(%x)                    %d = aten.add.Tensor(%s, %u)
    %b = if %c {                                 yield %d
      %d = aten.add.Tensor(%s, %u)             } else { ...
      yield %d                                   yield %x
    } else { yield %x }                        }

Needs equal conditions merged into one value. Guarantees that every op runs as often as before, and
that checks keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stretto.ir.core import Block, Op, Program, Value
from stretto.ir.ops import IfOp, LiteralOp, TensorOp
from stretto.ir.rewrite import (
    Definitions,
    Replacement,
    all_blocks,
    clone_op,
    free_values,
    rewrite_block,
    substitute,
)
from stretto.ir.symbols import symbols_bound_by
from stretto.ir.types import FLAG
from stretto.passes.analyses.op_facts import (
    any_may_stop,
    backward_slice,
    dependents,
    keeps_types,
    may_stop,
    names_own_sizes,
)
from stretto.remarks import Remarks

_MOST_COPIED = 16
"""Largest number of ops between two branches that may be copied into both arms."""


@dataclass(frozen=True, slots=True)
class MergeBranches:
    name: ClassVar[str] = "merge_branches"

    def apply(self, program: Program) -> bool:
        changed = False
        for function in program.functions.values():
            changed |= rewrite_block(function.body, _plain)
            for block in reversed(list(all_blocks(function.body))):  # inner ones first
                while _merge_first(block, program.remarks):
                    changed = True
        return changed


def _plain(op: Op, definitions: Definitions) -> Replacement | None:
    """Replace a negated condition of a branch by the condition itself, and the condition in the
    arms by a literal."""
    if not isinstance(op, IfOp):
        return None
    maker = definitions.get(op.condition)
    changed = False
    if (
        isinstance(maker, TensorOp)
        and maker.target in ("aten.logical_not.default", "aten.bitwise_not.default")
        and maker.operands[0].type == FLAG
    ):
        op.condition, op.then, op.orelse = maker.operands[0], op.orelse, op.then
        changed = True
    for block, is_true in zip(op.blocks, (True, False), strict=True):
        if op.condition in free_values(block):
            known = LiteralOp(is_true, results=(Value(FLAG, op.condition.hint),))
            substitute(block, {op.condition: known.result})
            block.ops.insert(0, known)
            changed = True
    return ([op], op.results) if changed else None


def _merge_first(block: Block, remarks: Remarks) -> bool:
    """Merge the first two branches of the block that can be merged; return False if there are
    none."""
    last: dict[Value, int] = {}
    for place, op in enumerate(block.ops):
        if not isinstance(op, IfOp):
            continue
        before = last.get(op.condition)
        if before is not None:
            merged = _merged(block, before, place)
            if not isinstance(merged, str):
                block.ops[before : place + 1] = merged
                return True
            remarks.decline(MergeBranches.name, "if", merged, op.location)
        last[op.condition] = place
    return False


def _merged(block: Block, first: int, second: int) -> list[Op] | str:
    """Return the ops that replace two branches and everything between them, or the reason why they
    cannot be merged."""
    one, other = block.ops[first], block.ops[second]
    assert isinstance(one, IfOp) and isinstance(other, IfOp)
    between = block.ops[first + 1 : second]
    if not all(keeps_types(op) for op in (one, *between, other) if isinstance(op, IfOp)):
        return "an arm names the sizes of the results of a branch differently"
    if any(symbols_bound_by(op) for op in between if not isinstance(op, IfOp)):
        return "an op between it and the previous branch on the same condition binds a size"
    wanted = backward_slice(between, (value for arm in other.blocks for value in free_values(arm)))
    after_one = dependents(between, one.results)
    copied = [op for op in between if op in wanted and op in after_one]
    before = [op for op in between if op in wanted and op not in after_one]
    behind = [op for op in between if op not in wanted]
    if not _keeps_order(one, other, before, behind):
        return "merging would reorder ops that may stop the run or draw random numbers"
    if not _may_be_copied(copied, one):
        return "ops between it and the previous branch on the same condition cannot be copied"
    read = _read_elsewhere(block, (one, other), copied)
    return [*before, _joined(one, other, copied, read), *behind]


def _keeps_order(one: IfOp, other: IfOp, before: list[Op], behind: list[Op]) -> bool:
    """True if no two ops that may stop the run change their order."""
    if any_may_stop(before) and (may_stop(one) or any_may_stop(behind)):
        return False
    return not (any_may_stop(behind) and may_stop(other))


def _may_be_copied(ops: Sequence[Op], one: IfOp) -> bool:
    return len(ops) <= _MOST_COPIED and all(
        isinstance(op, TensorOp) and not may_stop(op) and not names_own_sizes(op, one.blocks)
        for op in ops
    )


def _read_elsewhere(block: Block, branches: tuple[IfOp, IfOp], copied: list[Op]) -> list[Value]:
    """Return the results of copied ops that are also read outside the second branch and the copied
    ops."""
    made = dict.fromkeys(value for op in copied for value in op.results)
    outside = [op for op in block.ops if op not in copied and op is not branches[1]]
    rest = Block((), outside, block.yields)
    read = set(free_values(rest))
    return [value for value in made if value in read]


def _joined(one: IfOp, other: IfOp, copied: list[Op], read: list[Value]) -> IfOp:
    arms: list[Block] = []
    for mine, theirs in zip(one.blocks, other.blocks, strict=True):
        known = dict(zip(one.results, mine.yields, strict=True))
        copies = [clone_op(op, known) for op in copied]
        substitute(theirs, known)
        yields = (*mine.yields, *(known[value] for value in read), *theirs.yields)
        arms.append(Block((), [*mine.ops, *copies, *theirs.ops], yields))
    results = (*one.results, *read, *other.results)
    return IfOp(one.condition, *arms, results=results, location=one.location)
