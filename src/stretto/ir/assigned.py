"""Data flow in functions with variables: which of them are assigned on every path to an op."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stretto.ir.core import Block, Op, Value
from stretto.ir.data import (
    BreakOp,
    ContinueOp,
    ForkLoopOp,
    ForkOp,
    LeaveOp,
    LoopOp,
    RaiseOp,
    ReturnOp,
    ScopeOp,
)
from stretto.ir.ops import IfOp

Assigned = frozenset[Value]


def meet(ways: Iterable[Assigned | None]) -> Assigned | None:
    """Return the variables assigned where several paths join; None is a path that does not arrive
    here."""
    arriving = [way for way in ways if way is not None]
    return frozenset.intersection(*arriving) if arriving else None


@dataclass(slots=True)
class EnclosingBlock:
    """A block around an op: of a loop, a scope or a fork, or the head of a concurrent loop. ends:
    the variables assigned at each jump out of it."""

    kind: str
    label: int | None = None
    ends: list[Assigned | None] = field(default_factory=list["Assigned | None"])


class AssignedVariables:
    """The walk along all paths. A subclass has what is done at each op (`visit`)."""

    def __init__(self) -> None:
        self.around: list[EnclosingBlock] = []

    def visit(self, op: Op, assigned: Assigned) -> None:
        """Called at each op that a path reaches, with the variables assigned before it."""

    def body(self, ops: Iterable[Op], assigned: Assigned | None) -> Assigned | None:
        """Return the variables assigned after some ops; None if no path reaches their end."""
        for op in ops:
            if assigned is not None:
                self.visit(op, assigned)
                assigned = self.after(op, assigned)
        return assigned

    def after(self, op: Op, assigned: Assigned) -> Assigned | None:
        """Return the variables assigned after an op."""
        match op:
            case IfOp(_, then, orelse):
                return meet([self.body(then.ops, assigned), self.body(orelse.ops, assigned)])
            case LoopOp(inner):
                around = EnclosingBlock("loop")
                self.within(around, inner, assigned)
                return meet(around.ends)
            case ScopeOp(label, inner):
                around = EnclosingBlock("scope", label)
                return meet([self.within(around, inner, assigned), *around.ends])
            case ForkOp(several):
                ends = [self.within(EnclosingBlock("fork"), inner, assigned) for inner in several]
                return assigned.union(*(end for end in ends if end is not None))
            case ForkLoopOp():
                return self._after_fork_loop(op, assigned)
            case BreakOp() | ContinueOp() | LeaveOp():
                around = self.target(op)
                if around is not None and not isinstance(op, ContinueOp):
                    around.ends.append(assigned)
                return None
            case ReturnOp() | RaiseOp():
                return None
            case _:
                return assigned.union(op.results)

    def _after_fork_loop(self, op: ForkLoopOp, assigned: Assigned) -> Assigned | None:
        private = frozenset(op.private)
        around = EnclosingBlock("head")
        end = self.within(around, op.head, assigned - private)
        for part in (op.body, op.tail):
            if end is not None:
                end = self.within(EnclosingBlock("fork"), part, end)
        found = meet(around.ends)
        return None if found is None else found - private

    def within(self, around: EnclosingBlock, block: Block, assigned: Assigned) -> Assigned | None:
        """Return the variables assigned at the end of a block."""
        self.around.append(around)
        end = self.body(block.ops, assigned)
        self.around.pop()
        return end

    def target(self, op: BreakOp | ContinueOp | LeaveOp) -> EnclosingBlock | None:
        """Return the block that a jump ends, or the fork that it must not leave; None if it leaves
        all blocks of the walk."""
        for around in reversed(self.around):
            if around.kind == "fork":
                return around
            if isinstance(op, LeaveOp):
                if around.kind == "scope" and around.label == op.label:
                    return around
            elif around.kind in ("loop", "head"):
                return around
        return None


def exposed(ops: Iterable[Op]) -> set[Value]:
    """Return the variables whose value from before some ops these may read."""
    flow = _Exposed()
    flow.body(ops, frozenset())
    return flow.found


class _Exposed(AssignedVariables):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[Value] = set()

    def visit(self, op: Op, assigned: Assigned) -> None:
        self.found.update(value for value in op.operands if value not in assigned)
