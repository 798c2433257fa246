"""Attributes of values, of instances and static ones; new objects; and special methods of user
classes."""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import DynamicClassAttribute, FunctionType, MemberDescriptorType
from typing import Any

import torch

from stretto.batching.frontend.dispatch import apply, impossible
from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.guards import note_attribute, note_class
from stretto.batching.frontend.joins import chosen, class_of, each_type, python_class, static_class
from stretto.batching.frontend.python_library import LIBRARY, MODULE
from stretto.batching.frontend.tensor_operators import call_torch
from stretto.batching.frontend.values import (
    NONE,
    ChoiceValue,
    Composed,
    Dynamic,
    Method,
    Native,
    Static,
    Super,
    TupleValue,
    Value,
)
from stretto.batching.instances.types import ABSENT, in_class
from stretto.ir.core import Literal
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
    union,
)

# ---- New objects: of user classes, named tuples, dicts with fixed keys.


def construct(frame: Frame, python: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Return a new object of a class of the user."""
    if hasattr(python, "_fields") and issubclass(python, tuple):
        return _new_namedtuple(frame, python, args, kwargs)
    if is_dataclass(python) and "__init__" not in _own_init(python):
        return _new_dataclass(frame, python, args, kwargs)
    made = new_record(frame, python, "object", (), ())
    init = inspect.getattr_static(python, "__init__", None)
    if isinstance(init, FunctionType):
        apply(frame, Static(init), [made, *args], kwargs)
    elif args or kwargs:
        frame.refuse(f"{python.__name__}() takes no arguments")
    return made


def _own_init(python: type) -> frozenset[str]:
    """Return {"__init__"} if a dataclass defines its own `__init__`, else the empty set."""
    generated = python.__dataclass_params__.init  # type: ignore[attr-defined]
    return frozenset() if generated else frozenset(("__init__",))


def new_record(
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
    """Return a dict with fixed keys."""
    return new_record(frame, dict, "dict", names, values)


def _new_namedtuple(
    frame: Frame, python: Any, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    names = tuple(python._fields)
    defaults = {name: Static(value) for name, value in python._field_defaults.items()}
    values = _bound(frame, python.__name__, names, args, kwargs, defaults)
    return new_record(frame, python, "namedtuple", names, [values[name] for name in names])


def _new_dataclass(
    frame: Frame, python: type, args: list[Value], kwargs: dict[str, Value]
) -> Value:

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
    made = new_record(frame, python, "object", names_made, [values[name] for name in names_made])
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


# ---- Members of enumerations in instances: records that are distinguished by their names.


NAME, VALUE = "_name_", "_value_"
FIELDS = {"name": NAME, "value": VALUE}


def enumeration(frame: Frame, type_: DataType) -> type[enum.Enum] | None:
    """Return the enumeration that a value of this type is a member of; None for any other type."""
    if not isinstance(type_, RecordType):
        return None
    python = frame.evaluation.info(type_).python
    return python if issubclass(python, enum.Enum) else None


def may_be_member(frame: Frame, value: Dynamic) -> bool:
    return any(enumeration(frame, kind) is not None for kind in alternatives(value.type))


def name_of(frame: Frame, member: Dynamic) -> Dynamic:
    """Return the name of a member, as data."""
    return frame.assign("get", Scalar.STR, member.operand, detail=NAME, name="name")


def is_member(frame: Frame, value: Dynamic, member: Any) -> Dynamic:
    """Return a bool value: true if a value of an enumeration is this member of it."""
    name = name_of(frame, value).operand
    return frame.assign("eq", Scalar.BOOL, name, Literal(member.name))


def attribute(frame: Frame, value: Value, name: str) -> Value:
    match value:
        case ChoiceValue():
            return chosen(frame, value, lambda option: attribute(frame, option, name))
        case Static(item):
            return _static_attribute(frame, item, name)
        case Dynamic(_, type_) if name == "__class__":
            return each_type(frame, value, lambda one: Static(class_of(frame, one.type)))
        case _ if name == "__class__" and not isinstance(value, Super):
            return Static(static_class(frame, value))
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
    """Return an attribute of an object as found in the classes after `owner` in its method
    resolution order."""
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
                frame.refuse(f"super().{name} is not written in Python")
    frame.stop(AttributeError, f"'super' object has no attribute '{name}'")


def _static_attribute(frame: Frame, item: Any, name: str) -> Value:
    try:
        found = getattr(item, name)
    except AttributeError as error:
        frame.stop(AttributeError, str(error))
    note_attribute(frame.evaluation, item, name, found)
    return Static(found)


def _dynamic_attribute(frame: Frame, value: Dynamic, type_: DataType, name: str) -> Value:
    impossible(frame, type_)
    kinds = list(alternatives(type_))
    records = [kind for kind in kinds if isinstance(kind, RecordType)]
    with_field = [kind for kind in records if _has_field(frame, kind, name)]
    if records and len(with_field) == len(records):
        return read_field(frame, value, records, name)
    return each_type(frame, value, lambda one: _of_one_type(frame, one, name))


def _has_field(frame: Frame, kind: RecordType, name: str) -> bool:
    info = frame.evaluation.info(kind)
    if info.python.__module__ == MODULE and frame.file != LIBRARY:
        return False
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
    if info.python.__module__ == MODULE and frame.file != LIBRARY:
        _check_library_attribute(frame, class_of(frame, kind), info.python, name)
    if name in info.fields:
        return read_field(frame, value, [kind], name)
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


def _check_library_attribute(frame: Frame, python: type, own: type, name: str) -> None:
    """Ends the instance where Python's class has no such attribute; refuses one that what stands
    for it does not have."""
    if not hasattr(python, name):
        frame.stop(AttributeError, f"'{python.__name__}' object has no attribute '{name}'")
    owner = next(base for base in own.__mro__ if name in vars(base))
    if owner.__module__ != MODULE:
        frame.refuse(f"{name} of a {python.__name__} is read")


def _asked(frame: Frame, value: Dynamic, python: type, name: str) -> Value:
    """Return an attribute that neither an object nor its class has, by calling `__getattr__`."""
    given = note_class(frame.evaluation, python, "__getattr__")
    if given is ABSENT:
        frame.stop(AttributeError, f"'{python.__name__}' object has no attribute '{name}'")
    return apply(frame, Static(given), [value, Static(name)])


def _replaced(frame: Frame, value: Dynamic, kind: RecordType, changes: dict[str, Value]) -> Value:
    """Return the named tuple with some fields changed."""
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
        return Static(torch.Size(kind.static_shape()))
    if name in _TENSOR_FACTS:
        return Static(getattr(torch.empty(kind.static_shape(), dtype=kind.dtype.torch), name))
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
    # Only the shape depends on the number of rows.
    return _tensor_attribute(frame, value, TensorType(row.dtype, (1, *row.shape)), name)


def _composed_attribute(frame: Frame, value: Composed, name: str) -> Value:
    if name in _TENSOR_VIEWS:
        return call_torch(frame, getattr, [value, Static(name)], {})
    if callable(getattr(torch.Tensor, name, None)):
        return Method(name, value)
    sample = TensorType(value.dtype, (1,) * value.dims)
    if name in _TENSOR_FACTS:
        return Static(getattr(torch.empty(sample.static_shape(), dtype=value.dtype.torch), name))
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


# ---- Special methods of user classes: `+`, `<`, `==` and `in` of their objects.


_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def method_of(frame: Frame, type_: DataType, name: str) -> Any:
    """Return a special method of the class of an object of the instance; None if it has none that
    is written in Python by the user."""
    if not isinstance(type_, RecordType) or frame.evaluation.info(type_).kind == "dict":
        return None
    python = frame.evaluation.info(type_).python
    found = note_class(frame.evaluation, python, name)
    if found is ABSENT or found is None or not isinstance(found, FunctionType):
        return None
    return None if _is_generated(python, found) else found


def _is_generated(python: type, found: FunctionType) -> bool:
    """Return True if a method was generated by `dataclass`."""
    return dataclasses.is_dataclass(python) and found.__code__.co_filename == "<string>"


def by_method(frame: Frame, owner: Dynamic, name: str, *args: Value) -> Value | None:
    """Return the result of a special method of an object; None if there is none, or it returns
    NotImplemented."""
    found = method_of(frame, owner.type, name)
    if found is None:
        return None
    result = apply(frame, Static(found), [owner, *args])
    if isinstance(result, Static) and result.value is NotImplemented:
        return None
    if isinstance(result, ChoiceValue):
        for _, option in result.options:
            if isinstance(option, Static) and option.value is NotImplemented:
                frame.refuse(
                    f"the instance decides whether {name} returns NotImplemented",
                    "decide it by isinstance",
                )
    return result


def operated(frame: Frame, name: str, left: Dynamic, right: Dynamic) -> Value | None:
    """Return the result of an operator on two values of one type each by a special method of one
    of them; None if there is none."""
    mirrored = _MIRRORED.get(name)
    own = f"__{name}__"
    other = f"__{mirrored}__" if mirrored else f"__r{name}__"
    tries = [(left, own, right), (right, other, left)]
    if not mirrored and left.type == right.type:
        tries.pop()  # Python does not try the reflected method of the same class
    elif _is_derived(frame, right, left):
        tries.reverse()
    for owner, method, argument in tries:
        found = by_method(frame, owner, method, argument)
        if found is not None:
            return found
    return None


def _is_derived(frame: Frame, one: Dynamic, other: Dynamic) -> bool:
    classes = python_class(frame, one.type), python_class(frame, other.type)
    return classes[0] is not classes[1] and issubclass(*classes)


def compared_fields(frame: Frame, type_: RecordType) -> tuple[str, ...] | None:
    """Return the fields that == of a dataclass compares, if these are not all fields; None for
    other classes, and if == compares identity or all fields."""
    info = frame.evaluation.info(type_)
    params = getattr(info.python, "__dataclass_params__", None)
    if info.kind != "object" or params is None or not params.eq:
        return None
    fields = dataclasses.fields(info.python)
    names = tuple(item.name for item in fields if item.compare)
    return None if names == info.fields else names


def ordered_fields(frame: Frame, type_: DataType) -> tuple[str, ...] | None:
    """Return the fields by which objects of a dataclass are ordered; None if it has no order."""
    if not isinstance(type_, RecordType):
        return None
    python = frame.evaluation.info(type_).python
    params = getattr(python, "__dataclass_params__", None)
    if params is None or not params.order:
        return None
    fields = dataclasses.fields(python)
    return tuple(item.name for item in fields if item.compare)


def check_equality(frame: Frame, type_: DataType) -> None:
    """Refuse == of a value that contains objects with their own ==, which the primitive on the
    whole value would not call."""
    pending, seen = [type_], set[DataType]()
    while pending:
        for kind in alternatives(pending.pop()):
            if kind in seen:
                continue
            seen.add(kind)
            match kind:
                case RecordType():
                    pending += _compared_parts(frame, kind)
                case TupleType(items):
                    pending += items
                case ListType(cell) | DictType(_, cell):
                    pending.append(frame.evaluation.cells[cell])
                case _:
                    pass


def _compared_parts(frame: Frame, kind: RecordType) -> list[DataType]:
    info = frame.evaluation.info(kind)
    name = info.python.__name__
    if issubclass(info.python, enum.Enum):
        frame.refuse(
            f"a value with a member of {name} in it is compared", "compare the members one by one"
        )
    if method_of(frame, kind, "__eq__") is not None:
        frame.refuse(
            f"a value that contains a {name}, which defines ==, is compared",
            "compare the objects one by one",
        )
    if compared_fields(frame, kind) is not None:
        frame.refuse(
            f"a value is compared that contains a {name}, whose == does not compare all fields",
            "compare the objects one by one",
        )
    params = getattr(info.python, "__dataclass_params__", None)
    if info.kind == "object" and (params is None or not params.eq):
        return []  # compared by identity
    return [frame.evaluation.cells[cell] for cell in info.cells]
