"""Printing of expressions and positions as C++ terms.

Values of f16 and bf16 are C++ floats that have been rounded; only memory holds the 16-bit types.
Every repeated subexpression becomes one local constant, except inside an arm of `where` that loads:
such an arm is evaluated only if it is taken, because its loads may be out of range otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from operator import mul

from stretto.device.expr import (
    Access,
    Apply,
    Atom,
    ComputedPosition,
    Expr,
    Index,
    Load,
    Position,
    Reg,
    loads,
    size_register,
)
from stretto.errors import CodegenError
from stretto.ir.sizes import (
    Maximum,
    Product,
    Quantity,
    Quotient,
    Remainder,
    Size,
    Symbol,
    Var,
)
from stretto.ir.types import DType
from stretto.machines.expression_printer import HALVES, INFIX, ExpressionPrinter
from stretto.machines.statements import element_of
from stretto.machines.terms import (
    Operand,
    Term,
    call,
    filled,
    infix,
    joined,
    literal,
    prefix,
    scaled,
    total,
    variable,
)

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

_WRAPPING = ("add", "sub", "mul")
"""Arithmetic that wraps around for integers."""
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
    "copysign": "stretto::copysign",
    "isnan": "stretto::is_nan",
    "isinf": "stretto::is_inf",
    "reciprocal": "stretto::reciprocal",
}


def wrapping_type(dtype: DType) -> str:
    """Return the unsigned type in which integers of `dtype` are added and multiplied.

    Overflow of signed types is undefined in C++, and types narrower than int are computed in int.
    """
    return "uint64_t" if dtype is DType.I64 else "uint32_t"


def constant(value: bool | int | float, dtype: DType) -> Term:
    """Return a C++ literal of exactly this value."""
    if dtype is DType.BOOL:
        return literal("true" if value else "false")
    kind = VALUE_TYPES[dtype]
    if not dtype.is_float:
        number = int(value)
        if number == -(2**63):
            return literal("INT64_MIN")
        return call(kind, number)
    number = float(value)
    sign = "-" if number < 0 else ""
    if math.isnan(number):
        return literal(f"stretto::Limits<{kind}>::nan()")
    if math.isinf(number) or (kind == "float" and abs(number) > 3.4028235677973366e38):
        return literal(f"{sign}stretto::Limits<{kind}>::infinity()")
    return literal(f"{number!r}" + ("f" if kind == "float" else ""))


def iteration(number: int) -> Term:
    """Return the variable of iteration dim `number`."""
    return variable(f"i{number}")


def element(buffer: Term, offset: Term) -> Term:
    return joined(buffer, "[", offset, "]")


def wrapped(dtype: DType, left: Term, operator: str, right: Term) -> Term:
    """Return integer arithmetic that wraps around instead of overflowing."""
    unsigned = wrapping_type(dtype)
    return call(VALUE_TYPES[dtype], infix(call(unsigned, left), operator, call(unsigned, right)))


@dataclass(slots=True)
class ScalarPrinter(ExpressionPrinter):
    """Printer of scalar expressions. It names every part in `out`, unless `inline` says that it
    must be evaluated in place."""

    known: dict[Expr, Term] = field(default_factory=dict[Expr, Term])
    inline: int = 0

    # ---- Positions ---------------------------------------------------------------------------
    def index(self, index: Index) -> Term:
        """Return a position that does not wrap around."""
        parts = [scaled(self.atom(atom), factor) for atom, factor in index.terms]
        return total(*parts, literal(index.const) if index.const else None) or literal(0)

    def whole(self, index: Index) -> Term:
        """Return a position; one that may depend on an arbitrary number from the user wraps
        around."""
        if not index.may_wrap:
            return self.index(index)
        parts = [scaled(call("uint64_t", self.atom(atom)), factor) for atom, factor in index.terms]
        constant = literal(index.const) if index.const else None
        return call("int64_t", total(*parts, constant) or literal(0))

    def atom(self, atom: Atom) -> Term:
        """Return a quantity of a position."""
        match atom:
            case Var(number):
                return iteration(number)
            case Reg():
                return self.names.reg(atom)
            case Symbol():
                return self.names.reg(size_register(atom))
            case Product(factors):
                return reduce(mul, map(self.factor, factors))
            case Quotient(inner, divisor):
                return call("stretto::index_div", self.whole(inner), self.divisor(divisor))
            case Remainder(inner, divisor):
                return call("stretto::index_mod", self.whole(inner), self.divisor(divisor))
            case Maximum(parts):
                every = (self.whole(part) for part in parts)
                return reduce(lambda a, b: call("stretto::index_max", a, b), every)
            case ComputedPosition(value):
                return call("int64_t", self.expr(value))
            case _:
                raise AssertionError(f"unknown quantity {atom!r}")

    def factor(self, atom: Atom) -> Term:
        """Return a factor of a product; it wraps around if its value may be any number."""
        value = self.atom(atom)
        return call("uint64_t", value) if isinstance(atom, Quantity) and atom.is_any else value

    def divisor(self, divisor: int | Size) -> Operand:
        return divisor if isinstance(divisor, int) else self.whole(divisor)

    def address(self, access: Access) -> Term:
        """Return a place in memory."""
        start, offset = element_of(self.names, access)
        return element(start, self.index(offset))

    # ---- Values ------------------------------------------------------------------------------
    def literal(self, value: bool | int | float, dtype: DType) -> Term:
        return constant(value, dtype)

    def number(self, position: Position) -> Term:
        whole = self.whole(position.index)
        return whole if position.index.may_wrap else call("int64_t", whole)

    def named(self, expr: Load | Apply, make: Callable[[], Term]) -> Term:
        if expr in self.known:
            return self.known[expr]
        value = make()
        if self.inline:
            return value
        name = self.known[expr] = variable(f"v{len(self.known)}")
        self.out.assign(name, value, f"const {VALUE_TYPES[expr.dtype]}")
        return name

    def load(self, load: Load) -> Term:
        value = self.address(load.access)
        return call("stretto::to_float", value) if load.dtype in HALVES else value

    def cast(self, value: Term, source: DType, target: DType) -> Term:
        return cast_term(value, source, target)

    def function(self, expr: Apply, values: list[Term]) -> Term:
        kind, first = VALUE_TYPES[expr.dtype], values[0]
        match expr.function:
            case "neg" if expr.dtype.is_integer:
                return call(kind, literal(0) - call(wrapping_type(expr.dtype), first))
            case "neg":
                return call(kind, prefix("-", first))
            case "not":
                return prefix("!", first)
            case "bitwise_not" if expr.dtype is DType.BOOL:
                return prefix("!", first)
            case "bitwise_not":
                return call(kind, prefix("~", first))
            case "checked":
                return call("stretto::checked", "ctx", *values)
            case name if name in _WRAPPING and expr.dtype.is_integer:
                return wrapped(expr.dtype, first, INFIX[name], values[1])
            case name if name in INFIX:
                return call(kind, infix(first, INFIX[name], values[1]))
            case name:
                return call(_CALLS.get(name, f"stretto::{name}"), *values)

    def where(self, expr: Apply) -> Term:
        condition = self.expr(expr.args[0])
        arms: list[Term] = []
        for arm in expr.args[1:]:
            lazy = next(loads(arm), None) is not None and arm not in self.known
            self.inline += lazy
            arms.append(self.expr(arm))
            self.inline -= lazy
        return filled("({} ? {} : {})", condition, *arms)


def cast_term(value: Term, source: DType, target: DType) -> Term:
    """Return a conversion as in torch's `.to`: to bool by comparison with 0, to f16 and bf16 by
    rounding."""
    match target:
        case DType.BOOL:
            return infix(value, "!=", 0)
        case DType.F16 | DType.BF16:
            return call("stretto::to_float", stored_term(call("float", value), target))
        case _ if source.is_float and target.is_integer:
            return call(f"stretto::to_integer<{VALUE_TYPES[target]}>", value)
        case _:
            return call(VALUE_TYPES[target], value)


def stored_term(value: Term, dtype: DType) -> Term:
    """Return a value in its memory type."""
    if dtype is DType.BF16:
        return call("stretto::to_bf16", value)
    return call("stretto::to_half", value) if dtype is DType.F16 else value


def identifier(name: str) -> str:
    """Return a C++ identifier for the name of a buffer or register."""
    if not name:
        raise CodegenError("a buffer or register has an empty name")
    return "".join(c if c.isalnum() else "_" for c in name)
