"""Attributes of values: of what belongs to the instances, and of what is static."""

from __future__ import annotations

import inspect
from dataclasses import is_dataclass
from types import DynamicClassAttribute, FunctionType, MemberDescriptorType
from typing import Any

import torch

from stretto.batching.frontend.control.choices import chosen
from stretto.batching.frontend.control.kinds import each_type, python_class
from stretto.batching.frontend.data.members import FIELDS
from stretto.batching.frontend.data.records import new_record
from stretto.batching.frontend.state.dispatch import apply, impossible
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.guards import ABSENT, in_class, note_attribute, note_class
from stretto.batching.frontend.state.values import (
    NONE,
    Choice,
    Composed,
    Dynamic,
    Method,
    Native,
    Static,
    Super,
    TupleValue,
    Value,
)
from stretto.batching.frontend.tensors.operators import call_torch
from stretto.batching.types import (
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    Type,
    alternatives,
    union,
)


def attribute(frame: Frame, value: Value, name: str) -> Value:
    match value:
        case Choice():
            return chosen(frame, value, lambda option: attribute(frame, option, name))
        case Static(item):
            return _static_attribute(frame, item, name)
        case TupleValue(items, _, names) if name in names:
            return items[names.index(name)]
        case TupleValue():
            return Method(name, value)
        case Composed():
            return _composed_attribute(frame, value, name)
        case Dynamic(_, type_):
            return _dynamic_attribute(frame, value, type_, name)
        case Super(owner, given):
            return each_type(frame, given, lambda one: _of_base(frame, owner, one, name))
        case _:
            return frame.refuse(f"the attribute {name} of a function is read")


def _of_base(frame: Frame, owner: type, value: Dynamic, name: str) -> Value:
    """An attribute of an object as the classes behind `owner` have it."""
    python = python_class(frame, value.type)
    order = python.__mro__
    for base in order[order.index(owner) + 1 :]:
        if name not in vars(base):
            continue
        frame.evaluation.read("class", base, name, vars(base)[name])
        match vars(base)[name]:
            case FunctionType() as found:
                return Method(found, value)
            case property(fget=function) if function is not None:
                return apply(frame, Static(function), [value])
            case _ if base is object and name in ("__init__", "__init_subclass__"):
                return Native(name, lambda *_: NONE)
            case _:
                frame.refuse(f"super().{name}, which is not written in Python")
    frame.stop(AttributeError, f"'super' object has no attribute '{name}'")


def _static_attribute(frame: Frame, item: Any, name: str) -> Value:
    try:
        found = getattr(item, name)
    except AttributeError as error:
        frame.stop(AttributeError, str(error))
    note_attribute(frame.evaluation, item, name, found)
    return Static(found)


def _dynamic_attribute(frame: Frame, value: Dynamic, type_: Type, name: str) -> Value:
    impossible(frame, type_)
    kinds = list(alternatives(type_))
    records = [kind for kind in kinds if isinstance(kind, RecordType)]
    with_field = [kind for kind in records if _has_field(frame, kind, name)]
    if records and len(with_field) == len(records):
        return read_field(frame, value, records, name)
    return each_type(frame, value, lambda one: _of_one_type(frame, one, name))


def _has_field(frame: Frame, kind: RecordType, name: str) -> bool:
    info = frame.evaluation.info(kind)
    return info.kind != "dict" and name in info.fields


def read_field(frame: Frame, value: Dynamic, records: list[RecordType], name: str) -> Dynamic:
    cells = [frame.evaluation.field_cell(kind, name) for kind in records]
    for cell in cells:
        foreign = None if cell is None else frame.evaluation.foreign_in(cell)
        if foreign is not None:
            frame.refuse(foreign.message, foreign.remedy)
    type_ = union(frame.evaluation.cells[cell] for cell in cells if cell is not None)
    found = frame.assign("get", type_, value.operand, detail=name, name=name)
    impossible(frame, type_)
    return found


def _of_one_type(frame: Frame, value: Dynamic, name: str) -> Value:
    match value.type:
        case RecordType() as kind:
            return _record_attribute(frame, value, kind, name)
        case TensorType() as kind:
            return _tensor_attribute(frame, value, kind, name)
        case RowsType(row):
            return _rows_attribute(frame, value, row, name)
        case kind:
            python = python_class(frame, kind)
            if not any(name in vars(owner) for owner in python.__mro__):
                frame.stop(AttributeError, f"'{python.__name__}' object has no attribute '{name}'")
            return Method(name, value)


