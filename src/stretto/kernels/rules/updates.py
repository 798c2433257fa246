"""Writing parts of a tensor: scatter, index_put, slice_scatter, narrow_scatter.

The result starts as the base, in a buffer that may be changed (`Lowering.updatable`: the base's own
one when nobody needs it any more); then one operator writes the region.
"""

from __future__ import annotations

from stretto.kernels.expr import Extent, Index, loads
from stretto.kernels.lazy import (
    Lazy,
    broadcast,
    cast,
    constant,
    placed_at,
    stored,
    variables,
    whole_buffer,
)
from stretto.kernels.operator import Operator
from stretto.kernels.rules.indexing import Selection, as_index, position_of, selected
from stretto.kernels.rules.scalar import apply, compute_dtype
from stretto.kernels.rules.table import Call, Decline, rule
from stretto.kernels.rules.views import narrow_start, slice_start


def detached(call: Call, lazy: Lazy) -> Lazy:
    """The tensor, stored when it reads the buffer that is about to change."""
    base = whole_buffer(call.tensor("self"))
    if base is None or not any(load.access.buffer == base for load in loads(lazy.expr)):
        return lazy
    return call.low.store(lazy, call.low.new_buffer("source", lazy.dtype, lazy.shape))


def write(call: Call, source: Lazy, selection: Selection, accumulate: bool = False) -> Lazy:
    """The base with the selected elements replaced by (or increased by) those of `source`."""
    source = detached(call, source)
    shape = call.shape
    buffer = call.low.updatable(call.value("self"), call.result)
    if 0 not in selection.shape:
        value = cast(source.expr, compute_dtype(call.dtype) if accumulate else call.dtype)
        out = placed_at(buffer, shape, selection.indices)
        operator = Operator(
            "update", selection.shape, (), "", value, out, accumulate, call.low.source
        )
        call.low.emit(operator)
    return stored(buffer, shape)


def _window(call: Call, dim: int, start: Index, step: int, shape: tuple[Extent, ...]) -> Selection:
    indices = list(variables(shape))
    indices[dim] = indices[dim] * step + start
    return Selection(shape, tuple(indices))


# ---- regions ---------------------------------------------------------------------------------


@rule("aten.select_scatter.default")
def _select_scatter(call: Call) -> Lazy:
    rank = len(call.shape)
    dim = call.axis(rank)
    position = call.low.position(call.arguments["index"], call.shape[dim])
    shape = (*call.shape[:dim], *call.shape[dim + 1 :])
    source = broadcast(call.tensor("src"), shape)
    indices = (*variables(shape[:dim]), position, *variables(shape[dim:], dim))
    return write(call, source, Selection(shape, indices))


@rule("aten.slice_scatter.default")
def _slice_scatter(call: Call) -> Lazy:
    dim = call.axis(len(call.shape))
    size, step = call.shape[dim], call.integer("step")
    start = slice_start(call, size)
    shape = (*call.shape[:dim], _slice_length(call, size, step), *call.shape[dim + 1 :])
    source = broadcast(call.tensor("src"), shape)
    return write(call, source, _window(call, dim, start, step, shape))


def _slice_length(call: Call, size: Extent, step: int) -> Extent:
    if not isinstance(size, int):
        dim = call.axis(len(call.shape))
        return call.tensor("src").shape[dim]
    start, end = (call.arguments[name] for name in ("start", "end"))
    if not isinstance(start, int | None) or not isinstance(end, int | None):
        raise Decline("a slice known only at run time")
    return len(range(*slice(start, end, step).indices(size)))


@rule("stretto.narrow_scatter.default", "stretto.narrow_scatter")
def _narrow_scatter(call: Call) -> Lazy:
    dim = call.axis(len(call.shape))
    source = call.tensor("src")
    start = narrow_start(call, call.shape[dim], source.shape[dim])
    return write(call, source, _window(call, dim, start, 1, source.shape))


