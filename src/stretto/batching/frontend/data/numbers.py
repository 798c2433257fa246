"""Numbers: those in tensors, and conversions."""

from __future__ import annotations

from stretto.batching.frontend.control.kinds import each_type
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.values import Dynamic, Value
from stretto.batching.frontend.tensors.operands import elements
from stretto.batching.program import Read
from stretto.batching.types import Scalar, TensorType


def read_number(frame: Frame, value: Value, wanted: type) -> Value:
    """The number in a tensor of one element, as bool(), int() or float() gives it; or as `.item()`
    does where `wanted` is None's type."""
    given = frame.expect(frame.dynamic(value), TensorType, "a tensor is needed here")
    kind = given.type
    if not isinstance(kind, TensorType):
        return each_type(frame, given, lambda one: read_number(frame, one, wanted))
    if any(dim != 1 for dim in kind.shape):
        frame.stop(
            RuntimeError,
            f"a Tensor with {elements(kind)} elements cannot be converted to Scalar"
            if wanted is not bool
            else "Boolean value of Tensor with more than one value is ambiguous",
        )
    type_ = Scalar.BOOL if kind.dtype.value == "bool" else Scalar.INT
    type_ = Scalar.FLOAT if kind.dtype.is_float else type_
    target = frame.builder.variable("value", type_)
    frame.builder.emit(Read(target, given.operand, frame.location))
    return converted(frame, Dynamic(target, type_), wanted)


def converted(frame: Frame, value: Dynamic, wanted: type) -> Value:
    """A number as bool, int or float."""
    if wanted is bool and value.type is not Scalar.BOOL:
        return frame.assign("truth", Scalar.BOOL, value.operand)
    if wanted is int and value.type is not Scalar.INT:
        return frame.assign("to_int", Scalar.INT, value.operand)
    if wanted is float and value.type is not Scalar.FLOAT:
        return frame.assign("to_float", Scalar.FLOAT, value.operand)
    return value
