"""Functions of Python, of `math` and of `operator` on numbers."""

from __future__ import annotations

import math
import operator
from typing import Any

from stretto.batching.frontend.arithmetic.numbers import binary, unary
from stretto.batching.frontend.builtins.table import (
    BUILTINS,
    Builtin,
    all_static,
    builtin,
    natively,
)
from stretto.batching.frontend.control.kinds import each_type
from stretto.batching.frontend.data.numbers import converted, read_number
from stretto.batching.frontend.data.truth import truth
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.statics import constant
from stretto.batching.frontend.state.values import NONE, Dynamic, Static, TupleValue, Value
from stretto.batching.frontend.tensors.operands import NUMBERS, is_tensor_like
from stretto.batching.program import Literal
from stretto.batching.types import Scalar, TensorType


def _conversion(wanted: type) -> Builtin:
    def convert(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if all_static(args, kwargs):
            return natively(frame, wanted, args, kwargs)
        (value,) = args
        if wanted is bool:
            found = truth(frame, value)
            return Static(found) if isinstance(found, bool) else Dynamic(found, Scalar.BOOL)
        return each_type(frame, value, lambda one: _number(frame, one, wanted))

    return convert


def _number(frame: Frame, value: Dynamic, wanted: type) -> Value:
    if isinstance(value.type, TensorType):
        return read_number(frame, value, wanted)
    if value.type not in NUMBERS:
        shown = frame.show(value.type)
        frame.stop(TypeError, f"{wanted.__name__}() argument must be a number, not '{shown}'")
    return converted(frame, value, wanted)


for _kind in (bool, int, float):
    BUILTINS[_kind] = _conversion(_kind)


@builtin(abs)
def _abs(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:

    return unary(frame, "abs", abs, args[0])


@builtin(round)
def _round(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if all_static(args, kwargs):
        return natively(frame, round, args, kwargs)
    digits = constant(kwargs.get("ndigits", args[1] if len(args) > 1 else NONE))
    value = read_number(frame, args[0], object) if is_tensor_like(args[0]) else args[0]
    return each_type(frame, value, lambda one: _rounded(frame, one, digits))


def _rounded(frame: Frame, value: Dynamic, digits: Any) -> Value:
    given = frame.expect(value, NUMBERS, "round needs a number")
    if digits is not None and (type(digits) is not int or digits < 0):
        frame.refuse("round to tens, or to digits that the instance decides")
    if given.type is not Scalar.FLOAT:
        return frame.dynamic(unary(frame, "pos", operator.pos, given))
    if digits is None:
        return frame.assign("round", Scalar.INT, given.operand)
    return frame.assign("round_to", Scalar.FLOAT, given.operand, Literal(digits))


@builtin(divmod)
def _divmod(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    left, right = args
    quotient = binary(frame, "floordiv", operator.floordiv, left, right)
    return TupleValue((quotient, binary(frame, "mod", operator.mod, left, right)))


_OPERATORS: dict[Any, tuple[str, Any]] = {
    operator.add: ("add", operator.add),
    operator.sub: ("sub", operator.sub),
    operator.mul: ("mul", operator.mul),
    operator.truediv: ("truediv", operator.truediv),
    operator.floordiv: ("floordiv", operator.floordiv),
    operator.mod: ("mod", operator.mod),
    operator.matmul: ("matmul", operator.matmul),
}


def _of_operator(name: str, function: Any) -> Builtin:
    return lambda frame, args, kwargs: binary(frame, name, function, args[0], args[1])


for _function, (_name, _same) in _OPERATORS.items():
    BUILTINS[_function] = _of_operator(_name, _same)


_MATH = (
    "sqrt", "exp", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "tanh", "floor", "ceil",
)  # fmt: skip


def _of_math(name: str) -> Builtin:
    function = getattr(math, name)

    def call(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if all_static(args, kwargs):
            return natively(frame, function, args, kwargs)
        if len(args) != 1:
            frame.refuse(f"math.{name} with {len(args)} arguments")
        value = args[0]
        if is_tensor_like(value):
            value = read_number(frame, value, float)
        given = frame.dynamic(value)
        given = frame.expect(given, NUMBERS, f"math.{name} needs a number")
        real = frame.dynamic(each_type(frame, given, lambda one: converted(frame, one, float)))
        type_ = Scalar.INT if name in ("floor", "ceil") else Scalar.FLOAT
        return frame.assign("math", type_, real.operand, detail=name)

    return call


for _name in _MATH:
    BUILTINS[getattr(math, _name)] = _of_math(_name)
