"""If-conversion: both arms of a branch are computed, and the condition selects.

If units share the work around a branch, it costs all of them a wait for its condition and another
one for the results of its arms. A unit that works alone predicts most branches, and loses time on
the others. Besides, a branch in a loop that depends on no carried value prevents the ops after it
from being batched over the iterations. If both arms take less time than that, by the machine's cost
model for the largest sizes, and have only ops that cannot stop the run and draw no random numbers,
they move into the enclosing block. A NaN of the arm that is not taken is not selected.

    %y = if %c {                          %a = aten.sin.default(%x)
      %a = aten.sin.default(%x)     ->    %y = aten.where.self(%c, %a, %x)
      yield %a
    } else { yield %x }

Needs inner branches converted first, as the order of the walk ensures. Lists are not selected from.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

from stretto.ir.core import Op, Program
from stretto.ir.ops import ConstantOp, ForOp, IfOp, LiteralOp, TensorOp
from stretto.ir.rewrite import Definitions, Replacement, all_blocks, rewrite_program
from stretto.ir.types import TensorType
from stretto.ops.infer import tensor_op
from stretto.passes.analyses.op_facts import (
    any_may_stop,
    dependents,
    elements,
    keeps_types,
    seconds,
    usual,
)
from stretto.passes.manager import PassCosts, Target
from stretto.remarks import Remarks
from stretto.text import seconds_text

_WAITS = 2
"""Waits of a branch: for its condition, and for the results of its arms."""


@dataclass(frozen=True, slots=True)
class IfConvert:
    """The pass. target: the machine to compile for; without one, branches stay."""

    target: Target | None = None
    name: ClassVar[str] = "if_convert"

    def apply(self, program: Program) -> bool:
        if self.target is None:
            return False
        costs = self.target.costs
        dear = _batched(program)
        if not self.target.is_alone:
            dear |= _shared(program, costs)

        def visit(op: Op, _: Definitions) -> Replacement | None:
            if not isinstance(op, IfOp):
                return None
            return _converted(op, op in dear, costs, program.remarks)

        return rewrite_program(program, visit)


def _batched(program: Program) -> set[Op]:
    """The branches of loop bodies that read nothing from the previous iteration, and so prevent
    the ops after them from being batched over the iterations."""
    found: set[Op] = set()
    for loop in program.walk():
        if isinstance(loop, ForOp):
            waiting = dependents(loop.body.ops, loop.carried)
            found.update(op for op in loop.body.ops if isinstance(op, IfOp) and op not in waiting)
    return found


def _shared(program: Program, costs: PassCosts) -> set[Op]:
    """The branches that have, beside or inside them, an op that takes long enough for units to
    share it."""
    least = 0.0 if costs.uniform else costs.small_waits * costs.wait_seconds
    found: set[Op] = set()
    for function in program.functions.values():
        for block in all_blocks(function.body):
            branches = [op for op in block.ops if isinstance(op, IfOp)]
            inside = (op for branch in branches for arm in branch.blocks for op in arm.ops)
            ops = (op for op in (*block.ops, *inside) if isinstance(op, TensorOp))
            if branches and any(not seconds(op, costs, usual) < least for op in ops):
                found.update(branches)
    return found


def _converted(op: IfOp, is_dear: bool, costs: PassCosts, remarks: Remarks) -> Replacement | None:
    reason = keep_reason(op, is_dear, costs)
    if reason is not None:
        remarks.decline(IfConvert.name, "if", reason, op.location)
        return None
    selected: list[TensorOp] = []
    for then, orelse, result in zip(op.then.yields, op.orelse.yields, op.results, strict=True):
        chosen = tensor_op("aten.where.self", op.condition, then, orelse)
        assert chosen.result.type == result.type
        chosen.location, chosen.result.hint = op.location, result.hint
        selected.append(chosen)
    values = tuple(item.result for item in selected)
    return [*op.then.ops, *op.orelse.ops, *selected], values


def keep_reason(op: IfOp, is_dear: bool, costs: PassCosts) -> str | None:
    """Return why a branch stays a branch, or None. is_dear: True if units share the work around
    it, or it prevents batching."""
    ops = [*op.then.ops, *op.orelse.ops]
    if not all(isinstance(value.type, TensorType) for value in op.results):
        return "it yields lists"
    if not all(isinstance(item, TensorOp | ConstantOp | LiteralOp) for item in ops):
        return "an arm has control flow or lists"
    if any_may_stop(ops):
        return "an arm may stop the run or draws random numbers"
    if not keeps_types(op):
        return "its arms name the sizes of its results differently"
    selecting = sum(elements(value) for value in op.results) * costs.element_seconds
    arms = sum(seconds(item, costs) for item in ops)
    if not isfinite(arms + selecting):
        return "the cost of an arm has no bound, as its sizes have none"
    branch = arms / 2 + (_WAITS * costs.wait_seconds if is_dear else costs.branch_miss_seconds)
    if arms + selecting > branch:
        both = seconds_text(arms + selecting)
        return f"both arms take {both}, and the branch {seconds_text(branch)}"
    return None
