"""Truth values, numbers in tensors, strings, and new lists."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.batching.frontend.attributes import attribute
from stretto.batching.frontend.dispatch import apply
from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.joins import chosen, each_type
from stretto.batching.frontend.purity import call_static
from stretto.batching.frontend.tensor_results import elements
from stretto.batching.frontend.values import (
    ChoiceValue,
    Closure,
    Dynamic,
    IterableValue,
    Method,
    Native,
    SliceValue,
    Static,
    TupleValue,
    Value,
    constant,
)
from stretto.batching.instances.types import ABSENT, in_class, scalar_type
from stretto.ir.core import Literal, Operand, Variable
from stretto.ir.data import ReadOp
from stretto.ir.types import (
    DataType,
    DictType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    alternatives,
)

# ---- New lists and their items.


def item_type(frame: Frame, type_: DataType) -> DataType:
    """Return the type of the items of a list or of rows; refuse other types."""
    match type_:
        case RowsType(row):
            return row
        case ListType(cell):
            return frame.evaluation.cells[cell]
        case _:
            return frame.refuse(f"{frame.show(type_)} has no items")


def slice_parts(index: SliceValue) -> tuple[Value, Value, Value]:
    return index.start, index.stop, index.step


def sliced(frame: Frame, value: Dynamic, index: SliceValue) -> Dynamic:
    """Return a slice. That of a list gets its own cell, since it may come to hold other types."""
    parts = [frame.operand(part) for part in slice_parts(index)]
    type_ = value.type
    if isinstance(type_, ListType) and not type_.is_tuple:
        cell = frame.evaluation.cell(frame.site("slice"))
        frame.evaluation.grow(cell, item_type(frame, type_))
        type_ = ListType(cell)
    return frame.assign("slice", type_, value.operand, *parts)


def new_list(frame: Frame, cell: int, items: tuple[Value, ...]) -> Dynamic:
    given = [frame.dynamic(item) for item in items]
    for item in given:
        frame.evaluation.grow(cell, item.type)
    return frame.assign("list", ListType(cell), *(v.operand for v in given), detail=False)


def append(frame: Frame, target: Dynamic, item: Value) -> None:
    given = frame.dynamic(item)
    for kind in alternatives(target.type):
        assert isinstance(kind, ListType)
        frame.evaluation.grow(kind.cell, given.type)
    frame.do("append", target.operand, given.operand)


# ---- Numbers: those in tensors, and conversions.


def read_number(frame: Frame, value: Value, wanted: type) -> Value:
    """Read the number in a tensor of one element, converted by `wanted`: bool, int or float, or
    unconverted, as `.item()` does, if it is NoneType. Ends the instance with RuntimeError if
    the tensor has several elements."""
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
    frame.builder.emit(ReadOp(given.operand, results=(target,), location=frame.location))
    return converted(frame, Dynamic(target, type_), wanted)


def converted(frame: Frame, value: Dynamic, wanted: type) -> Value:
    """Return a number as bool, int or float."""
    if wanted is bool and value.type is not Scalar.BOOL:
        return frame.assign("truth", Scalar.BOOL, value.operand)
    if wanted is int and value.type is not Scalar.INT:
        return frame.assign("to_int", Scalar.INT, value.operand)
    if wanted is float and value.type is not Scalar.FLOAT:
        return frame.assign("to_float", Scalar.FLOAT, value.operand)
    return value


# ---- Strings that the instance decides: their parts and characters.


_PLAIN = frozenset((Scalar.STR, Scalar.INT, Scalar.BOOL, Scalar.NONE))


def is_plain(type_: DataType) -> bool:
    """Return True if str(x) of such a value can be computed by the primitive `text`."""
    return all(kind in _PLAIN for kind in alternatives(type_))


def as_text(frame: Frame, value: Value) -> Value:
    """Return str(x)."""
    given = frame.dynamic(value)
    if given.type is Scalar.STR:
        return given
    if is_plain(given.type):
        return frame.assign("text", Scalar.STR, given.operand)
    return each_type(frame, given, lambda one: _text_of_one(frame, one))


def _text_of_one(frame: Frame, value: Dynamic) -> Value:
    if is_plain(value.type):
        return as_text(frame, value)
    if isinstance(value.type, RecordType):
        python = frame.evaluation.info(value.type).python
        own = vars(python).get("__str__") or vars(python).get("__repr__")
        if own is not None and frame.evaluation.info(value.type).kind == "object":
            return apply(frame, Static(own), [value])
    return frame.refuse(
        f"str() of {frame.show(value.type)} of the instance",
        "make strings of ints and strings; format the rest outside",
    )


def joined(frame: Frame, parts: Sequence[str | Operand]) -> Dynamic:
    """Return the concatenation of strings and of the texts of operands."""
    found: Dynamic | None = None
    for part in parts:
        given = part if isinstance(part, Variable) else Literal(str(getattr(part, "value", part)))
        type_ = given.type if isinstance(given, Variable) else Scalar.STR
        one = frame.dynamic(as_text(frame, Dynamic(given, type_)))
        found = (
            one
            if found is None
            else frame.assign("join_str", Scalar.STR, found.operand, one.operand)
        )
    return Dynamic(Literal(""), Scalar.STR) if found is None else found


def characters(frame: Frame, value: Dynamic) -> Dynamic:
    """Return a list of the characters of a string."""
    cell = frame.evaluation.cell(frame.site("characters"))
    frame.evaluation.grow(cell, Scalar.STR)
    return frame.assign("characters", ListType(cell), value.operand)


def _known_truth(frame: Frame, value: Value) -> bool | None:
    """Return the truth of a value; None if the instance decides it."""
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
    """Return the truth of a value: a bool if it is known, else a bool operand."""
    known = _known_truth(frame, value)
    if known is not None:
        return known
    if isinstance(value, ChoiceValue):
        found = chosen(frame, value, lambda option: _as_bool(truth(frame, option)))
        return _truth_value(frame, frame.dynamic(found))
    if isinstance(value, IterableValue):
        is_sized = hasattr(value.python, "__len__")
        return truth(frame, apply(frame, Static(len), [value])) if is_sized else True
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
