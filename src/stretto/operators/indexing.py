"""Accesses at computed positions: embedding, gather, scatter, advanced indexing.

Positions in a tensor are brought into range (negative ones count from the end, if torch allows
it) and checked in the run. A position that is one number for the whole op becomes a register, so
that the access stays affine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    index_loads,
    loads,
    parts,
)
from stretto.ir.core import Value, argument_values
from stretto.ir.ops import Argument, TensorOp
from stretto.ir.types import DType
from stretto.lowering.emit import apply, compute_dtype, mapped, where
from stretto.lowering.lazy import (
    Lazy,
    broadcast,
    cast,
    placed_at,
    reshape,
    stored,
    variables,
    whole_buffer,
)
from stretto.lowering.rules import Decline, TensorOpCall, rule, static_size
from stretto.operators.products import broadcast_dims
from stretto.ops.arguments import argument, value_argument
from stretto.ops.infer import named_arguments
from stretto.ops.positions import out_of_range
from stretto.ops.properties import properties
from stretto.ops.table import Fails, PositionArgument, Reach, describe
from stretto.passes.batching.rules import Batch, NotBatchable, batches, rebuilt, shifted

# ---- properties ------------------------------------------------------------------------------

_NO_VALUE = "index out of range in self"
_INNER = "RuntimeError", "INDICES element is out of DATA bounds|, id={} axis_dim={size}"
describe("masked_scatter", fails=Fails.VALUES)  # too few elements
describe("index_fill", positions=PositionArgument(Reach.WRITTEN, wraps=True))
describe("index_add", positions=PositionArgument(Reach.WRITTEN, error="RuntimeError"))
describe(
    "index_copy",
    positions=PositionArgument(
        Reach.WRITTEN,
        message="index_copy_(): index {} is out of bounds for dimension {dim}| with size {size}",
    ),
)
describe(
    "gather scatter scatter_add scatter_reduce",
    positions=PositionArgument(Reach.DIM, error="RuntimeError"),
)
describe("index_select", positions=PositionArgument(Reach.DIM, message=_NO_VALUE, inner=_INNER))
describe("embedding", positions=PositionArgument(Reach.ROWS, "indices", message=_NO_VALUE))
describe(
    "take",
    positions=PositionArgument(
        Reach.FLAT,
        wraps=True,
        message="out of range: tried to access index {} on a tensor of {size} elements.",
    ),
)
describe("index index_put", positions=PositionArgument(Reach.TABLES, "indices", wraps=True))
describe("index_put scatter.src scatter.value", updates=True)
describe("embedding index_select index_add index_copy index_fill take", whole=True)


def checked(expr: Expr, size: Extent, number: int, wraps: bool = True) -> Index:
    """Return a computed position in a dim of `size`, checked at run time by check `number`."""
    place, limit = cast(expr, DType.I64), Position(Index.of(size))
    if wraps and expr.dtype is not DType.U8:
        below = apply("lt", place, Const(0, DType.I64))
        place = where(below, apply("add", place, limit), place)
    return dynamic_index(Apply("checked", (place, limit, Const(number, DType.I64)), DType.I64))


def position_of(call: TensorOpCall, argument: Argument, lazy: Lazy, dim: int, size: Extent) -> Lazy:
    """Return a tensor of positions in `dim` as a lazy tensor of i64, in range and checked."""
    if not lazy.dtype.is_integer:
        raise Decline("positions must be integers")
    known = properties(call.op.target).positions
    wraps = known is None or known.wraps
    if is_single(lazy) and isinstance(argument, Value):
        failure = out_of_range(call.op.target, dim, size)
        index = call.low.position(argument, size, failure, wraps=wraps)
        return Lazy(DType.I64, lazy.shape, Position(index))
    lazy = lazy if lazy.is_stored else call.low.materialised(argument)
    number = call.low.stop(out_of_range(call.op.target, dim, size, wraps))
    return Lazy(DType.I64, lazy.shape, Position(checked(lazy.expr, size, number, wraps)))


def as_index(lazy: Lazy, *indices: Index) -> Index:
    """Return the element of a lazy tensor of positions as an index."""
    return dynamic_index(lazy.at(*indices))


@rule("embedding")
def _embedding(call: TensorOpCall) -> Lazy:
    weight = call.tensor("weight")
    _require_dependence(weight, {0: call.tensor("indices")})
    positions = _positions(call, "indices", 0, weight.shape[0])
    *lead, column = variables(call.shape)
    return weight.view(call.shape, as_index(positions, *lead), column)


def _require_dependence(source: Lazy, tables: Mapping[int, Lazy]) -> None:
    """Decline if elements do not depend on the position in a dim (one of size 1, or an expanded
    one): nothing would compute and check the positions. Must be called before anything is emitted.

    tables: the positions, by dim. A single position is checked in control and needs no dependence.
    """
    read = set[Atom]()
    for part in parts(source.expr):
        match part:
            case Load(access):
                read.update(atom for index in access.index for atom in index.atoms())
            case Position(index):
                read.update(index.atoms())
            case _:
                pass
    if any(Var(dim) not in read for dim, table in tables.items() if not is_single(table)):
        raise Decline("no element depends on the positions")


def is_single(positions: Lazy) -> bool:
    return all(size == 1 for size in positions.shape)


def _empty(call: TensorOpCall) -> Lazy:
    """Return a result without elements, which reads nothing."""
    return Lazy(call.dtype, call.shape, cast(Const(0, DType.I64), call.dtype))


def _positions(call: TensorOpCall, name: str, dim: int, size: Extent) -> Lazy:
    return position_of(call, call.arguments[name], call.tensor(name), dim, size)


@rule("index_select")
def _index_select(call: TensorOpCall) -> Lazy:
    lazy = call.tensor("self")
    if lazy.rank == 0:
        _positions(call, "index", 0, 1)  # emits the check of the only position
        return lazy
    dim = call.axis(lazy.rank)
    _require_dependence(lazy, {dim: call.tensor("index")})
    positions = _positions(call, "index", dim, lazy.shape[dim])
    indices = list(variables(call.shape))
    indices[dim] = as_index(positions, *((indices[dim],) if positions.rank else ()))
    return call.cheap("self").view(call.shape, *indices)


@rule("gather")
def _gather(call: TensorOpCall) -> Lazy:
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
def _take(call: TensorOpCall) -> Lazy:
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
    """The elements selected by `x[indices]`: dims of the region, and the position in x of each
    element."""

    shape: tuple[Extent, ...]
    indices: tuple[Index, ...]


@rule("index.Tensor _unsafe_index.Tensor")
def _index(call: TensorOpCall) -> Lazy:
    """If nothing is selected, no position is checked, as in eager PyTorch."""
    lazy = call.tensor("self")
    if 0 in call.shape:
        return _empty(call)
    arguments = call.arguments["indices"]
    assert isinstance(arguments, tuple)
    tables = {n: call.low.tensor(item) for n, item in enumerate(arguments) if item is not None}
    _require_dependence(lazy, tables)
    selection = selected(call, lazy.shape)
    return call.cheap("self").view(selection.shape, *selection.indices)


def selected(call: TensorOpCall, shape: tuple[Extent, ...]) -> Selection:
    """Return the selection of the argument `indices`; its dims are placed by numpy's rules."""
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
    call: TensorOpCall,
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
        return Selection(region, tuple(indices))  # eager checks no position here
    for number, dim in enumerate(placed):  # ATen's messages number only the indexed dims
        lazy = call.low.tensor(arguments[dim])
        positions = position_of(call, arguments[dim], lazy, number, shape[dim])
        indices[dim] = as_index(broadcast(positions, common), *inner)
    return Selection(region, tuple(indices))


