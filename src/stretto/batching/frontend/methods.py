"""Methods of values of Python's built-in classes, and of tensors."""

from __future__ import annotations

import inspect
import operator
from typing import Any

import torch

from stretto.batching.frontend.attributes import attribute, check_equality
from stretto.batching.frontend.comparisons import contains, equal
from stretto.batching.frontend.dispatch import apply, impossible
from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.functions import check_call
from stretto.batching.frontend.items import field_by_key, set_item, subscript
from stretto.batching.frontend.joins import branch, class_of, either, static_class
from stretto.batching.frontend.operators import binary
from stretto.batching.frontend.tensor_operators import call_torch, getitem
from stretto.batching.frontend.truth import append, item_type, new_list, read_number
from stretto.batching.frontend.values import (
    NONE,
    Composed,
    Dynamic,
    IterableValue,
    Static,
    TupleValue,
    Value,
    constant,
)
from stretto.batching.frontend.walks import (
    ItemsPlan,
    KnownPlan,
    MappedPlan,
    extend,
    iterate,
    plan_of,
)
from stretto.call.eager import RequiresGrad
from stretto.ir.types import (
    DictType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    union,
)

# ---- Methods of dicts.


def dict_method(frame: Frame, name: str, owner: Dynamic, args: list[Value]) -> Value:
    kind = owner.type
    assert isinstance(kind, DictType)
    type_ = frame.evaluation.cells[kind.cell]
    match name:
        case "get":
            default = frame.dynamic(args[1] if len(args) > 1 else NONE)
            made = union((type_, default.type))
            key = frame.operand(args[0])
            return frame.assign("lookup_or", made, owner.operand, key, default.operand)
        case "setdefault":
            return _set_default(frame, owner, args[0], args[1] if len(args) > 1 else NONE)
        case "pop" if len(args) == 1:
            found = frame.assign("remove", type_, owner.operand, frame.operand(args[0]))
            impossible(frame, type_)
            return found
        case "keys" | "values":
            cell = frame.evaluation.cell(frame.site(name))
            frame.evaluation.grow(cell, kind.key if name == "keys" else type_)

            def view(inner: Frame) -> ItemsPlan:
                return ItemsPlan(inner.assign(name, ListType(cell), owner.operand))

            return IterableValue(view, _VIEWS[name])
        case "items":
            return _dict_items(frame, owner, kind)
        case "clear":
            frame.do("clear", owner.operand)
            return NONE
        case _:
            return frame.refuse(f"the method {name} of a dict is not supported")


def _set_default(frame: Frame, owner: Dynamic, key: Value, default: Value) -> Value:
    given = frame.dynamic(default)
    there = contains(frame, owner, key)

    def store() -> None:
        set_item(frame, owner, key, given)

    branch(frame, frame.operand(there), (lambda: None, store))
    return subscript(frame, owner, key)


def _dict_items(frame: Frame, owner: Dynamic, kind: DictType) -> Value:

    cell = frame.evaluation.cell(frame.site("keys"))
    frame.evaluation.grow(cell, kind.key)
    type_ = frame.evaluation.cells[kind.cell]

    def pair(inner: Frame, key: Value) -> Value:
        value = inner.assign("lookup", type_, owner.operand, inner.operand(key))
        return TupleValue((key, value))

    def view(inner: Frame) -> MappedPlan:
        return MappedPlan(ItemsPlan(inner.assign("keys", ListType(cell), owner.operand)), pair)

    return IterableValue(view, _VIEWS["items"])


_VIEWS: dict[str, type] = {
    name: type(getattr(dict[Any, Any](), name)()) for name in ("keys", "values", "items")
}


def fixed_dict_method(
    frame: Frame, name: str, owner: Dynamic, kind: RecordType, args: list[Value]
) -> Value:
    info = frame.evaluation.info(kind)
    if info.kind != "dict":
        return frame.refuse(f"the method {name} of a {info.python.__name__} is not supported")

    def value(field: str) -> Value:
        return subscript(frame, owner, Static(field))

    match name:
        case "get":
            key = constant(args[0])
            default = args[1] if len(args) > 1 else NONE
            if key is ...:
                given = frame.dynamic(args[0])
                return field_by_key(frame, owner, kind, given, lambda: default)
            if key in info.fields:
                return value(key)
            return default
        case "keys":
            return IterableValue(KnownPlan(list(map(Static, info.fields))), _VIEWS[name])
        case "values":
            return IterableValue(KnownPlan([value(field) for field in info.fields]), _VIEWS[name])
        case "items":
            pairs = [TupleValue((Static(field), value(field))) for field in info.fields]
            return IterableValue(KnownPlan(pairs), _VIEWS[name])
        case _:
            return frame.refuse(f"the method {name} of a dict with fixed keys is not supported")


