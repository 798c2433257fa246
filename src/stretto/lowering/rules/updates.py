"""Writing parts of a tensor: scatter, index_put, slice_scatter, narrow_scatter.

The result starts as the base, in a buffer that may be changed (`Lowering.updatable`: the base's own
one when nobody needs it any more); then one operator writes the region.
"""

from __future__ import annotations

from collections.abc import Callable

from stretto.device.expr import Buffer, Extent, Index, index_loads, loads
from stretto.device.operator import Combine, Operator
from stretto.lowering.lazy import Lazy, broadcast, cast, placed_at, stored, variables, whole_buffer
from stretto.lowering.rules.emit import mapped
from stretto.lowering.rules.indexing import Selection, as_index, position_of, selected
from stretto.lowering.rules.scalar import apply, compute_dtype
from stretto.lowering.rules.table import Call, Decline, rule
from stretto.lowering.rules.views import narrow_start, slice_start
from stretto.ops.bounds import out_of_range


def write(
    call: Call, source: Callable[[], Lazy], selection: Selection, accumulate: bool = False
) -> Lazy:
    """The base with the selected elements replaced by (or increased by) those of `source`.

    `source` is called once the base may be changed, as operands that read it are stored by then.
    """
    base = whole_buffer(call.tensor("self"))
    positions = [load for index in selection.indices for load in index_loads(index)]
    if any(load.access.buffer == base for load in positions):
        raise Decline("the positions are read from what is changed")
    buffer = call.low.updatable(call.value("self"), call.result)
    if 0 not in selection.shape:
        dtype = compute_dtype(call.dtype) if accumulate else call.dtype
        value = cast(_detached(call, source(), buffer).expr, dtype)
        out = placed_at(buffer, call.shape, selection.indices)
        operator = Operator(
            "update", selection.shape, (), Combine.NONE, value, out, accumulate, call.low.source
        )
        call.low.emit(operator)
    return stored(buffer, call.shape)


def _detached(call: Call, lazy: Lazy, buffer: Buffer) -> Lazy:
    """The tensor, stored when it reads the buffer that is about to change."""
    if not any(load.access.buffer == buffer for load in loads(lazy.expr)):
        return lazy
    return call.low.store(lazy, call.low.new_buffer("source", lazy.dtype, lazy.shape))


def _window(dim: int, start: Index, step: int, shape: tuple[Extent, ...]) -> Selection:
    indices = list(variables(shape))
    indices[dim] = indices[dim] * step + start
    return Selection(shape, tuple(indices))


# ---- regions ---------------------------------------------------------------------------------


@rule("aten.select_scatter.default")
def _select_scatter(call: Call) -> Lazy:
    rank = len(call.shape)
    dim = call.axis(rank)
    failure = out_of_range("aten.select.int", dim, call.shape[dim])
    position = call.low.position(call.arguments["index"], call.shape[dim], failure)
    shape = (*call.shape[:dim], *call.shape[dim + 1 :])
    indices = (*variables(shape[:dim]), position, *variables(shape[dim:], dim))
    return write(call, lambda: broadcast(call.tensor("src"), shape), Selection(shape, indices))


@rule("aten.slice_scatter.default")
def _slice_scatter(call: Call) -> Lazy:
    dim = call.axis(len(call.shape))
    size, step = call.shape[dim], call.integer("step")
    start = slice_start(call, size)
    shape = (*call.shape[:dim], _slice_length(call, size, step), *call.shape[dim + 1 :])
    window = _window(dim, start, step, shape)
    return write(call, lambda: broadcast(call.tensor("src"), shape), window)


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
    shape = call.tensor("src").shape
    start = narrow_start(call, call.shape[dim], shape[dim])
    return write(call, lambda: call.tensor("src"), _window(dim, start, 1, shape))


@rule("aten.diagonal_scatter.default")
def _diagonal_scatter(call: Call) -> Lazy:
    rank = len(call.shape)
    first, second = (call.axis(rank, name) for name in ("dim1", "dim2"))
    offset = call.integer("offset")
    shape = call.tensor("src").shape
    *rest, along = variables(shape)
    remaining = iter(rest)
    indices = [Index() if d in (first, second) else next(remaining) for d in range(rank)]
    indices[first] = along + max(-offset, 0)
    indices[second] = along + max(offset, 0)
    return write(call, lambda: call.tensor("src"), Selection(shape, tuple(indices)))


