"""Reading at computed positions: embedding, index_select, gather, advanced indexing.

Positions found in a tensor are brought into range (negative ones count from the end, where torch
allows it) and checked in the run. A position that is one number for the whole op becomes a
register, so that the access stays affine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stretto.device.expr import (
    Apply,
    Atom,
    Const,
    Expr,
    Extent,
    Index,
    Load,
    Position,
    Var,
    dynamic_index,
    parts,
)
from stretto.ir.core import Value
from stretto.ir.ops import Argument
from stretto.ir.types import DType
from stretto.lowering.lazy import Lazy, broadcast, cast, reshape, variables
from stretto.lowering.rules.contract import broadcast_dims
from stretto.lowering.rules.scalar import apply, where
from stretto.lowering.rules.table import Call, Decline, rule, static_size
from stretto.ops.bounds import out_of_range, position_failure
from stretto.ops.positions import CHECK
from stretto.ops.properties import properties


def checked(expr: Expr, size: Extent, number: int, wraps: bool = True) -> Index:
    """A computed position in a dim of `size`, checked in the run by check `number`."""
    place, limit = cast(expr, DType.I64), Position(Index.of(size))
    if wraps and expr.dtype is not DType.U8:
        below = apply("lt", place, Const(0, DType.I64))
        place = where(below, apply("add", place, limit), place)
    return dynamic_index(Apply("checked", (place, limit, Const(number, DType.I64)), DType.I64))


def position_of(call: Call, argument: Argument, lazy: Lazy, dim: int, size: Extent) -> Lazy:
    """The positions in `dim` in a tensor of integers as a lazy tensor of i64, in range."""
    if not lazy.dtype.is_integer:
        raise Decline("positions must be integers")
    known = properties(call.op.target).positions
    wraps = known is None or known.wraps
    if _is_single(lazy) and isinstance(argument, Value):
        failure = out_of_range(call.op.target, dim, size)
        index = call.low.position(argument, size, failure, wraps=wraps)
        return Lazy(DType.I64, lazy.shape, Position(index))
    lazy = lazy if lazy.is_stored else call.low.materialised(argument)
    number = call.low.stop(out_of_range(call.op.target, dim, size, wraps))
    return Lazy(DType.I64, lazy.shape, Position(checked(lazy.expr, size, number, wraps)))


@rule(CHECK)
def _check_positions(call: Call) -> tuple[Lazy, ...]:
    """One position is checked where control is; of a table, the operator itself checks all."""
    argument = call.arguments["positions"]
    if not _is_single(call.tensor("positions")):
        raise Decline("a table of positions")
    operator, dim = str(call.arguments["operator"]), call.integer("dim")
    size, length = call.dim("size"), call.dim("length")
    failure = position_failure(operator, size, length, dim)
    call.low.position(argument, size, failure, length, wraps=call.flag("wraps"))
    return ()


@rule("stretto.evaluate.default")
def _evaluate(call: Call) -> tuple[Lazy, ...]:
    """The value is stored, though nothing reads it, so that a kernel computes it."""
    call.low.materialised(call.arguments["value"])
    return ()


def as_index(lazy: Lazy, *indices: Index) -> Index:
    """Element of a lazy tensor of positions, as an index."""
    return dynamic_index(lazy.at(*indices))


@rule("embedding")
def _embedding(call: Call) -> Lazy:
    weight = call.tensor("weight")
    _require_dependence(weight, {0: call.tensor("indices")})
    positions = _positions(call, "indices", 0, weight.shape[0])
    *lead, column = variables(call.shape)
    return weight.view(call.shape, as_index(positions, *lead), column)


def _require_dependence(source: Lazy, tables: Mapping[int, Lazy]) -> None:
    """Declines where elements are the same at all positions in a dim, one of size 1 or an expanded
    one: nothing would compute and check these. It is asked before anything is emitted.

    tables: the positions, by dim. A single one is checked where control is."""
    read = set[Atom]()
    for part in parts(source.expr):
        match part:
            case Load(access):
                read.update(atom for index in access.index for atom in index.atoms())
            case Position(index):
                read.update(index.atoms())
            case _:
                pass
    if any(Var(dim) not in read for dim, table in tables.items() if not _is_single(table)):
        raise Decline("no element depends on the positions")


def _is_single(positions: Lazy) -> bool:
    return all(size == 1 for size in positions.shape)


def _empty(call: Call) -> Lazy:
    """A result without elements, which reads nothing."""
    return Lazy(call.dtype, call.shape, cast(Const(0, DType.I64), call.dtype))


def _positions(call: Call, name: str, dim: int, size: Extent) -> Lazy:
    return position_of(call, call.arguments[name], call.tensor(name), dim, size)


@rule("index_select")
def _index_select(call: Call) -> Lazy:
    lazy = call.tensor("self")
    if lazy.rank == 0:
        _positions(call, "index", 0, 1)  # there is one, and it is checked
        return lazy
    dim = call.axis(lazy.rank)
    _require_dependence(lazy, {dim: call.tensor("index")})
    positions = _positions(call, "index", dim, lazy.shape[dim])
    indices = list(variables(call.shape))
    indices[dim] = as_index(positions, *((indices[dim],) if positions.rank else ()))
    return call.cheap("self").view(call.shape, *indices)


@rule("gather")
def _gather(call: Call) -> Lazy:
    """An index without elements may have any number of dims."""
    lazy = call.tensor("self")
    if 0 in call.shape:
        return _empty(call)
    if lazy.rank == 0 or call.tensor("index").rank == 0:
        raise Decline("no dims")
    dim = call.axis(lazy.rank)
    _require_dependence(lazy, {dim: call.tensor("index")})
    positions = _positions(call, "index", dim, lazy.shape[dim])
    indices = list(variables(call.shape))
    indices[dim] = as_index(positions, *indices)
    return call.cheap("self").view(call.shape, *indices)


@rule("take")
def _take(call: Call) -> Lazy:
    size = static_size(call.tensor("self").shape)
    if size is None:
        raise Decline("a dynamic size")
    _require_dependence(reshape(call.tensor("self"), (size,)), {0: call.tensor("index")})
    positions = _positions(call, "index", 0, size)
    flat = reshape(call.cheap("self"), (size,))
    return flat.view(call.shape, as_index(positions, *variables(call.shape)))


# ---- advanced indexing -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Selection:
    """The elements that `x[indices]` names: dims of the region, position in x of each element."""

    shape: tuple[Extent, ...]
    indices: tuple[Index, ...]


@rule("index.Tensor _unsafe_index.Tensor")
def _index(call: Call) -> Lazy:
    """Of a selection without elements eager looks at no position."""
    lazy = call.tensor("self")
    if 0 in call.shape:
        return _empty(call)
    arguments = call.arguments["indices"]
    assert isinstance(arguments, tuple)
    tables = {n: call.low.tensor(item) for n, item in enumerate(arguments) if item is not None}
    _require_dependence(lazy, tables)
    selection = selected(call, lazy.shape)
    return call.cheap("self").view(selection.shape, *selection.indices)


def selected(call: Call, shape: tuple[Extent, ...]) -> Selection:
    """The selection of the argument `indices`, by numpy's rules for where its dims go."""
    arguments = call.arguments["indices"]
    assert isinstance(arguments, tuple)
    tensors = [None if item is None else call.low.tensor(item) for item in arguments]
    if any(lazy is not None and not lazy.dtype.is_integer for lazy in tensors):
        raise Decline("a mask selects a number of elements that depends on the data")
    if any(lazy is not None and lazy.dtype is DType.U8 for lazy in tensors):
        raise Decline("a mask of bytes")
    placed = [n for n, lazy in enumerate(tensors) if lazy is not None]
    common: tuple[Extent, ...] = ()
    for lazy in tensors:
        common = common if lazy is None else broadcast_dims(common, lazy.shape)
    return _arranged(call, shape, arguments, placed, common)


def _arranged(
    call: Call,
    shape: tuple[Extent, ...],
    arguments: tuple[Argument, ...],
    placed: list[int],
    common: tuple[Extent, ...],
) -> Selection:
    free = [dim for dim in range(len(shape)) if dim not in placed]
    adjacent = not placed or placed == list(range(placed[0], placed[-1] + 1))
    lead = [dim for dim in free if dim < placed[0]] if placed and adjacent else []
    tail = [dim for dim in free if dim not in lead]
    region = (*(shape[d] for d in lead), *common, *(shape[d] for d in tail))
    places = variables(region)
    inner = places[len(lead) : len(lead) + len(common)]
    indices = [Index()] * len(shape)
    for dim, place in zip(lead, places, strict=False):
        indices[dim] = place
    for dim, place in zip(tail, places[len(lead) + len(common) :], strict=True):
        indices[dim] = place
    if 0 in region:
        return Selection(region, tuple(indices))  # no position is looked at
    for number, dim in enumerate(placed):  # ATen counts the dims that are indexed
        lazy = call.low.tensor(arguments[dim])
        positions = position_of(call, arguments[dim], lazy, number, shape[dim])
        indices[dim] = as_index(broadcast(positions, common), *inner)
    return Selection(region, tuple(indices))
