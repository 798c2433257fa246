"""Parts of a tensor (row, slice, diagonal): reading one is a view, writing one an update.

`part` registers the positions of a part's elements in the whole, once for both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false, statically_known_true, sym_and

from stretto.device.expr import Const, Extent, Index, Position, is_known
from stretto.ir.core import Value
from stretto.ir.ops import TensorOp
from stretto.ir.size_bounds import maximum, minimum
from stretto.ir.types import DType
from stretto.lowering.emit import apply
from stretto.lowering.lazy import Lazy, broadcast, variables, window
from stretto.lowering.rules import TensorOpCall, rule
from stretto.operators.indexing import (
    Selection,
    batch_along_dim,
    iteration_numbers,
    source_dim,
    taken_elements,
    write,
)
from stretto.ops.arguments import value_argument
from stretto.ops.custom_operators import define
from stretto.ops.positions import out_of_range, window_out_of_range
from stretto.ops.symints import require
from stretto.ops.table import (
    Fails,
    PositionArgument,
    Reach,
    Replaced,
    ShiftDims,
    describe,
    shape_rule,
)
from stretto.passes.batching.rules import Batch, batches, shift_dims

# ---- properties ------------------------------------------------------------------------------

describe("diagonal_scatter", fails=Fails.NEVER)


describe("select select_scatter", positions=PositionArgument(Reach.DIM, wraps=True))


describe(
    "narrow narrow_scatter",
    "stretto",
    positions=PositionArgument(Reach.WINDOW, "start", wraps=True),
)


describe("narrow", "stretto", rearranges=True, batching=ShiftDims())


describe("select_scatter slice_scatter", updates=True, whole=True)


describe("narrow_scatter", "stretto", updates=True)


describe("slice.Tensor narrow.default", batching=ShiftDims())


describe("diagonal", batching=ShiftDims(("dim1", "dim2")))


Shape = tuple[Extent, ...]


Places = Callable[[TensorOpCall, Shape, Shape], list[Index]]
"""Returns the index in each dim of the whole of the part's elements, given the dims of the whole
and of the part."""


def part(reads: str, writes: str) -> Callable[[Places], Places]:
    """Register the operators that read such a part, and the one that writes it."""

    def register(places: Places) -> Places:
        def read(call: TensorOpCall) -> Lazy:
            lazy = call.tensor("self")
            return lazy.view(call.shape, *places(call, lazy.shape, call.shape))

        def written(call: TensorOpCall) -> Lazy:
            shape = call.tensor("src").shape
            selection = Selection(shape, tuple(places(call, call.shape, shape)))
            return write(call, lambda: broadcast(call.tensor("src"), shape), selection)

        rule(reads)(read)
        rule(writes)(written)
        return places

    return register


@part("select.int select_copy.int", "select_scatter")
def _row(call: TensorOpCall, whole: Shape, part: Shape) -> list[Index]:
    dim = call.axis(len(whole))
    failure = out_of_range("aten.select.int", dim, whole[dim])
    position = call.low.position(call.arguments["index"], whole[dim], failure)
    return [*variables(part[:dim]), position, *variables(part[dim:], dim)]


@part("slice.Tensor slice_copy.Tensor", "slice_scatter")
def _slice(call: TensorOpCall, whole: Shape, part: Shape) -> list[Index]:
    """A slice begins where Python's rules put it."""
    dim = call.axis(len(whole))
    start = call.integer("start") if call.has("start") else 0
    return window(part, dim, _slice_start(call, start, whole[dim]), call.integer("step"))


def _slice_start(call: TensorOpCall, start: int, size: Extent) -> Index:
    if isinstance(size, int):
        return Index(const=slice(start, None, 1).indices(size)[0])
    if is_known(size):
        size = Index.of(size)
        return minimum(start, size) if start >= 0 else maximum(0, size + start)
    if start >= 0:
        return Index(const=start)
    first = apply("maximum", Position(Index.of(size) + start), Const(0, DType.I64))
    return Index.of(call.low.let(first, "start"))


@part(
    "narrow narrow_copy stretto.narrow.default stretto.narrow",
    "stretto.narrow_scatter.default stretto.narrow_scatter",
)
def _narrow(call: TensorOpCall, whole: Shape, part: Shape) -> list[Index]:
    """Negative positions count from the end of the dim."""
    dim = call.axis(len(whole))
    size, length = whole[dim], part[dim]
    failure = window_out_of_range(size, length)
    if "src" in call.arguments and length == 1:  # the assignment of one item, with its message
        failure = out_of_range(call.op.target, dim, size)
    start = call.low.position(call.arguments["start"], size, failure, length)
    return window(part, dim, start)


@part("diagonal diagonal_copy", "diagonal_scatter")
def _diagonal(call: TensorOpCall, whole: Shape, part: Shape) -> list[Index]:
    first, second = (call.axis(len(whole), name) for name in ("dim1", "dim2"))
    offset = call.integer("offset")
    *rest, along = variables(part)
    remaining = iter(rest)
    indices = [Index() if d in (first, second) else next(remaining) for d in range(len(whole))]
    indices[first] = along + max(-offset, 0)
    indices[second] = along + max(offset, 0)
    return indices


