"""Tuples of as many items as a size says: what `unbind`, `split` and `chunk` make of a symbolic
dim, and what Python's `tuple`, `map` and slices make of such tuples.

Nothing is computed before an item is asked for, so a loop over them stays a loop. What needs the
items themselves, such as unpacking, settles the size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from stretto.frontends.python.lists import methods
from stretto.frontends.python.lists.indexing import getitem, select
from stretto.frontends.python.lists.operations import copied, get_item, traced_length
from stretto.frontends.python.lists.sources import (
    Indexed,
    as_source,
    is_known_at_call,
    position_in_range,
    trips_of_range,
    zipped,
)
from stretto.frontends.python.operators.views import part_of
from stretto.frontends.python.source.rewrite import rewritten
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.raises import check
from stretto.frontends.python.values.scalars import to_number
from stretto.frontends.python.values.sizes import bounded_dim, plain
from stretto.frontends.python.values.state import TracedList


@dataclass(frozen=True, eq=False)
class Parts(Indexed):
    """A tuple whose length is a size."""

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._slice(index)
        if isinstance(index, TracedTensor) and not index.dtype.is_floating_point:
            return self._at(to_number(index, TypeError))
        place, length = index.__index__(), self.length
        if isinstance(length, TracedTensor):
            return self._at(length * 0 + place)
        if not -length <= place < length:
            raise IndexError("tuple index out of range")
        return self.item(place + length if place < 0 else place)

    def _at(self, index: Any) -> Any:
        length = self.length
        if not isinstance(length, TracedTensor):
            length = tracer().number_of_dim(length)
        wrapped: Any = torch.where(index < 0, index + length, index)
        inside = torch.logical_and(wrapped >= 0, wrapped < length)
        check(inside, "IndexError", "tuple index out of range")
        return self.item(wrapped)

    def _slice(self, index: slice) -> Any:
        step = 1 if index.step is None else index.step
        if any(isinstance(part, TracedTensor) for part in (index.start, index.stop, step)):
            return tuple(self)[index]
        if step == 0:
            raise ValueError("slice step cannot be zero")
        length: Any = self.length
        first, last = (0, length) if step > 0 else (length - 1, -1)
        start = first if index.start is None else _bounded(index.start, length, step)
        stop = last if index.stop is None else _bounded(index.stop, length, step)
        return Parts(
            trips_of_range(start, stop, step),
            lambda place: self.item(position_in_range(place, start, step)),
        )

    def __bool__(self) -> bool:
        return bool(self.length > 0)

    def __add__(self, other: Any) -> Any:
        return tuple(self) + tuple(other)

    def __radd__(self, other: Any) -> Any:
        return tuple(other) + tuple(self)

    def __mul__(self, times: Any) -> Any:
        return tuple(self) * times

    __rmul__ = __mul__


Parts.__name__ = "tuple"  # so that errors of Python name what the user has


def _bounded(bound: Any, length: Any, step: int) -> Any:
    """The bound of a slice as a position between the ends."""
    low, high = (0, length) if step > 0 else (-1, length - 1)
    place = bound + length if bound < 0 else bound
    return torch.sym_max(low, torch.sym_min(place, high))


# ---- what makes them -------------------------------------------------------------------------


def _is_size(size: Any) -> bool:
    return isinstance(size, torch.SymInt) and is_known_at_call(size)


def _traced(x: Any) -> Any:
    return x if isinstance(x, TracedTensor) else tracer().promote(x)


def unbind(input: Any, dim: int = 0) -> Any:
    """`torch.unbind` of a symbolic dim."""
    x = input
    if not x.dim() or not _is_size(x.shape[dim]):
        return NotImplemented
    x = _traced(x)
    return Parts(x.shape[dim], lambda index: select(x, dim % x.dim(), index))


def split(x: Any, piece: Any, dim: int = 0) -> Any:
    """`torch.split` of a symbolic dim into pieces of one size."""
    if type(piece) is not int or piece < 1 or not x.dim() or not _is_size(x.shape[dim]):
        return NotImplemented
    x, dim = _traced(x), dim % x.dim()
    size: Any = x.shape[dim]
    state, count = tracer(), size // piece
    if state.dim(count * piece) != state.dim(size):
        return _pieces(x, dim, piece, torch.sym_max(1, (size + piece - 1) // piece))
    if not bool(size > 0):
        return NotImplemented
    every: list[Any] = [slice(None)] * dim

    def item(index: Any) -> Any:
        start = index * piece
        return getitem(x, (*every, slice(start, start + piece)))

    return Parts(count, item)


def _pieces(x: TracedTensor, dim: int, piece: Any, count: Any) -> Parts:
    """Pieces of a dim, of which the last may be shorter: its size is decided in the run."""
    every: list[Any] = [slice(None)] * dim

    def item(index: Any) -> Any:
        start = index * piece
        if not isinstance(index, TracedTensor):
            return getitem(x, (*every, slice(start, start + piece)))
        rest: Any = torch.clamp(plain(x.shape[dim]) - start, max=piece)
        length = bounded_dim(to_number(rest), 0, piece)
        return part_of(x, dim, to_number(start), length)

    return Parts(count, item)


def chunk(input: Any, chunks: Any, dim: int = 0) -> Any:
    """`torch.chunk` of a symbolic dim, into as many pieces as it has elements or a number says."""
    x = input
    if not x.dim() or not _is_size(x.shape[dim]):
        return NotImplemented
    size = x.shape[dim]
    if type(chunks) is int and chunks > 1 and size > 0:
        piece = torch.sym_max(1, (size + chunks - 1) // chunks)
        return _pieces(_traced(x), dim % x.dim(), piece, (size + piece - 1) // piece)
    state = tracer()
    if not isinstance(chunks, torch.SymInt) or state.dim(chunks) != state.dim(size):
        return NotImplemented
    return split(x, 1, dim)


def tuple_of(items: Any = ()) -> Any:
    """`tuple(items)`."""
    if isinstance(items, Parts):
        return items
    if isinstance(items, TracedList):
        held = copied(items)
        return Parts(traced_length(held), lambda index: get_item(held, index))
    source = unsettled(items)
    return NotImplemented if source is None else tuple_of(listed(source))


def mapped(function: Any, *iterables: Any) -> Any:
    """`map(function, *iterables)`, where the length of one is a size."""
    sources = list(map(as_source, iterables))
    known = [source for source in sources if source is not None]
    if len(known) < len(sources) or all(unsettled(item) is None for item in iterables):
        return NotImplemented
    joined: Indexed = zipped(*iterables)
    return Indexed(joined.length, lambda index: Hooks.call(function, *joined.item(index)))


def unsettled(iterable: Any) -> Indexed | None:
    """What a loop runs over whose number of items is no Python number; else None."""
    if not isinstance(iterable, Indexed | torch.Tensor | TracedList):
        return None
    if isinstance(iterable, torch.Tensor) and not iterable.dim():
        return None
    if isinstance(iterable, torch.Tensor) and not isinstance(iterable.shape[0], torch.SymInt):
        return None
    source = as_source(iterable)
    return None if source is None or isinstance(source.length, int) else source


def listed(items: Any) -> Any:
    """`list(items)`: a list of the Program, where the number of items is none of Python."""
    return rewritten(methods.collected)(items)


Rule = Callable[..., Any]

METHODS: dict[str, Rule] = {"unbind": unbind, "chunk": chunk}
"""Methods of tensors, which take the tensor first."""
RULES: dict[Any, Rule] = {
    **{getattr(torch, name): rule for name, rule in METHODS.items()},
    tuple: tuple_of,
}
