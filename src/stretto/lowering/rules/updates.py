"""Writing elements at computed positions: scatter, index_put, index_add and the like.

The result begins as the base, in a buffer that may be changed: the base's own buffer when no later
op reads it, else a copy (`Lowering.updatable`). Then one operator writes the region.
"""

from __future__ import annotations

from collections.abc import Callable

from stretto.device.expr import index_loads, loads
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
    if any(load.access.buffer == base for load in positions):  # they are read meanwhile
        buffer = call.low.new_buffer("copy", call.dtype, call.shape)
        call.low.store(call.tensor("self"), buffer)
    else:
        buffer = call.low.updatable(call.value("self"), call.result)
    if 0 not in selection.shape:
        lazy = source()
        if any(load.access.buffer == buffer for load in loads(lazy.expr)):  # it is about to change
            lazy = call.low.store(lazy, call.low.new_buffer("source", lazy.dtype, lazy.shape))
        value = cast(lazy.expr, compute_dtype(call.dtype) if accumulate else call.dtype)
        out = placed_at(buffer, call.shape, selection.indices)
        call.low.write("update", selection.shape, value, out, accumulate)
    return stored(buffer, call.shape)


# ---- computed positions ----------------------------------------------------------------------


@rule("index_put _unsafe_index_put")
def _index_put(call: Call) -> Lazy:
    selection = selected(call, call.shape)
    if 0 in selection.shape:
        return call.tensor("self")

    def values() -> Lazy:
        return broadcast(call.tensor("values"), selection.shape)

    return write(call, values, selection, call.flag("accumulate"))


_SCATTERS = {False: "scatter.src scatter.value", True: "scatter_add scatter_reduce.two"}
_ALONG_DIM = {False: "index_copy index_fill.int_Scalar index_fill.int_Tensor", True: "index_add"}
"""Operators that write, and those that add to what is there."""

for _adds, _names in _SCATTERS.items():

    @rule(_names)
    def _scatter(call: Call, adds: bool = _adds) -> Lazy:
        """self[..., index[i, j, ...], ...] = source[i, j, ...] along `dim`.
        An index without elements may have any number of dims."""
        if "reduce" in call.arguments and (
            call.text("reduce") != "sum" or not call.flag("include_self")
        ):
            raise Decline("a reduction other than a sum")
        index = call.tensor("index")
        if 0 in index.shape:
            return call.tensor("self")
        dim, positions = _positions(call, index)
        own = variables(index.shape)
        indices = [*own[:dim], as_index(positions, *own), *own[dim + 1 :]]

        def source() -> Lazy:
            lazy = _source(call)
            return lazy.view(index.shape, *own) if lazy.rank else broadcast(lazy, index.shape)

        return write(call, source, Selection(index.shape, tuple(indices)), adds)


for _adds, _names in _ALONG_DIM.items():

    @rule(_names)
    def _index_along(call: Call, adds: bool = _adds) -> Lazy:
        """self[..., index[i], ...] = source[..., i, ...] along `dim`.
        Positions in a tensor of no elements are not looked at, as in eager."""
        if 0 in call.shape:
            return call.tensor("self")
        index = call.tensor("index")
        if index.rank != 1:
            raise Decline("no dims")
        dim, positions = _positions(call, index)
        shape = (*call.shape[:dim], index.shape[0], *call.shape[dim + 1 :])
        indices = list(variables(shape))
        indices[dim] = as_index(positions, indices[dim])
        selection = Selection(shape, tuple(indices))
        return write(call, lambda: broadcast(_source(call), shape), selection, adds)


def _positions(call: Call, index: Lazy) -> tuple[int, Lazy]:
    rank = len(call.shape)
    if rank == 0 or index.rank == 0:
        raise Decline("no dims")
    dim = call.axis(rank)
    return dim, position_of(call, call.arguments["index"], index, dim, call.shape[dim])


def _source(call: Call) -> Lazy:
    """What is written: a tensor, perhaps scaled, or a number as a tensor without dims."""
    if "value" in call.arguments:
        return Lazy(call.dtype, (), cast(call.scalar("value"), call.dtype))
    source = call.tensor("src" if "src" in call.arguments else "source")
    if call.arguments.get("alpha", 1) == 1:
        return source
    expr = cast(source.expr, compute_dtype(call.dtype))
    return mapped(source, apply("mul", expr, cast(call.scalar("alpha"), expr.dtype)))
