"""The statements of one function of an InstanceProgram under construction.

Where several paths join (after a branch, at the head of a loop, after a `return` in the
middle), each path assigns the variables that are live afterwards. These are known only when all
paths have been evaluated, so each path leaves a `Gap` in its body, which is filled later.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from stretto.batching.instance_program import (
    AssignStatement,
    Body,
    CallStatement,
    ForkStatement,
    IfStatement,
    LeaveStatement,
    Literal,
    LoopStatement,
    Operand,
    OperateStatement,
    RaiseStatement,
    ReadStatement,
    RecordStatement,
    ReturnStatement,
    ScopeStatement,
    Statement,
    Variable,
    walk,
)
from stretto.batching.types import Type


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

    statements: Draft = field(default_factory=list["Statement | Gap | PendingStatements"])


Draft = list["Statement | Gap | PendingStatements"]


class FunctionBuilder:
    """Emitter of statements into the current body."""

    def __init__(self) -> None:
        self.current: Draft = []
        self._labels = 0
        self._names: dict[str, int] = {}

    def emit(self, statement: Statement) -> None:
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

    def variable(self, name: str, type_: Type) -> Variable:
        """Create a variable; names are unique in a function."""
        number = self._names.get(name, 0)
        self._names[name] = number + 1
        return Variable(f"{name}_{number}" if number else name, type_)


def finished(draft: Draft) -> Body:
    """Return the body of a draft whose gaps have been filled."""
    found: list[Statement] = []
    for item in draft:
        if isinstance(item, Gap):
            found.extend(finished(item.statements))
        elif isinstance(item, PendingStatements):
            found.extend(item.make(*map(finished, item.parts)))
        else:
            found.append(item)
    return tuple(found)


def copies(pairs: list[tuple[Variable, Operand]], builder: FunctionBuilder) -> list[Statement]:
    """Return assignments that are equivalent to simultaneous ones: each reads the value from
    before any of them."""
    pairs = [(target, source) for target, source in pairs if target is not source]
    targets = {id(target) for target, _ in pairs}
    before: list[Statement] = []
    after: list[Statement] = []
    for position, (target, source) in enumerate(pairs):
        hazard = {id(other) for other, _ in pairs[:position]}
        if isinstance(source, Literal) or id(source) not in hazard or id(source) not in targets:
            after.append(AssignStatement(target, "copy", (source,)))
            continue
        kept = builder.variable(source.name, source.type)
        before.append(AssignStatement(kept, "copy", (source,)))
        after.append(AssignStatement(target, "copy", (kept,)))
    return [*before, *after]


def scoped(label: int, body: Body) -> Body:
    """Return the body as a scope with that label; without the scope if each `LeaveStatement` of it
    is last in its path."""
    body = _without_tail(body, label)
    return (ScopeStatement(label, body),) if _leaves(body, label) else body


def _without_tail(body: Body, label: int) -> Body:
    if not body:
        return body
    match body[-1]:
        case LeaveStatement(number) if number == label:
            return _without_tail(body[:-1], label)
        case IfStatement(condition, then, orelse):
            last = IfStatement(condition, _without_tail(then, label), _without_tail(orelse, label))
            return (*body[:-1], last)
        case ScopeStatement(number, inner):
            return (*body[:-1], *scoped(number, _without_tail(inner, label)))
        case _:
            return body


def _leaves(body: Body, label: int) -> bool:
    for statement in body:
        match statement:
            case LeaveStatement(number):
                found = number == label
            case IfStatement(_, then, orelse):
                found = _leaves(then, label) or _leaves(orelse, label)
            case LoopStatement(inner) | ScopeStatement(_, inner):
                found = _leaves(inner, label)
            case ForkStatement(several):
                found = any(_leaves(inner, label) for inner in several)
            case _:
                found = False
        if found:
            return True
    return False


# ---- Removal of statements whose results are unused, and which cannot fail.
#
#     %t_choice = copy(1)          (removed: never read)
#     %h_1 = tanh(%x)              (removed, with statements that only compute its operands)
#
# Loops and branches carry each local variable that they may assign; most are not read afterwards.


_CANNOT_FAIL = frozenset(
    (
        "copy", "shared", "has_type", "is", "not", "truth", "cast", "tuple", "item", "list",
        "record", "add", "sub", "mul", "neg", "abs", "and", "or", "xor", "lt", "le", "gt", "ge",
        "eq", "ne", "min", "max", "len", "to_list", "to_float", "concat", "keys", "values", "dict",
    )
)  # fmt: skip


def pruned(body: Body) -> Body:
    """Return the body of a function without unused statements."""
    reads: dict[Variable, list[Variable]] = {}
    pending: list[Variable] = []
    for statement in walk(body):
        used = [operand for operand in _operands(statement) if isinstance(operand, Variable)]
        targets = _targets(statement)
        if _is_pure(statement):
            for target in targets:
                reads.setdefault(target, []).extend(used)
        else:
            pending += used
    live: set[Variable] = set()
    while pending:
        variable = pending.pop()
        if variable not in live:
            live.add(variable)
            pending += reads.get(variable, ())
    return _kept(body, live)


def _is_pure(statement: Statement) -> bool:
    match statement:
        case AssignStatement(target, op):
            return target is not None and op in _CANNOT_FAIL
        case OperateStatement():
            return not statement.may_raise
        case RecordStatement() | ReadStatement():
            return True
        case _:
            return False


def _targets(statement: Statement) -> tuple[Variable, ...]:
    match statement:
        case OperateStatement(targets) | RecordStatement(targets):
            return targets
        case (
            AssignStatement(Variable() as target)
            | CallStatement(Variable() as target)
            | ReadStatement(target)
        ):
            return (target,)
        case _:
            return ()


def _operands(statement: Statement) -> Iterator[Operand]:
    match statement:
        case AssignStatement(_, _, args) | CallStatement(_, _, args):
            yield from args
        case OperateStatement(_, _, operands) | RecordStatement(_, _, operands):
            yield from operands
        case ReadStatement(_, operand) | IfStatement(operand) | ReturnStatement(operand):
            yield operand
        case RaiseStatement(_, parts):
            yield from (part for part in parts if not isinstance(part, str))
        case _:
            pass


def _kept(body: Body, live: set[Variable]) -> Body:
    found: list[Statement] = []
    for statement in body:
        if _is_pure(statement) and not any(target in live for target in _targets(statement)):
            continue
        match statement:
            case CallStatement(target, function, args, location) if target not in live:
                statement = CallStatement(None, function, args, location)
            case IfStatement(condition, then, orelse):
                statement = IfStatement(condition, _kept(then, live), _kept(orelse, live))
                if not statement.then and not statement.orelse:
                    continue
            case LoopStatement(inner):
                statement = LoopStatement(_kept(inner, live))
            case ScopeStatement(label, inner):
                statement = ScopeStatement(label, _kept(inner, live))
            case ForkStatement(several):
                statement = ForkStatement(tuple(_kept(inner, live) for inner in several))
            case _:
                pass
        found.append(statement)
    return tuple(found)
