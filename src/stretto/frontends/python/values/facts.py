"""Which flags are known at the place being traced: those that branches around it depend on."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.scalars import known_value
from stretto.ir.core import Value
from stretto.ir.types import FLAG


@contextmanager
def assuming(flag: Value, holds: bool) -> Generator[None]:
    """What is traced inside runs only where `flag` is as given."""
    state = tracer()
    before, state.facts = state.facts, {**state.facts, **_implied(flag, holds)}
    try:
        yield
    finally:
        state.facts = before


def derive(flag: Value, is_and: bool, others: tuple[Value, ...]) -> None:
    """Note that `flag` is the conjunction of the others, or (is_and=False) the negation of one."""
    tracer().derived[flag] = is_and, others


def negation(flag: Value) -> TracedTensor:
    """`not flag`, as a traced bool."""
    state = tracer()
    negated = state.tensor_op("aten.logical_not.default", (flag,), FLAG)
    derive(negated, False, (flag,))
    return state.number(negated)


def _implied(flag: Value, holds: bool) -> dict[Value, bool]:
    found = {flag: holds}
    is_and, others = tracer().derived.get(flag, (True, ()))
    if not is_and:
        for other in others:
            found |= _implied(other, not holds)
    elif holds:
        for other in others:
            found |= _implied(other, True)
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
