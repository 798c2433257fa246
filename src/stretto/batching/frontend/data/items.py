"""Items of values: of what belongs to the instances, and of what is static."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch

from stretto.batching.frontend.control.choices import chosen
from stretto.batching.frontend.control.joins import either, stop_outside
from stretto.batching.frontend.control.kinds import each_type, unpacked
from stretto.batching.frontend.control.tuples import is_tuple, known_items
from stretto.batching.frontend.data.attributes import read_field
from stretto.batching.frontend.data.lists import item_type, slice_parts, sliced
from stretto.batching.frontend.data.numbers import read_number
from stretto.batching.frontend.data.selection import at_position, by_key, check_one_kind
from stretto.batching.frontend.data.strings import characters
from stretto.batching.frontend.state.dispatch import apply, impossible
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.guards import note_items
from stretto.batching.frontend.state.statics import constant, is_data, is_int, is_static, python_of
from stretto.batching.frontend.state.values import (
    Choice,
    Composed,
    Dynamic,
    SliceValue,
    Static,
    TupleValue,
    Value,
    scalar_type,
)
from stretto.batching.frontend.tensors.operands import elements, is_tensor_like
from stretto.batching.frontend.tensors.operators import getitem
from stretto.batching.program import Literal
from stretto.batching.types import (
    DictType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    alternatives,
    union,
)


def subscript(frame: Frame, value: Value, index: Value) -> Value:
    """value[index]"""
    if isinstance(value, Choice):
        return chosen(frame, value, lambda option: subscript(frame, option, index))
    if (
        isinstance(index, Static)
        and isinstance(index.value, slice)
        and not isinstance(value, Static)
    ):
        index = SliceValue(*map(Static, (index.value.start, index.value.stop, index.value.step)))
    if isinstance(index, Choice):
        return chosen(frame, index, lambda option: subscript(frame, value, option))
    if isinstance(value, TupleValue):
        return _item_of_known(frame, value, index)
    if isinstance(value, Static):
        if is_static(index):
            return _static_item(frame, value.value, index)
        if isinstance(value.value, torch.Tensor):
            return getitem(frame, value, index)
        return _static_by_dynamic(frame, value.value, index)
    if isinstance(value, Composed):
        return getitem(frame, value, index)
    if not isinstance(value, Dynamic):
        frame.refuse("this value has no items")
    return each_type(frame, _not_none(frame, value), lambda one: _item(frame, one, index))


def _not_none(frame: Frame, value: Dynamic) -> Dynamic:
    kinds = [kind for kind in alternatives(value.type) if kind is not Scalar.NONE]
    if len(kinds) == len(list(alternatives(value.type))) or not kinds:
        return value
    message = "'NoneType' object is not subscriptable"
    return frame.assign("expect", union(kinds), value.operand, detail=(union(kinds), message))


def _item_of_known(frame: Frame, value: TupleValue, index: Value) -> Value:
    match index:
        case SliceValue() if is_static(index):
            chosen = value.items[slice(*(constant(x) for x in slice_parts(index)))]
            return TupleValue(chosen, value.is_list)
        case _ if is_static(index):
            position = constant(index)
            try:
                return value.items[position]
            except (IndexError, TypeError) as error:
                frame.stop(type(error), str(error))
        case _ if not all(map(is_data, value.items)):
            return at_position(frame, value.items, index, "list" if value.is_list else "tuple")
        case _:
            data = frame.dynamic(TupleValue(value.items, is_list=True))
            return subscript(frame, data, index)


def _static_item(frame: Frame, item: Any, index: Value) -> Value:

    key = python_of(index)
    try:
        found = item[key]
    except (IndexError, KeyError, TypeError) as error:
        frame.stop(type(error), str(error))
    if isinstance(key, int | str) and not isinstance(item, str | tuple | torch.Tensor):
        frame.evaluation.read("item", item, key, found)
    return Static(found)


def _static_by_dynamic(frame: Frame, item: Any, index: Value) -> Value:
    """A static container by a position or key that the instance decides."""
    note_items(frame.evaluation, item)
    if isinstance(item, torch.nn.ModuleList | torch.nn.ParameterList | list | tuple):
        parts = list(item)
        if all(scalar_type(part) is not None for part in parts):
            data = frame.dynamic(TupleValue(tuple(map(Static, parts)), is_list=True))
            return subscript(frame, data, index)
        kind = type(item).__name__ if isinstance(item, list | tuple) else "module"
        return at_position(frame, list(map(Static, parts)), index, kind)
    if isinstance(item, dict | torch.nn.ModuleDict | torch.nn.ParameterDict):
        options = [(key, Static(part)) for key, part in item.items()]
        return by_key(frame, options, index)
    return frame.refuse(
        f"an object of class {type(item).__name__} is indexed by a value of the instance"
    )


def _item(frame: Frame, value: Dynamic, index: Value) -> Value:
    match value.type:
        case TupleType() as kind if is_static(index):
            known = TupleValue(unpacked(frame, value, kind))
            return _item_of_known(frame, known, index)
        case TupleType() as kind:
            listed = TupleValue(unpacked(frame, value, kind), is_list=True)
            return subscript(frame, frame.dynamic(listed), index)
        case ListType() | RowsType():
            return _list_item(frame, value, index)
        case DictType(_, cell):
            key = frame.operand(index)
            type_ = frame.evaluation.cells[cell]
            found = frame.assign("lookup", type_, value.operand, key)
            impossible(frame, type_)
            return found
        case RecordType() as kind:
            return _record_item(frame, value, kind, index)
        case Scalar.STR:
            return _part_of_string(frame, value, index)
        case TensorType(_, shape):
            _check_positions(frame, shape, known_items(frame, index) or (index,))
            return getitem(frame, value, index)
        case _:
            frame.stop(TypeError, f"'{frame.show(value.type)}' object is not subscriptable")


def _part_of_string(frame: Frame, value: Dynamic, index: Value) -> Value:
    parts = characters(frame, value)
    if isinstance(index, SliceValue):
        found = frame.dynamic(_list_item(frame, parts, index))
        return frame.assign("join_all", Scalar.STR, found.operand)
    position = frame.expect(index, (Scalar.INT, Scalar.BOOL), "string indices must be integers")
    length = frame.assign("len", Scalar.INT, parts.operand).operand
    stop_outside(frame, position.operand, length, IndexError, "string index out of range")
    return _list_item(frame, parts, position)


def _check_positions(frame: Frame, shape: tuple[int, ...], parts: Sequence[Value]) -> None:
    """Ends the instance with an error where a position that it decides is outside of the tensor.
    The operator would end with it as one of a batch, whose dims are others."""
    for dim, (size, part) in enumerate(zip(shape, parts, strict=False)):
        is_slice = isinstance(part, SliceValue) or isinstance(constant(part), slice)
        if isinstance(part, Dynamic) and part.type is Scalar.INT:
            message = f" is out of bounds for dimension {dim} with size {size}"
            given = part.operand
            stop_outside(frame, given, Literal(size), IndexError, "index ", given, message)
        elif not is_int(part) and not is_slice:
            return


def _list_item(frame: Frame, value: Dynamic, index: Value) -> Value:
    if isinstance(index, SliceValue):
        return sliced(frame, value, index)
    if isinstance(value.type, RowsType) and is_tuple(index):
        items = known_items(frame, index)
        if not items:
            return getitem(frame, value, index)
        first, rest = items[0], items[1:]
        if is_int(first):
            row = _list_item(frame, value, first)
            return getitem(frame, row, TupleValue(rest)) if rest else row
        return getitem(frame, value, index)
    is_one = isinstance(index, SliceValue) or is_int(index)
    is_one |= is_tensor_like(index) and not _is_long(index)
    if isinstance(value.type, RowsType) and not is_one:
        return getitem(frame, value, index)
    if is_tensor_like(index):
        index = read_number(frame, index, int)
    position = frame.expect(index, (Scalar.INT, Scalar.BOOL), "list indices must be integers")
    type_ = item_type(frame, value.type)
    found = frame.assign("at", type_, value.operand, position.operand)
    impossible(frame, type_)
    return found


def _is_long(value: Value) -> bool:
    """Whether a value is a tensor of more than one element."""
    kinds = alternatives(value.type) if isinstance(value, Dynamic) else ()
    return any(
        isinstance(kind, RowsType) or elements(kind) != 1
        for kind in kinds
        if isinstance(kind, TensorType | RowsType)
    )


def _record_item(frame: Frame, value: Dynamic, kind: RecordType, index: Value) -> Value:
    info = frame.evaluation.info(kind)
    key = constant(index)
    if info.kind == "dict" and isinstance(key, str):
        if key in info.fields:
            return read_field(frame, value, [kind], key)
        frame.stop(KeyError, repr(key))
    if info.kind == "namedtuple":
        names = tuple(info.python._fields)  # type: ignore[attr-defined]
        items = tuple(read_field(frame, value, [kind], name) for name in names)
        return _item_of_known(frame, TupleValue(items), index)
    if info.kind == "dict":
        given = frame.dynamic(index)
        return field_by_key(frame, value, kind, given, lambda: frame.stop(KeyError, given.operand))
    found = inspect.getattr_static(info.python, "__getitem__", None)
    if isinstance(found, FunctionType):
        return apply(frame, Static(found), [value, index])
    frame.stop(TypeError, f"'{info.python.__name__}' object is not subscriptable")


def field_by_key(
    frame: Frame,
    value: Dynamic,
    kind: RecordType,
    key: Dynamic,
    missing: Callable[[], Value],
) -> Value:
    """An item of a dict with fixed keys by a key that the instance decides."""
    check_one_kind(frame, key)
    if key.type is not Scalar.STR:
        return missing()

    def among(names: list[str]) -> Value:
        if not names:
            return missing()
        test = frame.assign("eq", Scalar.BOOL, key.operand, Literal(names[0]))
        read = (lambda: read_field(frame, value, [kind], names[0]), lambda: among(names[1:]))
        return either(frame, test.operand, *read)

    return among(list(frame.evaluation.info(kind).fields))
