"""New objects: of classes of the user, named tuples, dicts with fixed keys."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import FunctionType
from typing import Any

from stretto.batching.frontend.state.dispatch import apply
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.values import Dynamic, Static, Value
from stretto.batching.types import RecordType


def construct(frame: Frame, python: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A new object of a class of the user."""
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
    """`__init__` where a dataclass has one of its own, and none was generated."""
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
    """A dict with fixed keys."""
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