# ---- Writing elements at computed positions: scatter, index_put, index_add and the like -------
#
# The result begins as the base, in a buffer that may be changed: the base's own buffer if no later
# op reads it, else a copy (`Lowering.updatable`). Then one operator writes the region.


def write(
    call: TensorOpCall, source: Callable[[], Lazy], selection: Selection, accumulate: bool = False
) -> Lazy:
    """Return the base with the selected elements replaced (or increased) by those of `source`.

    `source` is called after the base may be changed, because operands that read it are stored
    by then.
    """
    base = whole_buffer(call.tensor("self"))
    positions = [load for index in selection.indices for load in index_loads(index)]
    if any(load.access.buffer == base for load in positions):  # the update still reads them
        buffer = call.low.new_buffer("copy", call.dtype, call.shape)
        call.low.store(call.tensor("self"), buffer)
    else:
        buffer = call.low.updatable(call.value("self"), call.result)
    if 0 not in selection.shape:
        lazy = source()
        if any(load.access.buffer == buffer for load in loads(lazy.expr)):  # it reads its target
            lazy = call.low.store(lazy, call.low.new_buffer("source", lazy.dtype, lazy.shape))
        value = cast(lazy.expr, compute_dtype(call.dtype) if accumulate else call.dtype)
        out = placed_at(buffer, call.shape, selection.indices)
        call.low.write("update", selection.shape, value, out, accumulate)
    return stored(buffer, call.shape)


