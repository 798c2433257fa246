"""Flags: conditions that are either known while tracing or values of the Program.

Where a branch around the place being traced depends on a flag, the flag is known there
(`assuming`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.scalars import known_value
from stretto.ir.core import Value
from stretto.ir.types import FLAG

Flag = bool | Value


def both(first: Flag, second: Flag) -> Flag:
    if isinstance(first, bool):
        return second if first else False
    if isinstance(second, bool):
        return first if second else False
    return logical("and", first, second)


def either(first: Flag, second: Flag) -> Flag:
    if isinstance(first, bool):
        return True if first else second
    if isinstance(second, bool):
        return True if second else first
    return logical("or", first, second)


def negated(flag: Flag) -> Flag:
    if isinstance(flag, bool):
        return not flag
    return logical("not", flag)


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


def logical(operator: str, *flags: Value) -> Value:
    """`and`, `or` or `not` of values of the program."""
    state = tracer()
    return state.tensor_op(f"aten.logical_{operator}.default", tuple(map(state.use, flags)), FLAG)


@contextmanager
def assuming(flag: Value, holds: bool) -> Generator[None]:
    """States that what is traced inside runs only where `flag` is as given."""
    state = tracer()
    before, state.facts = state.facts, {**state.facts, **implied(flag, holds)}
    try:
        yield
    finally:
        state.facts = before


def derive(flag: Value, is_and: bool, others: tuple[Value, ...]) -> None:
    """Notes that `flag` is the conjunction of the others, or (is_and=False) the negation of the one
    other."""
    tracer().derived[flag] = is_and, others


def negation(flag: Value) -> TracedTensor:
    """`not flag`, as a traced bool."""
    opposite = logical("not", flag)
    derive(opposite, False, (flag,))
    return tracer().number(opposite)


def implied(flag: Value, holds: bool) -> dict[Value, bool]:
    found = {flag: holds}
    is_and, others = tracer().derived.get(flag, (True, ()))
    if not is_and:
        for other in others:
            found |= implied(other, not holds)
    elif holds:
        for other in others:
            found |= implied(other, True)
    return found


def known(flag: Any) -> bool | None:
    """The value of a bool or a traced one, if it is known here."""
    if isinstance(flag, TracedTensor):
        found = known_value(flag)
        if found is not None:
            return bool(found)
        base = flag.memory.state.base
        return tracer().facts.get(base) if isinstance(base, Value) else None
    return bool(flag)


def possible(value: Either) -> list[tuple[Any, Any]]:
    """The options that the value may be here, with their flags."""
    pairs = [(f, o) for f, o in zip(value.stretto_flags, value.stretto_options, strict=True)]
    sure = [pair for pair in pairs if known(pair[0])]
    return sure or [pair for pair in pairs if known(pair[0]) is None]
