"""In which ways a tensor may be the memory of others: the paths through the sources of its
storage."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from stretto.frontends.python.tracing.tensor import (
    BlockScope,
    MemorySource,
    Storage,
    TracedTensor,
    ViewStep,
)
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.flags import Flag, all_of, negated
from stretto.ir.core import Value
from stretto.ir.types import TensorType

MOST_WAYS = 64
"""The most ways that are followed for one tensor; a tensor with more is linked."""


@dataclass(frozen=True, slots=True)
class Way:
    """The tensor is the view `steps` of `storage` if the flags of all `taken` sources hold."""

    storage: Storage
    steps: tuple[ViewStep, ...]
    taken: tuple[MemorySource, ...]
    is_outer: bool


def ways_of(value: Any, here: BlockScope) -> list[Way]:
    """All that a tensor may be: memory from outside of `here`, or memory that was made there."""
    tensor, found = tensor_of(value), list[Way]()

    def visit(storage: Storage, steps: Any, taken: tuple[MemorySource, ...], in_own: bool) -> None:
        is_outer = storage.scope.here is not here
        if len(found) <= MOST_WAYS and not (is_outer and in_own):
            found.append(Way(storage, steps, taken, is_outer))
        if is_outer or len(found) > MOST_WAYS:
            return
        for source in storage.sources:
            inner, is_own = source.tensor, in_own or source.is_own
            visit(inner.memory, (*inner.steps, *steps), (*taken, source), is_own)

    if tensor is not None:
        visit(tensor.memory, tensor.steps, (), False)
    return found


def after(whole: tuple[ViewStep, ...], view: tuple[ViewStep, ...]) -> tuple[ViewStep, ...] | None:
    """The steps from one view of a memory to another one that is a view of it."""
    if not all(step.is_comparable for step in (*whole, *view)) or view[: len(whole)] != whole:
        return None
    return view[len(whole) :]


def condition_of(way: Way) -> Flag | None:
    """The condition under which a tensor is what `way` says; None if it cannot be told here."""
    state = tracer()
    flags = [source.flag() for source in way.taken]
    others = [] if way.is_outer else [source.flag() for source in way.storage.sources]
    known = [flag for flag in (*flags, *others) if flag is not None and state.is_known(flag)]
    if len(known) < len(flags) + len(others):
        return None
    return all_of((*known[: len(flags)], *map(negated, known[len(flags) :])))


def tensor_of(value: Any) -> TracedTensor | None:
    """A tensor of the state as a traced one. Numbers have no memory."""
    if isinstance(value, TracedTensor):
        return value if value.number is None else None
    return tracer().promote(value) if isinstance(value, torch.Tensor) else None


def values_of(steps: tuple[ViewStep, ...]) -> tuple[Value, ...]:
    return tuple(value for step in steps for value in step.values)


def without_values(steps: tuple[ViewStep, ...]) -> tuple[ViewStep, ...] | None:
    """The steps with a placeholder for each value, so that they can be compared; None if they
    cannot."""
    found = tuple(step.mapped(lambda value: _hole(value.tensor)) for step in steps)
    return found if all(step.is_comparable for step in found) else None


@cache
def _hole(type: TensorType) -> Value:
    return Value(type)
