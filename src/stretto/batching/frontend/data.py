"""Attributes and items of values: what belongs to the instances, and what is static."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import Any

import torch

from stretto.batching.frontend.builder import PathEnds
from stretto.batching.frontend.choices import chosen
from stretto.batching.frontend.dispatch import apply, impossible
from stretto.batching.frontend.frame import Frame, constant
from stretto.batching.frontend.guards import note_attribute
from stretto.batching.frontend.joins import branch
from stretto.batching.frontend.kinds import each_type, unpacked
from stretto.batching.frontend.narrowing import python_class
from stretto.batching.frontend.operators import call_torch, getitem, is_static, is_tensor_like
from stretto.batching.frontend.tuples import is_tuple, known_items
from stretto.batching.frontend.values import (
    Choice,
    Dynamic,
    Method,
    Native,
    SliceValue,
    Static,
    Text,
    TupleValue,
    Value,
    scalar_type,
)
from stretto.batching.program import Literal, Read
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
    union,
)

# ---- attributes ------------------------------------------------------------------------------


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
        case Dynamic(_, type_):
            return _dynamic_attribute(frame, value, type_, name)
        case _:
            return frame.refuse(f"the attribute {name} of a function is read")


def _static_attribute(frame: Frame, item: Any, name: str) -> Value:
    try:
        found = getattr(item, name)
    except AttributeError as error:
        frame.fail(AttributeError, str(error))
        raise PathEnds from None
    note_attribute(frame.evaluation, item, name, found)
    return Static(found)


def _dynamic_attribute(frame: Frame, value: Dynamic, type_: Type, name: str) -> Value:
    impossible(frame, type_)
    kinds = list(alternatives(type_))
    records = [kind for kind in kinds if isinstance(kind, RecordType)]
    with_field = [kind for kind in records if _has_field(frame, kind, name)]
    if records and len(with_field) == len(records):
        return _field(frame, value, records, name)
    return each_type(frame, value, lambda one: _of_one_type(frame, one, name))


def _has_field(frame: Frame, kind: RecordType, name: str) -> bool:
    info = frame.evaluation.info(kind)
    return info.kind != "dict" and name in info.fields


def _field(frame: Frame, value: Dynamic, records: list[RecordType], name: str) -> Dynamic:
    cells = [frame.evaluation.field_cell(kind, name) for kind in records]
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
                frame.fail(AttributeError, f"'{python.__name__}' object has no attribute '{name}'")
                raise PathEnds
            return Method(name, value)


def _record_attribute(frame: Frame, value: Dynamic, kind: RecordType, name: str) -> Value:
    info = frame.evaluation.info(kind)
    if info.kind == "dict":
        return Method(name, value)
    if name in info.fields:
        return _field(frame, value, [kind], name)
    if name == "__class__":
        return Static(info.python)
    if info.kind == "namedtuple" and name == "_replace":
        return Native(name, lambda f, _, changes: _replaced(f, value, kind, changes))
    try:
        found = inspect.getattr_static(info.python, name)
    except AttributeError:
        shown = info.python.__name__
        frame.fail(AttributeError, f"'{shown}' object has no attribute '{name}'")
        raise PathEnds from None
    match found:
        case FunctionType():
            return Method(found, value)
        case property() if found.fget is not None:
            return apply(frame, Static(found.fget), [value])
        case staticmethod() | classmethod():
            return Static(getattr(info.python, name))
        case _:
            return Static(found)


def _replaced(frame: Frame, value: Dynamic, kind: RecordType, changes: dict[str, Value]) -> Value:
    """The named tuple with some fields changed."""
    python = frame.evaluation.info(kind).python
    names: tuple[str, ...] = python._fields  # type: ignore[attr-defined]
    unknown = [name for name in changes if name not in names]
    if unknown:
        frame.refuse(f"{python.__name__} has no field {unknown[0]}")
    items = [changes[n] if n in changes else _field(frame, value, [kind], n) for n in names]
    return _new_record(frame, python, "namedtuple", names, items)


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
        frame.fail(AttributeError, f"'Tensor' object has no attribute '{name}'")
        raise PathEnds
    return Method(name, value)


def _rows_attribute(frame: Frame, value: Dynamic, row: TensorType, name: str) -> Value:
    if name == "shape":
        length = frame.assign("len", Scalar.INT, value.operand)
        return TupleValue((length, *map(Static, row.shape)))
    if name == "ndim":
        return Static(len(row.shape) + 1)
    if name == "dtype":
        return Static(row.dtype.torch)
    if name == "device":
        return Static(torch.device("cpu"))
    return Method(name, value)


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


# ---- construction ----------------------------------------------------------------------------


def construct(frame: Frame, python: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A new object of a class of the user."""
    if hasattr(python, "_fields") and issubclass(python, tuple):
        return _new_namedtuple(frame, python, args, kwargs)
    if is_dataclass(python) and "__init__" not in _own_init(python):
        return _new_dataclass(frame, python, args, kwargs)
    made = _new_record(frame, python, "object", (), ())
    init = inspect.getattr_static(python, "__init__", None)
    if isinstance(init, FunctionType):
        apply(frame, Static(init), [made, *args], kwargs)
    elif args or kwargs:
        frame.refuse(f"{python.__name__}() takes no arguments")
    return made


