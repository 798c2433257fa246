"""Arithmetic of Python on numbers, strings, containers and tensors."""

from __future__ import annotations

import ast
import collections
import operator
from collections.abc import Callable
from typing import Any

from stretto.batching.frontend.attributes import by_method, operated
from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.joins import (
    as_list,
    chosen,
    each_type,
    either,
    is_tuple,
    known_items,
    python_class,
)
from stretto.batching.frontend.purity import call_static
from stretto.batching.frontend.tensor_operators import call_torch
from stretto.batching.frontend.tensor_results import (
    NUMBERS,
    holds_tensor,
    is_perhaps_tensor,
    is_tensor_like,
)
from stretto.batching.frontend.values import (
    ChoiceValue,
    Dynamic,
    Static,
    TupleValue,
    Value,
    constant,
    is_static,
    python_of,
)
from stretto.batching.instances.types import scalar_type
from stretto.ir.core import Literal
from stretto.ir.types import DataType, ListType, Scalar, union

_INT_ONLY = frozenset(("and", "or", "xor", "lshift", "rshift"))


def binary(
    frame: Frame, name: str, function: Callable[[Any, Any], Any], left: Value, right: Value
) -> Value:
    """Return left <op> right. name: of the primitive and of the special method; function: the
    operator for static values and tensors."""
    if isinstance(left, ChoiceValue):
        return chosen(frame, left, lambda one: binary(frame, name, function, one, right))
    if isinstance(right, ChoiceValue):
        return chosen(frame, right, lambda one: binary(frame, name, function, left, one))
    if is_perhaps_tensor(left):
        return each_type(frame, left, lambda one: binary(frame, name, function, one, right))
    if is_perhaps_tensor(right):
        return each_type(frame, right, lambda one: binary(frame, name, function, left, one))
    if is_static(left) and is_static(right):
        return _both_static(frame, name, function, left, right)
    if is_tensor_like(left) or is_tensor_like(right) or holds_tensor(left, right):
        return call_torch(frame, function, [left, right], {})
    if name == "add" and is_tuple(left) and is_tuple(right):
        return _tuples_together(frame, left, right)
    return each_type(
        frame,
        frame.dynamic(left),
        lambda a: each_type(frame, frame.dynamic(right), lambda b: _single(frame, name, a, b)),
    )


def _tuples_together(frame: Frame, left: Value, right: Value) -> Value:
    parts = [known_items(frame, value) for value in (left, right)]
    if parts[0] is not None and parts[1] is not None:
        return TupleValue((*parts[0], *parts[1]))
    made = [as_list(frame, value, frame.site("tuple", i)) for i, value in enumerate((left, right))]
    return each_type(
        frame,
        made[0],
        lambda a: each_type(frame, made[1], lambda b: _single(frame, "add", a, b)),
    )


def _both_static(
    frame: Frame, name: str, function: Callable[[Any, Any], Any], left: Value, right: Value
) -> Value:
    a, b = python_of(left), python_of(right)
    if scalar_type(a) is None or scalar_type(b) is None:
        return call_static(frame, function, [a, b], {})
    try:
        return Static(function(a, b))
    except (ArithmeticError, ValueError, TypeError) as error:
        frame.stop(type(error), str(error))


def _single(frame: Frame, name: str, left: Dynamic, right: Dynamic) -> Value:
    """Return the result of the operator on two values of one type each."""
    kinds = left.type, right.type
    own = operated(frame, name, left, right)
    if own is not None:
        return own
    if name == "pow" and Scalar.FLOAT not in kinds and all(kind in NUMBERS for kind in kinds):
        return _integer_power(frame, left, right)
    if all(kind in NUMBERS for kind in kinds) and name != "matmul":
        type_ = number_result(frame, name, left, right)
        if type_ is not None:
            return frame.assign(name, type_, left.operand, right.operand)
    if kinds == (Scalar.STR, Scalar.STR) and name == "add":
        return frame.assign("join_str", Scalar.STR, left.operand, right.operand)
    if (
        isinstance(left.type, ListType)
        and isinstance(right.type, ListType)
        and left.type.is_tuple == right.type.is_tuple
        and name == "add"
    ):
        cell = frame.evaluation.cell(frame.site("concat"))
        for kind in (left.type, right.type):
            frame.evaluation.grow(cell, frame.evaluation.item_type(kind))
        made = ListType(cell, left.type.is_tuple)
        return frame.assign("concat", made, left.operand, right.operand, detail=left.type.is_tuple)
    if name == "mul" and isinstance(left.type, ListType) and right.type in _COUNTS:
        return _repeated(frame, left, right)
    if name == "mul" and isinstance(right.type, ListType) and left.type in _COUNTS:
        return _repeated(frame, right, left)
    classes = [python_class(frame, kind) for kind in kinds]
    if name != "matmul" and _understood(name, *classes):
        shown = " and ".join(python.__name__ for python in classes)
        frame.refuse(f"the operator {_SYMBOLS.get(name, name)} on {shown}")
    shown = " and ".join(f"'{python_class(frame, kind).__name__}'" for kind in kinds)
    symbol = _SYMBOLS.get(name, name)
    if isinstance(frame.place, ast.AugAssign):
        symbol = f"{symbol.split(' ')[0]}="
    frame.stop(TypeError, f"unsupported operand type(s) for {symbol}: {shown}")


