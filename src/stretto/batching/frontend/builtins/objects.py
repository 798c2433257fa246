"""Functions of Python about objects: their classes, attributes and calls."""

from __future__ import annotations

import builtins
import dataclasses
import functools

from stretto.batching.frontend.builtins.table import builtin
from stretto.batching.frontend.control.joins import either
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
    Super,
    TupleValue,
    Value,
)
from stretto.batching.markers import concurrent, phase
from stretto.batching.program import Phase
from stretto.batching.types import RecordType, Scalar, alternatives


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
    if len(args) < 3:
        return attribute(frame, args[0], name)

    def one(value: Value) -> Value:
        there = _has_attribute(frame, value, name)
        if isinstance(there, Static):
            return attribute(frame, value, name) if there.value else args[2]
        condition = frame.operand(there)
        return either(frame, condition, lambda: attribute(frame, value, name), lambda: args[2])

    return one(args[0]) if isinstance(args[0], Static) else each_type(frame, args[0], one)


@builtin(hasattr)
def _hasattr(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    name = constant(args[1])
    if not isinstance(name, str):
        frame.refuse("hasattr with a name that the instance decides")
    return _has_attribute(frame, args[0], name)


def _has_attribute(frame: Frame, value: Value, name: str) -> Value:
    if isinstance(value, Static):
        found = hasattr(value.value, name)
        if not found:
            frame.evaluation.read("attribute", value.value, name, ABSENT)
        return Static(found)
    return each_type(frame, value, lambda one: _has_one(frame, one, name))


def _has_one(frame: Frame, value: Dynamic, name: str) -> Value:
    python = python_class(frame, value.type)
    if note_class(frame.evaluation, python, name) is not ABSENT:
        return Static(True)
    if note_class(frame.evaluation, python, "__getattr__") is not ABSENT:
        frame.refuse(f"whether {python.__name__}.__getattr__ has an attribute {name}")
    if not isinstance(value.type, RecordType):
        return Static(False)
    info = frame.evaluation.info(value.type)
    if info.kind == "dict" or name not in info.fields:
        return Static(False)
    frame.evaluation.tested.add(name)
    initial = dataclasses.fields(python) if dataclasses.is_dataclass(python) else ()
    if info.kind == "namedtuple" or name in {item.name for item in initial if item.init}:
        return Static(True)
    return frame.assign("has", Scalar.BOOL, value.operand, detail=name)


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
    value = None if frame.receiver is None else frame.locals.get(frame.receiver)
    if len(args) == 2 and isinstance(args[0], Static):
        owner, value = args[0].value, args[1]
    elif args:
        frame.refuse("super() with one argument")
    if owner is None or value is None:
        frame.stop(RuntimeError, "super(): no arguments")
    if isinstance(value, Static):
        return Static(super(owner, value.value))  # type: ignore[arg-type]
    return Super(owner, frame.dynamic(value))
