"""Types, literals and functions of scalars in Triton's text."""

from __future__ import annotations

import math

from stretto.device.expr import Apply
from stretto.device.numbers import wrapped
from stretto.ir.types import DType

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
"""What Triton's signatures call a pointer to the elements of a buffer."""

HALVES = (DType.F16, DType.BF16)

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
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
_FLAGS = {"add": "|", "mul": "&", "sub": "^", "maximum": "|", "minimum": "&"}
"""Arithmetic of bools."""


def literal(value: bool | int | float, dtype: DType) -> str:
    """A scalar of exactly this value and of the type that `dtype` is computed in."""
    kind = VALUE_TYPES[dtype]
    if dtype is DType.BOOL:
        return f"tl.full([], {bool(value)}, tl.int1)"
    if not dtype.is_float:
        return f"tl.full([], {wrapped(int(value), dtype)}, {kind})"
    number = float(value)
    if kind == "tl.float32" and math.isfinite(number) and abs(number) > 3.4028235677973366e38:
        number = math.copysign(math.inf, number)
    text = repr(number) if math.isfinite(number) else f'float("{number}")'
    return f"tl.full([], {text}, {kind})"


def apply_text(expr: Apply, args: list[str]) -> str:
    """A function of values that have been printed."""
    function, kind = expr.function, VALUE_TYPES[expr.dtype]
    source = expr.args[0].dtype
    if function == "cast":
        return cast_text(args[0], source, expr.dtype)
    if expr.dtype is DType.BOOL and source is DType.BOOL and function in _FLAGS:
        return f"{args[0]} {_FLAGS[function]} {args[1]}"
    if function == "neg":
        return f"0 - {args[0]}" if source.is_integer else f"-{args[0]}"
    if function == "not" or (function == "bitwise_not" and expr.dtype is DType.BOOL):
        return f"({args[0]} == 0)"
    if function == "bitwise_not":
        return f"{args[0]} ^ 255" if expr.dtype is DType.U8 else f"~{args[0]}"
    if function == "div":
        return (
            f"tl.div_rn({args[0]}, {args[1]})" if kind == "tl.float32" else f"{args[0]} / {args[1]}"
        )
    if function in _INFIX:
        return f"{args[0]} {_INFIX[function]} {args[1]}"
    return f"stretto_{function}({', '.join(args)})"


def cast_text(text: str, source: DType, target: DType) -> str:
    """A conversion as torch's `.to`: to bool by comparison with 0, to f16 and bf16 by rounding."""
    kind = VALUE_TYPES[target]
    match target:
        case DType.BOOL:
            return text if source is DType.BOOL else f"({text} != 0)"
        case DType.BF16:
            return f"stretto_bf16(tl.cast({text}, tl.float32))"
        case DType.F16:
            return f"stretto_f16(tl.cast({text}, tl.float32))"
        case _:
            if source.is_float and target.is_integer and target.itemsize < 4:
                # As torch: by way of a wider integer, which uint8 has as int64.
                between = "tl.int64" if target is DType.U8 else "tl.int32"
                return f"tl.cast(tl.cast({text}, {between}), {kind})"
            return text if VALUE_TYPES[source] == kind else f"tl.cast({text}, {kind})"


def stored_text(text: str, source: DType, target: DType) -> str:
    """A value computed as `source` in the memory type of `target`."""
    if target in HALVES:
        return f"tl.cast(tl.cast({text}, tl.float32), {MEMORY_TYPES[target]})"
    converted = cast_text(text, source, target) if source is not target else text
    return f"tl.cast({converted}, tl.int8)" if target is DType.BOOL else converted
