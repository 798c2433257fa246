"""The plan of a value that a loop goes through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stretto.batching.frontend.control.choices import chosen
from stretto.batching.frontend.control.kinds import each_type, python_class, unpacked
from stretto.batching.frontend.data.attributes import attribute
from stretto.batching.frontend.data.items import subscript
from stretto.batching.frontend.data.lists import append, new_list
from stretto.batching.frontend.data.special import method_of
from stretto.batching.frontend.data.strings import characters
from stretto.batching.frontend.iteration.plans import Items, Known, Plan, Range
from stretto.batching.frontend.iteration.walks import iterate
from stretto.batching.frontend.state.dispatch import apply, impossible
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.guards import note_items
from stretto.batching.frontend.state.values import (
    Choice,
    Dynamic,
    Iterator_,
    Static,
    TupleValue,
    Value,
)
from stretto.batching.frontend.tensors.operators import getitem
from stretto.batching.types import (
    DictType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    Type,
    UnionType,
    alternatives,
)


def plan_of(frame: Frame, value: Value) -> Plan:
    """How a loop goes through a value."""
    match value:
        case Iterator_(plan):
            assert isinstance(plan, Plan)
            return plan
        case TupleValue(items):
            return Known(items)
        case Static(item):
            return _static_plan(frame, item)
        case Choice():
            return plan_of(frame, chosen(frame, value, lambda one: _gathered(frame, one)))
        case Dynamic(_, type_):
            return _dynamic_plan(frame, value, type_)
        case _:
            return frame.refuse("this value cannot be iterated over")


def _gathered(frame: Frame, value: Value) -> Value:
    """A list of what one of several iterators gives, by the way that the instance took."""
    plan = plan_of(frame, value)
    made = new_list(frame, frame.evaluation.cell(frame.site("gathered")), ())
    iterate(frame, plan, lambda item: append(frame, made, item))
    return made


def _static_plan(frame: Frame, item: Any) -> Plan:
    if isinstance(item, range):
        return Range(Static(item.start), Static(item.stop), Static(item.step))
    if isinstance(item, Iterator):
        frame.refuse(
            "an iterator that all instances share is gone through", "make a list of it outside"
        )
    try:
        items = list(item)
    except TypeError as error:
        frame.stop(TypeError, str(error))
    note_items(frame.evaluation, item)
    return Known([Static(part) for part in items])


def _dynamic_plan(frame: Frame, value: Dynamic, type_: Type) -> Plan:
    impossible(frame, type_)
    if all(isinstance(kind, ListType | RowsType) for kind in alternatives(type_)):
        return Items(value)
    match type_:
        case TupleType():
            return Known(unpacked(frame, value, type_))
        case TensorType(_, shape) if shape:
            return Known([getitem(frame, value, Static(i)) for i in range(shape[0])])
        case TensorType():
            frame.stop(TypeError, "iteration over a 0-d tensor")
        case DictType(key, _):
            cell = frame.evaluation.cell(frame.site("keys"))
            frame.evaluation.grow(cell, key)
            return Items(frame.assign("keys", ListType(cell), value.operand))
        case RecordType() as kind:
            return _record_plan(frame, value, kind)
        case UnionType():
            made = each_type(frame, value, lambda one: _as_items(frame, one))
            return plan_of(frame, made)
        case Scalar.STR:
            return Items(characters(frame, value))
        case _:
            name = python_class(frame, type_).__name__
            frame.stop(TypeError, f"'{name}' object is not iterable")


def members(frame: Frame, value: Value) -> Value:
    """The members of a set as a list, for what does not depend on their order; else the value."""
    kind = value.type if isinstance(value, Dynamic) else None
    if isinstance(kind, RecordType) and issubclass(frame.evaluation.info(kind).python, set):
        held = frame.dynamic(attribute(frame, value, "held"))
        assert isinstance(held.type, DictType)
        return Iterator_(_dynamic_plan(frame, held, held.type))
    return value


def _as_items(frame: Frame, value: Dynamic) -> Dynamic:
    """What is gone through where a value is of this type: a list or rows."""
    plan = _dynamic_plan(frame, value, value.type)
    if isinstance(plan, Items):
        return plan.source
    assert plan.known is not None
    cell = frame.evaluation.cell(frame.site("items", str(value.type)))
    return new_list(frame, cell, plan.known)


def _record_plan(frame: Frame, value: Dynamic, kind: RecordType) -> Plan:
    info = frame.evaluation.info(kind)
    if info.kind == "dict":
        return Known([Static(name) for name in info.fields])
    if info.kind == "namedtuple":
        names = range(len(info.python._fields))  # type: ignore[attr-defined]
        return Known([subscript(frame, value, Static(i)) for i in names])
    name = info.python.__name__
    if issubclass(info.python, set):
        frame.refuse("a loop goes through a set, which is in no order", "go through sorted(...)")
    own = method_of(frame, kind, "__iter__")
    if own is not None:
        found = apply(frame, Static(own), [value])
        if isinstance(found, Iterator_):
            return plan_of(frame, found)
    if not any(hasattr(info.python, method) for method in ("__iter__", "__getitem__")):
        frame.stop(TypeError, f"'{name}' object is not iterable")
    return frame.refuse(
        f"a loop goes through an object of class {name}", "give it a method that returns a list"
    )
