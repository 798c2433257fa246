"""Values that may have one of several types: their classes, and what is done for each type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stretto.batching.frontend.control.joins import either
from stretto.batching.frontend.state.dispatch import impossible
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.values import Dynamic, Static, Value
from stretto.batching.types import (
    DictType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    Type,
    alternatives,
    union,
)


def switch(
    frame: Frame,
    value: Dynamic,
    groups: Sequence[Sequence[Type]],
    handler: Callable[[Dynamic], Value],
) -> Value:
    """What `handler` makes of a value, evaluated for each group of types that it may have."""
    first, *rest = groups
    if not rest:
        return handler(frame.cast(value, union(first)))
    test = frame.assign("has_type", Scalar.BOOL, value.operand, detail=tuple(first))
    return either(
        frame,
        test.operand,
        lambda: handler(frame.cast(value, union(first))),
        lambda: switch(frame, value, rest, handler),
    )


def each_type(frame: Frame, value: Value, handler: Callable[[Dynamic], Value]) -> Value:
    """What `handler` makes of a value of one type; evaluated for each that the value may have."""
    given = frame.dynamic(value)
    impossible(frame, given.type)
    kinds = sorted(alternatives(given.type), key=str)
    return switch(frame, given, [[kind] for kind in kinds], handler)


def unpacked(frame: Frame, value: Dynamic, type_: TupleType) -> tuple[Dynamic, ...]:
    """The items of a tuple of known length, in variables of their own."""
    return tuple(
        frame.assign("item", item, value.operand, detail=position)
        for position, item in enumerate(type_.items)
    )


_PYTHON: dict[Scalar, type] = {
    Scalar.NONE: type(None),
    Scalar.BOOL: bool,
    Scalar.INT: int,
    Scalar.FLOAT: float,
    Scalar.STR: str,
}


def python_class(frame: Frame, kind: Type) -> type:
    """The class of the values of a type that is no union."""

    match kind:
        case Scalar():
            return _PYTHON[kind]
        case RecordType():
            return frame.evaluation.info(kind).python
        case ListType(_, is_tuple):
            return tuple if is_tuple else list
        case TupleType():
            return tuple
        case DictType():
            return dict
        case TensorType() | RowsType():
            return torch.Tensor
        case _:
            raise TypeError(kind)


def is_instance(frame: Frame, kind: Type, classes: Any) -> bool:
    """isinstance of a value of a type that is no union."""
    if classes is float and kind is Scalar.INT:
        return False
    return issubclass(python_class(frame, kind), classes)


def has_type(frame: Frame, value: Value, types: tuple[Type, ...]) -> Value:
    """Whether a value is of one of some types."""
    if not isinstance(value, Dynamic):
        type_ = frame.type_of(value)
        return Static(type_ in types)
    kinds = set(alternatives(value.type))
    inside = kinds & set(types)
    if not inside:
        return Static(False)
    if inside == kinds:
        return Static(True)
    return frame.assign(
        "has_type", Scalar.BOOL, value.operand, detail=tuple(sorted(inside, key=str))
    )
