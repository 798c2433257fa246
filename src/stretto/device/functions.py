"""The scalar functions that an `Apply` may name: arity, result dtype, meaning.

`FUNCTIONS` is the only list of them: lowering builds expressions from these names, printers map
each to the target language, `evaluate` runs them with torch. Unless the rule says otherwise all
arguments have one dtype (lowering inserts the casts). Values of f16 and bf16 are computed in f32
and rounded by a `cast` to their dtype and by the store. Integer arithmetic wraps; integer division
by zero is undefined. Shifts by a negative number or by the width are as in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor

from stretto.ir.types import DType


class ResultDtype(Enum):
    """The rule for the dtype of a result; the value says it in words."""

    SAME = "the dtype of the arguments"
    FLOAT = "the dtype of the arguments, which is a float"
    INTEGER = "the dtype of the arguments, which is an integer"
    LOGICAL = "bool, of bool arguments"
    BITS = "the dtype of the arguments, which is an integer or bool"
    TEST = "bool, of arguments of any one dtype"
    ARMS = "the dtype of the second and third argument; the first is bool"
    CHOSEN = "the dtype of the Apply, of an argument of any dtype"


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """A scalar function. `evaluate` maps broadcastable tensors (f16 and bf16 already as f32)
    element by element.

    It is None for `cast`, which needs the dtype of its Apply; for `where`, which evaluates
    one arm only; for `checked`, which is its first argument if that is in 0 .. second - 1,
    and stops the run otherwise; and for `attend`, which is reduced (`operator.ATTEND`).
    is_expensive: too expensive to compute twice.
    """

    name: str
    arity: int
    result: ResultDtype
    evaluate: Callable[..., Tensor] | None
    is_expensive: bool = False


def _unary(result: ResultDtype, **functions: Callable[..., Tensor]) -> list[ScalarFunction]:
    return [
        ScalarFunction(name.rstrip("_"), 1, result, function)
        for name, function in functions.items()
    ]


def _binary(result: ResultDtype, **functions: Callable[..., Tensor]) -> list[ScalarFunction]:
    return [
        ScalarFunction(name.rstrip("_"), 2, result, function)
        for name, function in functions.items()
    ]


def _expensive(functions: list[ScalarFunction]) -> list[ScalarFunction]:
    return [replace(function, is_expensive=True) for function in functions]


def _floor_divide(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode="floor")


def _truncating_divide(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode="trunc")


_ALL: list[ScalarFunction] = [
    *_unary(ResultDtype.SAME, neg=torch.neg, abs=torch.abs, sign=torch.sign),
    *_expensive(
        _unary(
            ResultDtype.FLOAT,
            exp=torch.exp,
            exp2=torch.exp2,
            expm1=torch.expm1,
            log=torch.log,
            log1p=torch.log1p,
            log2=torch.log2,
            log10=torch.log10,
            sqrt=torch.sqrt,
            rsqrt=torch.rsqrt,
            sin=torch.sin,
            cos=torch.cos,
            tan=torch.tan,
            asin=torch.asin,
            acos=torch.acos,
            atan=torch.atan,
            sinh=torch.sinh,
            cosh=torch.cosh,
            tanh=torch.tanh,
            asinh=torch.asinh,
            acosh=torch.acosh,
            atanh=torch.atanh,
            sigmoid=torch.sigmoid,
            erf=torch.erf,
            erfc=torch.erfc,
        )
    ),
    *_unary(
        ResultDtype.FLOAT,
        reciprocal=torch.reciprocal,
        floor=torch.floor,
        ceil=torch.ceil,
        round=torch.round,  # half to even
        trunc=torch.trunc,
    ),
    *_binary(ResultDtype.FLOAT, copysign=torch.copysign),
    *_unary(ResultDtype.TEST, isnan=torch.isnan, isinf=torch.isinf),
    *_unary(ResultDtype.LOGICAL, not_=torch.logical_not),
    *_unary(ResultDtype.BITS, bitwise_not=torch.bitwise_not),
    *_binary(
        ResultDtype.SAME,
        add=torch.add,
        sub=torch.sub,
        mul=torch.mul,
        maximum=torch.maximum,  # NaN if either is
        minimum=torch.minimum,
        fmax=torch.fmax,  # NaN only if both are
        fmin=torch.fmin,
    ),
    *_expensive(
        _binary(
            ResultDtype.SAME,
            floordiv=_floor_divide,
            truncdiv=_truncating_divide,
            remainder=torch.remainder,  # the sign of the divisor, as in Python
            fmod=torch.fmod,  # the sign of the dividend, as in C
            pow=torch.pow,
        )
    ),
    *_expensive(_binary(ResultDtype.FLOAT, div=torch.div, atan2=torch.atan2)),
    *_binary(
        ResultDtype.TEST,
        eq=torch.eq,
        ne=torch.ne,
        lt=torch.lt,
        le=torch.le,
        gt=torch.gt,
        ge=torch.ge,
    ),
    *_binary(
        ResultDtype.LOGICAL, and_=torch.logical_and, or_=torch.logical_or, xor=torch.logical_xor
    ),
    *_binary(
        ResultDtype.BITS,
        bitwise_and=torch.bitwise_and,
        bitwise_or=torch.bitwise_or,
        bitwise_xor=torch.bitwise_xor,
    ),
    # A right shift keeps the sign.
    *_binary(ResultDtype.INTEGER, shl=torch.bitwise_left_shift, shr=torch.bitwise_right_shift),
    ScalarFunction("where", 3, ResultDtype.ARMS, None),
    ScalarFunction("checked", 3, ResultDtype.INTEGER, None),
    ScalarFunction("cast", 1, ResultDtype.CHOSEN, None),
    ScalarFunction("attend", 4, ResultDtype.FLOAT, None),
]

FUNCTIONS: dict[str, ScalarFunction] = {function.name: function for function in _ALL}
"""Every scalar function by name."""


# ---- Python numbers as elements of a dtype: conversion and wrap-around as in torch.


def wrapped(value: int, dtype: DType) -> int:
    """Return `value` modulo 2 to the power of the bits of an integer dtype, as a number of that
    dtype."""
    bits = 8 * dtype.itemsize
    low = 0 if dtype is DType.U8 else -(1 << (bits - 1))
    return (value - low) % (1 << bits) + low


def convert_number(value: bool | int | float, source: DType, target: DType) -> bool | int | float:
    """Convert an element of `source` to one of `target`, as torch's `.to` does.

    Python floats are f32 constants that retain all their digits for a conversion to f64.
    """
    exact = torch.float64 if source.is_float else source.torch
    return torch.tensor(value, dtype=exact).to(target.torch).item()
