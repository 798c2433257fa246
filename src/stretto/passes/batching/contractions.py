"""Rules of `batch_rules` for contractions: rows of all iterations go through one product.

Where one operand is the same in each iteration, the iterations become rows of the other one, so
that a weight is read once for all of them. Where both differ, the product becomes a batched one.
"""

from __future__ import annotations

from stretto.ir.core import Value
from stretto.ir.ops import TensorOp
from stretto.ir.types import Dim
from stretto.ops.arguments import argument, value_argument
from stretto.passes.batching.batch import Batch, Stays, times
from stretto.passes.batching.rules import batches, rebuilt

WIDE = 16
"""Columns from which on many products are faster than one product of matrices that are put side by
side (docs/performance.md)."""


def _operands(op: TensorOp, *names: str) -> list[Value]:
    values = [value for name in names if (value := value_argument(op, name)) is not None]
    assert len(values) == len(names)
    return values


def _weighted(batch: Batch, op: TensorOp) -> Value:
    """The input of a product with a weight and a bias that are the same in each iteration."""
    if any(batch.is_batched(value_argument(op, name)) for name in ("weight", "bias")):
        raise Stays("the weight differs from iteration to iteration")
    return _operands(op, "input")[0]


@batches("aten.linear.default")
def _linear(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    source, weight = _operands(op, "input", "weight")
    bias = value_argument(op, "bias")
    if batch.is_batched(weight):
        return (_linear_of_each(batch, source, weight, bias, op.result.tensor.shape),)
    if bias is not None and (batch.is_batched(bias) or not batch.is_batched(source)):
        operands = batch.operand(source), batch.operand(weight)
        product = batch.emit("aten.linear.default", *operands)
        return (batch.emit("aten.add.Tensor", product, batch.aligned(bias, op.result.tensor.rank)),)
    return rebuilt(batch, op, {"input": batch.twins[_weighted(batch, op)]})


def _linear_of_each(
    batch: Batch, source: Value, weight: Value, bias: Value | None, shape: tuple[Dim, ...]
) -> Value:
    """A linear layer whose weight differs: a product of matrices for each iteration."""
    if weight.tensor.rank != 2 or not source.tensor.rank:
        raise Stays("the weight is not a matrix")
    rows: Dim = 1
    for dim in source.tensor.shape[:-1]:
        rows = times(rows, dim)
    inner = source.tensor.shape[-1]
    left = batch.reshape(batch.expanded(source), (batch.length, rows, inner))
    right = batch.permute(batch.twins[weight], (0, 2, 1))
    product = batch.split_rows(batch.emit("aten.bmm.default", left, right), shape)
    if bias is None:
        return product
    return batch.emit("aten.add.Tensor", product, batch.aligned(bias, len(shape)))


@batches(
    "aten.convolution.default", "aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default"
)
def _convolution(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    source = _weighted(batch, op)
    has_batch = source.tensor.rank == _operands(op, "weight")[0].tensor.rank
    rows = batch.merge_rows(batch.twins[source]) if has_batch else batch.twins[source]
    (product,) = rebuilt(batch, op, {"input": rows})
    return (batch.split_rows(product, op.result.tensor.shape) if has_batch else product,)


@batches("aten.mm.default")
def _mm(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    left, right = _operands(op, "self", "mat2")
    return (_matrix_product(batch, left, right, op.result.tensor.shape),)


def _matrix_product(batch: Batch, left: Value, right: Value, shape: tuple[Dim, ...]) -> Value:
    """The twin of a product of two matrices with a result of `shape`."""
    if batch.is_batched(left) and batch.is_batched(right):
        return batch.emit("aten.bmm.default", batch.twins[left], batch.twins[right])
    if batch.is_batched(left):
        rows = batch.merge_rows(batch.twins[left])
        product = batch.emit("aten.mm.default", rows, batch.operand(right))
        return batch.split_rows(product, shape)
    # [M, K] x [T, K, N]. Where N fills the vectors of a machine, each matrix is multiplied where it
    # lies. Fewer columns of all iterations are put side by side, which transposes them twice.
    inner, columns = right.tensor.shape
    if isinstance(columns, int) and columns >= WIDE:
        # Not a matmul: torch 2.11 and 2.12 infer it for the one size only that stands for all.
        return batch.emit("aten.bmm.default", batch.expanded(left), batch.twins[right])
    turned = batch.permute(batch.twins[right], (1, 0, 2))
    flat = batch.reshape(turned, (inner, times(batch.length, columns)))
    product = batch.emit("aten.mm.default", batch.operand(left), flat)
    return batch.permute(batch.reshape(product, (shape[0], batch.length, columns)), (1, 0, 2))


@batches("aten.addmm.default")
def _addmm(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    alpha, beta = argument(op, "alpha"), argument(op, "beta")
    is_scaled = alpha != 1 or beta != 1
    if is_scaled and (beta == 0 or not op.result.tensor.dtype.is_float):
        raise Stays("the product is scaled")
    bias, left, right = _operands(op, "self", "mat1", "mat2")
    result = op.result.tensor
    one_row = bias.tensor.rank == 1 or bias.tensor.shape[:1] == (1,)
    if one_row and not is_scaled and not batch.is_batched(bias) and not batch.is_batched(right):
        rows = batch.merge_rows(batch.twins[left])
        row_bias, weight = batch.operand(bias), batch.operand(right)
        product = batch.emit("aten.addmm.default", row_bias, rows, weight)
        return (batch.split_rows(product, result.shape),)
    if not batch.is_batched(left) and not batch.is_batched(right):
        product = batch.emit("aten.mm.default", batch.operand(left), batch.operand(right))
    else:
        product = _matrix_product(batch, left, right, result.shape)
    added = batch.aligned(bias, result.rank)
    if is_scaled:
        product = batch.emit("aten.mul.Scalar", product, alpha)
        added = batch.emit("aten.mul.Scalar", added, beta)
    return (batch.emit("aten.add.Tensor", product, added),)


@batches("aten.mv.default")
def _mv(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    matrix, vector = _operands(op, "self", "vec")
    if not batch.is_batched(matrix):
        return (batch.emit("aten.linear.default", batch.twins[vector], batch.operand(matrix)),)
    if batch.is_batched(vector):
        return (_matmul_of_each(batch, matrix, vector, op.result.tensor.shape),)
    flat = batch.merge_rows(batch.twins[matrix])
    product = batch.emit("aten.mv.default", flat, batch.operand(vector))
    return (batch.split_rows(product, matrix.tensor.shape[:1]),)


@batches("aten.matmul.default")
def _matmul(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    left, right = _operands(op, "self", "other")
    ranks = left.tensor.rank, right.tensor.rank
    if not batch.is_batched(right) and ranks[1] == 2:
        return (batch.emit("aten.matmul.default", batch.twins[left], batch.operand(right)),)
    if ranks == (2, 1) and not batch.is_batched(left):
        return (batch.emit("aten.linear.default", batch.twins[right], batch.operand(left)),)
    return (_matmul_of_each(batch, left, right, op.result.tensor.shape),)


@batches("aten.dot.default")
def _dot(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    left, right = _operands(op, "self", "tensor")
    return (_matmul_of_each(batch, left, right, op.result.tensor.shape),)


def _matmul_of_each(batch: Batch, left: Value, right: Value, shape: tuple[Dim, ...]) -> Value:
    """A product for each iteration, of matrices that broadcast; a vector becomes a matrix of one
    row or column, so that all products are one operator."""
    rank = max(2, left.tensor.rank, right.tensor.rank)

    def matrices(value: Value, vector: tuple[Dim, ...]) -> Value:
        own = vector if value.tensor.rank == 1 else value.tensor.shape
        if batch.is_batched(value):
            own = (batch.length, *(1,) * (rank - len(own)), *own)
        return batch.reshape(batch.operand(value), own)

    operands = (
        matrices(left, (1, left.tensor.shape[-1])),
        matrices(right, (right.tensor.shape[0], 1)),
    )
    return batch.split_rows(batch.emit("aten.matmul.default", *operands), shape)


@batches("aten.bmm.default")
def _bmm(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    left, right = _operands(op, "self", "mat2")
    shape, length = op.result.tensor.shape, batch.length
    count, rows, columns = shape
    if batch.is_batched(left) and batch.is_batched(right):
        parts = (batch.merge_rows(batch.twins[value]) for value in (left, right))
        return (batch.split_rows(batch.emit("aten.bmm.default", *parts), shape),)
    if batch.is_batched(left):
        turned = batch.permute(batch.twins[left], (1, 0, 2, 3))
        flat = batch.reshape(turned, (count, times(length, rows), left.tensor.shape[2]))
        product = batch.emit("aten.bmm.default", flat, batch.operand(right))
        split = batch.reshape(product, (count, length, rows, columns))
        return (batch.permute(split, (1, 0, 2, 3)),)
    turned = batch.permute(batch.twins[right], (1, 2, 0, 3))
    flat = batch.reshape(turned, (count, right.tensor.shape[1], times(length, columns)))
    product = batch.emit("aten.bmm.default", batch.operand(left), flat)
    split = batch.reshape(product, (count, rows, length, columns))
    return (batch.permute(split, (2, 0, 1, 3)),)
