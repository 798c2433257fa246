"""Tokens, names, indices and expressions in the text of a DeviceProgram."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Never, TypeVar

from stretto.device.expr import (
    Access,
    Apply,
    Atom,
    Buffer,
    Const,
    Dynamic,
    Expr,
    Extent,
    Index,
    Load,
    Position,
    Quotient,
    Reg,
    Remainder,
    Var,
)
from stretto.device.operator import PLAIN_TEMPLATES, Template
from stretto.errors import ScheduleError
from stretto.ir.sizes import Maximum, Product, Size, Symbol
from stretto.ir.types import DType

A = TypeVar("A")

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<number>-?(?:inf\b|nan\b|\d+(?:\.\d+)?(?:e[-+]?\d+)?))
      | (?P<word>[A-Za-z_][A-Za-z0-9_.]*(?::[0-9][A-Za-z0-9_.]*)?(?:'\d+)?)
      | (?P<sign>->|\.\.|//|[$&@#(){}\[\]<>,:=+*/%])
      | (?P<end>$)
    )""",
    re.VERBOSE,
)
_WORDS: dict[str, bool | float] = {
    "true": True,
    "false": False,
    "inf": float("inf"),
    "-inf": float("-inf"),
    "nan": float("nan"),
}


def tokens_of(text: str) -> tuple[str, ...]:
    """The words and signs of a text."""
    found = (match[match.lastgroup or 0] for match in _TOKEN.finditer(text))
    return tuple(token for token in found if token)


