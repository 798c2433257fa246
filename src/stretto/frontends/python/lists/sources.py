"""What a `for` loop runs over, item by index, so that the index may be traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from stretto.frontends.python.lists.indexing import select
from stretto.frontends.python.lists.operations import get_item, traced_length
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.scalars import to_number
from stretto.frontends.python.values.state import TracedList

SequenceLength = int | TracedTensor


@dataclass(frozen=True, eq=False)
class Indexed:
    """A sequence: its length, and the item at a Python or traced index."""

    length: SequenceLength
    item: Callable[[Any], Any]

    def __iter__(self) -> Iterator[Any]:
        if not isinstance(self.length, int):
            fail(
                "the number of items to iterate over depends on a tensor",
                "use a plain for loop over it",
            )
        for index in range(self.length):
            yield self.item(index)

    def __len__(self) -> int:
        if not isinstance(self.length, int):
            fail(
                "a length that depends on a tensor is needed as a Python int", "use len() in a loop"
            )
        return self.length


def range_source(*bounds: Any) -> Indexed:
    """`range` with traced bounds; the step must be a Python int."""
    start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    if isinstance(step, TracedTensor):
        fail("the step of a range is a traced value", "use a Python int as step")
    sign = 1 if step > 0 else -1
    starts_at_zero = isinstance(start, int) and start == 0
    span = stop if starts_at_zero and sign == 1 else (stop - start) * sign
    count = (span + (abs(step) - 1)) // abs(step) if abs(step) != 1 else span
    length = to_number(count) if isinstance(count, TracedTensor) else max(0, count)
    return Indexed(length, lambda index: _position(index, start, step))


def _position(index: Any, start: Any, step: int) -> Any:
    scaled = index if step == 1 else index * step
    return scaled if isinstance(start, int) and start == 0 else scaled + start


def as_source(iterable: Any) -> Indexed | None:
    """The sequence to loop over by index, or None to iterate natively."""
    if isinstance(iterable, Indexed):
        return iterable
    if isinstance(iterable, range):
        start, step = iterable.start, iterable.step
        return Indexed(len(iterable), lambda index: _position(index, start, step))
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
    length = size if isinstance(size, int) else tracer().number_of_dim(size)
    return Indexed(length, lambda index: select(traced, 0, index))


def enumerated(iterable: Any, start: int = 0) -> Any:
    source = as_source(iterable)
    if source is None:
        return enumerate(iterable, start)
    return Indexed(source.length, lambda index: (index + start, source.item(index)))


def zipped(*iterables: Any, strict: bool = False) -> Any:
    sources = [as_source(item) for item in iterables]
    if not sources or any(source is None for source in sources):
        return zip(*iterables, strict=strict)
    known = [source for source in sources if source is not None]
    lengths = [source.length for source in known]
    if not all(isinstance(length, int) for length in lengths):
        if len(lengths) == 1 or all(length is lengths[0] for length in lengths):
            return Indexed(lengths[0], lambda index: tuple(s.item(index) for s in known))
        fail("zip over lengths that depend on a tensor", "loop over an index instead")
    shortest = min(length for length in lengths if isinstance(length, int))
    return Indexed(shortest, lambda index: tuple(source.item(index) for source in known))


def backwards(iterable: Any) -> Any:
    if isinstance(iterable, torch.Tensor) and type(next(iter(iterable.shape), None)) is int:
        traced = iterable if isinstance(iterable, TracedTensor) else tracer().promote(iterable)
        return as_source(traced.flip(0))  # rows of a copy, as in eager PyTorch
    source = as_source(iterable)
    if source is None:
        return reversed(iterable)
    return Indexed(source.length, lambda index: source.item(source.length - 1 - index))