@rule("aten.diagonal_scatter.default")
def _diagonal_scatter(call: Call) -> Lazy:
    rank = len(call.shape)
    first, second = (call.axis(rank, name) for name in ("dim1", "dim2"))
    offset = call.integer("offset")
    source = call.tensor("src")
    *rest, along = variables(source.shape)
    remaining = iter(rest)
    indices = [Index() if d in (first, second) else next(remaining) for d in range(rank)]
    indices[first] = along + max(-offset, 0)
    indices[second] = along + max(offset, 0)
    return write(call, source, Selection(source.shape, tuple(indices)))


# ---- computed positions ----------------------------------------------------------------------


@rule("aten.index_put.default", "aten._unsafe_index_put.default")
def _index_put(call: Call) -> Lazy:
    selection = selected(call, call.shape)
    source = broadcast(call.tensor("values"), selection.shape)
    return write(call, source, selection, call.flag("accumulate"))


def _scattered(call: Call, source: Lazy, accumulate: bool) -> Lazy:
    """self[..., index[i, j, ...], ...] = source[i, j, ...] along `dim`."""
    index = call.tensor("index")
    rank = len(call.shape)
    if rank == 0 or index.rank == 0:
        raise Decline("no dims")
    dim = call.axis(rank)
    positions = position_of(call, call.arguments["index"], index, call.shape[dim], wraps=False)
    indices = list(variables(index.shape))
    part = source.view(index.shape, *indices) if source.rank else broadcast(source, index.shape)
    indices[dim] = as_index(positions, *indices)
    return write(call, part, Selection(index.shape, tuple(indices)), accumulate)


@rule("aten.scatter.src")
def _scatter(call: Call) -> Lazy:
    return _scattered(call, call.tensor("src"), accumulate=False)


@rule("aten.scatter.value")
def _scatter_value(call: Call) -> Lazy:
    value = Lazy(call.dtype, (), cast(call.scalar("value"), call.dtype))
    return _scattered(call, value, accumulate=False)


@rule("aten.scatter_add.default")
def _scatter_add(call: Call) -> Lazy:
    return _scattered(call, call.tensor("src"), accumulate=True)


@rule("aten.scatter_reduce.two")
def _scatter_reduce(call: Call) -> Lazy:
    if call.text("reduce") != "sum" or not call.flag("include_self"):
        raise Decline("a reduction other than a sum")
    return _scattered(call, call.tensor("src"), accumulate=True)


def _along(call: Call, source: Lazy | None, accumulate: bool) -> Lazy:
    """self[..., index[i], ...] along `dim` (index_copy, index_add, index_fill)."""
    rank = len(call.shape)
    index = call.tensor("index")
    if rank == 0 or index.rank != 1:
        raise Decline("no dims")
    dim = call.axis(rank)
    positions = position_of(call, call.arguments["index"], index, call.shape[dim], wraps=False)
    shape = (*call.shape[:dim], index.shape[0], *call.shape[dim + 1 :])
    indices = list(variables(shape))
    indices[dim] = as_index(positions, indices[dim])
    part = broadcast(constant(0, call.dtype) if source is None else source, shape)
    return write(call, part, Selection(shape, tuple(indices)), accumulate)


@rule("aten.index_copy.default")
def _index_copy(call: Call) -> Lazy:
    return _along(call, call.tensor("source"), accumulate=False)


@rule("aten.index_add.default")
def _index_add(call: Call) -> Lazy:
    source = call.tensor("source")
    if call.arguments["alpha"] != 1:
        expr = cast(source.expr, compute_dtype(call.dtype))
        expr = apply("mul", expr, cast(call.scalar("alpha"), expr.dtype))
        source = Lazy(expr.dtype, source.shape, expr)
    return _along(call, source, accumulate=True)


@rule("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def _index_fill(call: Call) -> Lazy:
    return _along(call, Lazy(call.dtype, (), cast(call.scalar("value"), call.dtype)), False)
