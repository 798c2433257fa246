"""Writing elements at computed positions: scatter, index_put, index_add and the like.

The result starts as the base, in a buffer that may be changed (`Lowering.updatable`: the base's own
one when nobody needs it any more); then one operator writes the region.
"""

from __future__ import annotations

from collections.abc import Callable

from stretto.device.expr import Buffer, index_loads, loads
from stretto.device.operator import Combine, Operator
from stretto.lowering.lazy import Lazy, broadcast, cast, placed_at, stored, variables, whole_buffer
from stretto.lowering.rules.emit import mapped
from stretto.lowering.rules.indexing import Selection, as_index, position_of, selected
from stretto.lowering.rules.scalar import apply, compute_dtype
from stretto.lowering.rules.table import Call, Decline, rule


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


# ---- computed positions ----------------------------------------------------------------------


@rule("index_put _unsafe_index_put")
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


@rule("scatter.src")
def _scatter(call: Call) -> Lazy:
    return _scattered(call, lambda: call.tensor("src"), accumulate=False)


@rule("scatter.value")
def _scatter_value(call: Call) -> Lazy:
    return _scattered(call, lambda: _number(call), accumulate=False)


@rule("scatter_add")
def _scatter_add(call: Call) -> Lazy:
    return _scattered(call, lambda: call.tensor("src"), accumulate=True)


@rule("scatter_reduce.two")
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


@rule("index_copy")
def _index_copy(call: Call) -> Lazy:
    return _along(call, lambda: call.tensor("source"), accumulate=False)


@rule("index_add")
def _index_add(call: Call) -> Lazy:
    return _along(call, lambda: _scaled(call), accumulate=True)


def _scaled(call: Call) -> Lazy:
    """alpha * source"""
    source = call.tensor("source")
    if call.arguments["alpha"] == 1:
        return source
    expr = cast(source.expr, compute_dtype(call.dtype))
    return mapped(source, apply("mul", expr, cast(call.scalar("alpha"), expr.dtype)))


@rule("index_fill.int_Scalar index_fill.int_Tensor")
def _index_fill(call: Call) -> Lazy:
    return _along(call, lambda: _number(call), accumulate=False, wraps=True)