# ---- computed positions ----------------------------------------------------------------------


@rule("aten.index_put.default", "aten._unsafe_index_put.default")
def _index_put(call: Call) -> Lazy:
    selection = selected(call, call.shape)
    if 0 in selection.shape:
        return call.tensor("self")

    def values() -> Lazy:
        return broadcast(call.tensor("values"), selection.shape)

    return write(call, values, selection, call.flag("accumulate"))


def _scattered(call: Call, source: Callable[[], Lazy], accumulate: bool) -> Lazy:
    """self[..., index[i, j, ...], ...] = source[i, j, ...] along `dim`.
    An index without elements may have any number of dims."""
    index = call.tensor("index")
    if 0 in index.shape:
        return call.tensor("self")
    rank = len(call.shape)
    if rank == 0 or index.rank == 0:
        raise Decline("no dims")
    dim = call.axis(rank)
    positions = position_of(call, call.arguments["index"], index, dim, call.shape[dim], wraps=False)
    indices = list(variables(index.shape))
    own = tuple(indices)
    indices[dim] = as_index(positions, *indices)

    def part() -> Lazy:
        lazy = source()
        return lazy.view(index.shape, *own) if lazy.rank else broadcast(lazy, index.shape)

    return write(call, part, Selection(index.shape, tuple(indices)), accumulate)


def _number(call: Call) -> Lazy:
    """The argument `value` as a tensor without dims."""
    return Lazy(call.dtype, (), cast(call.scalar("value"), call.dtype))


@rule("aten.scatter.src")
def _scatter(call: Call) -> Lazy:
    return _scattered(call, lambda: call.tensor("src"), accumulate=False)


@rule("aten.scatter.value")
def _scatter_value(call: Call) -> Lazy:
    return _scattered(call, lambda: _number(call), accumulate=False)


@rule("aten.scatter_add.default")
def _scatter_add(call: Call) -> Lazy:
    return _scattered(call, lambda: call.tensor("src"), accumulate=True)


@rule("aten.scatter_reduce.two")
def _scatter_reduce(call: Call) -> Lazy:
    if call.text("reduce") != "sum" or not call.flag("include_self"):
        raise Decline("a reduction other than a sum")
    return _scattered(call, lambda: call.tensor("src"), accumulate=True)


def _along(call: Call, source: Callable[[], Lazy], accumulate: bool, wraps: bool = False) -> Lazy:
    """self[..., index[i], ...] along `dim` (index_copy, index_add, index_fill).
    Positions in a tensor of no elements are not looked at, as in eager."""
    if 0 in call.shape:
        return call.tensor("self")
    rank = len(call.shape)
    index = call.tensor("index")
    if rank == 0 or index.rank != 1:
        raise Decline("no dims")
    dim = call.axis(rank)
    positions = position_of(call, call.arguments["index"], index, dim, call.shape[dim], wraps)
    shape = (*call.shape[:dim], index.shape[0], *call.shape[dim + 1 :])
    indices = list(variables(shape))
    indices[dim] = as_index(positions, indices[dim])
    selection = Selection(shape, tuple(indices))
    return write(call, lambda: broadcast(source(), shape), selection, accumulate)


@rule("aten.index_copy.default")
def _index_copy(call: Call) -> Lazy:
    return _along(call, lambda: call.tensor("source"), accumulate=False)


@rule("aten.index_add.default")
def _index_add(call: Call) -> Lazy:
    return _along(call, lambda: _scaled(call), accumulate=True)


def _scaled(call: Call) -> Lazy:
    """alpha * source"""
    source = call.tensor("source")
    if call.arguments["alpha"] == 1:
        return source
    expr = cast(source.expr, compute_dtype(call.dtype))
    return mapped(source, apply("mul", expr, cast(call.scalar("alpha"), expr.dtype)))


@rule("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def _index_fill(call: Call) -> Lazy:
    return _along(call, lambda: _number(call), accumulate=False, wraps=True)