def _integer_power(frame: Frame, left: Dynamic, right: Dynamic) -> Value:
    """Return left ** right of ints: an int, or a float if the exponent is negative."""

    def whole() -> Value:
        return frame.assign("pow", Scalar.INT, left.operand, right.operand)

    def broken() -> Value:
        parts = [frame.assign("to_float", Scalar.FLOAT, one.operand) for one in (left, right)]
        return frame.assign("pow", Scalar.FLOAT, *(part.operand for part in parts))

    exponent = constant(right)
    if exponent is not ...:
        return broken() if exponent < 0 else whole()
    test = frame.assign("lt", Scalar.BOOL, right.operand, Literal(0))
    return either(frame, test.operand, broken, whole)


def _understood(name: str, *classes: type) -> bool:
    """Return True if Python's own classes support an operator, although a batch does not."""
    if not all(python in _SAMPLES for python in classes):
        return any(issubclass(python, _CONTAINERS) and python not in _SAMPLES for python in classes)
    if name == "mod" and classes[0] is str:
        return True
    function = getattr(operator, f"{name}_" if name in ("and", "or") else name)
    try:
        function(*(_SAMPLES[python] for python in classes))
    except TypeError:
        return False
    return True


_SAMPLES: dict[type, Any] = {
    type(None): None, bool: True, int: 1, float: 1.0, str: "", list: [], tuple: (), dict: {},
}  # fmt: skip
_CONTAINERS = (list, tuple, dict, set, collections.deque)
_COUNTS = (Scalar.INT, Scalar.BOOL)
_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%",
    "pow": "** or pow()", "matmul": "@", "and": "&", "or": "|", "xor": "^", "lshift": "<<",
    "rshift": ">>",
}  # fmt: skip


def _repeated(frame: Frame, items: Dynamic, count: Dynamic) -> Dynamic:
    assert isinstance(items.type, ListType)
    cell = frame.evaluation.cell(frame.site("repeat"))
    frame.evaluation.grow(cell, frame.evaluation.item_type(items.type))
    made = ListType(cell, items.type.is_tuple)
    return frame.assign("repeat", made, items.operand, count.operand)


def number_result(frame: Frame, name: str, left: Dynamic, right: Dynamic) -> DataType | None:
    """Return the result type of an arithmetic operator on numbers; None if Python refuses it."""
    kinds = {left.type, right.type}
    if name in _INT_ONLY:
        if Scalar.FLOAT in kinds:
            return None
        logic = kinds == {Scalar.BOOL} and name in ("and", "or", "xor")
        return Scalar.BOOL if logic else Scalar.INT
    if Scalar.FLOAT in kinds or name == "truediv":
        return Scalar.FLOAT
    return Scalar.INT


def unary(frame: Frame, name: str, function: Callable[[Any], Any], value: Value) -> Value:
    if is_static(value):
        return call_static(frame, function, [python_of(value)], {})
    if is_tensor_like(value) and not is_perhaps_tensor(value):
        return call_torch(frame, function, [value], {})

    def single(one: Dynamic) -> Value:
        if is_tensor_like(one):
            return call_torch(frame, function, [one], {})
        own = by_method(frame, one, f"__{name}__")
        if own is not None:
            return own
        if one.type not in NUMBERS or (name == "invert" and one.type is Scalar.FLOAT):
            shown = python_class(frame, one.type).__name__
            symbol = {"neg": "-", "pos": "+", "invert": "~"}.get(name)
            message = f"bad operand type for {f'unary {symbol}' if symbol else name + '()'}: "
            frame.stop(TypeError, f"{message}'{shown}'")
        type_ = Scalar.FLOAT if one.type is Scalar.FLOAT else Scalar.INT
        if name == "pos":
            return one if one.type is type_ else frame.assign("to_int", type_, one.operand)
        return frame.assign(name, type_, one.operand)

    return each_type(frame, value, single)


def smallest(frame: Frame, name: str, values: list[Value]) -> Value:
    """Return min or max of numbers; `name` is "min" or "max"."""
    found = values[0]
    for value in values[1:]:
        found = _smaller(frame, name, found, value)
    return found


def _smaller(frame: Frame, name: str, left: Value, right: Value) -> Value:
    if is_static(left) and is_static(right):
        function = min if name == "min" else max
        return call_static(frame, function, [python_of(left), python_of(right)], {})

    def single(a: Dynamic, b: Dynamic) -> Value:
        if a.type == b.type and a.type in (Scalar.INT, Scalar.FLOAT):
            return frame.assign(name, a.type, a.operand, b.operand)
        op = "lt" if name == "min" else "gt"
        if a.type in NUMBERS and b.type in NUMBERS:
            test = frame.assign(op, Scalar.BOOL, b.operand, a.operand)
            return either(frame, test.operand, lambda: b, lambda: a)
        return frame.refuse(f"{name} of {frame.show(union((a.type, b.type)))}")

    return each_type(frame, left, lambda a: each_type(frame, right, lambda b: single(a, b)))
