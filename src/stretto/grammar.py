"""How values are written and read: one pattern per record serves both the printer and the parser.

A pattern is the text of a record with `{field}` in place of each field's text, which has the syntax
of the field's type unless another one is given. A part in square brackets is left out if its fields
have their defaults. Double braces are braces of the text; a line that ends with one opens a block,
whose lines are indented.

    record(Run, "run {kernel} {first} count {count}[ by {stride}]", count=either("all", INTEGER))

A language has a class of readers, which knows its tokens, and a class of printers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum, StrEnum
from functools import reduce
from operator import or_
from typing import Any, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

from stretto.reader import Reader

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
M = TypeVar("M", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Syntax(Generic[T]):
    """The text of a kind of values. `show` takes a printer of the language, `read` a reader.
    first: the tokens that the text may begin with, if they are known."""

    show: Callable[[Any, T], str]
    read: Callable[[Any], T]
    first: frozenset[str] = frozenset()


def converted(syntax: Syntax[A], into: Callable[[A], B], back: Callable[[B], A]) -> Syntax[B]:
    """Return the syntax of `A` for values of type `B`, which `back` and `into` convert."""
    return Syntax(
        lambda printer, value: syntax.show(printer, back(value)),
        lambda given: into(syntax.read(given)),
        syntax.first,
    )


# ---- small values ----------------------------------------------------------------------------
def member(kind: type[M], name: Syntax[str]) -> Syntax[M]:
    """A member of an enumeration, written as its value."""
    members = {one.value: one for one in kind}

    def read(given: Reader) -> M:
        text = name.read(given)
        return members[text] if text in members else given.fail(f"{text} is not one of {members}")

    return Syntax(lambda printer, value: name.show(printer, value), read)


def flag(word: str) -> Syntax[bool]:
    """A bool: a word after a space for True, nothing for False."""
    return Syntax(lambda _, value: f" {word}" if value else "", lambda given: given.accept(word))


def headed(word: str, syntax: Syntax[T]) -> Syntax[T]:
    """A value after a word, for a syntax without a first token of its own."""

    def read(given: Reader) -> T:
        given.expect(word)
        return syntax.read(given)

    return Syntax(
        lambda printer, value: f"{word} {syntax.show(printer, value)}", read, frozenset({word})
    )


def either(word: str, other: Syntax[T]) -> Syntax[T | None]:
    """An optional value: a word for None."""

    def show(printer: Any, value: T | None) -> str:
        return word if value is None else other.show(printer, value)

    def read(given: Reader) -> T | None:
        return None if given.accept(word) else other.read(given)

    return Syntax(show, read)


# ---- several values --------------------------------------------------------------------------
def items(item: Syntax[T], opening: str = "(", closing: str = ")") -> Syntax[tuple[T, ...]]:
    """Values in brackets, separated by commas."""

    def show(printer: Any, values: tuple[T, ...]) -> str:
        return f"{opening}{', '.join(item.show(printer, value) for value in values)}{closing}"

    def read(given: Reader) -> tuple[T, ...]:
        return given.items(lambda: item.read(given), opening, closing)

    return Syntax(show, read, frozenset({opening}))


def lines(item: Syntax[T]) -> Syntax[tuple[T, ...]]:
    """Values on separate lines, as long as lines begin with a token of `item.first`."""

    def show(printer: Any, values: tuple[T, ...]) -> str:
        return "\n".join(item.show(printer, value) for value in values)

    def read(given: Reader) -> tuple[T, ...]:
        found: list[T] = []
        while given.peek() in item.first:
            found.append(item.read(given))
        return tuple(found)

    return Syntax(show, read, item.first)


def block(item: Syntax[T]) -> Syntax[tuple[T, ...]]:
    """Values in braces, each on a separate line."""

    def show(printer: Any, values: tuple[T, ...]) -> str:
        return "\n".join(("{", *(item.show(printer, value) for value in values), "}"))

    def read(given: Reader) -> tuple[T, ...]:
        given.expect("{")
        found: list[T] = []
        while not given.accept("}"):
            found.append(item.read(given))
        return tuple(found)

    return Syntax(show, read)


def choice(cases: Mapping[type, Syntax[Any]]) -> Syntax[Any]:
    """A value of one of several classes, distinguished by the first token."""
    by_token = {token: syntax for syntax in cases.values() for token in syntax.first}

    def read(given: Reader) -> object:
        if given.peek() not in by_token:
            given.miss(f"one of {', '.join(by_token)}")
        return by_token[given.peek()].read(given)

    def show(printer: Any, value: object) -> str:
        return cases[type(value)].show(printer, value)

    return Syntax(show, read, frozenset(by_token))


def later(syntax: Callable[[], Syntax[T]]) -> Syntax[T]:
    """A syntax that is defined further down, such as a recursive one."""
    return Syntax(
        lambda printer, value: syntax().show(printer, value), lambda given: syntax().read(given)
    )


# ---- patterns --------------------------------------------------------------------------------
_TOKEN = re.compile(r"->|\.\.|//|[A-Za-z_][A-Za-z0-9_.]*|\S")
_PIECE = re.compile(
    r"\{(?P<field>\w+)\}|(?P<open>\[)|(?P<close>\])|(?P<words>(?:[^{}\[\]]|\{\{|\}\})+)"
)


@dataclass(frozen=True, slots=True)
class _Words:
    """Text that is printed as it is, and read token by token."""

    text: str
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    syntax: Syntax[Any]


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A pattern, or an optional part of one. defaults: default values of the fields of an optional
    part."""

    parts: tuple[_Words | _Field | _Pattern, ...]
    defaults: Mapping[str, object]

    @staticmethod
    def of(
        pieces: Iterator[re.Match[str]],
        fields: Mapping[str, Syntax[Any]],
        defaults: Mapping[str, object],
    ) -> _Pattern:
        parts: list[_Words | _Field | _Pattern] = []
        for piece in pieces:
            match piece.lastgroup:
                case "field":
                    parts.append(_Field(piece["field"], fields[piece["field"]]))
                case "open":
                    parts.append(_Pattern.of(pieces, fields, defaults))
                case "close":
                    break
                case _:
                    text = piece["words"].replace("{{", "{").replace("}}", "}")
                    parts.append(_Words(text, tuple(_TOKEN.findall(text))))
        names = (part.name for part in parts if isinstance(part, _Field))
        own = {name: defaults[name] for name in names if name in defaults}
        return _Pattern(tuple(parts), own)

    def show(self, printer: Any, values: Mapping[str, object]) -> str:
        found: list[str] = []
        for part in self.parts:
            match part:
                case _Words(text):
                    found.append(text)
                case _Field(name, syntax):
                    found.append(syntax.show(printer, values[name]))
                case _Pattern():
                    if any(values[name] != default for name, default in part.defaults.items()):
                        found.append(part.show(printer, values))
        return "".join(found)

    def read(self, given: Reader, found: dict[str, Any]) -> None:
        for part in self.parts:
            match part:
                case _Words(_, tokens):
                    for token in tokens:
                        given.expect(token)
                case _Field(name, syntax):
                    given.fields = found
                    found[name] = syntax.read(given)
                case _Pattern():
                    if given.peek() in part.first:
                        part.read(given, found)
                    else:
                        found.update(part.defaults)

    @property
    def first(self) -> frozenset[str]:
        match self.parts[0]:
            case _Words(_, tokens):
                return frozenset(tokens[:1])
            case _Field(_, syntax):
                return syntax.first
            case _Pattern():
                return frozenset()


