"""Rules of `batch_rules` for contractions: rows of all iterations go through one product.

Where one operand is the same in each iteration, the iterations become rows of the other one, so
that a weight is read once for all of them. Where both differ, the product becomes a batched one.
"""

from __future__ import annotations

from stretto.ir.core import Value
from stretto.ir.ops import TensorOp
from stretto.ir.types import Dim
from stretto.passes.batch import Batch, Rule
from stretto.passes.operator_arguments import argument, value_argument, with_arguments

_BOTH = "both operands differ from iteration to iteration, and are not matrices"


def _linear(batch: Batch, op: TensorOp) -> tuple[Value, ...] | str:
    rows, weight = value_argument(op, "input"), value_argument(op, "weight")
    bias = value_argument(op, "bias")
    if rows is None or weight is None:
        return "an operand is missing"
    if batch.is_batched(weight) or batch.is_batched(bias):
        return "the weight differs from iteration to iteration"
    twin = with_arguments(op, {"input": batch.twins[rows]})
    twin.substitute(lambda value: batch.invariants.get(value, value))
    return batch.add(twin).results


def _mm(batch: Batch, op: TensorOp) -> tuple[Value, ...] | str:
    left, right = value_argument(op, "self"), value_argument(op, "mat2")
    assert left is not None and right is not None
    return (_matrix_product(batch, left, right, op.result.tensor.shape),)


def _matrix_product(batch: Batch, left: Value, right: Value, shape: tuple[Dim, ...]) -> Value:
    """The twin of a product of two matrices with a result of `shape`."""
    if batch.is_batched(left) and batch.is_batched(right):
        return batch.emit("aten.bmm.default", batch.twins[left], batch.twins[right])
    if batch.is_batched(left):
        rows = batch.merge_rows(batch.twins[left])
        product = batch.emit("aten.mm.default", rows, batch.operand(right))
        return batch.split_rows(product, shape)
    # [M, K] x [T, K, N]: the iterations become columns.
    inner, columns = right.tensor.shape
    turned = batch.permute(batch.twins[right], (1, 0, 2))
    flat = batch.reshape(turned, (inner, _times(batch.length, columns)))
    product = batch.emit("aten.mm.default", batch.operand(left), flat)
    return batch.permute(batch.reshape(product, (shape[0], batch.length, columns)), (1, 0, 2))


def _times(length: Dim, size: Dim) -> Dim:
    return length * size if isinstance(length, int) and isinstance(size, int) else -1


def _addmm(batch: Batch, op: TensorOp) -> tuple[Value, ...] | str:
    bias = value_argument(op, "self")
    left, right = value_argument(op, "mat1"), value_argument(op, "mat2")
    if argument(op, "alpha") != 1 or argument(op, "beta") != 1:
        return "the product is scaled"
    assert bias is not None and left is not None and right is not None
    result = op.result.tensor
    one_row = bias.tensor.rank == 1 or bias.tensor.shape[:1] == (1,)
    if one_row and not batch.is_batched(bias) and not batch.is_batched(right):
        rows = batch.merge_rows(batch.twins[left])
        row_bias, weight = batch.operand(bias), batch.operand(right)
        product = batch.emit("aten.addmm.default", row_bias, rows, weight)
        return (batch.split_rows(product, result.shape),)
    if not batch.is_batched(left) and not batch.is_batched(right):
        product = batch.emit("aten.mm.default", batch.operand(left), batch.operand(right))
    else:
        product = _matrix_product(batch, left, right, result.shape)
    return (batch.emit("aten.add.Tensor", product, batch.aligned(bias, result.rank)),)


def _mv(batch: Batch, op: TensorOp) -> tuple[Value, ...] | str:
    matrix, vector = value_argument(op, "self"), value_argument(op, "vec")
    assert matrix is not None and vector is not None
    if not batch.is_batched(matrix):
        return (batch.emit("aten.linear.default", batch.twins[vector], batch.operand(matrix)),)
    if batch.is_batched(vector):
        return _BOTH
    rows, inner = matrix.tensor.shape
    flat = batch.merge_rows(batch.twins[matrix])
    product = batch.emit("aten.mv.default", flat, batch.operand(vector))
    assert inner == vector.tensor.shape[0]
    return (batch.split_rows(product, (rows,)),)


def _matmul(batch: Batch, op: TensorOp) -> tuple[Value, ...] | str:
    left, right = value_argument(op, "self"), value_argument(op, "other")
    assert left is not None and right is not None
    ranks = left.tensor.rank, right.tensor.rank
    if not batch.is_batched(right) and ranks[1] == 2:
        return (batch.emit("aten.matmul.default", batch.twins[left], batch.operand(right)),)
    if ranks == (2, 1) and not batch.is_batched(left):
        return (batch.emit("aten.linear.default", batch.twins[right], batch.operand(left)),)
    if min(ranks) < 2:
        return _BOTH if batch.is_batched(left) else "the second operand is a vector"
    rank = max(ranks)
    return (
        batch.emit("aten.matmul.default", batch.aligned(left, rank), batch.aligned(right, rank)),
    )


def _bmm(batch: Batch, op: TensorOp) -> tuple[Value, ...] | str:
    left, right = value_argument(op, "self"), value_argument(op, "mat2")
    assert left is not None and right is not None
    count, rows, columns = op.result.tensor.shape
    length = batch.length
    if batch.is_batched(left) and batch.is_batched(right):
        parts = batch.merge_rows(batch.twins[left]), batch.merge_rows(batch.twins[right])
        product = batch.emit("aten.bmm.default", *parts)
        return (batch.split_rows(product, op.result.tensor.shape),)
    if batch.is_batched(left):
        inner = left.tensor.shape[2]
        turned = batch.permute(batch.twins[left], (1, 0, 2, 3))
        flat = batch.reshape(turned, (count, _times(length, rows), inner))
        product = batch.emit("aten.bmm.default", flat, batch.operand(right))
        split = batch.reshape(product, (count, length, rows, columns))
        return (batch.permute(split, (1, 0, 2, 3)),)
    inner = right.tensor.shape[1]
    turned = batch.permute(batch.twins[right], (1, 2, 0, 3))
    flat = batch.reshape(turned, (count, inner, _times(length, columns)))
    product = batch.emit("aten.bmm.default", batch.operand(left), flat)
    split = batch.reshape(product, (count, rows, length, columns))
    return (batch.permute(split, (2, 0, 1, 3)),)


def _convolution(batch: Batch, op: TensorOp) -> tuple[Value, ...] | str:
    source, weight = value_argument(op, "input"), value_argument(op, "weight")
    bias = value_argument(op, "bias")
    assert source is not None and weight is not None
    if batch.is_batched(weight) or batch.is_batched(bias):
        return "the weight differs from iteration to iteration"
    has_batch = source.tensor.rank == weight.tensor.rank
    rows = batch.merge_rows(batch.twins[source]) if has_batch else batch.twins[source]
    twin = with_arguments(op, {"input": rows})
    twin.substitute(lambda value: batch.invariants.get(value, value))
    product = batch.add(twin).result
    return (batch.split_rows(product, op.result.tensor.shape) if has_batch else product,)


CONTRACTION_RULES: dict[str, Rule] = {
    "aten.linear.default": _linear,
    "aten.mm.default": _mm,
    "aten.addmm.default": _addmm,
    "aten.mv.default": _mv,
    "aten.matmul.default": _matmul,
    "aten.bmm.default": _bmm,
    "aten.convolution.default": _convolution,
    "aten.conv1d.default": _convolution,
    "aten.conv2d.default": _convolution,
    "aten.conv3d.default": _convolution,
}
