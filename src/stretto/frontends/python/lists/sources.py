"""Sequences for `for` loops, with access by index, so that the index may be traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import nn

from stretto.frontends.python.aliasing.aliases import is_one_of, link
from stretto.frontends.python.lists import indexing, methods, operations
from stretto.frontends.python.lists.indexing import getitem, select
from stretto.frontends.python.lists.operations import (
    copied,
    get_item,
    traced_length,
)
from stretto.frontends.python.operators.views import part_of
from stretto.frontends.python.tracing.signals import Abort, fail
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.data_dependent_sizes import bounded_dim, plain
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.leaves import items_kind, to_traced_list
from stretto.frontends.python.values.raises import check
from stretto.frontends.python.values.scalars import (
    concrete,
    known_value,
    number_kind,
    number_of,
    to_number,
)
from stretto.frontends.python.values.state import TracedList
from stretto.ir.size_bounds import maximum, minimum
from stretto.ir.sizes import Size, ceil_div

SequenceLength = int | torch.SymInt | TracedTensor
"""A number, a size that is known at the call, or a number known only at run time."""


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
                "a range that depends on a tensor is compared with another range",
                "compare their bounds",
            )
        return other is self

    def __hash__(self) -> int:
        fail("the hash of a range that depends on a tensor is needed", "use its bounds as a key")


@dataclass(frozen=True, eq=False)
class TracedRange(Indexed):
    """A range. bounds: its start, stop and step."""

    bounds: tuple[Any, ...]


def range_source(*bounds: Any) -> TracedRange:
    """Return a `range` with bounds that are traced, or sizes; the step must be a Python int."""
    start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    if isinstance(step, TracedTensor):
        fail("the step of a range is a traced value", "use a Python int as step")
    step = int(step)
    if step == 0:
        raise ValueError("range() arg 3 must not be zero")
    state = tracer()
    if not any(isinstance(bound, TracedTensor) for bound in (start, stop)):
        length = trips_of_range(start, stop, step)
        return TracedRange(
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
    return TracedRange(
        length, lambda index: position_in_range(index, start, step), (start, stop, step)
    )


def trips_of_range(start: Any, stop: Any, step: int) -> SequenceLength:
    """Return the length of a range of sizes."""
    state = tracer()
    first, last = (Size.of(state.dim(bound)) for bound in (start, stop))
    distance = last - first if step > 0 else first - last
    return state.symbolic_dim(maximum(0, ceil_div(distance, abs(step))).dim)


def position_in_range(index: Any, start: Any, step: int) -> Any:
    """Return the number at a position of a range: start + index * step."""
    scaled = index if step == 1 else index * step
    return scaled if isinstance(start, int) and start == 0 else scaled + start


def as_source(iterable: Any) -> Indexed | None:
    """Return the sequence to loop over by index, or None to iterate natively."""
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
    """True if a size is a number, or decided by the call."""
    return isinstance(size, int) or (
        isinstance(size, torch.SymInt)
        and size.node.expr.free_symbols <= tracer().sizes.known.keys()
    )


def zipped(sources: Sequence[Indexed], *, strict: bool = False) -> Indexed:
    """Return `zip(*sources)`."""
    lengths = [source.length for source in sources]
    if any(isinstance(length, TracedTensor) for length in lengths):
        if strict and any(length is not lengths[0] for length in lengths):
            fail(
                "zip with strict=True over lengths that depend on a tensor",
                "compare the lengths first, and leave strict out",
            )
        least = reduce(lambda one, other: Hooks.call(min, one, other), lengths)
        return Indexed(least, lambda index: tuple(s.item(index) for s in sources))
    state = tracer()
    sizes = [state.dim(length) for length in lengths if not isinstance(length, TracedTensor)]
    shortest = state.symbolic_dim(minimum(*sizes).dim)
    return Indexed(shortest, lambda index: tuple(source.item(index) for source in sources))


def item_of(holder: Any, index: Any) -> Any:
    """Return `holder[index]` of a tensor, a sequence or another object of native code."""
    if isinstance(holder, TracedList):
        return get_item(holder, index)
    if isinstance(holder, TracedTensor | Indexed):
        return holder[index]
    is_traced = indexing.has_position(index) or indexing.has_size(index)
    if isinstance(holder, torch.Tensor):
        return getitem(tracer().promote(holder), index) if is_traced else holder[index]
    if isinstance(holder, SEQUENCES) and indexing.has_position(index):
        return item_of_sequence(holder, index)
    return holder[concrete(index, "int") if isinstance(index, TracedTensor) else index]


def set_item_of(holder: Any, index: Any, value: Any) -> None:
    """Perform `holder[index] = value` for a tensor."""
    traced = holder if isinstance(holder, TracedTensor) else tracer().promote(holder)
    traced[index] = value


def backwards(iterable: Any) -> Any:
    """Return a sequence, the last item first."""
    source = as_source(iterable)
    assert source is not None
    last: Any = source.length - 1
    return Indexed(source.length, lambda index: source.item(last - index))


# ---- Tuples whose length is a size: results of `unbind`, `split` and `chunk` on a symbolic dim,
# and of Python's `tuple`, `map` and slices on such tuples.
#
# Items are computed only on access, so a loop over them stays a loop. Uses that need all items,
# such as unpacking, settle the size.


@dataclass(frozen=True, eq=False)
class SizedTuple(Indexed):
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
        return SizedTuple(
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


SizedTuple.__name__ = "tuple"  # the name that Python's error messages show to the user


def _bounded(bound: Any, length: Any, step: int) -> Any:
    """Return the bound of a slice as a position between the ends."""
    low, high = (0, length) if step > 0 else (-1, length - 1)
    place = bound + length if bound < 0 else bound
    return torch.sym_max(low, torch.sym_min(place, high))


# ---- functions that return such tuples -------------------------------------------------------


def _is_size(size: Any) -> bool:
    return isinstance(size, torch.SymInt) and is_known_at_call(size)


def _traced(x: Any) -> Any:
    return x if isinstance(x, TracedTensor) else tracer().promote(x)


def unbind(input: Any, dim: int = 0) -> Any:
    """Return `torch.unbind` of a symbolic dim; NotImplemented for other dims."""
    x = input
    if not x.dim() or not _is_size(x.shape[dim]):
        return NotImplemented
    x = _traced(x)
    return SizedTuple(x.shape[dim], lambda index: select(x, dim % x.dim(), index))


def split(x: Any, piece: Any, dim: int = 0) -> Any:
    """Return `torch.split` of a symbolic dim into pieces of one size; NotImplemented for other
    arguments."""
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

    return SizedTuple(count, item)


def _pieces(x: TracedTensor, dim: int, piece: Any, count: Any) -> SizedTuple:
    """Return pieces of a dim, where the size of the last one, which may be shorter, is decided in
    the run."""
    every: list[Any] = [slice(None)] * dim

    def item(index: Any) -> Any:
        start = index * piece
        if not isinstance(index, TracedTensor):
            return getitem(x, (*every, slice(start, start + piece)))
        rest: Any = torch.clamp(plain(x.shape[dim]) - start, max=piece)
        length = bounded_dim(to_number(rest), 0, piece)
        return part_of(x, dim, to_number(start), length)

    return SizedTuple(count, item)


def chunk(input: Any, chunks: Any, dim: int = 0) -> Any:
    """Return `torch.chunk` of a symbolic dim, into a Python number of pieces or one piece per
    element; NotImplemented for other arguments."""
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
    """Return `tuple(items)`; NotImplemented if its length is a Python number."""
    if isinstance(items, SizedTuple):
        return items
    if isinstance(items, TracedList):
        held = copied(items)
        return SizedTuple(traced_length(held), lambda index: get_item(held, index))
    source = unsettled(items)
    return NotImplemented if source is None else tuple_of(listed(source))


def unsettled(iterable: Any) -> Indexed | None:
    """Return the sequence of an iterable whose number of items is no Python number; else None."""
    if not isinstance(iterable, Indexed | torch.Tensor | TracedList):
        return None
    if isinstance(iterable, torch.Tensor) and not iterable.dim():
        return None
    if isinstance(iterable, torch.Tensor) and not isinstance(iterable.shape[0], torch.SymInt):
        return None
    source = as_source(iterable)
    return None if source is None or isinstance(source.length, int) else source


def listed(items: Any) -> Any:
    """Return `list(items)` as a list of the Program, for a number of items that is no Python
    number."""
    return Hooks.own(methods.collected)(items)


Rule = Callable[..., Any]

METHODS: dict[str, Rule] = {"unbind": unbind, "chunk": chunk}
"""Methods of tensors, which take the tensor first."""
RULES: dict[Any, Rule] = {getattr(torch, name): rule for name, rule in METHODS.items()}


# ---- Items of Python sequences and dicts at traced positions.
#
# Items of one shape and dtype become a list of the Program. Others, such as the modules of an
# `nn.ModuleList` or functions, become a value that is one of them: each use of it is a branch on
# the position, which makes the call of a chosen expert a switch.


SEQUENCES = (list, tuple, nn.ModuleList, nn.ParameterList, nn.Sequential)


def item_of_sequence(holder: Any, index: Any) -> Any:
    """Return `holder[index]` at a traced position."""
    if isinstance(index, slice):
        return _part_of_sequence(holder, index)
    known = known_value(index)
    if known is not None:
        return holder[known]
    with contextlib.suppress(Abort):  # raises NeedsUnroll if a loop determines the index
        return holder[concrete(index, "int")]
    items: list[Any] = list(holder)
    if not items:
        raise IndexError(_message(holder))
    kinds = list(dict.fromkeys(map(number_kind, items)))
    if len(kinds) > 1 and None not in kinds:
        return _number_of_sequence(items, kinds, index)
    if len(kinds) > 1 or items_kind(items) is None:
        return _one_of(items, index, _message(holder))
    made = operations.get_item(to_traced_list(items), index)
    if isinstance(made, TracedTensor) and made.number is None:
        is_one_of(made, items, index)
    return made


def _part_of_sequence(holder: Any, index: slice) -> Any:
    """Return `holder[start:stop:step]` with traced bounds; the run decides its length."""
    start, stop, step = operations.bounds_of(index)
    bounds = start, stop
    items: list[Any] = list(holder)
    step = 1 if step is None else int(step)
    with contextlib.suppress(Abort):
        known = [concrete(p, "int") if isinstance(p, TracedTensor) else p for p in bounds]
        return holder[slice(known[0], known[1], step)]
    if not items:
        return holder[::step]
    if isinstance(holder, list | tuple) and items_kind(items) is not None:
        traced = to_traced_list(items)
        link(traced, items)
        made = operations.get_item(traced, slice(*bounds, step))
        return tuple_of(made) if isinstance(holder, tuple) else made
    if isinstance(holder, nn.Sequential):
        fail(
            "a Sequential is sliced at a position that depends on a tensor",
            "loop over its modules and stop there, or compile with fallback=True",
        )
    first, length = operations.extent(items, *bounds, step)
    kind = SizedTuple if isinstance(holder, tuple) else Indexed
    return kind(length, lambda place: item_of_sequence(items, place * step + first))


def entry_of_dict(holder: dict[Any, Any], index: Any) -> Any:
    """Return `holder[index]` for a traced number as the key."""
    known = known_value(index)
    if known is not None or not _are_numbers(holder):
        return holder[concrete(index, "int")]
    with contextlib.suppress(Abort):
        return holder[concrete(index, "int")]
    key = to_number(index, TypeError)
    flags = [number_of(key == one) for one in holder]
    found: Any = flags[0]
    for flag in flags[1:]:
        found = torch.logical_or(found, flag)
    check(found, "KeyError", "{}", _detail(key))
    return Either(flags, list(holder.values()))


def entry_by_text(holder: dict[Any, Any], text: Any, missing: Callable[[], Any]) -> Any:
    """Return `holder[text]` for a traced text as the key: a branch for each key that it may be.
    missing: gives what stands for an entry that is not there, or raises an error."""
    keys = [key for key in holder if isinstance(key, str)]
    return _by_text(holder, keys, text, missing)


def _by_text(holder: dict[Any, Any], keys: list[str], text: Any, missing: Callable[[], Any]) -> Any:
    for number, key in enumerate(keys):
        found = text == key
        if found is True:
            return holder[key]
        if found is not False:
            rest = keys[number + 1 :]
            return Hooks.python.branch(
                found,
                lambda key=key: holder[key],
                lambda rest=rest: _by_text(holder, rest, text, missing),
            )
    return missing()


def _are_numbers(holder: dict[Any, Any]) -> bool:
    return bool(holder) and all(type(key) is int for key in holder)


def _one_of(items: Sequence[Any], index: Any, message: str) -> Either:
    """Return one of the items, which a list of the Program cannot hold."""
    position, size = to_number(index, TypeError), len(items)
    if position.dtype.is_floating_point or position.dtype == torch.bool:
        raise TypeError("only integer tensors of a single element can be converted to an index")
    inside = torch.logical_and(position >= -size, position < size)
    check(inside, "IndexError", message, _detail(position))
    place = position % size
    return Either([number_of(place == number) for number in range(size)], items)


def _detail(number: TracedTensor) -> Any:
    return tracer().read(number)


def _message(holder: Any) -> str:
    if isinstance(holder, nn.Module):
        return "index {} is out of range"
    return f"{type(holder).__name__} index out of range"


def _number_of_sequence(items: list[Any], kinds: list[Any], index: Any) -> Any:
    """Return an item of a list of numbers of several kinds, as an Either."""
    are_kind = [[number_kind(item) is kind for item in items] for kind in kinds]
    flags = [operations.get_item(to_traced_list(marks), index) for marks in are_kind]
    options = [
        operations.get_item(to_traced_list([x if is_it else kind() for x, is_it in pairs]), index)
        for kind, pairs in zip(kinds, (zip(items, m, strict=True) for m in are_kind), strict=True)
    ]
    return Either(flags, options)