@batches("select.int")
def _batch_select(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    source, index = value_argument(op, "self"), value_argument(op, "index")
    if source is None or index is None or not batch.is_batched(index):
        return shift_dims(batch, op, ShiftDims())
    return (taken_elements(batch, source, source_dim(op, source.tensor.rank), index),)


@batches("select_scatter.default")
def _batch_select_scatter(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    index = value_argument(op, "index")
    if index is None or not batch.is_batched(index):
        return batch_along_dim(batch, op)
    source, part = value_argument(op, "self"), value_argument(op, "src")
    assert source is not None and part is not None
    rank = source.tensor.rank
    dim = source_dim(op, rank)
    first = (0, dim + 1, *(other + 1 for other in range(rank) if other != dim))
    turned = batch.permute(batch.expanded(source), first)
    indices = (iteration_numbers(batch, 0), batch.twins[index])
    put = batch.emit("aten.index_put.default", turned, indices, batch.expanded(part))
    return (batch.permute(put, tuple(first.index(place) for place in range(rank + 1))),)


batches("slice_scatter.default")(batch_along_dim)


# ---- stretto's own operators -----------------------------------------------------------------
#
# `stretto.narrow(x, dim, start, length)` is a slice whose position may be known only at run time,
# and whose length is a number or a size; `stretto.narrow_scatter(x, src, dim, start)` is `x` with
# that slice replaced by `src`. Positions must be in range; negative ones count from the end. The
# results have separate memory.


def _check_start(self: torch.Tensor, dim: int, start: int, length: int) -> None:
    """Raise ATen's error for a position out of range; `narrow` itself raises for slices of several
    rows."""
    size = self.size(dim)
    if length == 1 and not -size <= start < size:
        raise IndexError(f"index {start} is out of bounds for dimension {dim} with size {size}")


def _compute_narrow(self: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
    _check_start(self, dim, start, length)
    return self.narrow(dim, start, length).clone()


def _narrow_shape(self: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
    """Return the result without data. Symbolic sizes are checked at run time."""
    if type(length) is int and type(self.size(dim)) is int:
        return _compute_narrow(self, dim, start, length)
    shape = list(self.shape)
    shape[dim] = length
    return self.new_empty(shape)


def _narrow_scatter_shape(
    self: torch.Tensor, src: torch.Tensor, dim: int, start: int
) -> torch.Tensor:
    if not any(isinstance(size, torch.SymInt) for size in (*self.shape, *src.shape)):
        return _narrow_scatter(self, src, dim, start)
    if self.dtype != src.dtype or self.dim() != src.dim():
        raise ValueError(f"cannot put {src.dtype} {src.shape} into {self.dtype} {self.shape}")
    for place, (size, part) in enumerate(zip(self.shape, src.shape, strict=True)):
        if place != dim % self.dim():
            require(size == part)
    return self.new_empty(self.shape)


def _narrow_scatter(self: torch.Tensor, src: torch.Tensor, dim: int, start: int) -> torch.Tensor:
    _check_start(self, dim, start, src.size(dim))
    result = self.clone()
    place = result.narrow(dim, start, src.size(dim))
    if place.shape != src.shape or self.dtype != src.dtype:
        raise ValueError(f"cannot put {src.dtype} {src.shape} into {place.dtype} {place.shape}")
    place.copy_(src)
    return result


define(
    "narrow(Tensor self, int dim, SymInt start, SymInt length) -> Tensor",
    _compute_narrow,
    _narrow_shape,
)


define(
    "narrow_scatter(Tensor self, Tensor src, int dim, SymInt start) -> Tensor",
    _narrow_scatter,
    _narrow_scatter_shape,
)


# ---- shapes ----------------------------------------------------------------------------------


@shape_rule("slice.Tensor", Replaced.SYMBOLIC)
def _slice_shape(
    x: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> torch.Tensor:
    """Return the view `x[start:end:step]` in a dim, with its size as a formula of the bounds, as
    torch does from 2.12 on. 2.11 gives it a new, unrelated size if it cannot decide whether a size
    is 0 or 1."""
    if not x.dim() or step <= 0:
        return torch.ops.aten.slice.Tensor(x, dim, start, end, step)  # raises
    size: Any = x.shape[dim]
    is_whole = end is None or statically_known_true(end == sys.maxsize)
    first = 0 if start is None else _inside(start, size)
    last = size if is_whole else _inside(end, size)
    if first is None or last is None:
        return torch.ops.aten.slice.Tensor(x, dim, start, end, step)
    if guard_or_false(last >= first):
        length: Any = last - first
    elif guard_or_false(first >= last):
        length = 0
    else:
        length = torch.sym_max(last - first, 0)
    shape, strides = list[Any](x.shape), list(x.stride())
    offset = x.storage_offset() + first * strides[dim]
    shape[dim] = (length + (step - 1)) // step
    strides[dim] = strides[dim] * step
    return x.as_strided(shape, strides, offset)


@shape_rule("select_scatter.default", Replaced.SYMBOLIC)
def _select_scatter_shape(x: torch.Tensor, src: torch.Tensor, dim: int, index: Any) -> torch.Tensor:
    """Return the whole, without torch's comparisons of the position with sizes: runs check it."""
    rest = [size for place, size in enumerate(x.shape) if place != dim % x.dim()]
    for size, part in zip(rest, src.shape, strict=True):
        require(size == part)
    return torch.empty_like(x)


def _inside(place: Any, size: Any) -> Any:
    """Return a position clamped to the dim, counted from the end if negative; None if its sign is
    unknown."""
    if guard_or_false(sym_and(place >= 0, place <= size)):
        return place
    if guard_or_false(sym_and(place < 0, place >= -size)):
        return place + size
    if guard_or_false(place < -size):
        return 0
    if guard_or_false(place > size):
        return size
    if guard_or_false(place >= 0):
        return torch.sym_min(place, size)
    return torch.sym_max(place + size, 0) if guard_or_false(place < 0) else None