class ExprParser:
    """Reads token by token; `buffers` are those declared so far, by their name in the text.

    templates: those of the machine that the program is for, by name.
    """

    def __init__(
        self, text: str, templates: Mapping[str, type[Template]] = PLAIN_TEMPLATES
    ) -> None:
        self._text = text
        self.templates = templates
        self._tokens: list[tuple[str, str, int]] = []
        self._at = 0
        self.buffers: dict[str, Buffer] = {}
        self.symbols: dict[str, Symbol] = {}
        position = 0
        while not self._tokens or self._tokens[-1][0] != "end":
            match = _TOKEN.match(text, position)
            if match is None:
                self._tokens.append(("end", "", position))
                self._at = len(self._tokens) - 1
                self.fail("cannot read this")
            kind = match.lastgroup
            assert kind is not None
            self._tokens.append((kind, match[kind], match.start(kind)))
            position = match.end()

    def fail(self, message: str) -> Never:
        """Raises for the token at hand."""
        position = self._tokens[self._at][2]
        line = self._text.count("\n", 0, position)
        lines = self._text.splitlines() or [""]
        source = lines[min(line, len(lines) - 1)].strip()
        raise ScheduleError(f"line {line + 1}: {message}: {source}")

    def peek(self) -> str:
        return self._tokens[self._at][1]

    def at_string(self) -> bool:
        return self._tokens[self._at][0] == "string"

    def at_integer(self) -> bool:
        return self._tokens[self._at][0] == "number"

    def end(self) -> None:
        if self._tokens[self._at][0] != "end":
            self.fail("expected the end of the text")

    def accept(self, token: str) -> bool:
        kind, text, _ = self._tokens[self._at]
        if kind == "string" or text != token:
            return False
        self._at += 1
        return True

    def expect(self, token: str) -> None:
        if not self.accept(token):
            self.fail(f"expected `{token}`")

    def string(self) -> str:
        return json.loads(self._next("string"))

    def name(self) -> str:
        return self.string() if self.at_string() else self._next("word")

    def integer(self) -> int:
        try:
            return int(self._next("number"))
        except ValueError:
            self._at -= 1
            self.fail("expected an integer")

    def number(self) -> bool | int | float:
        text = self.peek()
        if text in _WORDS:
            self._at += 1
            return _WORDS[text]
        text = self._next("number")
        return int(text) if text.lstrip("-").isdecimal() else float(text)

    def _next(self, kind: str) -> str:
        found, text, _ = self._tokens[self._at]
        if found != kind:
            self.fail(f"expected a {kind}")
        self._at += 1
        return text

    def items(self, item: Callable[[], A], opening: str = "(", closing: str = ")") -> tuple[A, ...]:
        """Items between brackets, separated by commas."""
        self.expect(opening)
        found: list[A] = []
        while not self.accept(closing):
            if found:
                self.expect(",")
            found.append(item())
        return tuple(found)

    def declarations(self) -> None:
        """Symbols, then buffers, each declared in a line."""
        while self.accept("size"):
            self.expect("#")
            name = self.name()
            self.expect("from")
            low = self.integer()
            high = self.integer() if self.accept("to") else None
            usual = self.integer() if self.accept("usually") else None
            self.symbols[name] = Symbol(name, low, high, usual)
        while self.accept("buffer"):
            handle = self._next("word")
            name = self.string() if self.at_string() else handle
            dtype = self.dtype()
            shape = self.items(self.extent, "[", "]")
            kind = self.name()
            slot = self.integer() if self.at_integer() else -1
            self.buffers[handle] = Buffer(name, dtype, shape, kind, slot)

    def dtype(self) -> DType:
        try:
            return DType(self._next("word"))
        except ValueError:
            self._at -= 1
            self.fail("expected a dtype")

    def buffer(self) -> Buffer:
        handle = self._next("word")
        if handle not in self.buffers:
            self._at -= 1
            self.fail(f"no buffer {handle} is declared")
        return self.buffers[handle]

    def register(self) -> Reg:
        self.expect("$")
        name = self.name()
        return Reg(name, self.dtype()) if self.accept(":") else Reg(name)

    def extent(self) -> Extent:
        if self.peek() == "$":
            return self.register()
        if self.accept("("):
            size = self.size()
            self.expect(")")
            return size
        if self.accept("#"):
            return Index.of(self.symbol())
        return self.integer()

    def size(self) -> int | Index:
        """A size that is known at the call."""
        return self.index().dim

    def index(self) -> Index:
        terms: list[tuple[Atom, int]] = []
        const = 0
        while True:
            if self.at_integer():
                coefficient = self.integer()
                if self.accept("*"):
                    terms.append((self._atom(), coefficient))
                else:
                    const = coefficient
            else:
                terms.append((self._atom(), 1))
            if not self.accept("+"):
                return Index(tuple(terms), const)

    def _atom(self) -> Atom:
        if self.peek() == "$":
            return self.register()
        if self.accept("["):
            value = self.expr()
            self.expect("]")
            return Dynamic(value)
        if self.accept("#"):
            return self.symbol()
        if self.accept("("):
            atom = self._compound()
            self.expect(")")
            return atom
        word = self._next("word")
        if word == "max":
            return Maximum(self.items(self.index))
        if not re.fullmatch(r"i\d+", word):
            self._at -= 1
            self.fail("expected an iteration variable")
        return Var(int(word[1:]))

    def symbol(self) -> Symbol:
        name = self.name()
        if name not in self.symbols:
            self._at -= 1
            self.fail(f"no size {name} is declared")
        return self.symbols[name]

    def _compound(self) -> Atom:
        """A division or a product in parentheses."""
        index = self.index()
        if self.accept("*"):
            ((first, _),) = index.terms
            factors = [first, self._atom()]
            while self.accept("*"):
                factors.append(self._atom())
            return Product(tuple(factors))
        kind = Quotient if self.accept("//") else Remainder
        if kind is Remainder:
            self.expect("%")
        divisor = self.index()
        return kind(index, divisor.dim)

    def access(self) -> Access:
        buffer = self.buffer()
        shape = self.items(self.extent, "{", "}") if self.peek() == "{" else buffer.shape
        return Access(buffer, shape, self.items(self.index, "[", "]"))

    def expr(self) -> Expr:
        if self.accept("<"):
            index = self.index()
            self.expect(">")
            return Position(index)
        following = self._tokens[self._at + 1][1]
        if self.peek() in self.buffers and following in ("[", "{"):
            return Load(self.access())
        if self.at_integer() or self.peek() in ("true", "false"):
            value = self.number()
            self.expect(":")
            return Const(value, self.dtype())
        function = self._next("word")
        dtype = self.dtype() if self.accept(":") else None
        args = self.items(self.expr)
        if dtype is None:
            if not args:
                self.fail("a function without arguments needs a dtype")
            dtype = args[0].dtype
        return Apply(function, args, dtype)


# ---- The text of expressions, which `expr_parser` reads back.
#
# Buffers are declared once and then named; `h[4*i0 + $t]` is element 4*i0 + t of h, where i0 is
# an iteration variable and $t a register; `h{2, 8}[...]` sees h with other dims. `(i0 // 4)` and
# `(i0 % 4)` floor, `(#n * #m)` is a product, `#n` a size that is known at the call. `[...]`
# inside an index is a position computed by an expression, `<...>` in an expression is an index as
# a number. A function has its dtype after a colon where it is not that of its first argument.


PLAIN_NAME = re.compile(r"(?!(?:inf|nan)\b)[A-Za-z_][A-Za-z0-9_.]*(?::[0-9][A-Za-z0-9_.]*)?")