# ---- Methods of lists and tuples.


def list_method(
    frame: Frame, name: str, owner: Dynamic, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    kind = owner.type
    assert isinstance(kind, ListType)
    if kind.is_tuple and name not in ("index", "count"):
        frame.stop(AttributeError, f"'tuple' object has no attribute '{name}'")
    item = frame.evaluation.cells[kind.cell]
    match name:
        case "append":
            append(frame, owner, args[0])
        case "pop":
            found = frame.assign("pop", item, owner.operand, *(_ints(frame, args)))
            impossible(frame, item)
            return found
        case "insert":
            given = frame.dynamic(args[1])
            frame.evaluation.grow(kind.cell, given.type)
            frame.do("insert", owner.operand, frame.operand(args[0]), given.operand)
        case "extend":
            extend(frame, owner, args[0])
        case "reverse":
            frame.do("reverse", owner.operand)
        case "clear":
            frame.do("clear", owner.operand)
        case "copy":
            cell = frame.evaluation.cell(frame.site("copy"))
            frame.evaluation.grow(cell, item)
            return frame.assign("to_list", ListType(cell), owner.operand, detail=False)
        case "sort":
            found = frame.dynamic(apply(frame, Static(sorted), [owner], kwargs))
            frame.do("clear", owner.operand)
            extend(frame, owner, found)
        case "remove":
            _remove(frame, owner, args[0])
        case "count":
            return _count(frame, owner, args[0])
        case "index":
            if len(args) > 1:
                frame.refuse("list.index with a start", "take a slice of it before")
            check_equality(frame, item)
            return frame.assign("index", Scalar.INT, owner.operand, frame.operand(args[0]))
        case _:
            frame.refuse(f"the method {name} of a list is not supported")
    return NONE


def _remove(frame: Frame, owner: Dynamic, value: Value) -> None:
    found = contains(frame, owner, value)

    def present() -> None:
        position = frame.assign("index", Scalar.INT, owner.operand, frame.operand(value))
        frame.do("pop", owner.operand, position.operand)

    def missing() -> None:
        frame.stop(ValueError, "list.remove(x): x not in list")

    branch(frame, frame.operand(found), (present, missing))


def _count(frame: Frame, owner: Dynamic, value: Value) -> Value:
    name = ".count"
    frame.locals[name] = Static(0)

    def step(item: Value) -> None:
        before = frame.locals[name]

        def one() -> Value:
            return binary(frame, "add", operator.add, before, Static(1))

        made = either(frame, frame.operand(equal(frame, item, value)), one, lambda: before)
        frame.locals[name] = made

    iterate(frame, plan_of(frame, owner), step, frozenset((name,)))
    return frame.locals.pop(name)


def _ints(frame: Frame, args: list[Value]) -> list[Any]:
    return [frame.expect(a, (Scalar.INT,), "a position must be an int").operand for a in args]


def tuple_method(frame: Frame, name: str, items: tuple[Value, ...], args: list[Value]) -> Value:
    if name != "index" or len(args) > 1:
        frame.refuse(f"tuple.{name} of these arguments", "make a list of it")

    def find(rest: list[tuple[int, Value]]) -> Value:
        if not rest:
            frame.stop(ValueError, "tuple.index(x): x not in tuple")
        (number, item), *others = rest
        test = equal(frame, item, args[0])
        if isinstance(test, Static):
            return Static(number) if test.value else find(others)
        return either(frame, frame.operand(test), lambda: Static(number), lambda: find(others))

    return find(list(enumerate(items)))


# ---- Methods of tensors.


def _is_harmless(name: str) -> bool:
    """Return True if a method of this name returns the tensor itself. Raises RequiresGrad for the
    one that makes it require grad."""
    if name == "requires_grad_":
        raise RequiresGrad(None)
    return name in ("contiguous", "detach", "cpu")


def tensor_method(
    frame: Frame, name: str, owner: Dynamic, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    kind = owner.type
    assert isinstance(kind, TensorType)
    if _is_harmless(name):
        return owner
    match name:
        case "item":
            return read_number(frame, owner, object)
        case "size":
            shape = torch.Size(kind.static_shape())
            return Static(shape[constant(args[0])] if args else shape)
        case "dim" | "ndimension":
            return Static(len(kind.shape))
        case "numel" | "nelement":
            return Static(torch.Size(kind.static_shape()).numel())
        case "tolist":
            return _tolist(frame, owner, kind)
        case "is_floating_point":
            return Static(kind.dtype.is_float)
        case "__len__":
            return Static(kind.shape[0])
        case _ if name.endswith("_") and not name.endswith("__"):
            return frame.refuse(
                f"{name} changes a tensor in place", f"use {name[:-1]}, which returns a new tensor"
            )
        case _:
            return call_torch(frame, getattr(torch.Tensor, name), [owner, *args], kwargs)


def composed_method(
    frame: Frame, name: str, owner: Composed, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """Return the result of a method of a tensor that is no data of the program."""
    if _is_harmless(name):
        return owner
    if name in ("dim", "ndimension"):
        return Static(owner.dims)
    is_in_place = name.endswith("_") and not name.endswith("__")
    if is_in_place or name in ("item", "size", "numel", "nelement", "tolist", "__len__", "unbind"):
        frame.refuse(owner.refusal.message, owner.refusal.remedy)
    return call_torch(frame, getattr(torch.Tensor, name), [owner, *args], kwargs)


def _tolist(frame: Frame, owner: Dynamic, kind: TensorType) -> Value:
    """Return the numbers of a small vector, each read separately."""
    shape: list[int] = [*kind.static_shape()]
    if not shape:
        return read_number(frame, owner, object)
    if len(shape) > 1 or shape[0] > 64:
        frame.refuse("tolist() is supported for vectors of at most 64 elements only")

    parts = [getitem(frame, owner, Static(i)) for i in range(shape[0])]
    numbers = tuple(read_number(frame, part, object) for part in parts)
    return new_list(frame, frame.evaluation.cell(frame.site("tolist")), numbers)


def rows_method(
    frame: Frame, name: str, owner: Dynamic, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    match name:
        case "size":
            shape = attribute(frame, owner, "shape")
            assert isinstance(shape, TupleValue)
            return shape.items[constant(args[0])] if args else shape
        case "unbind" if not args or constant(args[0]) == 0:
            cell = frame.evaluation.cell(frame.site("unbind"))
            frame.evaluation.grow(cell, item_type(frame, owner.type))
            return frame.assign(
                "to_list", ListType(cell, is_tuple=True), owner.operand, detail=True
            )
        case "dim" | "ndimension":
            assert isinstance(owner.type, RowsType)
            return Static(len(owner.type.row.shape) + 1)
        case "tolist":
            made = new_list(frame, frame.evaluation.cell(frame.site("tolist")), ())
            iterate(frame, plan_of(frame, owner), lambda x: append(frame, made, _item_of(frame, x)))
            return made
        case _ if _is_harmless(name):
            return owner
        case _:
            return call_torch(frame, getattr(torch.Tensor, name), [owner, *args], kwargs)


def _item_of(frame: Frame, value: Value) -> Value:
    given = frame.dynamic(value)
    if isinstance(given.type, TensorType) and given.type.shape:
        frame.refuse("tolist() is supported for tensors of one dim only")
    return read_number(frame, given, object)


def check_method(
    frame: Frame, python: type, name: str, args: list[Value], kwargs: dict[str, Value]
) -> None:
    """Refuses a call of a method of one of Python's own classes that Python refuses."""
    try:
        signature = inspect.signature(getattr(python, name))
    except ValueError:  # Python says none
        if kwargs or (args and name in ("keys", "values", "items", "clear")):
            frame.refuse(f"a call of {python.__name__}.{name}() with such arguments")
        return
    check_call(frame, f"{python.__name__}.{name}", signature, [None, *args], kwargs)


def call_method(
    frame: Frame, name: str, owner: Value, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """Return the result of a method of a value of a built-in class, or of a tensor."""
    is_data = isinstance(owner, Dynamic)
    python = class_of(frame, owner.type) if is_data else static_class(frame, owner)
    if python is not torch.Tensor:
        if not hasattr(python, name):
            frame.stop(AttributeError, f"'{python.__name__}' object has no attribute '{name}'")
        check_method(frame, python, name, args, kwargs)
    match owner:
        case Dynamic(_, ListType()):
            return list_method(frame, name, owner, args, kwargs)
        case Dynamic(_, DictType()):
            return dict_method(frame, name, owner, args)
        case Dynamic(_, RecordType() as kind):
            return fixed_dict_method(frame, name, owner, kind, args)
        case Dynamic(_, TensorType()):
            return tensor_method(frame, name, owner, args, kwargs)
        case Dynamic(_, RowsType()):
            return rows_method(frame, name, owner, args, kwargs)
        case Composed():
            return composed_method(frame, name, owner, args, kwargs)
        case TupleValue(_, is_list=True):
            return frame.refuse(
                f"the method {name} of a list of functions", "append to it where it is made only"
            )
        case TupleValue(items):
            return tuple_method(frame, name, items, args)
        case _:
            return frame.refuse(f"the method {name} of {frame.show(frame.type_of(owner))}")
