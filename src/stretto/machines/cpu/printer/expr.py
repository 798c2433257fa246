"""Prints expressions and positions as C++.

Values of f16 and bf16 are C++ floats that have been rounded; only memory holds the 16-bit types.
Every repeated subexpression becomes one local constant, except inside an arm of `where` that loads:
an arm is evaluated only when it is taken, because its loads may be out of range otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from stretto.device.expr import (
    Access,
    Apply,
    Atom,
    Buffer,
    Const,
    Dynamic,
    Expr,
    Index,
    Load,
    Position,
    Quotient,
    Reg,
    Remainder,
    Var,
    loads,
)
from stretto.errors import CodegenError
from stretto.ir.types import DType
from stretto.machines.symbols import no_symbols

VALUE_TYPES: dict[DType, str] = {
    DType.F32: "float",
    DType.F64: "double",
    DType.F16: "float",
    DType.BF16: "float",
    DType.I64: "int64_t",
    DType.I32: "int32_t",
    DType.I16: "int16_t",
    DType.I8: "int8_t",
    DType.U8: "uint8_t",
    DType.BOOL: "bool",
}
MEMORY_TYPES: dict[DType, str] = {
    **VALUE_TYPES,
    DType.F16: "stretto::half",
    DType.BF16: "stretto::bf16",
    DType.BOOL: "bool",
}

_WRAPPING = {"add": "+", "sub": "-", "mul": "*"}
"""Arithmetic that wraps around for integers."""
_INFIX = {
    **_WRAPPING,
    "div": "/",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "and": "&",
    "or": "|",
    "xor": "^",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
}
_CALLS = {
    "shl": "stretto::shift_left",
    "shr": "stretto::shift_right",
    "floordiv": "stretto::floor_div",
    "truncdiv": "stretto::trunc_quotient",
    "fmod": "stretto::fmod_any",
    "remainder": "stretto::remainder",
    "pow": "stretto::power",
    "maximum": "stretto::maximum",
    "minimum": "stretto::minimum",
    "fmax": "stretto::fmax_any",
    "fmin": "stretto::fmin_any",
    "atan2": "stretto::atan2",
    "isnan": "stretto::is_nan",
    "isinf": "stretto::is_inf",
    "reciprocal": "stretto::reciprocal",
}


def wrapping_type(dtype: DType) -> str:
    """The unsigned type in which integers of `dtype` are added and multiplied.

    Overflow of signed types is undefined in C++, and what is narrower than int is computed in int.
    """
    return "uint64_t" if dtype is DType.I64 else "uint32_t"


def literal(value: bool | int | float, dtype: DType) -> str:
    """A C++ literal of exactly this value."""
    if dtype is DType.BOOL:
        return "true" if value else "false"
    kind = VALUE_TYPES[dtype]
    if not dtype.is_float:
        number = int(value)
        if number == -(2**63):
            return "INT64_MIN"
        return f"int64_t({number})" if dtype is DType.I64 else f"{kind}({number})"
    number = float(value)
    if math.isnan(number):
        return f"stretto::Limits<{kind}>::nan()"
    if math.isinf(number):
        return ("-" if number < 0 else "") + f"stretto::Limits<{kind}>::infinity()"
    if kind == "float" and abs(number) > 3.4028235677973366e38:
        return ("-" if number < 0 else "") + "stretto::Limits<float>::infinity()"
    return f"{number!r}" + ("f" if kind == "float" else "")


@dataclass(slots=True)
class Names:
    """What buffers, registers and variables are called in the text at hand."""

    buffer: Callable[[Buffer], str]
    reg: Callable[[Reg], str]
    var: Callable[[int], str]


@dataclass(slots=True)
class ExprPrinter:
    """Prints expressions; `lines` collects the local constants that must stand before the text."""

    names: Names
    lines: list[str] = field(default_factory=list[str])
    known: dict[Expr, str] = field(default_factory=dict[Expr, str])
    inline: int = 0

    # ---- positions ---------------------------------------------------------------------------
    def index(self, index: Index) -> str:
        parts: list[str] = []
        for atom, factor in index.terms:
            text = self.atom(atom)
            parts.append(text if factor == 1 else f"{text} * {factor}")
        if index.const or not parts:
            parts.append(str(index.const))
        return " + ".join(parts)

    def whole(self, index: Index) -> str:
        """A position that may depend on any number of the user's, and then wraps around."""
        if not index.may_wrap:
            return self.index(index)
        parts = [f"uint64_t({self.atom(atom)})" for atom, _ in index.terms]
        parts = [
            part if factor == 1 else f"{part} * {factor}"
            for part, (_, factor) in zip(parts, index.terms, strict=True)
        ]
        return f"int64_t({' + '.join([*parts, str(index.const)] if index.const else parts)})"

    def atom(self, atom: Atom) -> str:
        match atom:
            case Var(number):
                return self.names.var(number)
            case Reg():
                return self.names.reg(atom)
            case Quotient(inner, divisor):
                return f"stretto::index_div({self.whole(inner)}, {divisor})"
            case Remainder(inner, divisor):
                return f"stretto::index_mod({self.whole(inner)}, {divisor})"
            case Dynamic(value):
                return f"int64_t({self.expr(value)})"
            case _:
                raise no_symbols(atom)

    def address(self, access: Access) -> str:
        """An lvalue in memory."""
        return f"{self.names.buffer(access.buffer)}[{self.index(access.offset)}]"

    def pointer(self, buffer: Buffer, offset: Index) -> str:
        return f"{self.names.buffer(buffer)} + ({self.index(offset)})"

    # ---- values ------------------------------------------------------------------------------
    def expr(self, expr: Expr) -> str:
        match expr:
            case Const(value, dtype):
                return literal(value, dtype)
            case Position(index):
                text = self.whole(index)
                return text if index.may_wrap else f"int64_t({text})"
            case Load() | Apply():
                if expr in self.known:
                    return self.known[expr]
                text = self.load(expr) if isinstance(expr, Load) else self.apply(expr)
                if self.inline:
                    return text
                name = f"v{len(self.known)}"
                self.lines.append(f"const {VALUE_TYPES[expr.dtype]} {name} = {text};")
                self.known[expr] = name
                return name

    def load(self, load: Load) -> str:
        text = self.address(load.access)
        return f"stretto::to_float({text})" if load.dtype in (DType.F16, DType.BF16) else text

    def apply(self, expr: Apply) -> str:
        if expr.function == "where":
            return self.where(expr)
        args = [self.expr(arg) for arg in expr.args]
        kind = VALUE_TYPES[expr.dtype]
        match expr.function:
            case "cast":
                return cast_text(args[0], expr.args[0].dtype, expr.dtype)
            case "neg" if expr.dtype.is_integer:
                return f"{kind}(0 - {wrapping_type(expr.dtype)}({args[0]}))"
            case "neg":
                return f"{kind}(-{args[0]})"
            case "not":
                return f"(!{args[0]})"
            case "bitwise_not":
                return f"(!{args[0]})" if expr.dtype is DType.BOOL else f"{kind}(~{args[0]})"
            case "checked":
                return f"stretto::checked(ctx, {', '.join(args)})"
            case name if name in _WRAPPING and expr.dtype.is_integer:
                unsigned = wrapping_type(expr.dtype)
                left, right = (f"{unsigned}({arg})" for arg in args)
                return f"{kind}({left} {_WRAPPING[name]} {right})"
            case name if name in _INFIX:
                return f"{kind}({args[0]} {_INFIX[name]} {args[1]})"
            case name:
                return f"{_CALLS.get(name, 'stretto::' + name)}({', '.join(args)})"

    def where(self, expr: Apply) -> str:
        condition = self.expr(expr.args[0])
        arms: list[str] = []
        for arm in expr.args[1:]:
            lazy = next(loads(arm), None) is not None and arm not in self.known
            self.inline += lazy
            arms.append(self.expr(arm))
            self.inline -= lazy
        return f"({condition} ? {arms[0]} : {arms[1]})"


def cast_text(text: str, source: DType, target: DType) -> str:
    """A conversion as torch's `.to`: to bool by comparison with 0, to f16 and bf16 by rounding."""
    match target:
        case DType.BOOL:
            return f"({text} != 0)"
        case DType.BF16:
            return f"stretto::to_float(stretto::to_bf16(float({text})))"
        case DType.F16:
            return f"stretto::to_float(stretto::to_half(float({text})))"
        case _:
            if source.is_float and target.is_integer:
                return f"stretto::to_integer<{VALUE_TYPES[target]}>({text})"
            return f"{VALUE_TYPES[target]}({text})"


def stored_text(text: str, dtype: DType) -> str:
    """A value in its memory type."""
    if dtype is DType.BF16:
        return f"stretto::to_bf16({text})"
    return f"stretto::to_half({text})" if dtype is DType.F16 else text


def identifier(name: str) -> str:
    """A C++ identifier for the name of a buffer or register."""
    if not name:
        raise CodegenError("an empty name")
    return "".join(c if c.isalnum() else "_" for c in name)
