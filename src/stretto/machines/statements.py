"""Statements that the printers of machines build, and analyses of them.

A printer builds statements; analyses move them, replace them or put them into separate functions;
`write_python` and `write_cpp_function` write them as text at the very end. The variables that a
statement defines and uses are its fields. Machines import this module as `code`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, TypeVar, cast

from stretto.device.expr import Access, Buffer, Index, Reg
from stretto.errors import CodegenError
from stretto.ir.sizes import Atom, Product, Symbol
from stretto.machines.terms import Operand, Term, call, filled, literal, prefix, separated, variable
from stretto.text import Writer

ONE = literal(1)


@dataclass(frozen=True, slots=True)
class Assign:
    """Assignment to `target`: a variable, or several with commas between them.

    kind: the type of a variable that is declared here, if the dialect requires one. shape: of the
    block of lanes that the value is. alike: all lanes along the block's first axis have the same
    value.
    """

    target: Term
    value: Term
    kind: str = ""
    operator: str = "="
    shape: tuple[int, ...] = ()
    alike: bool = False


@dataclass(frozen=True, slots=True)
class Store:
    """Write of `value` to `place` in `buffer`, for the lanes where `mask` is set."""

    buffer: Buffer | None = field(compare=False)
    place: Term
    value: Term
    mask: Term | None = None


@dataclass(frozen=True, slots=True)
class Do:
    """A call for its effect."""

    value: Term


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """A call whose result says if the run goes on. It is stored in `target`; without one the
    function returns if the result is false."""

    value: Term
    target: Term | None = None


@dataclass(frozen=True, slots=True)
class WaitCall:
    """A CheckedCall that blocks until other units have published."""

    value: Term
    target: Term | None = None


@dataclass(frozen=True, slots=True)
class SignalCall:
    """Publication of what the unit has done."""

    value: Term


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a function of the program, possibly recursive; `results` are variables."""

    function: str
    arguments: tuple[Term, ...]
    results: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch. note: a comment on it."""

    condition: Term
    then: Statements
    orelse: Statements = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class CountedLoop:
    """A loop over numbers. `pragma`: a line before it that tells the compiler how to run it."""

    variable: Term
    first: Term
    last: Term
    step: Term = ONE
    body: Statements = ()
    pragma: str = ""


@dataclass(frozen=True, slots=True)
class WhileLoop:
    """Repetition of: `head`; exit unless `condition`; `body`.

    flag: a variable that holds the condition, for a language that cannot leave a loop in its
    middle. It is `guard` at the start and at the end of each iteration.
    """

    condition: Term
    head: Statements = ()
    body: Statements = ()
    flag: Term | None = None
    guard: Term | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """Statements that belong together, with local variables if the language has scopes.

    head: text before the braces. least: number of lines from which the section becomes a function;
    0 is never.
    """

    body: Statements = ()
    head: Term | None = None
    least: int = 0


@dataclass(frozen=True, slots=True)
class Return:
    """The return of a function, with its values."""

    values: tuple[Term, ...] = ()


@dataclass(frozen=True, slots=True)
class Raw:
    """A line that only one target language has: a type, an array, a pragma."""

    text: Term
    target: Term | None = None


Statement = (
    Assign
    | Store
    | Do
    | CheckedCall
    | WaitCall
    | SignalCall
    | FunctionCall
    | Branch
    | CountedLoop
    | WhileLoop
    | Section
    | Return
    | Raw
)
Statements = tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class FunctionDefinition:
    """`parameters` (as text where the language requires types) and `body`, which ends with its
    Return."""

    parameters: tuple[Term, ...]
    body: Statements


@dataclass(slots=True)
class StatementBuilder:
    """Collector of statements; while a block is open, of those in the block."""

    statements: list[Statement] = field(default_factory=list[Statement])

    def add(self, *statements: Statement) -> None:
        self.statements += statements

    def assign(self, target: Term, value: Operand, kind: str = "", operator: str = "=") -> None:
        self.statements.append(Assign(target, literal(value), kind, operator))

    @contextmanager
    def block(self) -> Generator[list[Statement]]:
        """Collect the statements added inside in a separate list."""
        outer, self.statements = self.statements, []
        try:
            yield self.statements
        finally:
            self.statements = outer

    @contextmanager
    def within(self, around: Branch | CountedLoop | WhileLoop | Section) -> Generator[None]:
        """Add `around`, with the statements added in the block as its body."""
        with self.block() as body:
            yield
        made = tuple(body)
        self.add(
            replace(around, then=made) if isinstance(around, Branch) else replace(around, body=made)
        )


# ---- Analyses --------------------------------------------------------------------------------
TARGETS = ("target", "variable", "flag", "results")
"""The fields of statements that are variables which they assign."""


def _terms(statement: Statement, targets: bool) -> Iterator[Term]:
    for name in type(statement).__slots__:
        value: Any = getattr(statement, name)
        if (name in TARGETS) is targets:
            items = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)
            yield from (item for item in items if isinstance(item, Term))


def defines(statement: Statement) -> tuple[str, ...]:
    """Return the variables that the statement itself assigns, without those of inner blocks."""
    return tuple(name for term in _terms(statement, targets=True) for name in term.names)


def uses(statement: Statement) -> Iterator[str]:
    """Yield the variables that the statement itself reads, without inner blocks, in the order of
    the text."""
    if isinstance(statement, Assign) and statement.operator != "=":
        yield from statement.target.names
    for term in _terms(statement, targets=False):
        yield from term.names


def assignments(block: Statements) -> Counter[str]:
    """Return the number of statements in a block that assign each variable."""
    return Counter(name for statement in walk(block) for name in defines(statement))


def reads(statement: Statement) -> Iterator[Buffer]:
    """Yield the buffers that the terms of a statement load from."""
    for term in _terms(statement, targets=False):
        yield from term.reads


def writes(statement: Statement) -> tuple[Buffer | None, ...]:
    """Return the buffers that the statement itself may store to; None: it may access any memory."""
    match statement:
        case Store(buffer):
            return (buffer,)
        case Do() | Raw() | FunctionCall():
            return (None,)
        case _:
            return ()


def blocks(statement: Statement) -> tuple[Statements, ...]:
    """Return the inner blocks of a statement, in order."""
    match statement:
        case Branch(_, then, orelse):
            return then, orelse
        case CountedLoop(body=body) | Section(body=body):
            return (body,)
        case WhileLoop(_, head, body):
            return head, body
        case _:
            return ()


def with_blocks(statement: Statement, change: Callable[[Statements], Statements]) -> Statement:
    """Return a statement with its inner blocks replaced by `change` of them, in order."""
    match statement:
        case Branch(_, then, orelse):
            return replace(statement, then=change(then), orelse=change(orelse))
        case CountedLoop(body=body) | Section(body=body):
            return replace(statement, body=change(body))
        case WhileLoop(_, head, body):
            return replace(statement, head=change(head), body=change(body))
        case _:
            return statement


def walk(block: Statements) -> Iterator[Statement]:
    """Yield the statements of a block and of its inner blocks, in order."""
    for statement in block:
        yield statement
        for inner in blocks(statement):
            yield from walk(inner)


def mentioned(block: Statements) -> dict[str, None]:
    """Return all variables, in the order of the text, as keys."""
    return dict.fromkeys(n for s in walk(block) for names in (defines(s), uses(s)) for n in names)


def live(block: Statements, after: frozenset[str]) -> frozenset[str]:
    """Return the variables that are live before `block`, if those in `after` are live after it."""
    for statement in reversed(block):
        ends = zip(blocks(statement), live_inside(statement, after), strict=True)
        inner = [live(part, end) for part, end in ends]
        match statement:
            case Branch() | Section():
                after = frozenset[str]().union(*inner, uses(statement))
            case CountedLoop(variable):
                after = (after | inner[0] - {*variable.names}).union(uses(statement))
            case WhileLoop(guard=guard):
                after = inner[0] - {*defines(statement)} | {*(guard.names if guard else ())}
            case _:
                after = (after - {*defines(statement)}).union(uses(statement))
    return after


def live_inside(statement: Statement, after: frozenset[str]) -> tuple[frozenset[str], ...]:
    """Return the variables that are live at the end of each inner block of a statement, if those in
    `after` are live after it."""
    match statement:
        case CountedLoop(variable, body=body):
            return (after | live(body, after) - {*variable.names},)
        case WhileLoop(_, head, body, _, guard):
            tested = after.union(uses(statement))
            again = live(head, tested | live(body, tested)) | {*(guard.names if guard else ())}
            return tested | live(body, again), again
        case _:
            return tuple(after for _ in blocks(statement))


def live_behind(block: Statements, after: frozenset[str]) -> list[frozenset[str]]:
    """Return the variables that are live after each statement of `block`."""
    behind: list[frozenset[str]] = []
    for statement in reversed(block):
        behind.append(after)
        after = live((statement,), after)
    return behind[::-1]


Renamed = TypeVar("Renamed")


def renamed(item: Renamed, names: Mapping[str, str]) -> Renamed:
    """Return a term, a statement, a function or a tuple of these with variables renamed."""
    found: Any = item
    if isinstance(item, Term):
        found = replace(item, names=tuple(names.get(name, name) for name in item.names))
    elif isinstance(item, tuple):
        found = tuple(renamed(part, names) for part in cast("tuple[Any, ...]", item))
    elif isinstance(item, FunctionDefinition | Statement):
        changed = {f.name: renamed(getattr(item, f.name), names) for f in fields(item)}
        found = replace(item, **changed)
    return found


# ---- Output of statements as Python (for Triton) or as C++, without any decisions.


def python_function(name: str, function: FunctionDefinition) -> str:
    """Return the definition of a function."""
    out = Writer("    ")
    out.write(f"def {name}({separated(function.parameters).text}):")
    _python_block(function.body, out)
    return out.text()


def _python_block(block: Statements, out: Writer) -> None:
    with out.indent():
        if not write_python(block, out):
            out.write("pass")


def write_python(block: Statements, out: Writer) -> bool:
    """Write statements; return True if there were any."""
    written = False
    for statement in block:
        if isinstance(statement, Section):
            written |= write_python(statement.body, out)
        else:
            _write_python(statement, out)
            written = True
    return written


def _write_python(statement: Statement, out: Writer) -> None:
    match statement:
        case Assign(target, value, _, operator):
            out.write(f"{target.text} {operator} {value.text}" if target.names else value.text)
        case Store(_, target, value, mask):
            out.write(call("tl.store", target, value, mask=mask).text)
        case Do(value) | SignalCall(value):
            out.write(value.text)
        case CheckedCall(value, Term() as target) | WaitCall(value, Term() as target):
            out.write(f"{target.text} = {value.text}")
        case Branch(condition, then, orelse, note):
            out.write(f"if {condition.text}:" + (f"  # {note}" if note else ""))
            _python_block(then, out)
            if orelse:
                out.write("else:")
                _python_block(orelse, out)
        case CountedLoop(variable, first, last, step, body):
            bounds = [first, last] if step.text == "1" else [first, last, step]
            out.write(f"for {variable.text} in {call('range', *bounds).text}:")
            _python_block(body, out)
        case WhileLoop(condition, _, body, None):
            out.write(f"while {condition.text}:")
            _python_block(body, out)
        case WhileLoop(condition, head, body, Term() as flag, Term() as guard):
            out.write(f"{flag.text} = {guard.text}")
            out.write(f"while {flag.text}:")
            again = Branch(flag, (*body, Assign(flag, guard)))
            _python_block((*head, Assign(flag, guard & condition), again), out)
        case Return(values):
            out.write(f"return {separated(values).text}".rstrip())
        case _:
            raise CodegenError(f"this statement cannot be written as Python: {statement}")


# ---- C++ ---------------------------------------------------------------------------------------
def cpp_signature(head: str, function: FunctionDefinition) -> str:
    """Return the declaration of a function without its semicolon."""
    return f"{head}({separated(function.parameters).text})"


def write_cpp_function(head: str, function: FunctionDefinition, out: Writer) -> None:
    """Write the definition of a function; `head` is the text before its parameters."""
    out.write(cpp_signature(head, function))
    _cpp_block(function.body, out)


def _cpp_block(block: Statements, out: Writer) -> None:
    with out.block():
        for statement in block:
            _write_cpp(statement, out)


def _write_cpp(statement: Statement, out: Writer) -> None:
    match statement:
        case Assign(Term(names=(a, b)), Term(names=(c, d))) if (a, b) == (d, c):
            out.write(f"stretto::swap({a}, {b});")
        case Assign(target, value, kind, operator):
            out.write(f"{kind} {target.text} {operator} {value.text};".lstrip())
        case Store(_, target, value, None):
            out.write(f"{target.text} = {value.text};")
        case Do(value) | SignalCall(value):
            out.write(f"{value.text};")
        case CheckedCall(value) | WaitCall(value):
            out.write(f"if (!{value.text}) return false;")
        case Branch(condition, (Return() as only,), ()):
            out.write(f"if ({condition.text}) {_cpp_return(only)}")
        case Branch(condition, then, orelse):
            out.write(f"if ({condition.text})")
            _cpp_block(then, out)
            if orelse:
                out.write("else")
                _cpp_block(orelse, out)
        case CountedLoop(variable, first, last, step, body, pragma):
            if pragma:
                out.write(pragma)
            name = variable.text
            advance = f"++{name}" if step.text == "1" else f"{name} += {step.text}"
            out.write(f"for (int64_t {name} = {first.text}; {name} < {last.text}; {advance})")
            _cpp_block(body, out)
        case WhileLoop(condition, (), body):
            out.write(f"while ({condition.text})")
            _cpp_block(body, out)
        case WhileLoop(condition, head, body):
            out.write("for (;;)")
            leaves = Raw(filled("if ({}) break;", prefix("!", condition)))
            _cpp_block((*head, leaves, *body), out)
        case Section(body, head):
            if head is not None:
                out.write(head.text)
            _cpp_block(body, out)
        case Return():
            out.write(_cpp_return(statement))
        case Raw(text):
            out.write(text.text)
        case _:
            raise CodegenError(f"this statement cannot be written as C++: {statement}")


def _cpp_return(statement: Return) -> str:
    return f"return {separated(statement.values).text};".replace(" ;", ";")


# ---- Parameters of printed kernels.


def _start(offset: Index) -> Index:
    """Return the part of a position that depends only on the sizes of a call."""
    terms = tuple((atom, factor) for atom, factor in offset.terms if _is_of_sizes(atom))
    return Index(terms, offset.const)


def _is_of_sizes(atom: Atom) -> bool:
    if isinstance(atom, Product):
        return all(map(_is_of_sizes, atom.factors))
    return isinstance(atom, Symbol)


def element_of(names: Naming, access: Access) -> tuple[Term, Index]:
    """Return a pointer into a buffer, and the offset of an element from it."""
    if isinstance(names, Parameters):
        return names.element(access)
    return names.buffer(access.buffer), access.offset


class Naming(Protocol):
    """Names of buffers and registers in the printed text."""

    def buffer(self, buffer: Buffer, /) -> Term: ...
    def reg(self, reg: Reg, /) -> Term: ...


@dataclass(slots=True)
class Parameters:
    """Names given in the order of first use.

    bases: the position in a buffer that its parameter points to, if not its start.
    """

    bases: Mapping[Buffer, Index] = field(default_factory=dict[Buffer, Index])
    buffers: dict[Buffer, Term] = field(default_factory=dict[Buffer, Term])
    regs: dict[Reg, Term] = field(default_factory=dict[Reg, Term])
    uses: Counter[Buffer] = field(default_factory=Counter[Buffer])
    """Number of times a buffer was named."""
    starts: dict[Buffer, list[Index]] = field(default_factory=dict[Buffer, list[Index]])
    """The part of each access that is the same for all tasks and iterations."""

    def buffer(self, buffer: Buffer) -> Term:
        self.uses[buffer] += 1
        return self.buffers.setdefault(buffer, variable(f"p{len(self.buffers)}"))

    def element(self, access: Access) -> tuple[Term, Index]:
        """Return the parameter of a buffer, and the offset of an element from it."""
        offset = access.offset
        self.starts.setdefault(access.buffer, []).append(_start(offset))
        return self.buffer(access.buffer), offset - self.bases.get(access.buffer, 0)

    def first_places(self) -> dict[Buffer, Index]:
        """Return for each buffer the start of its first access, if that is not the start of the
        buffer and the buffer is named by accesses only."""
        return {
            buffer: starts[0]
            for buffer, starts in self.starts.items()
            if starts[0] != Index() and len(starts) == self.uses[buffer]
        }

    def reg(self, reg: Reg) -> Term:
        return self.regs.setdefault(reg, variable(f"r{len(self.regs)}"))
