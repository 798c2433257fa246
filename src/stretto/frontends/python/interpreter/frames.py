"""Frames of interpreted functions, how blocks end, and values that only the interpreter has."""

from __future__ import annotations

import ast
import dis
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from stretto.frontends.python.interpreter import liveness
from stretto.frontends.python.interpreter.heap import (
    MISSING,
    Table,
)
from stretto.frontends.python.interpreter.syntax import DoStatement
from stretto.frontends.python.source.definitions import SegmentSource, definition_of, segment_of
from stretto.frontends.python.tracing.locations import MARK

RETURN, BREAK, CONTINUE = "return", "break", "continue"


class Left(str):
    """The jump of a generator whose consumer ends its loop by a jump."""

    jump: str

    @staticmethod
    def by(jump: str) -> Left:
        made = Left(f"leave, then {jump}")
        made.jump = jump
        return made


class Raised(str):
    """The jump of a block that raises an exception in some runs, to a handler of its function.
    Exceptions of one class and content are one jump."""

    error: Exception
    content: Table

    @staticmethod
    def of(error: Exception, content: Table) -> Raised:
        """Return the jump for an exception with the content of its table."""
        made = Raised(f"raise {type(error)} {error.args!r} {content!r}")
        made.error, made.content = error, dict(content)
        return made


def raised_in(end: Any) -> list[Raised]:
    """Return the exceptions by which a block ends in some runs."""
    return [j for j in end.flags if isinstance(j, Raised)] if isinstance(end, Perhaps) else []


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """How a block ends: by a jump, and the value that it returns."""

    jump: str
    value: Any = None


def has_value(jump: str) -> bool:
    """True if a jump returns a value."""
    return not isinstance(jump, Raised) and jump.endswith(RETURN)


@dataclass(frozen=True, slots=True, eq=False)
class Perhaps:
    """A block that ends by one of several jumps, each if its flag holds, or not at all.

    value: what is returned if it returns."""

    flags: dict[str, Any]
    value: Any = MISSING


@dataclass(eq=False)
class PythonFrame:
    function: Any
    code: types.CodeType
    vars: Table = field(default_factory=dict)
    cells: dict[str, types.CellType] = field(default_factory=dict)
    parent: PythonFrame | None = None
    at: list[ast.AST | None] = field(default_factory=lambda: [None])
    """The statement or expression that is executed, in a list that the frames of comprehensions
    and classes inside share."""
    error: BaseException | None = None
    globals_named: frozenset[str] = frozenset()
    names: Any = None
    """In the body of a class: its namespace."""
    captured: Table = field(default_factory=dict)
    """Values of the names in the pattern that is being matched."""
    consumer: Callable[[Any], Any] | None = None
    """The function that takes each value that a generator yields; None if it stops at a yield."""
    unrolls: bool = False
    """True if loops around a yield with a known number of items are unrolled."""
    tries: list[tuple[Any, ...]] = field(default_factory=list)
    """The classes of exceptions that each open `try` or `with` of the function handles."""
    is_closing: bool = False
    is_let_go: bool = False
    """True if only a loop has the generator, which is closed where the loop is left."""

    def catches(self, error: BaseException) -> bool:
        """True if a handler of the function catches an exception."""
        return any(isinstance(error, classes) for classes in self.tries)

    def __post_init__(self) -> None:
        if self.parent is not None:
            self.at = self.parent.at

    @property
    def node(self) -> ast.AST | None:
        return self.at[0]

    @node.setter
    def node(self, node: ast.AST | None) -> None:
        self.at[0] = node


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """The source of a code object. tree: None if it is not found. global_names: the names that it
    declares as global."""

    code: types.CodeType
    tree: ast.FunctionDef | None
    global_names: frozenset[str]
    segment: SegmentSource | None = None
    """If it is a segment of a function's body."""


_DEFINITIONS: dict[int, Definition] = {}


def _with_file(code: types.CodeType) -> types.CodeType:
    """Return the code of a module that is frozen into Python with the file of its source."""
    name = code.co_filename
    if not name.startswith("<frozen "):
        return code
    module = sys.modules.get(name.removeprefix("<frozen ").removesuffix(">"))
    file = getattr(module, "__file__", None)
    return code if file is None else code.replace(co_filename=file)


def definition(code: types.CodeType) -> Definition:
    """Return the definition of a function's code, read once."""
    found = _DEFINITIONS.get(id(code))
    if found is None:
        segment = segment_of(code)
        tree = definition_of(_with_file(code)) if segment is None else _marked(segment)
        names = (
            name
            for node in (() if tree is None else ast.walk(tree))
            if isinstance(node, ast.Global)
            for name in node.names
        )
        if tree is not None:
            liveness.note(tree)
        own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}  # of nested functions
        _DEFINITIONS[id(code)] = found = Definition(code, tree, frozenset(names) - own, segment)
    return found


def _marked(segment: SegmentSource) -> ast.FunctionDef:
    """Return the tree of a segment, which tells the statement that is being interpreted."""
    tree, count, _ = segment
    statements = tree.body[count:]
    body = list[ast.stmt](tree.body[:count])
    for number, statement in enumerate(statements):
        body += [_mark(number, statement), statement]
    made = ast.FunctionDef(tree.name, tree.args, body, [])
    return ast.copy_location(made, tree)


def _mark(number: int, like: ast.stmt) -> ast.stmt:
    def act(frame: PythonFrame) -> None:
        MARK.statement, MARK.blamed = number, frozenset()

    made = DoStatement(act)
    made.lineno = like.lineno
    return made


@cache
def stored_outside(code: types.CodeType) -> dict[str, bool]:
    """Return the names that the body of a class sets outside of the class; True for a global."""
    steps = dis.get_instructions(code)
    names = {"STORE_GLOBAL": True, "DELETE_GLOBAL": True, "STORE_DEREF": False}
    return {step.argval: names[step.opname] for step in steps if step.opname in names}


class BoundMethod:
    """A method of a container, a text or another native object of the program."""

    __slots__ = ("holder", "name")

    def __init__(self, holder: Any, name: str) -> None:
        self.holder, self.name = holder, name

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BoundMethod):
            return False
        return other.name == self.name and other.holder is self.holder

    def __hash__(self) -> int:
        return hash((id(self.holder), self.name))


@dataclass(frozen=True, slots=True, eq=False)
class HostFunction:
    """A function of the interpreter among the values of the program."""

    run: Callable[..., Any]


class Thrown(Exception):
    """Stands for an exception of the program that is no `Exception`: the host's end a capture."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(*error.args)
        self.error = error


class Stopped(Thrown):
    """Stands for a `StopIteration` of the program, which no host generator lets pass."""


def thrown(error: BaseException) -> BaseException:
    """Return what the interpreter raises for an exception of the program."""
    if isinstance(error, StopIteration):
        return Stopped(error)
    return error if isinstance(error, Exception) else Thrown(error)


def of_program(raised: BaseException) -> BaseException:
    """Return the exception of the program for which the interpreter raises one."""
    return raised.error if isinstance(raised, Thrown) else raised


class LeftByConsumer(BaseException):
    """An exception of the code that goes through a generator, on its way through the generator."""

    def __init__(self, error: Exception, frame: PythonFrame) -> None:
        super().__init__()
        self.error, self.frame = error, frame


class SuperOf:
    """`super()` in a method."""

    def __init__(self, kind: type, held: Any) -> None:
        self.kind, self.held = kind, held
