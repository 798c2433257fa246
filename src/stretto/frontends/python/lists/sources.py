"""What a `for` loop runs over, item by index, so that the index may be traced."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch

from stretto.frontends.python.lists.indexing import select
from stretto.frontends.python.lists.operations import get_item, traced_length
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.scalars import to_number
from stretto.frontends.python.values.state import TracedList
from stretto.ir.size_bounds import maximum, minimum
from stretto.ir.sizes import Size, ceil_div

SequenceLength = int | torch.SymInt | TracedTensor
"""A number, a size that is known at the call, or what only the run knows."""


@dataclass(frozen=True, eq=False)
class Indexed:
    """A sequence: its length, and the item at a Python or traced index."""

    length: SequenceLength
    item: Callable[[Any], Any]

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.length, TracedTensor):
            fail(
                "the number of items to iterate over depends on a tensor",
                "use a plain for loop over it",
            )
        for index in range(int(self.length)):
            yield self.item(index)

    def __getitem__(self, index: Any) -> Any:
        return self.item(index)

    def __len__(self) -> int:
        if isinstance(self.length, TracedTensor):
            fail(
                "a length that depends on a tensor is needed as a Python int", "use len() in a loop"
            )
        return int(self.length)

    def __eq__(self, other: object) -> bool:
        if other is not self and isinstance(other, range | Indexed):
            fail(
                "two ranges are compared of which one depends on a tensor",
                "compare their bounds",
            )
        return other is self

    def __hash__(self) -> int:
        fail("the hash of a range is needed that depends on a tensor", "use its bounds as a key")


@dataclass(frozen=True, eq=False)
class Range(Indexed):
    """A range. bounds: its start, stop and step."""

    bounds: tuple[Any, ...]


class Iterated(Indexed):
    """A sequence that is an iterator in Python, as what `zip` returns."""


def range_source(*bounds: Any) -> Range:
    """`range` with bounds that are traced, or sizes; the step must be a Python int."""
    start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    if isinstance(step, TracedTensor):
        fail("the step of a range is a traced value", "use a Python int as step")
    step = int(step)
    if step == 0:
        raise ValueError("range() arg 3 must not be zero")
    state = tracer()
    if not any(isinstance(bound, TracedTensor) for bound in (start, stop)):
        length = trips_of_range(start, stop, step)
        return Range(
            length, lambda index: position_in_range(index, start, step), (start, stop, step)
        )
    start, stop = (
        state.number_of_dim(bound) if isinstance(bound, torch.SymInt) else bound
        for bound in (start, stop)
    )
    sign = 1 if step > 0 else -1
    starts_at_zero = isinstance(start, int) and start == 0
    span = stop if starts_at_zero and sign == 1 else (stop - start) * sign
    count = (span + (abs(step) - 1)) // abs(step) if abs(step) != 1 else span
    length = to_number(count) if isinstance(count, TracedTensor) else max(0, count)
    return Range(length, lambda index: position_in_range(index, start, step), (start, stop, step))


def trips_of_range(start: Any, stop: Any, step: int) -> SequenceLength:
    """How many numbers a range of sizes has."""
    state = tracer()
    first, last = (Size.of(state.dim(bound)) for bound in (start, stop))
    distance = last - first if step > 0 else first - last
    return state.symbolic_dim(maximum(0, ceil_div(distance, abs(step))).dim)


def position_in_range(index: Any, start: Any, step: int) -> Any:
    scaled = index if step == 1 else index * step
    return scaled if isinstance(start, int) and start == 0 else scaled + start


def as_source(iterable: Any) -> Indexed | None:
    """The sequence to loop over by index, or None to iterate natively."""
    if isinstance(iterable, Indexed):
        return iterable
    if isinstance(iterable, range):
        start, step = iterable.start, iterable.step
        return Indexed(len(iterable), lambda index: position_in_range(index, start, step))
    if isinstance(iterable, torch.Tensor):
        return _tensor_source(iterable)
    if isinstance(iterable, TracedList):
        return Indexed(traced_length(iterable), lambda index: get_item(iterable, index))
    return None


def _tensor_source(tensor: torch.Tensor) -> Indexed:
    if tensor.dim() == 0:
        raise TypeError("iteration over a 0-d tensor")
    traced = tensor if isinstance(tensor, TracedTensor) else tracer().promote(tensor)
    size: Any = tensor.shape[0]
    length = size if is_known_at_call(size) else tracer().number_of_dim(size)
    return Indexed(length, lambda index: select(traced, 0, index))


def is_known_at_call(size: Any) -> bool:
    """Whether a size is a number, or one that the call decides."""
    return isinstance(size, int) or (
        isinstance(size, torch.SymInt)
        and size.node.expr.free_symbols <= tracer().sizes.known.keys()
    )


def enumerated(iterable: Any, start: int = 0) -> Any:
    source = as_source(iterable)
    if source is None:
        return enumerate(iterable, start)
    return Iterated(source.length, lambda index: (index + start, source.item(index)))


def zipped(*iterables: Any, strict: bool = False) -> Any:
    sources = [as_source(item) for item in iterables]
    if any(isinstance(s.length, TracedTensor) for s in sources if s is not None):
        pairs = zip(sources, iterables, strict=True)
        sources = [_items_source(item) if source is None else source for source, item in pairs]
    if not sources or any(source is None for source in sources):
        return zip(*iterables, strict=strict)
    known = [source for source in sources if source is not None]
    lengths = [source.length for source in known]
    if any(isinstance(length, TracedTensor) for length in lengths):
        if strict and any(length is not lengths[0] for length in lengths):
            fail(
                "zip with strict=True over lengths that depend on a tensor",
                "compare the lengths first, and leave strict out",
            )
        least = reduce(lambda one, other: Hooks.call(min, one, other), lengths)
        return Iterated(least, lambda index: tuple(s.item(index) for s in known))
    state = tracer()
    sizes = [state.dim(length) for length in lengths if not isinstance(length, TracedTensor)]
    shortest = state.symbolic_dim(minimum(*sizes).dim)
    return Iterated(shortest, lambda index: tuple(source.item(index) for source in known))


def _items_source(iterable: Any) -> Indexed | None:
    """The items of a container or iterator of Python by traced positions."""
    if isinstance(iterable, itertools.count | itertools.cycle | itertools.repeat):
        fail(
            f"zip over a {type(iterable).__name__}, which may never end, and over a number of "
            "items that depends on a tensor",
            "count in the loop",
        )
    items = list(iterable)
    return Indexed(len(items), lambda index: Hooks.staging.getitem(items, index))


def backwards(iterable: Any) -> Any:
    if isinstance(iterable, torch.Tensor) and is_known_at_call(next(iter(iterable.shape), None)):
        traced = iterable if isinstance(iterable, TracedTensor) else tracer().promote(iterable)
        return as_source(traced.flip(0))  # rows of a copy, as in eager PyTorch
    source = as_source(iterable)
    if source is None:
        return reversed(iterable)
    last: Any = source.length - 1
    return Iterated(source.length, lambda index: source.item(last - index))