def print_expr(expr: Expr) -> str:
    """An expression as text, for messages."""
    return ExprPrinter().expr(expr)


def name_text(text: str) -> str:
    return text if PLAIN_NAME.fullmatch(text) else json.dumps(text)


def number_text(value: bool | int | float) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


class ExprPrinter:
    """Prints expressions; `buffers` are those that it has named."""

    def __init__(self) -> None:
        self.buffers: dict[Buffer, str] = {}
        self.symbols: dict[str, Symbol] = {}
        self._handles: set[str] = set()

    def buffer(self, buffer: Buffer) -> str:
        """The name of a buffer in the text; two buffers of one name differ in a suffix."""
        if buffer not in self.buffers:
            base = buffer.name if PLAIN_NAME.fullmatch(buffer.name) else "buffer"
            handle, number = base, 1
            while handle in self._handles:
                number += 1
                handle = f"{base}'{number}"
            self._handles.add(handle)
            self.buffers[buffer] = handle
        return self.buffers[buffer]

    def declarations(self) -> list[str]:
        """A line for each symbol and each buffer named so far."""
        buffers = [self._declaration(buffer, handle) for buffer, handle in self.buffers.items()]
        return [self._size(symbol) for _, symbol in sorted(self.symbols.items())] + buffers

    def _size(self, symbol: Symbol) -> str:
        high = "" if symbol.high is None else f" to {symbol.high}"
        usual = f" usually {symbol.usual}" if symbol.usual else ""
        return f"size #{name_text(symbol.name)} from {symbol.low}{high}{usual}"

    def _declaration(self, buffer: Buffer, handle: str) -> str:
        name = "" if handle == buffer.name else f" {json.dumps(buffer.name)}"
        slot = f" {buffer.slot}" if buffer.slot != -1 else ""
        dims = ", ".join(self.extent(dim) for dim in buffer.shape)
        return f"buffer {handle}{name} {buffer.dtype.value}[{dims}] {name_text(buffer.kind)}{slot}"

    def register(self, register: Reg) -> str:
        dtype = "" if register.dtype is DType.I64 else f":{register.dtype.value}"
        return f"${name_text(register.name)}{dtype}"

    def extent(self, extent: Extent) -> str:
        if isinstance(extent, Reg):
            return self.register(extent)
        plain = isinstance(extent, int) or extent.symbol is not None
        return self.size(extent) if plain else f"({self.size(extent)})"

    def size(self, size: int | Size) -> str:
        """A size that is known at the call."""
        return str(size) if isinstance(size, int) else self.index(size)

    def index(self, index: Index) -> str:
        parts = [
            self.atom(atom) if coefficient == 1 else f"{coefficient}*{self.atom(atom)}"
            for atom, coefficient in index.terms
        ]
        if index.const or not parts:
            parts.append(str(index.const))
        return " + ".join(parts)

    def atom(self, atom: Atom) -> str:
        match atom:
            case Var(number):
                return f"i{number}"
            case Reg():
                return self.register(atom)
            case Quotient(index, divisor):
                return f"({self.index(index)} // {self.index(Index.of(divisor))})"
            case Remainder(index, divisor):
                return f"({self.index(index)} % {self.index(Index.of(divisor))})"
            case Dynamic(value):
                return f"[{self.expr(value)}]"
            case Symbol(name):
                self.symbols[name] = atom
                return f"#{name_text(name)}"
            case Product(factors):
                return f"({' * '.join(self.atom(factor) for factor in factors)})"
            case Maximum(parts):
                return f"max({', '.join(self.index(part) for part in parts)})"
            case _:
                raise ScheduleError(f"{atom!r} has no text")

    def access(self, access: Access) -> str:
        view = ""
        if access.shape != access.buffer.shape:
            view = "{" + ", ".join(self.extent(dim) for dim in access.shape) + "}"
        indices = ", ".join(self.index(index) for index in access.index)
        return f"{self.buffer(access.buffer)}{view}[{indices}]"

    def expr(self, expr: Expr) -> str:
        match expr:
            case Const(value, dtype):
                return f"{number_text(value)}:{dtype.value}"
            case Position(index):
                return f"<{self.index(index)}>"
            case Load(access):
                return self.access(access)
            case Apply(function, args, dtype):
                plain = args and args[0].dtype is dtype
                suffix = "" if plain else f":{dtype.value}"
                return f"{function}{suffix}({', '.join(self.expr(arg) for arg in args)})"
