"""Flags that are known while tracing, or values of the program, and what is made of them."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.frontends.python.tracing.tracer import tracer
from stretto.ir.core import Value
from stretto.ir.types import FLAG

Flag = bool | Value


def both(first: Flag, second: Flag) -> Flag:
    if isinstance(first, bool):
        return second if first else False
    if isinstance(second, bool):
        return first if second else False
    return _emitted("aten.logical_and.default", first, second)


def either(first: Flag, second: Flag) -> Flag:
    if isinstance(first, bool):
        return True if first else second
    if isinstance(second, bool):
        return True if second else first
    return _emitted("aten.logical_or.default", first, second)


def negated(flag: Flag) -> Flag:
    if isinstance(flag, bool):
        return not flag
    return _emitted("aten.logical_not.default", flag)


def all_of(flags: Iterable[Flag]) -> Flag:
    found: Flag = True
    for flag in flags:
        found = both(found, flag)
    return found


def value_of(flag: Flag) -> Value:
    """The flag as a value of the program."""
    return tracer().literal(flag, FLAG.dtype) if isinstance(flag, bool) else tracer().use(flag)


def select(condition: Flag, first: Value, second: Value) -> Value:
    """`first` where the condition holds, else `second`."""
    if isinstance(condition, bool):
        return first if condition else second
    state = tracer()
    arguments = (state.use(condition), state.use(first), state.use(second))
    return state.tensor_op("aten.where.self", arguments, second.type)


def _emitted(target: str, *flags: Value) -> Value:
    state = tracer()
    return state.tensor_op(target, tuple(map(state.use, flags)), FLAG)
