"""The statements that printers of machines make, and what analyses ask of them.

A printer builds statements; analyses move them, replace them or put them into functions of their
own; `machines/dialects.py` writes them down at the very end. What a statement defines and uses are
fields of it. Machines import this module as `code`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, cast

from stretto.device.expr import Buffer, Expr
from stretto.machines.terms import Operand, Term, literal

ONE = literal(1)
EVERY = -1
"""All units, as a set of bits."""


@dataclass(frozen=True, slots=True)
class Assign:
    """`target` is a variable, or several with commas between them.

    kind: the type of a variable that is declared here, where the dialect wants one.
    shape: of the block of lanes that the value is. alike: all lanes along the block's first axis
    have the same value. expr: the value that a register is assigned, where the program says it.
    """

    target: Term
    value: Term
    kind: str = ""
    operator: str = "="
    shape: tuple[int, ...] = ()
    alike: bool = False
    expr: Expr | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Store:
    """Writes `value` to `place` in `buffer`, where the lanes of `mask` are set."""

    buffer: Buffer | None = field(compare=False)
    place: Term
    value: Term
    mask: Term | None = None


@dataclass(frozen=True, slots=True)
class Do:
    """A call for what it does."""

    value: Term


@dataclass(frozen=True, slots=True)
class Guard:
    """A call that says whether the run goes on: into `target`, or else the function returns."""

    value: Term
    target: Term | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """A Guard that goes on when other units have published. units: those that wait."""

    value: Term
    target: Term | None = None
    units: int = field(default=EVERY, compare=False)


@dataclass(frozen=True, slots=True)
class Signal:
    """Publishes what the unit has done. units: those that do so."""

    value: Term
    units: int = field(default=EVERY, compare=False)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function of the program, which may be the one around; `results` are variables."""

    function: str
    arguments: tuple[Term, ...]
    results: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Tasks of a kernel, from `first` to `last` by `stride`. Machines make loops of it.

    tasks: how many there are in all, where every unit has at most one; else 0. units: those that
    may have a task.
    """

    kernel: str
    arguments: tuple[Term, ...]
    first: Term
    last: Term
    stride: Term
    tasks: int = 0
    units: int = field(default=EVERY, compare=False)


@dataclass(frozen=True, slots=True)
class If:
    """units: those for which the condition holds, where it depends on nothing else. recurs: the
    loop around takes `then` again and again, since it is a part of a recursive function."""

    condition: Term
    then: Block
    orelse: Block = ()
    note: str = ""
    units: int = field(default=EVERY, compare=False)
    recurs: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class For:
    """A loop over numbers. pragma: a line before it that tells the compiler how to run it.

    units: those for which there is at least one number, where it is known that there is none for
    others.
    """

    variable: Term
    first: Term
    last: Term
    step: Term = ONE
    body: Block = ()
    pragma: str = ""
    units: int = field(default=EVERY, compare=False)


@dataclass(frozen=True, slots=True)
class Loop:
    """Again and again: `head`; the end, unless `condition`; `body`.

    flag: a variable that keeps the condition, for a language that cannot leave a loop in its
    middle. It begins as, and ends each iteration as, `guard`. entered: whether the condition surely
    holds the first time, unless the run is stopped.
    """

    condition: Term
    head: Block = ()
    body: Block = ()
    flag: Term | None = None
    guard: Term | None = None
    entered: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Section:
    """Statements that belong together, with variables of their own where the language has scopes.

    head: what stands before the braces. least: the number of lines from which on the section is
    better a function; 0 is never.
    """

    body: Block = ()
    head: Term | None = None
    least: int = 0


@dataclass(frozen=True, slots=True)
class Return:
    values: tuple[Term, ...] = ()


@dataclass(frozen=True, slots=True)
class Raw:
    """A line that only the language at hand has: a type, an array, a pragma."""

    text: Term
    target: Term | None = None


Statement = (
    Assign
    | Store
    | Do
    | Guard
    | Wait
    | Signal
    | Call
    | Run
    | If
    | For
    | Loop
    | Section
    | Return
    | Raw
)
Block = tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """`parameters`, as text where the language wants types; `body` ends with its Return."""

    parameters: tuple[Term, ...]
    body: Block


@dataclass(slots=True)
class Builder:
    """Collects statements; while a block is open, those of the block."""

    statements: list[Statement] = field(default_factory=list[Statement])

    def add(self, *statements: Statement) -> None:
        self.statements += statements

    def assign(self, target: Term, value: Operand, kind: str = "", operator: str = "=") -> None:
        self.statements.append(Assign(target, literal(value), kind, operator))

    @contextmanager
    def block(self) -> Generator[list[Statement]]:
        """What is added inside goes into a list of its own."""
        outer, self.statements = self.statements, []
        try:
            yield self.statements
        finally:
            self.statements = outer

    @contextmanager
    def within(self, around: If | For | Loop | Section) -> Generator[None]:
        """What is added inside is the body of `around`."""
        with self.block() as body:
            yield
        made = tuple(body)
        self.add(
            replace(around, then=made) if isinstance(around, If) else replace(around, body=made)
        )


# ---- analyses --------------------------------------------------------------------------------
TARGETS = ("target", "variable", "flag", "results")
"""The fields of statements that are variables which they assign."""


def _terms(statement: Statement, targets: bool) -> Iterator[Term]:
    for name in type(statement).__slots__:
        value: Any = getattr(statement, name)
        if (name in TARGETS) is targets:
            items = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)
            yield from (item for item in items if isinstance(item, Term))


def defines(statement: Statement) -> tuple[str, ...]:
    """The variables that a statement assigns by itself."""
    return tuple(name for term in _terms(statement, targets=True) for name in term.names)


def uses(statement: Statement) -> Iterator[str]:
    """The variables that a statement reads by itself, in the order of the text."""
    if isinstance(statement, Assign) and statement.operator != "=":
        yield from statement.target.names
    for term in _terms(statement, targets=False):
        yield from term.names


def reads(statement: Statement) -> Iterator[Buffer]:
    """The buffers that the terms of a statement load from."""
    for term in _terms(statement, targets=False):
        yield from term.reads


def blocks(statement: Statement) -> tuple[Block, ...]:
    match statement:
        case If(_, then, orelse):
            return then, orelse
        case For(body=body) | Section(body=body):
            return (body,)
        case Loop(_, head, body):
            return head, body
        case _:
            return ()


def walk(block: Block) -> Iterator[Statement]:
    for statement in block:
        yield statement
        for inner in blocks(statement):
            yield from walk(inner)


def mentioned(block: Block) -> dict[str, None]:
    """All variables, in the order of the text."""
    return dict.fromkeys(n for s in walk(block) for names in (defines(s), uses(s)) for n in names)


def live(block: Block, after: frozenset[str]) -> frozenset[str]:
    """The variables whose value counts before `block`, of which `after` count behind it."""
    for statement in reversed(block):
        match statement:
            case If(_, then, orelse):
                after = live(then, after) | live(orelse, after)
            case Section(body):
                after = live(body, after)
            case For(variable, body=body):
                again = after | (live(body, after) - {*variable.names})
                after |= live(body, again) - {*variable.names}
            case Loop(_, head, body):
                kept = after.union(uses(statement))
                again = live(head, kept | live(body, kept))
                after = live(head, kept | live(body, kept | again)) - {*defines(statement)}
                after = after.union(statement.guard.names if statement.guard else ())
                continue
            case _:
                after -= {*defines(statement)}
        after = after.union(uses(statement))
    return after


def live_behind(block: Block, after: frozenset[str]) -> list[frozenset[str]]:
    """The variables that are live behind each statement of `block`."""
    behind: list[frozenset[str]] = []
    for statement in reversed(block):
        behind.append(after)
        after = live((statement,), after)
    return behind[::-1]


Renamed = TypeVar("Renamed")


def renamed(item: Renamed, names: Mapping[str, str]) -> Renamed:
    """A term, a statement, a function or several, with other names for variables."""
    found: Any = item
    if isinstance(item, Term):
        found = replace(item, names=tuple(names.get(name, name) for name in item.names))
    elif isinstance(item, tuple):
        found = tuple(renamed(part, names) for part in cast("tuple[Any, ...]", item))
    elif isinstance(item, Function | Statement):
        changed = {f.name: renamed(getattr(item, f.name), names) for f in fields(item)}
        found = replace(item, **changed)
    return found
