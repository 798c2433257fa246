"""Printer and parser of tokens, names, indices and expressions in the text of a DeviceProgram."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from stretto.device.expr import (
    Access,
    Apply,
    Atom,
    Buffer,
    ComputedPosition,
    Const,
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
from stretto.reader import Reader, number

_WORDS: dict[str, bool | float] = {
    "true": True,
    "false": False,
    "inf": float("inf"),
    "-inf": float("-inf"),
    "nan": float("nan"),
}


class ExprParser(Reader):
    """A token-by-token parser; `buffers` are those declared so far, by their name in the text.

    templates: the templates of the machine that the program is for, by name.
    """

    token = re.compile(
        r"""(?P<string>"(?:[^"\\]|\\.)*")
        | (?P<number>-?(?:inf\b|nan\b|\d+(?:\.\d+)?(?:e[-+]?\d+)?))
        | (?P<word>[A-Za-z_][A-Za-z0-9_.]*(?::[0-9][A-Za-z0-9_.]*)?(?:'\d+)?)
        | (?P<sign>->|\.\.|//|[$&@#(){}\[\]<>,:=+*/%])""",
        re.VERBOSE,
    )

    def __init__(
        self, text: str, templates: Mapping[str, type[Template]] = PLAIN_TEMPLATES
    ) -> None:
        super().__init__(text)
        self.templates = templates
        self.buffers: dict[str, Buffer] = {}
        self.symbols: dict[str, Symbol] = {}

    def error(self, message: str, line: int, column: int, source: str) -> Exception:
        return ScheduleError(f"line {line}: {message}: {source.strip()}")

    def string(self) -> str:
        return json.loads(self.next("string"))

    def name(self) -> str:
        return self.string() if self.at("string") else self.next("word")

    def integer(self) -> int:
        try:
            return int(self.next("number"))
        except ValueError:
            self.fail("expected an integer")

    def number(self) -> bool | int | float:
        text = self.peek()
        if text in _WORDS:
            self.expect(text)
            return _WORDS[text]
        return number(self.next("number"))

    def declarations(self) -> None:
        """Read the declarations of symbols, then of buffers, one per line."""
        while self.accept("size"):
            self.expect("#")
            name = self.name()
            self.expect("from")
            low = self.integer()
            high = self.integer() if self.accept("to") else None
            usual = self.integer() if self.accept("usually") else None
            self.symbols[name] = Symbol(name, low, high, usual)
        while self.accept("buffer"):
            handle = self.next("word")
            name = self.string() if self.at("string") else handle
            dtype = self.dtype()
            shape = self.items(self.extent, "[", "]")
            kind = self.name()
            slot = self.integer() if self.at("number") else -1
            self.buffers[handle] = Buffer(name, dtype, shape, kind, slot)

    def dtype(self) -> DType:
        try:
            return DType(self.next("word"))
        except ValueError:
            self.fail("expected a dtype")

    def buffer(self) -> Buffer:
        handle = self.next("word")
        if handle not in self.buffers:
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
        """Read a size that is known at the call."""
        return self.index().dim

    def index(self) -> Index:
        terms: list[tuple[Atom, int]] = []
        const = 0
        while True:
            if self.at("number"):
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
            return ComputedPosition(value)
        if self.accept("#"):
            return self.symbol()
        if self.accept("("):
            atom = self._compound()
            self.expect(")")
            return atom
        word = self.next("word")
        if word == "max":
            return Maximum(self.items(self.index))
        if not re.fullmatch(r"i\d+", word):
            self.fail("expected an iteration variable")
        return Var(int(word[1:]))

    def symbol(self) -> Symbol:
        name = self.name()
        if name not in self.symbols:
            self.fail(f"no size {name} is declared")
        return self.symbols[name]

    def _compound(self) -> Atom:
        """Read a product, quotient or remainder that is in parentheses."""
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
        if self.peek() in self.buffers and self._at_access():
            return Load(self.access())
        if self.at("number") or self.peek() in ("true", "false"):
            value = self.number()
            self.expect(":")
            return Const(value, self.dtype())
        function = self.next("word")
        dtype = self.dtype() if self.accept(":") else None
        args = self.items(self.expr)
        if dtype is None:
            if not args:
                self.fail("a function without arguments needs a dtype")
            dtype = args[0].dtype
        return Apply(function, args, dtype)

    def _at_access(self) -> bool:
        """Return True if dims or an index follow the next token, as in an access to a buffer."""
        here = self.position
        self.next("word")
        found = self.peek() in ("[", "{")
        self.move(here)
        return found


# ---- The text of expressions, which `ExprParser` reads back.
#
# Buffers are declared once and then named; `h[4*i0 + $t]` is element 4*i0 + t of h, where i0 is
# an iteration variable and $t a register; `h{2, 8}[...]` views h with other dims. `(i0 // 4)` and
# `(i0 % 4)` floor, `(#n * #m)` is a product, `#n` a size that is known at the call. `[...]`
# inside an index is a position computed by an expression, `<...>` in an expression is an index as
# a number. A function's dtype follows a colon if it differs from that of the first argument.


PLAIN_NAME = re.compile(r"(?!(?:inf|nan)\b)[A-Za-z_][A-Za-z0-9_.]*(?::[0-9][A-Za-z0-9_.]*)?")


def print_expr(expr: Expr) -> str:
    """Return an expression as text, for messages."""
    return ExprPrinter().expr(expr)


def name_text(text: str) -> str:
    return text if PLAIN_NAME.fullmatch(text) else json.dumps(text)


def number_text(value: bool | int | float) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


class ExprPrinter:
    """A printer of expressions; `buffers` maps each buffer printed so far to its name."""

    def __init__(self) -> None:
        self.buffers: dict[Buffer, str] = {}
        self.symbols: dict[str, Symbol] = {}
        self._handles: set[str] = set()

    def buffer(self, buffer: Buffer) -> str:
        """Return the name of a buffer in the text; a suffix distinguishes equal names."""
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
        """Return one line for each symbol and each buffer named so far."""
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
        """Return the text of a size that is known at the call."""
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
            case ComputedPosition(value):
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
