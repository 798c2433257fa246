"""Items of values, of instances and static ones: reading, assignment and deletion."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch

from stretto.batching.frontend.attributes import by_method, enumeration, name_of, read_field
from stretto.batching.frontend.dispatch import apply, impossible
from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.guards import note_items
from stretto.batching.frontend.joins import (
    FEW,
    chosen,
    each_type,
    either,
    is_tuple,
    known_items,
    selected,
    stop_outside,
    unpacked,
)
from stretto.batching.frontend.tensor_operators import getitem
from stretto.batching.frontend.tensor_results import elements, is_tensor_like
from stretto.batching.frontend.truth import (
    characters,
    item_type,
    new_list,
    read_number,
    slice_parts,
    sliced,
)
from stretto.batching.frontend.values import (
    ChoiceValue,
    Composed,
    Dynamic,
    Native,
    SliceValue,
    Static,
    TupleValue,
    Value,
    constant,
    is_data,
    is_int,
    is_static,
    python_of,
)
from stretto.batching.instances.types import scalar_type
from stretto.ir.core import Literal
from stretto.ir.types import (
    NEVER,
    DictType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    UnionType,
    alternatives,
    union,
)

# ---- One of several objects, by a position or a key that the instance decides.


Options = Sequence[tuple[Any, Value]]


def check_one_kind(frame: Frame, key: Dynamic) -> None:
    """Refuse a key that may be of several types."""
    if isinstance(key.type, UnionType):
        frame.refuse(
            f"a key that may be {frame.show(key.type)}",
            "tell the kinds apart with isinstance before it is used",
        )


def at_position(frame: Frame, items: Sequence[Value], position: Value, kind: str = "list") -> Value:
    """Return one of several objects by a position that the instance decides: as data if all are
    data, else a choice, each use of which is a branch. Ends the instance with IndexError if the
    position is outside. kind: "list", "tuple" or "module", for the message."""
    if is_tensor_like(position):
        position = read_number(frame, position, int)
    given = frame.expect(position, (Scalar.INT, Scalar.BOOL), "a position must be an int")
    length = Literal(len(items))
    parts = (f"{kind} index out of range",)
    if kind == "module":
        parts = ("index ", given.operand, " is out of range")
    stop_outside(frame, given.operand, length, IndexError, *parts)
    negative = frame.assign("lt", Scalar.BOOL, given.operand, Literal(0))
    found = either(
        frame,
        negative.operand,
        lambda: frame.assign("add", Scalar.INT, given.operand, length),
        lambda: frame.assign("to_int", Scalar.INT, given.operand),
    )
    if all(map(is_data, items)):
        return choose(frame, list(enumerate(items)), frame.dynamic(found), IndexError, _itself)
    return ChoiceValue(tuple(enumerate(items)), frame.dynamic(found), NEVER)


def _itself(value: Value) -> Value:
    return value


def by_key(frame: Frame, options: Options, key: Value) -> Value:
    """Return one of several objects by a key that the instance decides: as data if all are data,
    else a function whose call is a branch. Ends the instance with KeyError for any other key."""
    given, options = _by_name(frame, frame.dynamic(key), options)
    check_one_kind(frame, given)
    if all(is_data(item) for _, item in options):
        return choose(frame, options, given, KeyError, _itself)
    # Copy the key: its variable may hold another one when the object is called.
    given = frame.assign("copy", given.type, given.operand, name="chosen")

    def call(inner: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return choose(
            inner, options, given, KeyError, lambda item: apply(inner, item, args, kwargs)
        )

    return Native("choice", call)


def _by_name(frame: Frame, key: Dynamic, options: Options) -> tuple[Dynamic, Options]:
    """Replace a key that is a member of an enumeration by its name, and the keys of the options
    likewise."""
    python = enumeration(frame, key.type)
    if python is None:
        return key, options
    found = [(option.name, item) for option, item in options if type(option) is python]
    return name_of(frame, key), found


def selected_or(frame: Frame, options: Options, key: Value, default: Value) -> Value:
    """Return dict.get of a static dict by a key that the instance decides."""
    given, options = _by_name(frame, frame.dynamic(key), options)
    check_one_kind(frame, given)
    fitting = [pair for pair in options if scalar_type(pair[0]) is given.type]
    if all(is_data(item) for _, item in fitting) and is_data(default):
        return choose(frame, fitting, given, KeyError, lambda item: item, lambda: default)
    given = frame.assign("copy", given.type, given.operand, name="chosen")

    def call(inner: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        def use(item: Value) -> Value:
            return apply(inner, item, args, kwargs)

        return choose(inner, fitting, given, KeyError, use, lambda: use(default))

    return Native("choice", call)


def choose(
    frame: Frame,
    options: Options,
    index: Dynamic,
    error: type,
    use: Callable[[Value], Value],
    missing: Callable[[], Value] | None = None,
) -> Value:
    """Return the result of `use` for the option whose key equals `index`. If none does, return
    `missing()`, or end the instance with `error`."""

    def fails() -> Value:
        return frame.stop(error, index.operand)

    uses = [(key, lambda x=x: use(x)) for key, x in options]
    return by_equality(frame, index, uses, missing or fails)


def by_equality(
    frame: Frame,
    key: Dynamic,
    uses: Sequence[tuple[Any, Callable[[], Value]]],
    missing: Callable[[], Value],
) -> Value:
    """Call the function of a key, a scalar, and return its result; `missing` if none has it."""
    if not uses:
        return missing()
    if len(uses) > FEW:
        cell = frame.evaluation.cell(frame.site("keys", len(uses)))
        keys = new_list(frame, cell, tuple(Static(other) for other, _ in uses)).operand
        there = frame.assign("contains", Scalar.BOOL, keys, key.operand)

        def found() -> Value:
            position = frame.assign("index", Scalar.INT, keys, key.operand)
            numbered = [(number, use) for number, (_, use) in enumerate(uses)]
            return selected(frame, position.operand, numbered)

        return either(frame, there.operand, found, missing)
    (first, use), *rest = uses
    test = frame.assign("eq", Scalar.BOOL, key.operand, frame.operand(Static(first)))
    return either(frame, test.operand, use, lambda: by_equality(frame, key, rest, missing))


def subscript(frame: Frame, value: Value, index: Value) -> Value:
    """Return value[index]."""
    if isinstance(value, ChoiceValue):
        return chosen(frame, value, lambda option: subscript(frame, option, index))
    if (
        isinstance(index, Static)
        and isinstance(index.value, slice)
        and not isinstance(value, Static)
    ):
        index = SliceValue(*map(Static, (index.value.start, index.value.stop, index.value.step)))
    if isinstance(index, ChoiceValue):
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
        frame.stop(type(error), str(error.args[0]))
    if isinstance(key, int | str) and not isinstance(item, str | tuple | torch.Tensor):
        frame.evaluation.read("item", item, key, found)
    return Static(found)


def _static_by_dynamic(frame: Frame, item: Any, index: Value) -> Value:
    """Return an item of a static container by a position or key that the instance decides."""
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
        case TensorType() as kind:
            shape = kind.static_shape()
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
    """End the instance with IndexError if a position that it decides is outside of the tensor.
    Without the check the operator would report the dims of the batch."""
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
    """Return True if a value may be a tensor of more than one element."""
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
        frame.stop(KeyError, key)
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
    """Return an item of a dict with fixed keys by a key that the instance decides; `missing()` if
    no key equals it."""
    check_one_kind(frame, key)
    if key.type is not Scalar.STR:
        return missing()

    names = frame.evaluation.info(kind).fields
    reads = [(name, lambda n=name: read_field(frame, value, [kind], n)) for name in names]
    return by_equality(frame, key, reads, missing)


# ---- Assignment and deletion of items.


def set_item(frame: Frame, owner: Value, index: Value, value: Value) -> None:
    """Evaluate owner[index] = value."""
    if not isinstance(owner, Dynamic):
        frame.refuse("an item of an object that all instances share is assigned")
    kinds = list(alternatives(owner.type))
    if len(kinds) == 1 and by_method(frame, owner, "__setitem__", index, value) is not None:
        return
    given = frame.dynamic(value)
    if all(isinstance(kind, ListType) and not kind.is_tuple for kind in kinds):
        if isinstance(index, SliceValue) or isinstance(constant(index), slice):
            frame.refuse("a slice of a list is assigned", "make a new list with +")
        position = frame.expect(index, (Scalar.INT,), "list indices must be integers")
        for kind in kinds:
            assert isinstance(kind, ListType)
            frame.evaluation.grow(kind.cell, given.type)
        frame.do("put", owner.operand, position.operand, given.operand)
    elif all(isinstance(kind, DictType) for kind in kinds):
        for kind in kinds:
            assert isinstance(kind, DictType)
            frame.evaluation.grow(kind.cell, given.type)
            _check_key(frame, kind, index)
        frame.do("store", owner.operand, frame.operand(index), given.operand)
    elif all(
        isinstance(kind, RecordType) and frame.evaluation.info(kind).kind == "dict"
        for kind in kinds
    ):
        key = constant(index)
        for kind in kinds:
            assert isinstance(kind, RecordType)
            cell = frame.evaluation.field_cell(kind, key) if isinstance(key, str) else None
            if cell is None:
                frame.refuse("a key is added to a dict with fixed keys")
            frame.evaluation.grow(cell, given.type)
        frame.do("set", owner.operand, given.operand, detail=key)
    else:
        frame.refuse(
            f"an item of {frame.show(owner.type)} is assigned",
            "make a new tensor, with torch.cat, torch.stack or torch.where"
            if is_tensor_like(owner)
            else None,
        )


def delete_item(frame: Frame, owner: Value, index: Value) -> None:
    """Evaluate del owner[index]."""
    kind = owner.type if isinstance(owner, Dynamic) else None
    if isinstance(owner, Dynamic) and by_method(frame, owner, "__delitem__", index) is not None:
        return
    if isinstance(owner, Dynamic) and isinstance(kind, DictType):
        frame.do("remove", owner.operand, frame.operand(index))
        return
    if not isinstance(owner, Dynamic) or not isinstance(kind, ListType) or kind.is_tuple:
        frame.refuse("del of an item is supported for lists and dicts of the instance only")
    if isinstance(index, SliceValue) or not is_int(index):
        frame.refuse("del of a slice", "make a new list of the items that stay")
    position = frame.operand(index)
    length = frame.assign("len", Scalar.INT, owner.operand).operand
    stop_outside(frame, position, length, IndexError, "list assignment index out of range")
    frame.do("pop", owner.operand, position)


def _check_key(frame: Frame, kind: DictType, key: Value) -> None:
    """Record the type of the keys of a dict; refuse keys that are no ints, strings or bools."""
    type_ = frame.dynamic(key).type
    if type_ not in (Scalar.INT, Scalar.STR, Scalar.BOOL):
        frame.refuse(f"a key of a dict is {frame.show(type_)}", "use an int or a string as key")
    assert isinstance(type_, Scalar)
    frame.evaluation.has_keys(kind.cell, type_)