def _record_attribute(frame: Frame, value: Dynamic, kind: RecordType, name: str) -> Value:
    info = frame.evaluation.info(kind)
    if info.kind == "dict":
        return Method(name, value)
    if name in info.fields:
        return read_field(frame, value, [kind], name)
    if name == "__class__":
        return Static(info.python)
    if name in FIELDS and isinstance(in_class(info.python, name), DynamicClassAttribute):
        if FIELDS[name] not in info.fields:
            frame.refuse(f"{info.python.__name__}.{name} of a member that the instance decides")
        return read_field(frame, value, [kind], FIELDS[name])
    if info.kind == "namedtuple" and name == "_replace":
        return Native(name, lambda f, _, changes: _replaced(f, value, kind, changes))
    found = note_class(frame.evaluation, info.python, name)
    if found is ABSENT:
        return _asked(frame, value, info.python, name)
    match found:
        case FunctionType():
            return Method(found, value)
        case property() if found.fget is not None:
            return apply(frame, Static(found.fget), [value])
        case staticmethod() | classmethod():
            return Static(getattr(info.python, name))
        case MemberDescriptorType():
            frame.stop(AttributeError, f"'{info.python.__name__}' object has no attribute '{name}'")
        case _ if hasattr(type(found), "__get__"):
            return frame.refuse(
                f"{info.python.__name__}.{name} is a {type(found).__name__}", "use a property"
            )
        case _:
            return Static(found)


def _asked(frame: Frame, value: Dynamic, python: type, name: str) -> Value:
    """An attribute that neither an object nor its class has, as `__getattr__` gives it."""
    given = note_class(frame.evaluation, python, "__getattr__")
    if given is ABSENT:
        frame.stop(AttributeError, f"'{python.__name__}' object has no attribute '{name}'")
    return apply(frame, Static(given), [value, Static(name)])


def _replaced(frame: Frame, value: Dynamic, kind: RecordType, changes: dict[str, Value]) -> Value:
    """The named tuple with some fields changed."""
    python = frame.evaluation.info(kind).python
    names: tuple[str, ...] = python._fields  # type: ignore[attr-defined]
    unknown = [name for name in changes if name not in names]
    if unknown:
        frame.refuse(f"{python.__name__} has no field {unknown[0]}")
    items = [changes[n] if n in changes else read_field(frame, value, [kind], n) for n in names]
    return new_record(frame, python, "namedtuple", names, items)


_TENSOR_FACTS = frozenset(
    ("dtype", "device", "ndim", "layout", "is_cuda", "requires_grad", "is_sparse", "names", "grad")
)


_TENSOR_VIEWS = frozenset(("T", "mT", "H", "mH", "real", "data"))


def _tensor_attribute(frame: Frame, value: Dynamic, kind: TensorType, name: str) -> Value:
    if name == "shape":
        return Static(torch.Size(kind.shape))
    if name in _TENSOR_FACTS:
        return Static(getattr(torch.empty(kind.shape, dtype=kind.dtype.torch), name))
    if name in _TENSOR_VIEWS:
        return call_torch(frame, getattr, [value, Static(name)], {})
    if not hasattr(torch.Tensor, name):
        frame.stop(AttributeError, f"'Tensor' object has no attribute '{name}'")
    if not callable(getattr(torch.Tensor, name)):
        frame.refuse(f"the attribute {name} of a tensor of the instance is read")
    return Method(name, value)


def _rows_attribute(frame: Frame, value: Dynamic, row: TensorType, name: str) -> Value:
    if name == "shape":
        length = frame.assign("len", Scalar.INT, value.operand)
        return TupleValue((length, *map(Static, row.shape)))
    # No other attribute than the shape depends on how many rows there are.
    return _tensor_attribute(frame, value, TensorType(row.dtype, (1, *row.shape)), name)


def _composed_attribute(frame: Frame, value: Composed, name: str) -> Value:
    if name in _TENSOR_VIEWS:
        return call_torch(frame, getattr, [value, Static(name)], {})
    if callable(getattr(torch.Tensor, name, None)):
        return Method(name, value)
    sample = TensorType(value.dtype, (1,) * value.dims)
    if name in _TENSOR_FACTS:
        return Static(getattr(torch.empty(sample.shape, dtype=value.dtype.torch), name))
    return frame.refuse(value.refusal.message, value.refusal.remedy)


def set_attribute(frame: Frame, owner: Value, name: str, value: Value) -> None:
    if not isinstance(owner, Dynamic):
        frame.refuse(
            f"the attribute {name} of an object that all instances share is assigned",
            "keep what differs from instance to instance in local variables or in objects that "
            "the function makes",
        )
    impossible(frame, owner.type)
    given = frame.dynamic(value)
    for kind in alternatives(owner.type):
        if kind is Scalar.NONE:
            continue
        if not isinstance(kind, RecordType) or frame.evaluation.info(kind).kind != "object":
            frame.refuse(f"the attribute {name} of {frame.show(kind)} is assigned")
        info = frame.evaluation.info(kind)
        if _is_frozen(info.python):
            frame.refuse(f"a field of {info.python.__name__}, which is frozen, is assigned")
        if isinstance(inspect.getattr_static(info.python, name, None), property):
            frame.refuse(f"the property {name} is assigned")
        frame.evaluation.class_number(info.python, info.kind, (name,))
        cell = frame.evaluation.field_cell(kind, name)
        assert cell is not None
        frame.evaluation.grow(cell, given.type)
    frame.do("set", owner.operand, given.operand, detail=name)


def _is_frozen(python: type) -> bool:
    return is_dataclass(python) and python.__dataclass_params__.frozen  # type: ignore[attr-defined]