def pattern(
    text: str,
    values: Callable[[T], Mapping[str, object]],
    make: Callable[[dict[str, Any]], T],
    fields: Mapping[str, Syntax[Any]],
    defaults: Mapping[str, object] | None = None,
) -> Syntax[T]:
    """A value written by a pattern. values: returns the fields of a value; make: builds a value
    from the fields."""
    found = _Pattern.of(_PIECE.finditer(text), fields, defaults or {})

    def read(given: Reader) -> T:
        parts: dict[str, Any] = {}
        found.read(given, parts)
        return make(parts)

    return Syntax(lambda printer, value: found.show(printer, values(value)), read, found.first)


def pair(text: str, left: Syntax[A], right: Syntax[B]) -> Syntax[tuple[A, B]]:
    """Two values, which the pattern names `left` and `right`."""
    return pattern(
        text,
        lambda value: {"left": value[0], "right": value[1]},
        lambda found: (found["left"], found["right"]),
        {"left": left, "right": right},
    )


class Language:
    """The syntaxes of the types that fields of records have."""

    def __init__(self, types: Mapping[Any, Syntax[Any]]) -> None:
        self._types = dict(types)

    def of_type(self, hint: Any) -> Syntax[Any]:
        """Return the syntax of an annotated type. Records are found by their class. Raises
        TypeError if the type has none."""
        if hint in self._types:
            return self._types[hint]
        parts = get_args(hint)
        match get_origin(hint):
            case None if isinstance(hint, type) and issubclass(hint, Enum):
                return member(hint, self.of_type(str))
            case origin if origin is tuple and parts[-1] is Ellipsis:
                return items(self.of_type(parts[0]))
            case origin if origin is tuple:
                return pair("{left} = {right}", *map(self.of_type, parts))
            case _ if type(None) in parts:
                return self.of_type(reduce(or_, (p for p in parts if p is not type(None))))
            case _:
                raise TypeError(f"{hint} has no syntax of its own")

    def record(
        self,
        make: type[T],
        text: str,
        defaults: Mapping[str, object] | None = None,
        shown: Callable[[T], Mapping[str, object]] = lambda _: {},
        **syntax: Syntax[Any],
    ) -> Syntax[T]:
        """Add and return the syntax of a dataclass.

        defaults: defaults of optional fields to which the class gives none. shown: returns the
        values to print for fields that differ from the attributes of the same names. Names in
        the pattern that are no fields of the class are read, but not passed to the class.
        """
        assert is_dataclass(make)
        known = {one.name: one.default for one in fields(make) if one.default is not MISSING}
        names = [piece["field"] for piece in _PIECE.finditer(text) if piece["field"]]
        hints = get_type_hints(make)
        parts = {n: syntax[n] if n in syntax else self.of_type(hints[n]) for n in names}

        def values(value: T) -> dict[str, object]:
            other = shown(value)
            return {n: other[n] if n in other else getattr(value, n, None) for n in parts}

        made = pattern(
            text,
            values,
            lambda found: cast("type[Any]", make)(**{n: found[n] for n in parts if n in hints}),
            parts,
            {**known, **(defaults or {})},
        )
        self._types.setdefault(make, made)
        return made


def indented(text: str) -> str:
    """Return the text with the lines of each block indented, without empty lines."""
    depth = 0
    done: list[str] = []
    for line in text.split("\n"):
        if not line.strip():
            continue
        depth -= line.startswith("}")
        done.append("  " * depth + line + "\n")
        depth += line.endswith("{")
    return "".join(done)
