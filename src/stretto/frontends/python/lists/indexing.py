"""`x[i]` and `x[i] = v` with an index that is known only at run time; slices with traced bounds."""

from __future__ import annotations

from typing import Any

import torch

from stretto.frontends.python.lists.operations import checked_bound, stack
from stretto.frontends.python.operators import views
from stretto.frontends.python.operators.functional import overwrite
from stretto.frontends.python.tracing.frames import caught
from stretto.frontends.python.tracing.locations import user_location
from stretto.frontends.python.tracing.signals import Abort, NeedsUnroll, fail
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import data_dependent_shape, tracer
from stretto.frontends.python.values.data_dependent_sizes import bounded_dim, plain
from stretto.frontends.python.values.number_methods import kind_of_number
from stretto.frontends.python.values.scalars import (
    concrete,
    is_number,
    known_value,
    linear_of,
    to_number,
)
from stretto.frontends.python.values.state import TracedList
from stretto.ir.core import Value
from stretto.ir.sizes import symbols_in
from stretto.ir.types import DType

aten = torch.ops.aten


def is_position(index: Any) -> bool:
    """True for a traced integer without dims: a position rather than a table of positions."""
    return isinstance(index, TracedTensor) and index.dim() == 0 and index.dtype in _INTEGERS


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def has_position(index: Any) -> bool:
    """True if an index (or a part of one) is known only at run time."""
    if isinstance(index, tuple):
        return any(has_position(part) for part in index)
    if isinstance(index, slice):
        return any(isinstance(p, TracedTensor) for p in (index.start, index.stop, index.step))
    return is_position(index)


def has_size(index: Any) -> bool:
    """True if an index contains sizes or Program lists, which torch's own indexing would settle as
    numbers."""
    if isinstance(index, tuple):
        return any(has_size(part) for part in index)
    return isinstance(index, torch.SymInt | TracedList)


def _is_flag(index: Any) -> bool:
    """True if an index is a traced flag without dims, which selects all of the tensor or
    nothing."""
    return isinstance(index, TracedTensor) and index.dim() == 0 and index.dtype is torch.bool


def _plain(index: Any) -> Any:
    """Return the index with traced numbers for data-dependent sizes."""
    if isinstance(index, tuple):
        return tuple(map(_plain, index))  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(index, slice):
        return slice(*(checked_bound(plain(b)) for b in (index.start, index.stop, index.step)))
    if isinstance(index, TracedList) and index.numbers:
        return stack(index, least=0)
    return plain(index)


def getitem(tensor: TracedTensor, index: Any) -> Any:
    """Return `tensor[index]`."""
    if is_number(tensor):
        raise TypeError(f"'{kind_of_number(tensor).__name__}' object is not subscriptable")
    index = _plain(index)
    if _is_flag(index):
        raise data_dependent_shape()
    if not has_position(index) and not has_size(index):
        return torch.Tensor.__getitem__(tensor, index)
    parts = _expanded(tensor, index)
    if any(_is_table(part) for part in parts):
        return aten.index.Tensor(tensor, [_as_table(part) for part in parts])
    return _located(tensor, parts)


def setitem(tensor: TracedTensor, index: Any, value: Any) -> None:
    """Perform `tensor[index] = value`."""
    if is_number(tensor):
        kind = kind_of_number(tensor).__name__
        raise TypeError(f"'{kind}' object does not support item assignment")
    index = _plain(index)
    if _is_flag(index):
        _set_if(tensor, index, value)
        return
    if not has_position(index) and not has_size(index):
        torch.Tensor.__setitem__(tensor, index, value)
        return
    parts = _expanded(tensor, index)
    if any(_is_table(part) for part in parts):
        indices = [_as_table(part) for part in parts]
        value = (
            value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=tensor.dtype)
        )
        aten.index_put_.default(tensor, indices, value.to(tensor.dtype))
        return
    target = _located(tensor, parts)
    if not isinstance(value, torch.Tensor):
        target.fill_(value)
        return
    overwrite(target, _without_leading_ones(value, target))


