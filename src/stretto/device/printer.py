"""The text of expressions, which `expr_parser` reads back.

Buffers are declared once and then named; `h[4*i0 + $t]` is element 4*i0 + t of h, where i0 is an
iteration variable and $t a register; `h{2, 8}[...]` sees h with other dims. `(i0 // 4)` and
`(i0 % 4)` floor, `(#n * #m)` is a product, `#n` a size that is known at the call. `[...]` inside an
index is a position computed by an expression, `<...>` in an expression is an index as a number. A
function has its dtype after a colon where it is not that of its first argument.
"""

from __future__ import annotations

import json
import re

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
from stretto.errors import ScheduleError
from stretto.ir.sizes import Maximum, Product, Size, Symbol
from stretto.ir.types import DType

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
