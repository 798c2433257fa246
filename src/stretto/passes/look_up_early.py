"""Early lookups: numbers that an arm reads from memory are read before its branch.

On a GPU each unit decides a branch by a number that it loads, and the arm that it takes often loads
the next one from the same place of another table: `if is_leaf[node]: ... else: f(left[node])`.
Dependent loads take the latency of each; independent loads are in flight together, so it pays to
load a number that the other arm would not have needed.

Changes: single numbers (integers and flags) of an `aten.select.int` in an arm, whose operands are
known before the branch, and whose position is checked there by another op, so that nothing stops
the run that would not have. Needs: checks of unused positions; equal ops merged. Guarantees the
same results. `Lowering.settle` puts such a number into a register at its lookup.

    %c = aten.select.int(%leaf, 0, %n)        %c = aten.select.int(%leaf, 0, %n)
    %y = if %c { yield %x } else {            %l = aten.select.int(%left, 0, %n)
      %l = aten.select.int(%left, 0, %n) ->   %y = if %c { yield %x } else {
      %r = call @f(%l)                          %r = call @f(%l)
      yield %r                                  yield %r
    }                                         }
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from stretto.ir.core import Block, Op, Program
from stretto.ir.ops import IfOp, TensorOp
from stretto.ir.rewrite import defined_values
from stretto.ops.positions import positions_of
from stretto.passes.manager import Target

MOST = 8
"""Largest number of lookups that are moved out of one arm; each needs a register before the
branch."""

Checked = frozenset[object]
"""Keys of positions that have been checked."""


@dataclass(frozen=True, slots=True)
class LookUpEarly:
    """The pass. target: the machine to compile for; without one, nothing moves."""

    target: Target | None = None
    name: ClassVar[str] = "look_up_early"

    def apply(self, program: Program) -> bool:
        if self.target is None or not self.target.costs.early_lookups:
            return False
        changed = False
        for function in program.functions.values():
            changed |= _in_block(function.body, frozenset())
        return changed


def _in_block(block: Block, around: Checked) -> bool:
    """Move lookups out of the arms in a block. around: positions that are checked before control
    reaches it. Return True if something changed."""
    checked, changed = set(around), False
    ops: list[Op] = []
    for op in block.ops:
        if isinstance(op, IfOp):
            for arm in op.blocks:
                changed |= _in_block(arm, frozenset(checked))
                taken = _lookups(arm, checked)
                arm.ops = [inner for inner in arm.ops if inner not in taken]
                ops += taken
                changed |= bool(taken)
        else:
            for inner in op.blocks:
                changed |= _in_block(inner, frozenset(checked))
        if isinstance(op, TensorOp):
            checked.update(one.key for one in positions_of(op))
        ops.append(op)
    block.ops = ops
    return changed


def _lookups(arm: Block, checked: set[object]) -> list[Op]:
    """Return the ops of an arm that may run before its branch, at most MOST."""
    inside = set(defined_values(arm))
    found = (op for op in arm.ops if _is_lookup(op, checked) and inside.isdisjoint(op.operands))
    return list(islice(found, MOST))


def _is_lookup(op: Op, checked: set[object]) -> bool:
    if not isinstance(op, TensorOp) or op.target != "aten.select.int":
        return False
    kind = op.result.tensor
    if not kind.is_scalar or kind.dtype.is_float:
        return False
    return all(one.key in checked for one in positions_of(op))
