"""The statements of one function of an InstanceProgram under construction.

Where several paths join (after a branch, at the head of a loop, after a `return` in the
middle), each path assigns the variables that are live afterwards. These are known only when all
paths have been evaluated, so each path leaves a `Gap` in its body, which is filled later.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from stretto.batching.instance_program import Body, walk
from stretto.ir.core import Literal, Op, Operand, Variable
from stretto.ir.data import (
    AssignOp,
    LeaveOp,
    ScopeOp,
    body_of,
)
from stretto.ir.ops import IfOp
from stretto.ir.types import DataType


class PathEnds(Exception):
    """The path that is being evaluated ends here: return, raise, break, continue."""


@dataclass(eq=False, slots=True)
class PendingStatements:
    """Statements that are built from drafts when these are complete."""

    make: Callable[..., Body]
    parts: tuple[Draft, ...]


@dataclass(eq=False, slots=True)
class Gap:
    """A place in a body that is filled later."""

    statements: Draft = field(default_factory=list["Op | Gap | PendingStatements"])


Draft = list["Op | Gap | PendingStatements"]


class FunctionBuilder:
    """Emitter of statements into the current body."""

    def __init__(self) -> None:
        self.current: Draft = []
        self._labels = 0
        self._names: dict[str, int] = {}

    def emit(self, statement: Op) -> None:
        self.current.append(statement)

    def gap(self) -> Gap:
        """Add a new gap at the current place."""
        made = Gap()
        self.current.append(made)
        return made

    def pend(self, make: Callable[..., Body], *parts: Draft) -> None:
        """Emit the statements that `make` will build from the finished parts."""
        self.current.append(PendingStatements(make, parts))

    @contextmanager
    def into(self, draft: Draft) -> Generator[Draft]:
        """Redirect the statements emitted inside to `draft`."""
        outer, self.current = self.current, draft
        try:
            yield draft
        finally:
            self.current = outer

    def label(self) -> int:
        self._labels += 1
        return self._labels

    def variable(self, name: str, type_: DataType) -> Variable:
        """Create a variable; names are unique in a function."""
        number = self._names.get(name, 0)
        self._names[name] = number + 1
        return Variable(f"{name}_{number}" if number else name, type_)


def finished(draft: Draft) -> Body:
    """Return the body of a draft whose gaps have been filled."""
    found: list[Op] = []
    for item in draft:
        if isinstance(item, Gap):
            found.extend(finished(item.statements))
        elif isinstance(item, PendingStatements):
            found.extend(item.make(*map(finished, item.parts)))
        else:
            found.append(item)
    return tuple(found)


def copies(pairs: list[tuple[Variable, Operand]], builder: FunctionBuilder) -> list[Op]:
    """Return assignments that are equivalent to simultaneous ones: each reads the value from
    before any of them."""
    pairs = [(target, source) for target, source in pairs if target is not source]
    targets = {id(target) for target, _ in pairs}
    before: list[Op] = []
    after: list[Op] = []
    for position, (target, source) in enumerate(pairs):
        hazard = {id(other) for other, _ in pairs[:position]}
        if isinstance(source, Literal) or id(source) not in hazard or id(source) not in targets:
            after.append(AssignOp("copy", (source,), results=(target,)))
            continue
        kept = builder.variable(source.name, source.type)
        before.append(AssignOp("copy", (source,), results=(kept,)))
        after.append(AssignOp("copy", (kept,), results=(target,)))
    return [*before, *after]


def if_op(condition: Operand, then: Body, orelse: Body) -> IfOp:
    """Return a branch on a condition, which is a variable."""
    assert isinstance(condition, Variable), condition
    return IfOp(condition, body_of(then), body_of(orelse))


def scoped(label: int, body: Body) -> Body:
    """Return the body as a scope with that label; without the scope if each `LeaveOp` of it
    is last in its path."""
    body = _without_tail(body, label)
    return (ScopeOp(label, body_of(body)),) if _leaves(body, label) else body


def _without_tail(body: Body, label: int) -> Body:
    if not body:
        return body
    match body[-1]:
        case LeaveOp(number) if number == label:
            return _without_tail(body[:-1], label)
        case IfOp(condition, then, orelse):
            arms = (body_of(_without_tail(arm.ops, label)) for arm in (then, orelse))
            return (*body[:-1], IfOp(condition, *arms))
        case ScopeOp(number, inner):
            return (*body[:-1], *scoped(number, _without_tail(inner.ops, label)))
        case _:
            return body


def _leaves(body: Body, label: int) -> bool:
    return any(isinstance(op, LeaveOp) and op.label == label for op in walk(body))
