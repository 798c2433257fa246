"""The truth of a value, as a condition."""

from __future__ import annotations

from stretto.batching.frontend.control.choices import chosen
from stretto.batching.frontend.control.kinds import each_type
from stretto.batching.frontend.data.attributes import attribute
from stretto.batching.frontend.data.numbers import read_number
from stretto.batching.frontend.state.dispatch import apply
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.guards import ABSENT, in_class
from stretto.batching.frontend.state.statics import constant
from stretto.batching.frontend.state.values import (
    Choice,
    Closure,
    Dynamic,
    Iterator_,
    Method,
    Native,
    Static,
    TupleValue,
    Value,
    scalar_type,
)
from stretto.batching.frontend.tensors.purity import call_static
from stretto.batching.program import Operand
from stretto.batching.types import (
    DictType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
)


def _known_truth(frame: Frame, value: Value) -> bool | None:
    """The truth of a value where it is known."""
    match value:
        case Static(item) if scalar_type(item) is not None:
            return bool(item)
        case Static(item):
            return bool(constant(call_static(frame, bool, [item], {})))
        case TupleValue(items):
            return bool(items)
        case Closure() | Method() | Native():
            return True
        case Dynamic(_, type_) if type_ is Scalar.NONE:
            return False
        case _:
            return None


def truth(frame: Frame, value: Value) -> bool | Operand:
    """The truth of a value as a condition: known, or a bool that the instance decides."""
    known = _known_truth(frame, value)
    if known is not None:
        return known
    if isinstance(value, Choice):
        found = chosen(frame, value, lambda option: _as_bool(truth(frame, option)))
        return _truth_value(frame, frame.dynamic(found))
    if isinstance(value, Iterator_):
        return True
    given = frame.dynamic(value)
    if given.type is Scalar.BOOL:
        known = constant(given)
        return given.operand if known is ... else bool(known)
    return _truth_value(frame, frame.dynamic(each_type(frame, given, lambda v: _true(frame, v))))


def _as_bool(condition: bool | Operand) -> Value:
    if isinstance(condition, bool):
        return Static(condition)
    return Dynamic(condition, Scalar.BOOL)


def _truth_value(frame: Frame, value: Dynamic) -> bool | Operand:
    known = constant(value)
    return value.operand if known is ... else bool(known)


def _true(frame: Frame, value: Dynamic) -> Value:
    match value.type:
        case TensorType():
            return read_number(frame, value, bool)
        case RecordType() as kind:
            python = frame.evaluation.info(kind).python
            if python is dict:
                return Static(bool(frame.evaluation.info(kind).fields))
            for name in ("__bool__", "__len__"):
                if in_class(python, name) is not ABSENT and not issubclass(python, tuple):
                    found = apply(frame, attribute(frame, value, name), [])
                    return _as_bool(truth(frame, found))
            return Static(True)
        case TupleType(items):
            return Static(bool(items))
        case Scalar.NONE:
            return Static(False)
        case Scalar.BOOL:
            return value
        case ListType() | DictType() | Scalar():
            return frame.assign("truth", Scalar.BOOL, value.operand)
        case RowsType():
            frame.stop(
                RuntimeError, "Boolean value of Tensor with more than one value is ambiguous"
            )
        case _:
            return Static(True)