def _without_leading_ones(value: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the value without leading dims of size 1 that the target does not have."""
    while value.dim() > target.dim() and value.shape[0] == 1:
        value = value.squeeze(0)
    return value


def _set_if(tensor: TracedTensor, flag: TracedTensor, value: Any) -> None:
    """Assign the value to all of the tensor if the flag is set."""
    if isinstance(value, torch.Tensor):
        value = _without_leading_ones(value, tensor).to(tensor.dtype)
    else:
        value = torch.full((), value, dtype=tensor.dtype)
    overwrite(tensor, torch.where(flag, value, tensor))


def _expanded(tensor: TracedTensor, index: Any) -> list[Any]:
    """Return the index with its ellipsis written out, one entry per dim (and per None)."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(part, bool) for part in parts):
        fail(
            "an index mixes a bool and a position known at run time",
            "index in two steps: first the bool, then the rest",
        )
    used = sum(_consumed(part) for part in parts)
    missing = tensor.dim() - used
    if missing < 0:
        raise IndexError(f"too many indices for tensor of dimension {tensor.dim()}")
    fill = [slice(None)] * missing
    for place, part in enumerate(parts):
        if part is Ellipsis:
            return parts[:place] + fill + parts[place + 1 :]
    return parts + fill


def _consumed(part: Any) -> int:
    if part is None or part is Ellipsis:
        return 0
    if isinstance(part, torch.Tensor) and part.dtype is torch.bool:
        return part.dim()
    return 1


def _is_table(part: Any) -> bool:
    return isinstance(part, list) or (isinstance(part, torch.Tensor) and not is_position(part))


def _as_table(part: Any) -> Any:
    if isinstance(part, slice):
        if part != slice(None):
            fail(
                "an index mixes a slice, a position known at run time and a tensor",
                "index in two steps: first the slice, then the rest",
            )
        return None
    if part is None:
        fail("an index mixes None and a tensor", "call unsqueeze() after indexing")
    return part if isinstance(part, torch.Tensor) else torch.tensor(part)


def _located(tensor: Any, parts: list[Any]) -> Any:
    """Apply a basic index dim by dim, so that the result is a view."""
    dim = 0
    for part in parts:
        if part is None:
            tensor = tensor.unsqueeze(dim)
            dim += 1
        elif isinstance(part, slice):
            tensor = _slice(tensor, dim, part)
            dim += 1
        else:
            tensor = select(tensor, dim, part)
    return tensor


def select(tensor: TracedTensor, dim: int, index: Any) -> TracedTensor:
    """Return `tensor.select(dim, index)` with a Python or traced index."""
    if isinstance(index, TracedTensor) and tracer().tries.catch(IndexError):
        index = _known_index(index)
    if isinstance(index, TracedTensor):
        return views.selected(tensor, dim, tracer().read(index))
    return aten.select.int(tensor, dim, index if isinstance(index, torch.SymInt) else int(index))


def _known_index(index: TracedTensor) -> int:
    """Return a Python int for an index that may raise an error that the user's code catches.

    It is known if its loop is unrolled. The op itself may be emitted after the `try`, where a
    view is read.
    """
    known = known_value(index)
    if known is not None:
        return known
    if index.number is not None and index.number.loops:
        raise NeedsUnroll(index.number.loops, caught(IndexError))
    raise caught(IndexError)


def _slice(tensor: TracedTensor, dim: int, part: slice) -> TracedTensor:
    bounds = (part.start, part.stop)
    if not any(isinstance(bound, TracedTensor) for bound in bounds):
        if part == slice(None):
            return tensor
        return aten.slice.Tensor(tensor, dim, part.start, part.stop, part.step or 1)
    start = linear_of(part.start if part.start is not None else 0)
    stop = linear_of(part.stop if part.stop is not None else tensor.shape[dim])
    if part.step in (None, 1) and start is not None and stop is not None:
        length = stop.plus(start, -1)
        place = user_location()
        if not length.terms and place not in tracer().cuts:
            if place is not None:
                tracer().windows.add(place)
            return _window(tensor, dim, part.start, max(0, length.constant))
    known = _unrolled(bounds)
    if known is not None:
        return aten.slice.Tensor(tensor, dim, *known, part.step or 1)
    step = part.step or 1
    if isinstance(step, TracedTensor):
        fail("the step of a slice is a traced value", "use a Python int as step")
    found = _decided_slice(tensor, dim, part)
    return found if step == 1 else aten.slice.Tensor(found, dim, None, None, step)


def _window(tensor: TracedTensor, dim: int, start: Any, length: int) -> TracedTensor:
    """Return a slice of static length that is assumed to be inside the dim. If it is not, the run
    stops, and the function is captured again with a clamped slice."""
    if length == 0:
        return aten.slice.Tensor(tensor, dim, 0, 0, 1)
    if isinstance(start, TracedTensor) and not _is_not_negative(start):
        # `x[-1:2]` starts at the last element and ends before it: mark it as out of range.
        beyond = plain(tensor.shape[dim])
        crosses = (start < 0) & (start + length >= 0)
        start = torch.where(crosses, beyond, start)
    return views.narrowed(tensor, dim, _position(start), length)


def _is_not_negative(start: TracedTensor) -> bool:
    form, known = linear_of(start), tracer().not_negative
    if form is None or form.constant < 0:
        return False
    return all(value in known and factor > 0 for value, factor in form.terms)


def _decided_slice(tensor: TracedTensor, dim: int, part: slice) -> TracedTensor:
    """Return a slice of data-dependent length: bounds out of range are clamped, as in Python."""
    state = tracer()
    size: Any = plain(tensor.shape[dim])
    key = (*map(_key, (part.start, part.stop)), state.dim(tensor.shape[dim]))
    found = state.slices.get(key)
    if found is None or not all(map(_is_usable, found)):
        start = 0 if part.start is None else _cut(part.start, size)
        stop = size if part.stop is None else _cut(part.stop, size)
        length: Any = stop - start
        if not (isinstance(start, int) and start == 0):
            length = torch.clamp(length, min=0)
        count = bounded_dim(to_number(length), 0, tensor.shape[dim])
        state.slices[key] = found = start, count
    start, count = found
    if isinstance(start, int) and isinstance(count, int):
        return aten.slice.Tensor(tensor, dim, start, start + count, 1)
    return views.part_of(tensor, dim, start, count)


def _key(bound: Any) -> Any:
    """Return a key that is equal for bounds that are the same number."""
    return tracer().read(bound) if isinstance(bound, TracedTensor) else bound


def _is_usable(item: Any) -> bool:
    """True if a value computed for another slice can be used here."""
    state = tracer()
    if isinstance(item, torch.SymInt):
        values = [state.symbol_values[symbol] for symbol in symbols_in((state.dim(item),))]
    else:
        values = [state.read(item)] if isinstance(item, TracedTensor) else []
    return all(map(state.is_known, values))


def _cut(bound: Any, size: Any) -> Any:
    """Return a slice bound as Python interprets it: a position between 0 and the size."""
    if isinstance(bound, int) and isinstance(size, int):
        return slice(bound, None).indices(size)[0]
    if not isinstance(bound, TracedTensor):
        bound = tracer().number(tracer().literal(int(bound), DType.I64))
    elif bound.dtype != torch.int64:
        bound = to_number(bound, TypeError)
    wrapped = torch.where(bound < 0, bound + size, bound)
    most = size if isinstance(size, TracedTensor) else torch.full((), size)
    cut: Any = torch.minimum(torch.clamp(wrapped, min=0), most)
    return to_number(cut)


def _position(start: Any) -> Value:
    if isinstance(start, TracedTensor):
        return tracer().read(start)
    return tracer().literal(start or 0, DType.I64)


def _unrolled(bounds: tuple[Any, ...]) -> list[Any] | None:
    """Return the bounds of a slice if they are known, or become known by unrolling a loop whose
    trip count is not a size; else None."""
    found: list[Any] = []
    for bound in bounds:
        mark = bound.number if isinstance(bound, TracedTensor) else None
        if mark is not None and mark.loops & tracer().sized_loops:
            return None
        try:
            is_late = isinstance(bound, TracedTensor)
            found.append(concrete(bound, "int", reading=False) if is_late else bound)
        except Abort:
            return None
    return found


Hooks.getitem, Hooks.setitem = getitem, setitem
