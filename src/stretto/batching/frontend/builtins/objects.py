"""Functions of Python about objects: their classes, attributes and calls."""

from __future__ import annotations

import builtins
import functools

from stretto.batching.frontend.builtins.table import builtin
from stretto.batching.frontend.control.kinds import each_type, has_type, is_instance, python_class
from stretto.batching.frontend.data.attributes import attribute
from stretto.batching.frontend.state.dispatch import apply
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.guards import ABSENT, note_class
from stretto.batching.frontend.state.statics import constant, is_static, python_of
from stretto.batching.frontend.state.values import (
    NONE,
    Dynamic,
    Native,
    Static,
    TupleValue,
    Value,
)
from stretto.batching.markers import concurrent, phase
from stretto.batching.program import Phase
from stretto.batching.types import RecordType, alternatives


@builtin(isinstance)
def is_instance_of(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value, classes = args
    if not is_static(classes):
        frame.refuse("isinstance with a class that the instance decides")
    wanted = python_of(classes)
    match value:
        case Static(item):
            return Static(isinstance(item, wanted))
        case TupleValue(_, is_list):
            return Static(issubclass(list if is_list else tuple, wanted))
        case Dynamic(_, type_):
            kinds = tuple(k for k in alternatives(type_) if is_instance(frame, k, wanted))
            return has_type(frame, value, kinds)
        case _:
            return Static(False)


@builtin(type)
def _type(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = args
    match value:
        case Static(item):
            return Static(type(item))
        case Dynamic():
            return each_type(frame, value, lambda one: Static(python_class(frame, one.type)))
        case _:
            return Static(tuple)


@builtin(getattr)
def _getattr(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    name = constant(args[1])
    if not isinstance(name, str):
        frame.refuse("getattr with a name that the instance decides")
    if len(args) == 3 and not _has_attribute(frame, args[0], name):
        return args[2]
    return attribute(frame, args[0], name)


@builtin(hasattr)
def _hasattr(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    name = constant(args[1])
    return Static(_has_attribute(frame, args[0], name))


def _has_attribute(frame: Frame, value: Value, name: str) -> bool:
    if isinstance(value, Static):
        return hasattr(value.value, name)
    found: set[bool] = set()
    for kind in alternatives(frame.type_of(value)):
        fields = frame.evaluation.info(kind).fields if isinstance(kind, RecordType) else ()
        python = python_class(frame, kind)
        if name in fields:
            frame.evaluation.tested.add(name)
        known = name in fields or note_class(frame.evaluation, python, name) is not ABSENT
        if not known and note_class(frame.evaluation, python, "__getattr__") is not ABSENT:
            frame.refuse(f"whether {python.__name__}.__getattr__ has an attribute {name}")
        found.add(known)
    if len(found) != 1:
        frame.refuse(f"only some of the values here have an attribute {name}", "use isinstance")
    return found.pop()


@builtin(functools.partial)
def _partial(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    function, *first = args

    def call(inner: Frame, rest: list[Value], named: dict[str, Value]) -> Value:
        return apply(inner, function, [*first, *rest], kwargs | named)

    return Native("partial", call)


@builtin(concurrent)
def _concurrent(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return TupleValue(tuple(args))


@builtin(phase)
def _phase(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    frame.builder.emit(Phase(1))  # the pass on phases gives them their numbers
    return NONE


@builtin(print)
def _print(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return frame.refuse("print in a batched function", "return what you want to see")


@builtin(builtins.super)
def _super(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner = frame.owner
    first = next(iter(frame.locals), None)
    value = frame.locals.get("self", frame.locals.get(first) if first else None)
    if args or owner is None or not isinstance(value, Static):
        frame.refuse("super() of an object that differs from instance to instance")
    return Static(super(owner, value.value))
