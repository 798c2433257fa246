"""Parts of a tensor: a row, a slice, a diagonal. Reading one is a view; writing one is an update.

`part` registers where the elements of a part are in the whole, once for both.
"""

from __future__ import annotations

from collections.abc import Callable

from stretto.device.expr import Const, Extent, Index, Position, is_known
from stretto.ir.size_bounds import maximum, minimum
from stretto.ir.types import DType
from stretto.lowering.lazy import Lazy, broadcast, variables
from stretto.lowering.rules.indexing import Selection
from stretto.lowering.rules.scalar import apply
from stretto.lowering.rules.table import Call, rule
from stretto.lowering.rules.updates import write
from stretto.ops.bounds import out_of_range, window_out_of_range

Shape = tuple[Extent, ...]
Places = Callable[[Call, Shape, Shape], list[Index]]
"""The position in the whole of each element of the part, given the dims of the whole and of the
part."""


def part(reads: str, writes: str) -> Callable[[Places], Places]:
    """Registers the operators that read such a part, and the one that writes it."""

    def register(places: Places) -> Places:
        def read(call: Call) -> Lazy:
            lazy = call.tensor("self")
            return lazy.view(call.shape, *places(call, lazy.shape, call.shape))

        def written(call: Call) -> Lazy:
            shape = call.tensor("src").shape
            selection = Selection(shape, tuple(places(call, call.shape, shape)))
            return write(call, lambda: broadcast(call.tensor("src"), shape), selection)

        rule(reads)(read)
        rule(writes)(written)
        return places

    return register


@part("select.int select_copy.int", "select_scatter")
def _row(call: Call, whole: Shape, part: Shape) -> list[Index]:
    dim = call.axis(len(whole))
    failure = out_of_range("aten.select.int", dim, whole[dim])
    position = call.low.position(call.arguments["index"], whole[dim], failure)
    return [*variables(part[:dim]), position, *variables(part[dim:], dim)]


@part("slice.Tensor slice_copy.Tensor", "slice_scatter")
def _slice(call: Call, whole: Shape, part: Shape) -> list[Index]:
    """Python's rules say where a slice begins."""
    dim = call.axis(len(whole))
    start = call.integer("start") if call.has("start") else 0
    return _window(part, dim, _slice_start(call, start, whole[dim]), call.integer("step"))


def _slice_start(call: Call, start: int, size: Extent) -> Index:
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
def _narrow(call: Call, whole: Shape, part: Shape) -> list[Index]:
    """Positions that are negative count from the end of the dim."""
    dim = call.axis(len(whole))
    size, length = whole[dim], part[dim]
    failure = window_out_of_range(size, length)
    if "src" in call.arguments and length == 1:  # an item that is assigned to
        failure = out_of_range(call.op.target, dim, size)
    start = call.low.position(call.arguments["start"], size, failure, length)
    return _window(part, dim, start, 1)


def _window(part: Shape, dim: int, start: Index, step: int) -> list[Index]:
    indices = list(variables(part))
    indices[dim] = indices[dim] * step + start
    return indices


@part("diagonal diagonal_copy", "diagonal_scatter")
def _diagonal(call: Call, whole: Shape, part: Shape) -> list[Index]:
    first, second = (call.axis(len(whole), name) for name in ("dim1", "dim2"))
    offset = call.integer("offset")
    *rest, along = variables(part)
    remaining = iter(rest)
    indices = [Index() if d in (first, second) else next(remaining) for d in range(len(whole))]
    indices[first] = along + max(-offset, 0)
    indices[second] = along + max(offset, 0)
    return indices