def _own_init(python: type) -> frozenset[str]:
    """`__init__` where a dataclass has one of its own, and none was generated."""
    generated = python.__dataclass_params__.init  # type: ignore[attr-defined]
    return frozenset() if generated else frozenset(("__init__",))


def _new_record(
    frame: Frame, python: type, kind: str, names: tuple[str, ...], values: Sequence[Value]
) -> Dynamic:
    number = frame.evaluation.class_number(python, kind, names)
    type_ = RecordType(number)
    info = frame.evaluation.info(type_)
    given = [frame.dynamic(value) for value in values]
    for name, value in zip(names, given, strict=True):
        frame.evaluation.grow(info.cells[info.fields.index(name)], value.type)
    label = python.__name__.lower() if python is not dict else "dict"
    return frame.assign(
        "record", type_, *(v.operand for v in given), detail=(number, names), name=label
    )


def new_dict(frame: Frame, names: tuple[str, ...], values: Sequence[Value]) -> Dynamic:
    """A dict with fixed keys."""
    return _new_record(frame, dict, "dict", names, values)


def _new_namedtuple(
    frame: Frame, python: Any, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    names = tuple(python._fields)
    defaults = {name: Static(value) for name, value in python._field_defaults.items()}
    values = _bound(frame, python.__name__, names, args, kwargs, defaults)
    return _new_record(frame, python, "namedtuple", names, [values[name] for name in names])


def _new_dataclass(
    frame: Frame, python: type, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    from dataclasses import MISSING

    initial = [item for item in fields(python) if item.init]
    names = tuple(item.name for item in initial if not item.kw_only)
    every = (*names, *(item.name for item in initial if item.kw_only))
    defaults: dict[str, Value] = {}
    for item in fields(python):
        given = item.name in kwargs or item.name in names[: len(args)]
        if item.default is not MISSING:
            defaults[item.name] = Static(item.default)
        elif item.default_factory is not MISSING and not given:
            defaults[item.name] = apply(frame, Static(item.default_factory), [])
    if len(args) > len(names):
        frame.refuse(f"{python.__name__}() takes {len(names)} positional arguments")
    values = _bound(frame, python.__name__, every, args, kwargs, defaults)
    stored = tuple(item.name for item in fields(python) if item.name in values or item.init)
    late = tuple(i.name for i in fields(python) if not i.init and i.name in defaults)
    values |= {name: defaults[name] for name in late}
    names_made = tuple(dict.fromkeys((*stored, *late)))
    made = _new_record(frame, python, "object", names_made, [values[name] for name in names_made])
    after = inspect.getattr_static(python, "__post_init__", None)
    if isinstance(after, FunctionType):
        apply(frame, Static(after), [made])
    return made


def _bound(
    frame: Frame,
    title: str,
    names: Sequence[str],
    args: list[Value],
    kwargs: dict[str, Value],
    defaults: Mapping[str, Value],
) -> dict[str, Value]:
    if len(args) > len(names):
        frame.refuse(f"{title}() takes {len(names)} arguments, and is given {len(args)}")
    values = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names or name in values:
            frame.refuse(f"{title}() got an unexpected or repeated argument {name!r}")
        values[name] = value
    for name in names:
        if name not in values:
            if name not in defaults:
                frame.refuse(f"{title}() misses the argument {name!r}")
            values[name] = defaults[name]
    return values


# ---- items -----------------------------------------------------------------------------------


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
            chosen = value.items[slice(*(constant(x) for x in _slice_parts(index)))]
            return TupleValue(chosen, value.is_list)
        case _ if is_static(index):
            position = constant(index)
            try:
                return value.items[position]
            except (IndexError, TypeError) as error:
                frame.fail(type(error), str(error))
                raise PathEnds from None
        case _:
            data = frame.dynamic(TupleValue(value.items, is_list=True))
            return subscript(frame, data, index)


def _slice_parts(index: SliceValue) -> tuple[Value, Value, Value]:
    return index.start, index.stop, index.step


def _static_item(frame: Frame, item: Any, index: Value) -> Value:
    from stretto.batching.frontend.operators import python_of

    key = python_of(index)
    try:
        found = item[key]
    except (IndexError, KeyError, TypeError) as error:
        frame.fail(type(error), str(error))
        raise PathEnds from None
    if isinstance(key, int | str) and not isinstance(item, str | tuple | torch.Tensor):
        frame.evaluation.read("item", item, key, found)
    return Static(found)


def _static_by_dynamic(frame: Frame, item: Any, index: Value) -> Value:
    """A static container by a position or key that the instance decides."""
    if isinstance(item, torch.nn.ModuleList | torch.nn.ParameterList | list | tuple):
        parts = list(item)
        if all(scalar_type(part) is not None for part in parts):
            data = frame.dynamic(TupleValue(tuple(map(Static, parts)), is_list=True))
            return subscript(frame, data, index)
        return _chosen(frame, list(enumerate(parts)), index, IndexError, len(parts))
    if isinstance(item, dict | torch.nn.ModuleDict | torch.nn.ParameterDict):
        return _chosen(frame, list(item.items()), index, KeyError, 0)
    return frame.refuse(
        f"an object of class {type(item).__name__} is indexed by a value of the instance"
    )


def _one_kind(frame: Frame, key: Dynamic) -> None:
    """Refuses a key that may be of several types."""
    if isinstance(key.type, UnionType):
        frame.refuse(
            f"a key that may be {frame.show(key.type)}",
            "tell the kinds apart with isinstance before it is used",
        )


def _chosen(
    frame: Frame, options: list[tuple[Any, Any]], index: Value, error: type, length: int
) -> Value:
    """One of several static objects that cannot be data, as modules: a call of it is a branch."""
    given = frame.dynamic(index)
    _one_kind(frame, given)
    if length:
        negative = frame.assign("lt", Scalar.BOOL, given.operand, frame.operand(Static(0)))
        wrapped = branch(
            frame,
            negative.operand,
            (
                lambda: frame.assign(
                    "add", Scalar.INT, given.operand, frame.operand(Static(length))
                ),
                lambda: given,
            ),
        )
        assert wrapped is not None
        given = frame.dynamic(wrapped)

    def call(inner: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return choose(inner, options, given, error, lambda item: apply(inner, item, args, kwargs))

    if all(isinstance(item, torch.Tensor) or scalar_type(item) for _, item in options):
        return choose(frame, options, given, error, lambda item: item)
    return Native("choice", call)


def choose(
    frame: Frame,
    options: Sequence[tuple[Any, Any]],
    index: Dynamic,
    error: type,
    use: Callable[[Value], Value],
) -> Value:
    """What `use` makes of the option whose key the instance gives."""
    if not options:
        frame.fail(error, "index out of range" if error is IndexError else "no such key")
        raise PathEnds
    (key, item), *rest = options
    test = frame.assign("eq", Scalar.BOOL, index.operand, frame.operand(Static(key)))
    found = branch(
        frame,
        test.operand,
        (
            lambda: use(Static(item)),
            lambda: choose(frame, rest, index, error, use),
        ),
    )
    assert found is not None
    return found


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
        case TensorType():
            return getitem(frame, value, index)
        case _:
            frame.fail(TypeError, f"'{frame.show(value.type)}' object is not subscriptable")
            raise PathEnds


def _list_item(frame: Frame, value: Dynamic, index: Value) -> Value:
    if isinstance(index, SliceValue):
        return _sliced(frame, value, index)
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


def is_int(value: Value) -> bool:
    """Whether a value is an int."""
    match value:
        case Static(item):
            return type(item) is int
        case Dynamic(_, type_):
            return type_ is Scalar.INT
        case _:
            return False


def _is_long(value: Value) -> bool:
    """Whether a value is a tensor of more than one element."""
    kinds = alternatives(value.type) if isinstance(value, Dynamic) else ()
    return any(
        isinstance(kind, RowsType) or _elements(kind) != 1
        for kind in kinds
        if isinstance(kind, TensorType | RowsType)
    )


def _sliced(frame: Frame, value: Dynamic, index: SliceValue) -> Dynamic:
    """A slice of a list is a list of its own: it may come to hold other types."""
    parts = [frame.operand(part) for part in _slice_parts(index)]
    type_ = value.type
    if isinstance(type_, ListType) and not type_.is_tuple:
        cell = frame.evaluation.cell(frame.site("slice"))
        frame.evaluation.grow(cell, item_type(frame, type_))
        type_ = ListType(cell)
    return frame.assign("slice", type_, value.operand, *parts)


def item_type(frame: Frame, type_: Type) -> Type:
    """The type of the items of a list or of rows."""
    match type_:
        case RowsType(row):
            return row
        case ListType(cell):
            return frame.evaluation.cells[cell]
        case _:
            return frame.refuse(f"{frame.show(type_)} has no items")


def _record_item(frame: Frame, value: Dynamic, kind: RecordType, index: Value) -> Value:
    info = frame.evaluation.info(kind)
    key = constant(index)
    if info.kind == "dict" and isinstance(key, str):
        if key in info.fields:
            return _field(frame, value, [kind], key)
        frame.fail(KeyError, repr(key))
        raise PathEnds
    if info.kind == "namedtuple":
        names = tuple(info.python._fields)  # type: ignore[attr-defined]
        items = tuple(_field(frame, value, [kind], name) for name in names)
        return _item_of_known(frame, TupleValue(items), index)
    if info.kind == "dict":
        return _field_by_key(frame, value, kind, frame.dynamic(index))
    found = inspect.getattr_static(info.python, "__getitem__", None)
    if isinstance(found, FunctionType):
        return apply(frame, Static(found), [value, index])
    frame.fail(TypeError, f"'{info.python.__name__}' object is not subscriptable")
    raise PathEnds


def _check_key(frame: Frame, kind: DictType, key: Value) -> None:
    """Notes the type of the keys of a dict."""
    type_ = frame.dynamic(key).type
    if type_ not in (Scalar.INT, Scalar.STR, Scalar.BOOL):
        frame.refuse(f"a key of a dict is {frame.show(type_)}", "use an int or a string as key")
    assert isinstance(type_, Scalar)
    frame.evaluation.has_keys(kind.cell, type_)


def delete_item(frame: Frame, owner: Value, index: Value) -> None:
    """del owner[index]"""
    kind = owner.type if isinstance(owner, Dynamic) else None
    if isinstance(owner, Dynamic) and isinstance(kind, DictType):
        frame.do("remove", owner.operand, frame.operand(index))
        return
    if not isinstance(owner, Dynamic) or not isinstance(kind, ListType) or kind.is_tuple:
        frame.refuse("del of an item of something else than a list or a dict of the instance")
    if isinstance(index, SliceValue) or not is_int(index):
        frame.refuse("del of a slice", "make a new list of the items that stay")
    position = frame.operand(index)
    length = frame.assign("len", Scalar.INT, owner.operand)
    least = frame.assign("neg", Scalar.INT, length.operand)
    above = frame.assign("ge", Scalar.BOOL, position, least.operand)
    below = frame.assign("lt", Scalar.BOOL, position, length.operand)
    inside = frame.assign("and", Scalar.BOOL, above.operand, below.operand)

    def fails() -> None:
        frame.fail(IndexError, "list assignment index out of range")
        raise PathEnds

    branch(frame, inside.operand, (lambda: None, fails))
    frame.do("pop", owner.operand, position)


def _field_by_key(frame: Frame, value: Dynamic, kind: RecordType, key: Dynamic) -> Value:
    """An item of a dict with fixed keys by a key that the instance decides."""
    _one_kind(frame, key)
    if key.type is not Scalar.STR:
        frame.fail(KeyError, key.operand)
        raise PathEnds

    def among(names: list[str]) -> Value:
        if not names:
            frame.fail(KeyError, key.operand)
            raise PathEnds
        test = frame.assign("eq", Scalar.BOOL, key.operand, Literal(names[0]))
        read = (lambda: _field(frame, value, [kind], names[0]), lambda: among(names[1:]))
        found = branch(frame, test.operand, read)
        assert found is not None
        return found

    return among(list(frame.evaluation.info(kind).fields))


def set_item(frame: Frame, owner: Value, index: Value, value: Value) -> None:
    """owner[index] = value"""
    if not isinstance(owner, Dynamic):
        frame.refuse("an item of something that all instances share is assigned")
    kinds = list(alternatives(owner.type))
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


# ---- numbers in tensors ----------------------------------------------------------------------


def read_number(frame: Frame, value: Value, wanted: type) -> Value:
    """The number in a tensor of one element, as bool(), int() or float() gives it; or as `.item()`
    does where `wanted` is None's type."""
    given = frame.expect(frame.dynamic(value), TensorType, "a tensor is needed here")
    kind = given.type
    if not isinstance(kind, TensorType):
        return each_type(frame, given, lambda one: read_number(frame, one, wanted))
    if any(dim != 1 for dim in kind.shape):
        frame.fail(
            RuntimeError,
            f"a Tensor with {_elements(kind)} elements cannot be converted to Scalar"
            if wanted is not bool
            else "Boolean value of Tensor with more than one value is ambiguous",
        )
        raise PathEnds
    type_ = Scalar.BOOL if kind.dtype.value == "bool" else Scalar.INT
    type_ = Scalar.FLOAT if kind.dtype.is_float else type_
    target = frame.builder.variable("value", type_)
    frame.builder.emit(Read(target, given.operand, frame.location))
    return converted(frame, Dynamic(target, type_), wanted)


def _elements(kind: TensorType) -> int:
    total = 1
    for dim in kind.shape:
        total *= dim
    return total


def converted(frame: Frame, value: Dynamic, wanted: type) -> Value:
    """A number as bool, int or float."""
    if wanted is bool and value.type is not Scalar.BOOL:
        return frame.assign("truth", Scalar.BOOL, value.operand)
    if wanted is int and value.type is not Scalar.INT:
        return frame.assign("to_int", Scalar.INT, value.operand)
    if wanted is float and value.type is not Scalar.FLOAT:
        return frame.assign("to_float", Scalar.FLOAT, value.operand)
    return value


def text_parts(frame: Frame, value: Value) -> tuple[Any, ...]:
    """A value as parts of a message."""
    match value:
        case Text(parts):
            return parts
        case Static(item):
            return (str(item),)
        case _:
            return (frame.operand(value),)
