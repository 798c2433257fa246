"""How records are written and read: one pattern per record serves the printer and the parser.

A pattern is the text of a record with `{field}` in the place of a field's text, which has the
syntax of the field's type unless another is given. What is between square brackets is left out
where its fields have their defaults. Double braces are braces of the text; a line that ends with
one opens a block, whose lines are indented. `{declarations}` is the place of the declarations of
all buffers that the text names.

    record(Run, "run {kernel} {first} count {count}[ by {stride}]", count=either("all", INTEGER))
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum, StrEnum
from functools import reduce
from operator import or_
from typing import Any, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

from stretto.device.expr import Access, Buffer, Expr, Extent, Reg
from stretto.device.expr_text import ExprParser, ExprPrinter, name_text, number_text, tokens_of

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
Kind = TypeVar("Kind", bound=StrEnum)


DECLARATIONS = "\0"
"""Stands for the declarations of buffers until all buffers of a text are known."""


@dataclass(frozen=True, slots=True)
class Syntax(Generic[T]):
    """The text of a kind of values. first: the tokens that it begins with, where they are known."""

    show: Callable[[ExprPrinter, T], str]
    read: Callable[[ExprParser], T]
    first: frozenset[str] = frozenset()


def converted(syntax: Syntax[A], into: Callable[[A], B], back: Callable[[B], A]) -> Syntax[B]:
    """The syntax of a record for values that are not records themselves."""
    return Syntax(
        lambda printer, value: syntax.show(printer, back(value)),
        lambda given: into(syntax.read(given)),
        syntax.first,
    )


# ---- small values ----------------------------------------------------------------------------
NAME: Syntax[str] = Syntax(lambda _, value: name_text(value), ExprParser.name)
STRING: Syntax[str] = Syntax(lambda _, value: json.dumps(value), ExprParser.string)
INTEGER: Syntax[int] = Syntax(lambda _, value: str(value), ExprParser.integer)
NUMBER: Syntax[Any] = Syntax(lambda _, value: number_text(value), ExprParser.number)
BUFFER = Syntax(ExprPrinter.buffer, ExprParser.buffer)
REGISTER = Syntax(ExprPrinter.register, ExprParser.register)
SIZE = Syntax(ExprPrinter.size, ExprParser.size)
EXTENT = Syntax(ExprPrinter.extent, ExprParser.extent)
ACCESS = Syntax(ExprPrinter.access, ExprParser.access)
EXPR = Syntax(ExprPrinter.expr, ExprParser.expr)


_OF_TYPE: dict[Any, Syntax[Any]] = {
    str: NAME,
    int: INTEGER,
    float: converted(NUMBER, float, float),
    Buffer: BUFFER,
    Reg: REGISTER,
    Extent: EXTENT,
    Access: ACCESS,
    Expr: EXPR,
}


def of_type(hint: Any) -> Syntax[Any]:
    """The syntax of an annotated type. Records that have one are known by their class."""
    if hint in _OF_TYPE:
        return _OF_TYPE[hint]
    parts = get_args(hint)
    match get_origin(hint):
        case None if isinstance(hint, type) and issubclass(hint, Enum):
            return member(hint)
        case origin if origin is tuple and parts[-1] is Ellipsis:
            return items(of_type(parts[0]))
        case origin if origin is tuple:
            return pair("{left} = {right}", of_type(parts[0]), of_type(parts[1]))
        case _ if type(None) in parts:
            return of_type(reduce(or_, (part for part in parts if part is not type(None))))
        case _:
            raise TypeError(f"{hint} has no syntax of its own")


def member(kind: type[Kind]) -> Syntax[Kind]:
    """A member of an enumeration, by its text."""
    members = {one.value: one for one in kind}

    def read(given: ExprParser) -> Kind:
        text = given.name()
        return members[text] if text in members else given.fail(f"{text} is not one of {members}")

    return Syntax(lambda _, value: name_text(value), read)


def flag(word: str) -> Syntax[bool]:
    """A word that is there or not, after a space."""
    return Syntax(lambda _, value: f" {word}" if value else "", lambda given: given.accept(word))


def headed(word: str, syntax: Syntax[T]) -> Syntax[T]:
    """A word before what has none of its own."""

    def read(given: ExprParser) -> T:
        given.expect(word)
        return syntax.read(given)

    return Syntax(
        lambda printer, value: f"{word} {syntax.show(printer, value)}", read, frozenset({word})
    )


def either(word: str, other: Syntax[T]) -> Syntax[T | None]:
    """A word in the place of None."""

    def show(printer: ExprPrinter, value: T | None) -> str:
        return word if value is None else other.show(printer, value)

    def read(given: ExprParser) -> T | None:
        return None if given.accept(word) else other.read(given)

    return Syntax(show, read)


# ---- several values --------------------------------------------------------------------------
def items(item: Syntax[T], opening: str = "(", closing: str = ")") -> Syntax[tuple[T, ...]]:
    """Values in brackets, separated by commas."""

    def show(printer: ExprPrinter, values: tuple[T, ...]) -> str:
        return f"{opening}{', '.join(item.show(printer, value) for value in values)}{closing}"

    return Syntax(show, lambda given: given.items(lambda: item.read(given), opening, closing))


def lines(item: Syntax[T]) -> Syntax[tuple[T, ...]]:
    """Values on lines of their own, as many as begin with the tokens that the syntax says."""

    def show(printer: ExprPrinter, values: tuple[T, ...]) -> str:
        return "\n".join(item.show(printer, value) for value in values)

    def read(given: ExprParser) -> tuple[T, ...]:
        found: list[T] = []
        while given.peek() in item.first:
            found.append(item.read(given))
        return tuple(found)

    return Syntax(show, read, item.first)


def block(item: Syntax[T]) -> Syntax[tuple[T, ...]]:
    """Values in braces, each on a line of its own."""

    def show(printer: ExprPrinter, values: tuple[T, ...]) -> str:
        return "\n".join(("{", *(item.show(printer, value) for value in values), "}"))

    def read(given: ExprParser) -> tuple[T, ...]:
        given.expect("{")
        found: list[T] = []
        while not given.accept("}"):
            found.append(item.read(given))
        return tuple(found)

    return Syntax(show, read)


def choice(cases: Mapping[type, Syntax[Any]]) -> Syntax[Any]:
    """A value of one of several classes, told apart by the first token."""
    by_token = {token: syntax for syntax in cases.values() for token in syntax.first}

    def read(given: ExprParser) -> object:
        if given.peek() not in by_token:
            given.fail(f"expected one of {', '.join(by_token)}")
        return by_token[given.peek()].read(given)

    def show(printer: ExprPrinter, value: object) -> str:
        return cases[type(value)].show(printer, value)

    return Syntax(show, read, frozenset(by_token))


def later(syntax: Callable[[], Syntax[T]]) -> Syntax[T]:
    """A syntax that is defined further down, as of what has itself inside."""
    return Syntax(
        lambda printer, value: syntax().show(printer, value), lambda given: syntax().read(given)
    )


# ---- patterns --------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Words:
    """Text that is printed as it is, and read token by token."""

    text: str
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Field:
    name: str


@dataclass(frozen=True, slots=True)
class _Optional:
    parts: tuple[_Part, ...]

    @property
    def first(self) -> str:
        words = self.parts[0]
        assert isinstance(words, _Words)
        return words.tokens[0]


@dataclass(frozen=True, slots=True)
class _Declarations:
    pass


_Part = _Words | _Field | _Optional | _Declarations

_PIECE = re.compile(
    r"\{(?P<field>\w+)\}|(?P<open>\[)|(?P<close>\])|(?P<words>(?:[^{}\[\]]|\{\{|\}\})+)"
)


def _parsed(pieces: Iterator[re.Match[str]]) -> tuple[_Part, ...]:
    parts: list[_Part] = []
    for piece in pieces:
        match piece.lastgroup:
            case "field":
                name = piece["field"]
                parts.append(_Declarations() if name == "declarations" else _Field(name))
            case "open":
                parts.append(_Optional(_parsed(pieces)))
            case "close":
                break
            case _:
                text = piece["words"].replace("{{", "{").replace("}}", "}")
                parts.append(_Words(text, tokens_of(text)))
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class _Pattern:
    parts: tuple[_Part, ...]
    fields: Mapping[str, Syntax[Any]]
    defaults: Mapping[str, object]

    def show(self, printer: ExprPrinter, values: Mapping[str, object]) -> str:
        return self._show(self.parts, printer, values)

    def _show(
        self, parts: tuple[_Part, ...], printer: ExprPrinter, values: Mapping[str, object]
    ) -> str:
        found: list[str] = []
        for part in parts:
            match part:
                case _Words(text):
                    found.append(text)
                case _Declarations():
                    found.append(DECLARATIONS)
                case _Field(name):
                    found.append(self.fields[name].show(printer, values[name]))
                case _Optional(inner):
                    names = [item.name for item in inner if isinstance(item, _Field)]
                    if any(values[name] != self.defaults[name] for name in names):
                        found.append(self._show(inner, printer, values))
        return "".join(found)

    def read(self, given: ExprParser) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self._read(self.parts, given, found)
        return found

    def _read(self, parts: tuple[_Part, ...], given: ExprParser, found: dict[str, object]) -> None:
        for part in parts:
            match part:
                case _Words(_, tokens):
                    for token in tokens:
                        given.expect(token)
                case _Declarations():
                    given.declarations()
                case _Field(name):
                    found[name] = self.fields[name].read(given)
                case _Optional(inner):
                    if given.peek() == part.first:
                        self._read(inner, given, found)
                    else:
                        names = [item.name for item in inner if isinstance(item, _Field)]
                        found.update((name, self.defaults[name]) for name in names)

    @property
    def first(self) -> frozenset[str]:
        match self.parts[0]:
            case _Words(_, (token, *_)):
                return frozenset({token})
            case _Field(name):
                return self.fields[name].first
            case _:
                return frozenset()


def record(
    make: type[T],
    pattern: str,
    defaults: Mapping[str, object] | None = None,
    **syntax: Syntax[Any],
) -> Syntax[T]:
    """A dataclass. defaults: of optional fields that the class itself gives none."""
    known: dict[str, object] = dict(defaults or {})
    assert is_dataclass(make)
    for field in fields(make):
        if field.default is not MISSING:
            known.setdefault(field.name, field.default)
    names = [piece["field"] for piece in _PIECE.finditer(pattern) if piece["field"]]
    hints = get_type_hints(make)
    parts = {
        name: syntax[name] if name in syntax else of_type(hints[name])
        for name in names
        if name != "declarations"
    }
    found = _Pattern(_parsed(_PIECE.finditer(pattern)), parts, known)

    def show(printer: ExprPrinter, value: T) -> str:
        return found.show(printer, {name: getattr(value, name) for name in parts})

    def read(given: ExprParser) -> T:
        return cast("type[Any]", make)(**found.read(given))

    made = Syntax(show, read, found.first)
    _OF_TYPE.setdefault(make, made)
    return made


def pair(pattern: str, left: Syntax[A], right: Syntax[B]) -> Syntax[tuple[A, B]]:
    """Two values, which the pattern names `left` and `right`."""
    found = _Pattern(_parsed(_PIECE.finditer(pattern)), {"left": left, "right": right}, {})

    def show(printer: ExprPrinter, value: tuple[A, B]) -> str:
        return found.show(printer, {"left": value[0], "right": value[1]})

    def read(given: ExprParser) -> tuple[A, B]:
        values = found.read(given)
        return values["left"], values["right"]

    return Syntax(show, read, found.first)


def indented(text: str) -> str:
    """The text with the lines of each block indented, without empty lines."""
    depth = 0
    done: list[str] = []
    for line in text.split("\n"):
        if not line.strip():
            continue
        depth -= line.startswith("}")
        done.append("  " * depth + line + "\n")
        depth += line.endswith("{")
    return "".join(done)
