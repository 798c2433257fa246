"""Types, literals and scalar functions of Triton's text."""

from __future__ import annotations

import math

from stretto.device.expr import Apply
from stretto.device.functions import wrapped
from stretto.ir.types import DType
from stretto.machines.expression_printer import HALVES, INFIX
from stretto.machines.statements import Do
from stretto.machines.terms import Term, call, infix, literal, prefix, variable

VALUE_TYPES: dict[DType, str] = {
    DType.F32: "tl.float32",
    DType.F64: "tl.float64",
    DType.F16: "tl.float32",
    DType.BF16: "tl.float32",
    DType.I64: "tl.int64",
    DType.I32: "tl.int32",
    DType.I16: "tl.int16",
    DType.I8: "tl.int8",
    DType.U8: "tl.uint8",
    DType.BOOL: "tl.int1",
}
MEMORY_TYPES: dict[DType, str] = {
    **VALUE_TYPES,
    DType.F16: "tl.float16",
    DType.BF16: "tl.bfloat16",
    DType.BOOL: "tl.int8",
}
POINTER_TYPES: dict[DType, str] = {
    DType.F32: "*fp32",
    DType.F64: "*fp64",
    DType.F16: "*fp16",
    DType.BF16: "*bf16",
    DType.I64: "*i64",
    DType.I32: "*i32",
    DType.I16: "*i16",
    DType.I8: "*i8",
    DType.U8: "*u8",
    DType.BOOL: "*i8",
}
"""Names of pointer types in Triton's signatures, by the dtype of the buffer's elements."""

CONTROL, TASK, UNIT, OK = (variable(name) for name in ("control", "task", "unit", "ok"))
"""Variables: the control block, the numbers of the task and of the unit, and True while no failure
has occurred."""
BARRIER = Do(call("tl.debug_barrier", effect=True))
"""Block barrier: afterwards all threads of a unit see what each of them has written."""

_FLAGS = {"add": "|", "mul": "&", "sub": "^", "maximum": "|", "minimum": "&"}
"""Operators for arithmetic of bools."""


def constant(value: bool | int | float, dtype: DType) -> Term:
    """Return a scalar of exactly this value, in the type that `dtype` is computed in."""
    kind = VALUE_TYPES[dtype]
    if dtype is DType.BOOL:
        return call("tl.full", "[]", bool(value), "tl.int1")
    if not dtype.is_float:
        return call("tl.full", "[]", wrapped(int(value), dtype), kind)
    number = float(value)
    if kind == "tl.float32" and math.isfinite(number) and abs(number) > 3.4028235677973366e38:
        number = math.copysign(math.inf, number)
    text = repr(number) if math.isfinite(number) else f'float("{number}")'
    return call("tl.full", "[]", text, kind)


def function_term(expr: Apply, values: list[Term]) -> Term:
    """Return the call of a function, or its operator."""
    function, first = expr.function, values[0]
    source = expr.args[0].dtype
    if expr.dtype is DType.BOOL and source is DType.BOOL and function in _FLAGS:
        return infix(first, _FLAGS[function], values[1])
    match function:
        case "neg":
            return literal(0) - first if source.is_integer else prefix("-", first)
        case "not":
            return infix(first, "==", 0)
        case "bitwise_not" if expr.dtype is DType.BOOL:
            return infix(first, "==", 0)
        case "bitwise_not":
            return infix(first, "^", 255) if expr.dtype is DType.U8 else prefix("~", first)
        case "div" if VALUE_TYPES[expr.dtype] == "tl.float32":
            return call("tl.div_rn", *values)
        case _ if function in INFIX:
            return infix(first, INFIX[function], values[1])
        case _:
            return call(f"stretto_{function}", *values)


def cast_term(value: Term, source: DType, target: DType) -> Term:
    """Convert as torch's `.to`: to bool by comparison with 0, to f16 and bf16 by rounding."""
    kind = VALUE_TYPES[target]
    match target:
        case DType.BOOL:
            return value if source is DType.BOOL else infix(value, "!=", 0)
        case DType.BF16:
            return call("stretto_bf16", call("tl.cast", value, "tl.float32"))
        case DType.F16:
            return call("stretto_f16", call("tl.cast", value, "tl.float32"))
        case _:
            if source.is_float and target.is_integer and target.itemsize < 4:
                # As torch: via a wider integer, int64 for uint8.
                between = "tl.int64" if target is DType.U8 else "tl.int32"
                value = call("tl.cast", value, between)
            elif VALUE_TYPES[source] == kind:
                return value
            return call("tl.cast", value, kind)


def stored_term(value: Term, source: DType, target: DType) -> Term:
    """Convert a value computed as `source` to the memory type of `target`."""
    if target in HALVES:
        return call("tl.cast", call("tl.cast", value, "tl.float32"), MEMORY_TYPES[target])
    converted = value if source is target else cast_term(value, source, target)
    return call("tl.cast", converted, "tl.int8") if target is DType.BOOL else converted
