"""Operators on Python numbers of an instance: primitives, with Python's results and errors."""

from __future__ import annotations

from typing import Any

from stretto.frontends.python.tracing.signals import COMPARISONS
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.leaves import fake_of_type
from stretto.frontends.python.values.scalars import mark_of, number_kind, python_dtype
from stretto.ir.core import Literal, Value
from stretto.ir.data import AssignOp
from stretto.ir.ops import TensorOp
from stretto.ir.types import DType, TensorType

HARMLESS = frozenset(
    (*COMPARISONS, "and", "or", "xor", "invert", "min", "max", "truth", "to_float")
)
"""Primitives on numbers that raise nothing."""


def computed(op: str, kind: type, *operands: Any, detail: Any = None) -> TracedTensor:
    """Return the number of a kind that a primitive computes of numbers, traced or not."""
    state = tracer()
    args: tuple[Any, ...] = tuple(
        state.read(x) if isinstance(x, TracedTensor) else Literal(x) for x in operands
    )
    (value,) = state.emit(AssignOp(op, args, detail), (TensorType(python_dtype(kind)),))
    mark = mark_of(op, *operands)
    return state.number(value, mark.linear, mark.loops, mark.bits)


def as_tensor(number: TracedTensor) -> TracedTensor:
    """Return a new tensor that has the value of a traced number."""
    state = tracer()
    type = TensorType(DType.from_torch(number.dtype))
    (value,) = state.emit(tensor_of(state.read(number), type), (type,))
    return state.fresh(value, fake_of_type(type))


def tensor_of(number: Value, type: TensorType) -> TensorOp:
    """Return the op that makes a tensor of a number."""
    return TensorOp("aten.scalar_tensor.default", (number,), (("dtype", type.dtype.torch),))


def operated(op: str, first: Any, second: Any) -> Any:
    """Return the result of an operator on two numbers that Python has it for."""
    kinds = {number_kind(first), number_kind(second)}
    if op == "pow" and float not in kinds:
        return _power(first, second)
    if op in COMPARISONS or (kinds == {bool} and op in ("and", "or", "xor")):
        return computed(op, bool, first, second)
    is_float = op == "truediv" or float in kinds
    return computed(op, float if is_float else int, first, second)


def _power(base: Any, exponent: Any) -> Any:
    """Return a power of ints: an int, or a float if the exponent is negative."""

    def whole() -> Any:
        return computed("pow", int, base, exponent)

    def broken() -> Any:
        return computed("pow", float, *(_as_float(x) for x in (base, exponent)))

    if number_kind(exponent) is bool:
        return whole()
    is_negative = exponent < 0
    if isinstance(is_negative, bool):
        return broken() if is_negative else whole()
    return Hooks.python.branch(is_negative, broken, whole)


def _as_float(number: Any) -> Any:
    return (
        computed("to_float", float, number) if isinstance(number, TracedTensor) else float(number)
    )


def converted(number: Any, kind: type) -> Any:
    """Return a traced number as one of another kind."""
    if number_kind(number) is kind:
        return number
    return computed({bool: "truth", int: "to_int", float: "to_float"}[kind], kind, number)
