"""Rules of `batch_rules` for positions that differ from iteration to iteration.

Where the tensor differs, too, the number of the iteration is a position in its leading dim.
"""

from __future__ import annotations

from stretto.ir.core import Value
from stretto.ir.ops import Argument, TensorOp, argument_values
from stretto.ops.arguments import argument, value_argument
from stretto.ops.infer import named_arguments
from stretto.ops.table import ShiftDims
from stretto.passes.batching.batch import Batch, Stays
from stretto.passes.batching.rules import batches, rebuilt, shift_dims, shifted


def _numbers(batch: Batch, rank: int) -> Value:
    """The numbers of the iterations, to be used beside positions of `rank` dims each."""
    counted = batch.emit("aten.arange.default", batch.length)
    return batch.reshape(counted, (batch.length, *(1,) * rank))


def _dim(op: TensorOp, rank: int) -> int:
    dim = argument(op, "dim")
    if not isinstance(dim, int) or rank == 0:
        raise Stays("its operand has no dims")
    return dim % rank


@batches("aten.select.int")
def _select(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    source, index = value_argument(op, "self"), value_argument(op, "index")
    if source is None or index is None or not batch.is_batched(index):
        return shift_dims(batch, op, ShiftDims())
    return (_taken(batch, source, _dim(op, source.tensor.rank), index),)


@batches("aten.index_select.default")
def _index_select(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    source, index = value_argument(op, "self"), value_argument(op, "index")
    if source is None or index is None or index.tensor.rank != 1:
        raise Stays("its operand has no dims")
    dim = _dim(op, source.tensor.rank)
    if not batch.is_batched(index):
        return rebuilt(batch, op, {"self": batch.twins[source], "dim": dim + 1})
    taken = _taken(batch, source, dim, index)  # [n, k, ...], and k belongs to `dim`
    order = [0, *range(2, dim + 2), 1, *range(dim + 2, source.tensor.rank + 1)]
    return (batch.permute(taken, tuple(order)),)


def _taken(batch: Batch, source: Value, dim: int, index: Value) -> Value:
    """The elements of `dim` at positions that differ: [n, *positions, *other dims]."""
    first = (dim, *(other for other in range(source.tensor.rank) if other != dim))
    if not batch.is_batched(source):
        operand = batch.permute(batch.operand(source), first)
        return batch.emit("aten.index.Tensor", operand, (batch.twins[index],))
    operand = batch.permute(batch.twins[source], (0, *(place + 1 for place in first)))
    numbers = _numbers(batch, index.tensor.rank)
    return batch.emit("aten.index.Tensor", operand, (numbers, batch.twins[index]))


@batches("aten.index.Tensor")
def _index(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    """Indices from the first dim on: those that differ lead the result, as the iteration does."""
    source, indices = value_argument(op, "self"), argument(op, "indices")
    values = argument_values(indices)
    if source is None or not isinstance(indices, tuple) or len(values) != len(indices):
        raise Stays("a dim before an index is not indexed")
    if any(value.tensor.dtype.value in ("bool", "u8") for value in values):
        raise Stays("it is indexed by a mask")
    if batch.is_batched(source) and not any(map(batch.is_batched, values)):
        return rebuilt(batch, op, {"self": batch.twins[source], "indices": (None, *indices)})
    rank = max(value.tensor.rank for value in values)
    aligned: tuple[Value, ...] = tuple(batch.aligned(value, rank) for value in values)
    if batch.is_batched(source):
        aligned = (_numbers(batch, rank), *aligned)
        return rebuilt(batch, op, {"self": batch.twins[source], "indices": aligned})
    return rebuilt(batch, op, {"indices": aligned})


@batches("aten.select_scatter.default")
def _select_scatter(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    index = value_argument(op, "index")
    if index is None or not batch.is_batched(index):
        return _along_dim(batch, op)
    source, part = value_argument(op, "self"), value_argument(op, "src")
    assert source is not None and part is not None
    rank = source.tensor.rank
    dim = _dim(op, rank)
    first = (0, dim + 1, *(other + 1 for other in range(rank) if other != dim))
    turned = batch.permute(batch.expanded(source), first)
    indices = (_numbers(batch, 0), batch.twins[index])
    put = batch.emit("aten.index_put.default", turned, indices, batch.expanded(part))
    return (batch.permute(put, tuple(first.index(place) for place in range(rank + 1))),)


@batches(
    *("aten.gather.default", "aten.scatter.src", "aten.scatter.value", "aten.scatter_add.default"),
    *("aten.scatter_reduce.two", "aten.slice_scatter.default"),
)
def _along_dim(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    """Tensors of one rank, of which each iteration has its own: the dim moves one up."""
    changed: dict[str, Argument] = {"dim": shifted(argument(op, "dim"))}
    for parameter, item in named_arguments(op.target, op.args, op.kwargs):
        if isinstance(item, Value):
            if not parameter.is_tensor:
                raise Stays("a number differs from iteration to iteration")
            if item.tensor.rank == 0 and parameter.name != "src":
                raise Stays("its operand has no dims")
            changed[parameter.name] = batch.expanded(item)
    return rebuilt(batch, op, changed)