# ---- computed positions ----------------------------------------------------------------------


@rule("index_put _unsafe_index_put")
def _index_put(call: TensorOpCall) -> Lazy:
    selection = selected(call, call.shape)
    if 0 in selection.shape:
        return call.tensor("self")

    def values() -> Lazy:
        return broadcast(call.tensor("values"), selection.shape)

    return write(call, values, selection, call.flag("accumulate"))


_SCATTERS = {False: "scatter.src scatter.value", True: "scatter_add scatter_reduce.two"}
_ALONG_DIM = {False: "index_copy index_fill.int_Scalar index_fill.int_Tensor", True: "index_add"}
"""Operators that overwrite (False), and those that add to the elements (True)."""


for _adds, _names in _SCATTERS.items():

    @rule(_names)
    def _scatter(call: TensorOpCall, adds: bool = _adds) -> Lazy:
        """self[..., index[i, j, ...], ...] = source[i, j, ...] along `dim`.

        An index without elements may have any number of dims.
        """
        if "reduce" in call.arguments and (
            call.text("reduce") != "sum" or not call.flag("include_self")
        ):
            raise Decline("a reduction other than a sum")
        index = call.tensor("index")
        if 0 in index.shape:
            return call.tensor("self")
        dim, positions = _update_positions(call, index)
        own = variables(index.shape)
        indices = [*own[:dim], as_index(positions, *own), *own[dim + 1 :]]

        def source() -> Lazy:
            lazy = _source(call)
            return lazy.view(index.shape, *own) if lazy.rank else broadcast(lazy, index.shape)

        return write(call, source, Selection(index.shape, tuple(indices)), adds)


for _adds, _names in _ALONG_DIM.items():

    @rule(_names)
    def _index_along(call: TensorOpCall, adds: bool = _adds) -> Lazy:
        """self[..., index[i], ...] = source[..., i, ...] along `dim`.

        Positions in a tensor without elements are not checked, as in eager PyTorch.
        """
        if 0 in call.shape:
            return call.tensor("self")
        index = call.tensor("index")
        if index.rank != 1:
            raise Decline("no dims")
        dim, positions = _update_positions(call, index)
        shape = (*call.shape[:dim], index.shape[0], *call.shape[dim + 1 :])
        indices = list(variables(shape))
        indices[dim] = as_index(positions, indices[dim])
        selection = Selection(shape, tuple(indices))
        return write(call, lambda: broadcast(_source(call), shape), selection, adds)


def _update_positions(call: TensorOpCall, index: Lazy) -> tuple[int, Lazy]:
    rank = len(call.shape)
    if rank == 0 or index.rank == 0:
        raise Decline("no dims")
    dim = call.axis(rank)
    return dim, position_of(call, call.arguments["index"], index, dim, call.shape[dim])


def _source(call: TensorOpCall) -> Lazy:
    """Return the values to write: a tensor, possibly scaled, or a number as a lazy tensor."""
    if "value" in call.arguments:
        return Lazy(call.dtype, (), cast(call.scalar("value"), call.dtype))
    source = call.tensor("src" if "src" in call.arguments else "source")
    if call.arguments.get("alpha", 1) == 1:
        return source
    expr = cast(source.expr, compute_dtype(call.dtype))
    return mapped(source, apply("mul", expr, cast(call.scalar("alpha"), expr.dtype)))


