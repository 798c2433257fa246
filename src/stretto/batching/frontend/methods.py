"""Methods of lists, dicts, strings, tuples and tensors of the instances."""

from __future__ import annotations

import operator
from typing import Any

import torch

from stretto.batching.frontend.arithmetic import binary, contains, equal
from stretto.batching.frontend.builder import PathEnds
from stretto.batching.frontend.data import attribute, item_type, read_number, set_item, subscript
from stretto.batching.frontend.dispatch import apply, impossible
from stretto.batching.frontend.expressions import append, new_list
from stretto.batching.frontend.frame import Frame, constant
from stretto.batching.frontend.iteration import Known, iterate, plan_of
from stretto.batching.frontend.joins import branch
from stretto.batching.frontend.operators import call_static, call_torch, is_static, python_of
from stretto.batching.frontend.values import (
    NONE,
    Dynamic,
    Iterator_,
    Static,
    TupleValue,
    Value,
)
from stretto.batching.types import (
    DictType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    alternatives,
    union,
)


def call_method(
    frame: Frame, name: str, owner: Value, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """A method of a value of Python's own classes, or of a tensor."""
    match owner:
        case Dynamic(_, ListType()):
            return _list_method(frame, name, owner, args, kwargs)
        case Dynamic(_, DictType()):
            return _dict_method(frame, name, owner, args)
        case Dynamic(_, RecordType() as kind):
            return _fixed_dict_method(frame, name, owner, kind, args)
        case Dynamic(_, TensorType()):
            return _tensor_method(frame, name, owner, args, kwargs)
        case Dynamic(_, RowsType()):
            return _rows_method(frame, name, owner, args, kwargs)
        case TupleValue(items):
            return _tuple_method(frame, name, items, args)
        case Static(item) if all(map(is_static, args)):
            return call_static(frame, getattr(item, name), [python_of(a) for a in args], {})
        case _:
            return frame.refuse(f"the method {name} of {frame.show(frame.type_of(owner))}")


def _list_method(
    frame: Frame, name: str, owner: Dynamic, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    kind = owner.type
    assert isinstance(kind, ListType)
    if kind.is_tuple and name not in ("index", "count"):
        frame.fail(AttributeError, f"'tuple' object has no attribute '{name}'")
        raise PathEnds
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
            return frame.assign("index", Scalar.INT, owner.operand, frame.operand(args[0]))
        case _:
            frame.refuse(f"the method {name} of a list")
    return NONE


def _remove(frame: Frame, owner: Dynamic, value: Value) -> None:
    found = contains(frame, owner, value)

    def present() -> None:
        position = frame.assign("index", Scalar.INT, owner.operand, frame.operand(value))
        frame.do("pop", owner.operand, position.operand)

    def missing() -> None:
        frame.fail(ValueError, "list.remove(x): x not in list")
        raise PathEnds

    branch(frame, frame.operand(found), (present, missing))


def _count(frame: Frame, owner: Dynamic, value: Value) -> Value:
    name = ".count"
    frame.locals[name] = Static(0)

    def step(item: Value) -> None:
        before = frame.locals[name]

        def one() -> Value:
            return binary(frame, "add", operator.add, before, Static(1))

        made = branch(frame, frame.operand(equal(frame, item, value)), (one, lambda: before))
        assert made is not None
        frame.locals[name] = made

    iterate(frame, plan_of(frame, owner), step, frozenset((name,)))
    return frame.locals.pop(name)


def extend(frame: Frame, target: Dynamic, items: Value) -> None:
    """Adds all items to a list, which may be the list itself."""
    kinds = list(alternatives(items.type)) if isinstance(items, Dynamic) else []
    if not kinds or not all(isinstance(kind, ListType) for kind in kinds):
        iterate(frame, plan_of(frame, items), lambda item: append(frame, target, item))
        return
    assert isinstance(items, Dynamic)
    for mine in alternatives(target.type):
        for theirs in kinds:
            assert isinstance(mine, ListType) and isinstance(theirs, ListType)
            frame.evaluation.grow(mine.cell, frame.evaluation.item_type(theirs))
    frame.do("extend", target.operand, items.operand)


def _ints(frame: Frame, args: list[Value]) -> list[Any]:
    return [frame.expect(a, (Scalar.INT,), "a position must be an int").operand for a in args]


def _tuple_method(frame: Frame, name: str, items: tuple[Value, ...], args: list[Value]) -> Value:
    if name == "count":
        return frame.refuse("tuple.count")
    if name != "index":
        frame.fail(AttributeError, f"'tuple' object has no attribute '{name}'")
        raise PathEnds

    def find(rest: list[tuple[int, Value]]) -> Value:
        if not rest:
            frame.fail(ValueError, "tuple.index(x): x not in tuple")
            raise PathEnds
        (number, item), *others = rest
        test = equal(frame, item, args[0])
        if isinstance(test, Static):
            return Static(number) if test.value else find(others)
        made = branch(frame, frame.operand(test), (lambda: Static(number), lambda: find(others)))
        assert made is not None
        return made

    return find(list(enumerate(items)))


def _dict_method(frame: Frame, name: str, owner: Dynamic, args: list[Value]) -> Value:
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
            return frame.assign(name, ListType(cell), owner.operand)
        case "items":
            return _dict_items(frame, owner, kind)
        case "clear":
            frame.do("clear", owner.operand)
            return NONE
        case _:
            return frame.refuse(f"the method {name} of a dict")


def _set_default(frame: Frame, owner: Dynamic, key: Value, default: Value) -> Value:
    given = frame.dynamic(default)
    there = contains(frame, owner, key)

    def store() -> None:
        set_item(frame, owner, key, given)

    branch(frame, frame.operand(there), (lambda: None, store))
    return subscript(frame, owner, key)


def _dict_items(frame: Frame, owner: Dynamic, kind: DictType) -> Value:
    from stretto.batching.frontend.iteration import Mapped

    cell = frame.evaluation.cell(frame.site("keys"))
    frame.evaluation.grow(cell, kind.key)
    keys = frame.assign("keys", ListType(cell), owner.operand)
    type_ = frame.evaluation.cells[kind.cell]

    def pair(inner: Frame, key: Value) -> Value:
        value = inner.assign("lookup", type_, owner.operand, inner.operand(key))
        return TupleValue((key, value))

    return Iterator_(Mapped(plan_of(frame, keys), pair))


def _fixed_dict_method(
    frame: Frame, name: str, owner: Dynamic, kind: RecordType, args: list[Value]
) -> Value:
    info = frame.evaluation.info(kind)
    if info.kind != "dict":
        return frame.refuse(f"the method {name} of a {info.python.__name__}")

    def value(field: str) -> Value:
        return subscript(frame, owner, Static(field))

    match name:
        case "get":
            key = constant(args[0])
            if not isinstance(key, str):
                frame.refuse("a dict with fixed keys is read by a key that the instance decides")
            if key in info.fields:
                return value(key)
            return args[1] if len(args) > 1 else NONE
        case "keys":
            return TupleValue(tuple(map(Static, info.fields)), is_list=True)
        case "values":
            return Iterator_(Known([value(field) for field in info.fields]))
        case "items":
            pairs = [TupleValue((Static(field), value(field))) for field in info.fields]
            return Iterator_(Known(pairs))
        case _:
            return frame.refuse(f"the method {name} of a dict with fixed keys")


_HARMLESS = frozenset(("contiguous", "detach", "cpu", "requires_grad_"))


def _tensor_method(
    frame: Frame, name: str, owner: Dynamic, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    kind = owner.type
    assert isinstance(kind, TensorType)
    if name in _HARMLESS:
        return owner
    match name:
        case "item":
            return read_number(frame, owner, object)
        case "size":
            shape = torch.Size(kind.shape)
            return Static(shape[constant(args[0])] if args else shape)
        case "dim" | "ndimension":
            return Static(len(kind.shape))
        case "numel" | "nelement":
            return Static(torch.Size(kind.shape).numel())
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


def _tolist(frame: Frame, owner: Dynamic, kind: TensorType) -> Value:
    """The numbers of a small tensor, each read for itself."""
    shape = list(kind.shape)
    if not shape:
        return read_number(frame, owner, object)
    if len(shape) > 1 or shape[0] > 64:
        frame.refuse("tolist of a tensor that is no short vector")
    from stretto.batching.frontend.operators import getitem

    parts = [getitem(frame, owner, Static(i)) for i in range(shape[0])]
    numbers = tuple(read_number(frame, part, object) for part in parts)
    return new_list(frame, frame.evaluation.cell(frame.site("tolist")), numbers)


def _rows_method(
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
            return frame.assign("to_list", ListType(cell), owner.operand, detail=False)
        case "dim" | "ndimension":
            assert isinstance(owner.type, RowsType)
            return Static(len(owner.type.row.shape) + 1)
        case "tolist":
            made = new_list(frame, frame.evaluation.cell(frame.site("tolist")), ())
            iterate(frame, plan_of(frame, owner), lambda x: append(frame, made, _item_of(frame, x)))
            return made
        case _ if name in _HARMLESS:
            return owner
        case _:
            return call_torch(frame, getattr(torch.Tensor, name), [owner, *args], kwargs)


def _item_of(frame: Frame, value: Value) -> Value:
    given = frame.dynamic(value)
    if isinstance(given.type, TensorType) and given.type.shape:
        frame.refuse("tolist of a tensor of more than one dim")
    return read_number(frame, given, object)
