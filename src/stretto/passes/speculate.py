"""Speculation: an arm's work begins before its condition is known, on units that would idle.

If the condition of a branch is the end of a chain of small operators, the units wait for
each other along the chain. The work of an arm that reads other values can run meanwhile.
Its ops move before the branch, from the first one on, as long as they fit into the time
that the chain leaves idle, by the machine's cost model for usual sizes, and into
`CostModel.speculated_bytes`. Time that other ops beside the chain take is not idle. Only
ops that cannot stop the run and draw no random numbers move. With one unit nothing is idle.

    %s = (a chain from %x)                    %s = (a chain from %x)
    %c = aten.gt.Scalar(%s, 0.5)              %c = aten.gt.Scalar(%s, 0.5)
    %y = if %c {                              %a = aten.mm.default(%x, %w)
      %a = aten.mm.default(%x, %w)     ->     %y = if %c {
      %b = aten.mul.Tensor(%a, %s)              %b = aten.mul.Tensor(%a, %s)
      yield %b                                  yield %b
    } else { yield %x }                       } else { yield %x }

It runs after all passes that need the op to be in its arm. Guarantees the same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stretto.ir.core import Block, Op, Program, Value
from stretto.ir.ops import CallOp, ConstantOp, IfOp, LiteralOp, TensorOp
from stretto.ir.rewrite import all_blocks, defined_values
from stretto.passes.analyses.op_facts import (
    backward_slice,
    dependents,
    may_stop,
    names_own_sizes,
    nbytes,
    seconds,
    usual,
)
from stretto.passes.manager import PassCosts, Target
from stretto.remarks import Remarks
from stretto.text import seconds_text

_WAITS = 4
"""Number of waits that the idle time must exceed; it must also exceed the time to wake other
units."""


@dataclass(frozen=True, slots=True)
class Speculate:
    """The pass. target: the machine to compile for; without one, nothing moves."""

    target: Target | None = None
    name: ClassVar[str] = "speculate"

    def apply(self, program: Program) -> bool:
        if self.target is None or self.target.units == 1:
            return False
        speculation = _Speculation(self.target.costs, self.target.units, program.remarks)
        changed = False
        for function in program.functions.values():
            for block in reversed(list(all_blocks(function.body))):  # inner ones first
                changed |= speculation.in_block(block)
        return changed


@dataclass(frozen=True, slots=True)
class _Speculation:
    costs: PassCosts
    units: int
    remarks: Remarks

    def in_block(self, block: Block) -> bool:
        """Move ops out of the arms in a block, given the straight-line ops since the last control
        flow. Return True if something moved."""
        if not any(isinstance(op, IfOp) for op in block.ops):
            return False
        ops: list[Op] = []
        straight: list[Op] = []
        for op in block.ops:
            if isinstance(op, IfOp):
                begun = self.begun(op, straight)
                ops += begun
            ops.append(op)
            if op.blocks or isinstance(op, CallOp):
                straight.clear()
            else:
                straight.append(op)
        changed = len(ops) != len(block.ops)
        block.ops = ops
        return changed

    def begun(self, branch: IfOp, straight: Sequence[Op]) -> list[Op]:
        """Remove ops from the arms of a branch and return them, to run before it."""
        chain = backward_slice(straight, (branch.condition,))
        left = _Budget(self.idle(straight, chain), self.costs.speculated_bytes)
        least = max(_WAITS * self.costs.wait_seconds, self.costs.wake_seconds)
        if not left.seconds >= least:  # it is NaN if a cost is not known
            return []
        late = {value for op in dependents(straight, _made(chain)) | chain for value in op.results}
        taken: list[Op] = []
        for arm in branch.blocks:
            taken += self.from_arm(branch, arm, late, left)
        return taken

    def from_arm(self, branch: IfOp, arm: Block, late: set[Value], left: _Budget) -> list[Op]:
        """Remove ops from an arm and return them. late: values that are known after the condition,
        or hardly before it."""
        stays = {*late, *defined_values(arm)}
        taken: list[Op] = []
        for op in arm.ops:
            kind = isinstance(op, TensorOp | ConstantOp | LiteralOp)
            if not kind or not stays.isdisjoint(op.operands):
                continue
            if may_stop(op) or names_own_sizes(op, branch.blocks):
                continue
            cost = seconds(op, self.costs, usual)
            if not left.take(cost, sum(nbytes(value, usual) for value in op.results)):
                both = f"{seconds_text(cost)}, but only {seconds_text(left.seconds)} are idle"
                self.remarks.decline(Speculate.name, op.name, f"it takes {both}", op.location)
                break
            taken.append(op)
            stays.difference_update(op.results)
        if not any(seconds(op, self.costs, usual) > self.costs.wait_seconds for op in taken):
            return []
        arm.ops = [op for op in arm.ops if op not in set(taken)]
        return taken

    def idle(self, straight: Sequence[Op], chain: set[Op]) -> float:
        """Return the seconds, summed over the units, in which they only wait for the end of the
        chain."""
        ends: dict[Value, float] = {}
        last = work = 0.0
        for op in straight:
            cost = seconds(op, self.costs, usual)
            work += cost
            if op not in chain:
                continue
            start = max((ends.get(value, 0.0) for value in op.operands), default=0.0)
            end = start + self.alone(cost)
            last = max(last, end)
            ends.update(dict.fromkeys(op.results, end))
        return self.units * last - work

    def alone(self, cost: float) -> float:
        """Return the seconds from the start of an op to its end, if it gets all units that it can
        use."""
        waits = self.costs.wait_seconds
        if cost < self.costs.small_waits * waits:
            return cost
        return cost / self.units + waits


@dataclass(slots=True)
class _Budget:
    seconds: float
    bytes: float

    def take(self, seconds: float, nbytes: float) -> bool:
        if seconds > self.seconds or nbytes > self.bytes:
            return False
        self.seconds -= seconds
        self.bytes -= nbytes
        return True


def _made(ops: set[Op]) -> list[Value]:
    return [value for op in ops for value in op.results]