# ---- Batching: positions that differ between iterations ----------------------------------------
#
# If the tensor differs too, the iteration number becomes a position in its leading dim.


def iteration_numbers(batch: Batch, rank: int) -> Value:
    """Return the iteration numbers, shaped to broadcast with twins of positions of `rank` dims."""
    counted = batch.emit("aten.arange.default", batch.length)
    return batch.reshape(counted, (batch.length, *(1,) * rank))


def source_dim(op: TensorOp, rank: int) -> int:
    dim = argument(op, "dim")
    if not isinstance(dim, int) or rank == 0:
        raise NotBatchable("its operand has no dims")
    return dim % rank


@batches("index_select.default")
def _batch_index_select(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    source, index = value_argument(op, "self"), value_argument(op, "index")
    if source is None or index is None or index.tensor.rank != 1:
        raise NotBatchable("its operand has no dims")
    dim = source_dim(op, source.tensor.rank)
    if not batch.is_batched(index):
        return rebuilt(batch, op, {"self": batch.twins[source], "dim": dim + 1})
    taken = taken_elements(batch, source, dim, index)  # [n, k, ...], where k replaces `dim`
    order = [0, *range(2, dim + 2), 1, *range(dim + 2, source.tensor.rank + 1)]
    return (batch.permute(taken, tuple(order)),)


def taken_elements(batch: Batch, source: Value, dim: int, index: Value) -> Value:
    """Return the elements of `dim` at positions that differ between iterations: [n, *positions,
    *other dims]."""
    first = (dim, *(other for other in range(source.tensor.rank) if other != dim))
    if not batch.is_batched(source):
        operand = batch.permute(batch.operand(source), first)
        return batch.emit("aten.index.Tensor", operand, (batch.twins[index],))
    operand = batch.permute(batch.twins[source], (0, *(place + 1 for place in first)))
    numbers = iteration_numbers(batch, index.tensor.rank)
    return batch.emit("aten.index.Tensor", operand, (numbers, batch.twins[index]))


@batches("index.Tensor")
def _batch_index(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    """Indexing of the leading dims only: positions that differ between iterations put the
    iteration first in the result."""
    source, indices = value_argument(op, "self"), argument(op, "indices")
    values = argument_values(indices)
    if source is None or not isinstance(indices, tuple) or len(values) != len(indices):
        raise NotBatchable("a dim before an index is not indexed")
    if any(value.tensor.dtype.value in ("bool", "u8") for value in values):
        raise NotBatchable("it is indexed by a mask")
    if batch.is_batched(source) and not any(map(batch.is_batched, values)):
        return rebuilt(batch, op, {"self": batch.twins[source], "indices": (None, *indices)})
    rank = max(value.tensor.rank for value in values)
    aligned: tuple[Value, ...] = tuple(batch.aligned(value, rank) for value in values)
    if batch.is_batched(source):
        aligned = (iteration_numbers(batch, rank), *aligned)
        return rebuilt(batch, op, {"self": batch.twins[source], "indices": aligned})
    return rebuilt(batch, op, {"indices": aligned})


@batches("gather.default scatter.src scatter.value scatter_add.default scatter_reduce.two")
def batch_along_dim(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    """Operators along a dim whose tensors all have one rank: every tensor gets the leading dim,
    and `dim` is one higher."""
    changed: dict[str, Argument] = {"dim": shifted(argument(op, "dim"))}
    for parameter, item in named_arguments(op.target, op.args, op.kwargs):
        if isinstance(item, Value):
            if not parameter.is_tensor:
                raise NotBatchable("a number differs from iteration to iteration")
            if item.tensor.rank == 0 and parameter.name != "src":
                raise NotBatchable("its operand has no dims")
            changed[parameter.name] = batch.expanded(item)
    return rebuilt(batch, op, changed)


@batches("embedding.default")
def _batch_embedding(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    table, rows = value_argument(op, "weight"), value_argument(op, "indices")
    if batch.is_batched(table) or rows is None or not batch.is_batched(rows):
        raise NotBatchable("the table differs from iteration to iteration")
    return rebuilt(batch, op, {"indices": batch.twins[rows]})
