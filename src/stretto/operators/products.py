"""Contractions: matrix products, single and batched.

Canonical form: combine "sum", value mul(load of A, load of B), dims the dims of the output, one
reduction dim. Operands that are not plain loads are stored first, except results of calls that
may be rows (`row_results`), whose row is the same for all elements. A bias is added lazily to
the result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from stretto.device.expr import Apply, Expr, Extent, Index, Load, is_known, known_size
from stretto.device.operator import Combine
from stretto.ir.core import Value
from stretto.ir.ops import Argument, TensorOp
from stretto.ir.types import Dim, DType
from stretto.lowering.emit import (
    apply,
    compute_dtype,
    emit,
    factor_of,
    index_of,
    number,
    product,
    sum_dtype,
)
from stretto.lowering.lazy import Lazy, broadcast, cast, reshape, whole_buffer
from stretto.lowering.row_results import is_row_in_place, is_row_or_memory
from stretto.lowering.rules import Decline, TensorOpCall, all_static, rule
from stretto.operators.views import reshaped, swapped
from stretto.ops.arguments import argument, value_argument
from stretto.ops.custom_operators import define
from stretto.ops.symints import require
from stretto.ops.table import Cost, Fails, Replaced, describe, shape_rule
from stretto.passes.batching.rules import Batch, NotBatchable, batches, rebuilt, times

# ---- properties ------------------------------------------------------------------------------

describe("linear matmul baddbmm mv addmv dot vdot inner outer ger", fails=Fails.NEVER)


describe("byte_mm", "stretto", fails=Fails.NEVER, cost=Cost.PRODUCT)


describe("linear mm addmm mv addmv matmul bmm baddbmm dot", cost=Cost.PRODUCT)


describe("linear addmm baddbmm", whole=True)


def operand(call: TensorOpCall, argument: Argument) -> Lazy:
    """Return a matrix or vector in the form that contractions need. If that is a copy, later uses
    of the value read it too."""
    lazy = call.low.tensor(argument)
    if is_row_in_place(lazy):
        return lazy
    if not lazy.is_stored and isinstance(argument, Value) and not _is_widening(lazy):
        if is_row_or_memory(lazy):
            return lazy
        lazy = call.low.materialised(argument)
    return factor_of(call.low, lazy)


def _is_widening(lazy: Lazy) -> bool:
    """True for a conversion of plain loads to f32, which needs no copy."""
    match lazy.expr:
        case Apply("cast", (Load() as load,), DType.F32):
            return load.dtype in (DType.F16, DType.BF16)
        case _:
            return False


def matmul(
    call: TensorOpCall, left: Lazy, right: Lazy, result: Value | None, dtype: DType | None = None
) -> Lazy:
    """Emit left [*batch, m, k] times right [*batch, k, n] with batches broadcast; f16 and bf16
    give f32. dtype: that of the computation, if it does not follow from the left operand."""
    batch = broadcast_dims(left.shape[:-2], right.shape[:-2])
    rows, depth, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    dims = (*batch, rows, columns)
    k = index_of(depth, len(dims))
    i, j = (index_of(d, len(batch) + n) for n, d in enumerate((rows, columns)))
    lefts = batch_element(left, batch, (i, k))
    rights = batch_element(right, batch, (k, j))
    dtype = dtype or sum_dtype(left.dtype)
    if depth == 0:
        return Lazy(dtype, dims, number(0, dtype))
    value = product(lefts, rights, dtype)
    return emit(call.low, "contraction", dims, (depth,), Combine.SUM, value, result)


def batch_element(lazy: Lazy, batch: tuple[Extent, ...], last: tuple[Index, Index]) -> Expr:
    """Return element (batch variables, *last) of a tensor with leading dims that broadcast to
    `batch`."""
    own = lazy.shape[:-2]
    lead = len(batch) - len(own)
    indices = [index_of(dim, lead + n) for n, dim in enumerate(own)]
    return lazy.at(*indices, *last)


def broadcast_dims(a: tuple[Extent, ...], b: tuple[Extent, ...]) -> tuple[Extent, ...]:
    """Return the dims that two shapes broadcast to."""
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    return tuple(y if x == 1 else x for x, y in pairs)


def flattened(lazy: Lazy) -> Lazy:
    """Return [*lead, k] as [rows, k] if that is another shape of the same memory."""
    if lazy.rank == 2 or not all(map(is_known, lazy.shape)) or 0 in lazy.shape:
        return lazy
    if not all_static(lazy.shape[1:]) and whole_buffer(lazy) is None:
        return lazy
    moved = reshape(lazy, (known_size(lazy.shape[:-1]), lazy.shape[-1]))
    return moved if _is_widening(moved) or _affine(moved) else lazy


def _affine(lazy: Lazy) -> bool:
    return isinstance(lazy.expr, Load) and lazy.expr.access.offset.is_affine


def finished(call: TensorOpCall, raw: Lazy, bias: Lazy | None = None) -> Lazy:
    """Return the contraction in the dims and dtype of the result, plus a bias."""
    lazy = reshaped(call, raw)
    if bias is None:
        return Lazy(call.dtype, call.shape, cast(lazy.expr, call.dtype))
    added = cast(broadcast(bias, call.shape).expr, lazy.dtype)
    return Lazy(call.dtype, call.shape, cast(apply("add", lazy.expr, added), call.dtype))


@rule("mm bmm")
def _mm(call: TensorOpCall) -> Lazy:
    name = "other" if "other" in call.arguments else "mat2"
    left, right = (operand(call, call.arguments[n]) for n in ("self", name))
    return finished(call, matmul(call, left, right, call.result))


@rule("stretto.byte_mm.default")
def _byte_mm(call: TensorOpCall) -> Lazy:
    left, right = (operand(call, call.arguments[n]) for n in ("bytes", "weight"))
    return matmul(call, left, right, call.result, DType.I32)


@rule("mv")
def _mv(call: TensorOpCall) -> Lazy:
    left, right = (operand(call, call.arguments[n]) for n in ("self", "vec"))
    return finished(call, matmul(call, left, column(right), call.result))


@rule("dot vdot inner")
def _dot(call: TensorOpCall) -> Lazy:
    names = ("self", "tensor" if "tensor" in call.arguments else "other")
    if any(call.tensor(name).rank != 1 for name in names):
        raise Decline("not vectors")
    left, right = (operand(call, call.arguments[n]) for n in names)
    return finished(call, matmul(call, row(left), column(right), call.result))


def row(lazy: Lazy) -> Lazy:
    return reshape(lazy, (1, *lazy.shape))


def column(lazy: Lazy) -> Lazy:
    return reshape(lazy, (*lazy.shape, 1))


@rule("outer ger")
def _outer(call: TensorOpCall) -> Lazy:
    compute = compute_dtype(call.dtype)
    sides = (column(call.cheap("self")), call.cheap("vec2"))
    a, b = (cast(cast(broadcast(x, call.shape).expr, call.dtype), compute) for x in sides)
    return Lazy(call.dtype, call.shape, cast(apply("mul", a, b), call.dtype))


@rule("matmul")
def _matmul(call: TensorOpCall) -> Lazy:
    left, right = (operand(call, call.arguments[n]) for n in ("self", "other"))
    left = row(left) if left.rank == 1 else left
    if right.rank <= 2:
        left = flattened(left)
    right = column(right) if right.rank == 1 else right
    return finished(call, matmul(call, left, right, call.result))


@rule("linear")
def _linear(call: TensorOpCall) -> Lazy:
    left, weight = (operand(call, call.arguments[n]) for n in ("input", "weight"))
    left = flattened(row(left) if left.rank == 1 else left)
    right = column(weight) if weight.rank == 1 else swapped(weight, 0, 1)
    bias = call.optional("bias")
    raw = matmul(call, left, right, None if bias is not None else call.result)
    return finished(call, raw, bias)


@rule("addmm baddbmm addmv")
def _addmm(call: TensorOpCall) -> Lazy:
    if _skips_product(call):
        own = broadcast(call.tensor("self"), call.shape).expr
        none = call.arguments["beta"] == 0
        expr = number(0, call.dtype) if none else scaled(call, "beta", own)
        return Lazy(call.dtype, call.shape, expr)
    names = [name for name in call.arguments if name not in ("self", "beta", "alpha")]
    left, right = (operand(call, call.arguments[name]) for name in names)
    right = column(right) if right.rank == 1 else right
    plain = call.arguments["alpha"] == 1 and call.arguments["beta"] == 0
    raw = reshaped(call, matmul(call, left, right, call.result if plain else None))
    expr = scaled(call, "alpha", raw.expr)
    if call.arguments["beta"] != 0:
        bias = cast(broadcast(call.tensor("self"), call.shape).expr, raw.dtype)
        expr = apply("add", expr, scaled(call, "beta", bias))
    return Lazy(call.dtype, call.shape, cast(expr, call.dtype))


def _skips_product(call: TensorOpCall) -> bool:
    """True if ATen skips the product: with alpha 0, BLAS does not read the factors, which may be
    NaN or infinite. ATen's own loops do multiply: those for f16 and bf16, and (depending on
    sizes) for batches."""
    if call.arguments["alpha"] != 0 or call.op.target == "aten.baddbmm.default":
        return False
    return call.dtype in (DType.F32, DType.F64)


def scaled(call: TensorOpCall, name: str, expr: Expr) -> Expr:
    """Return the expression times a scalar argument of the op; unchanged if that is 1."""
    if call.arguments[name] == 1:
        return expr
    return apply("mul", expr, cast(call.scalar(name), expr.dtype))


# ---- Batching: the rows of all iterations become one product -----------------------------------
#
# If one operand is the same in every iteration, the iterations become rows of the other one, so
# that a weight is read once for all of them. If both differ, the product becomes a batched one.


WIDE = 16
"""Number of columns from which N separate products are faster than one product of the matrices put
side by side (docs/explanation/performance.md)."""


def value_arguments(op: TensorOp, *names: str) -> list[Value]:
    values = [value for name in names if (value := value_argument(op, name)) is not None]
    assert len(values) == len(names)
    return values


def batched_input(batch: Batch, op: TensorOp) -> Value:
    """Return the input of a product. Raises NotBatchable unless weight and bias are the same in
    every iteration."""
    if any(batch.is_batched(value_argument(op, name)) for name in ("weight", "bias")):
        raise NotBatchable("the weight differs from iteration to iteration")
    return value_arguments(op, "input")[0]


@batches("linear.default")
def _batch_linear(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    source, weight = value_arguments(op, "input", "weight")
    bias = value_argument(op, "bias")
    if batch.is_batched(weight):
        return (_batch_linear_of_each(batch, source, weight, bias, op.result.tensor.shape),)
    if bias is not None and (batch.is_batched(bias) or not batch.is_batched(source)):
        operands = batch.operand(source), batch.operand(weight)
        product = batch.emit("aten.linear.default", *operands)
        return (batch.emit("aten.add.Tensor", product, batch.aligned(bias, op.result.tensor.rank)),)
    return rebuilt(batch, op, {"input": batch.twins[batched_input(batch, op)]})


def _batch_linear_of_each(
    batch: Batch, source: Value, weight: Value, bias: Value | None, shape: tuple[Dim, ...]
) -> Value:
    """Return the twin of a linear layer whose weight differs: one matrix product per iteration."""
    if weight.tensor.rank != 2 or not source.tensor.rank:
        raise NotBatchable("the weight is not a matrix")
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


@batches("mm.default")
def _batch_mm(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    left, right = value_arguments(op, "self", "mat2")
    return (_batch_matrix_product(batch, left, right, op.result.tensor.shape),)


def _batch_matrix_product(batch: Batch, left: Value, right: Value, shape: tuple[Dim, ...]) -> Value:
    """Return the twin of a product of two matrices whose result has `shape`."""
    if batch.is_batched(left) and batch.is_batched(right):
        return batch.emit("aten.bmm.default", batch.twins[left], batch.twins[right])
    if batch.is_batched(left):
        rows = batch.merge_rows(batch.twins[left])
        product = batch.emit("aten.mm.default", rows, batch.operand(right))
        return batch.split_rows(product, shape)
    # [M, K] x [T, K, N]. If N fills a machine's vectors, each matrix is multiplied in place. With
    # fewer columns, those of all iterations are put side by side, at the cost of two
    # transpositions.
    inner, columns = right.tensor.shape
    if isinstance(columns, int) and columns >= WIDE:
        # Not a matmul: torch 2.11 and 2.12 infer its shape only for the one size that stands for
        # all.
        return batch.emit("aten.bmm.default", batch.expanded(left), batch.twins[right])
    turned = batch.permute(batch.twins[right], (1, 0, 2))
    flat = batch.reshape(turned, (inner, times(batch.length, columns)))
    product = batch.emit("aten.mm.default", batch.operand(left), flat)
    return batch.permute(batch.reshape(product, (shape[0], batch.length, columns)), (1, 0, 2))


@batches("addmm.default")
def _batch_addmm(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    alpha, beta = argument(op, "alpha"), argument(op, "beta")
    is_scaled = alpha != 1 or beta != 1
    if is_scaled and (beta == 0 or not op.result.tensor.dtype.is_float):
        raise NotBatchable("the product is scaled")
    bias, left, right = value_arguments(op, "self", "mat1", "mat2")
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
        product = _batch_matrix_product(batch, left, right, result.shape)
    added = batch.aligned(bias, result.rank)
    if is_scaled:
        product = batch.emit("aten.mul.Scalar", product, alpha)
        added = batch.emit("aten.mul.Scalar", added, beta)
    return (batch.emit("aten.add.Tensor", product, added),)


@batches("mv.default")
def _batch_mv(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    matrix, vector = value_arguments(op, "self", "vec")
    if not batch.is_batched(matrix):
        return (batch.emit("aten.linear.default", batch.twins[vector], batch.operand(matrix)),)
    if batch.is_batched(vector):
        return (_batch_matmul_of_each(batch, matrix, vector, op.result.tensor.shape),)
    flat = batch.merge_rows(batch.twins[matrix])
    product = batch.emit("aten.mv.default", flat, batch.operand(vector))
    return (batch.split_rows(product, matrix.tensor.shape[:1]),)


@batches("matmul.default")
def _batch_matmul(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    left, right = value_arguments(op, "self", "other")
    ranks = left.tensor.rank, right.tensor.rank
    if not batch.is_batched(right) and ranks[1] == 2:
        return (batch.emit("aten.matmul.default", batch.twins[left], batch.operand(right)),)
    if ranks == (2, 1) and not batch.is_batched(left):
        return (batch.emit("aten.linear.default", batch.twins[right], batch.operand(left)),)
    return (_batch_matmul_of_each(batch, left, right, op.result.tensor.shape),)


@batches("dot.default")
def _batch_dot(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    left, right = value_arguments(op, "self", "tensor")
    return (_batch_matmul_of_each(batch, left, right, op.result.tensor.shape),)


def _batch_matmul_of_each(batch: Batch, left: Value, right: Value, shape: tuple[Dim, ...]) -> Value:
    """Return the twin of a product per iteration, of matrices that broadcast; a vector becomes a
    matrix of one row or column, so that one operator serves all products."""
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


@batches("bmm.default")
def _batch_bmm(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    left, right = value_arguments(op, "self", "mat2")
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


# ---- stretto's own products ------------------------------------------------------------------
#
# `stretto.grouped_mm(rows, matrices, ends)` multiplies rows [S, K] by matrices [G, K, N], where
# group g of the rows ends before row `ends[g]`: [S, N], with zeros after the last group.
#
# `stretto.byte_mm(bytes, weight)` multiplies u8 [M, K] by i8 [K, N]: i32 [M, N], exact except that
# it wraps around.


def _grouped_mm(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    result, start = _grouped_mm_shape(rows, matrices, ends).zero_(), 0
    for end, matrix in zip(ends.tolist(), matrices, strict=True):
        result[start:end] = rows[start:end] @ matrix
        start = end
    return result


def _grouped_mm_shape(
    rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor
) -> torch.Tensor:
    if (rows.dim(), matrices.dim(), ends.dim()) != (2, 3, 1) or rows.dtype != matrices.dtype:
        raise ValueError(
            f"expected rows, matrices and ends of 2, 3 and 1 dims and one dtype: {rows.shape}, "
            f"{matrices.shape}, {ends.shape}"
        )
    require(rows.size(1) == matrices.size(1))
    require(ends.size(0) == matrices.size(0))
    return rows.new_empty((rows.size(0), matrices.size(2)))


def _compute_byte_mm(bytes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    _byte_mm_shape(bytes, weight)
    return bytes.int() @ weight.int()


def _byte_mm_shape(bytes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if (bytes.dtype, weight.dtype) != (torch.uint8, torch.int8) or bytes.dim() != 2:
        raise ValueError(
            f"expected a u8 and an i8 matrix: {bytes.dtype} {bytes.shape}, {weight.dtype}"
        )
    require(bytes.size(1) == weight.size(0))
    return bytes.new_empty((bytes.size(0), weight.size(1)), dtype=torch.int32)


define(
    "grouped_mm(Tensor rows, Tensor matrices, Tensor ends) -> Tensor",
    _grouped_mm,
    _grouped_mm_shape,
)


define("byte_mm(Tensor bytes, Tensor weight) -> Tensor", _compute_byte_mm, _byte_mm_shape)


# ---- Decompositions of matrices: torch computes them ------------------------------------------

describe(
    "_linalg_check_errors cholesky cholesky_inverse cholesky_solve inverse pinverse svd "
    "linalg_cholesky linalg_cholesky_ex linalg_cond linalg_eig linalg_eigh linalg_eigvals "
    "linalg_eigvalsh linalg_inv linalg_inv_ex linalg_ldl_factor linalg_ldl_factor_ex "
    "linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor linalg_lu_factor_ex "
    "linalg_lu_solve linalg_matrix_norm linalg_matrix_power linalg_matrix_rank linalg_norm "
    "linalg_pinv linalg_solve linalg_solve_ex linalg_svd linalg_svdvals linalg_tensorinv "
    "linalg_tensorsolve lu_solve matrix_power _linalg_eigh _linalg_eigvals _linalg_solve_ex "
    "_linalg_svd",
    raises=("LinAlgError",),
)


# ---- shapes ----------------------------------------------------------------------------------


@shape_rule("linalg_solve_triangular.default", Replaced.SYMBOLIC)
def _triangular_solution_shape(
    matrix: torch.Tensor, sides: torch.Tensor, *, upper: bool, left: bool = True, **_: Any
) -> torch.Tensor:
    require(matrix.shape[-1] == matrix.shape[-2])
    require(matrix.shape[-1] == sides.shape[-2 if left else -1])
    batch = torch.broadcast_shapes(matrix.shape[:-2], sides.shape[:-2])
    return sides.new_empty((*batch, *sides.shape[-2:]))


@shape_rule("matmul.default", Replaced.UNBACKED, before="2.13")
def _matmul_shape(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    batch = list(zip(first.shape[:-2], second.shape[:-2], strict=False))
    is_batch = first.dim() == second.dim() >= 3 and first.dtype is second.dtype
    if not is_batch or not all(statically_known_true(one == other) for one, other in batch):
        return torch.ops.aten.matmul.default(first, second)
    require(first.shape[-1] == second.shape[-2])
    return first.new_empty((*first.shape[:-1], second.shape[-1]))


@shape_rule("linear.default", Replaced.UNBACKED, before="2.13")
def _linear_shape(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    if x.dim() < 2 or weight.dim() != 2:
        return torch.ops.aten.linear.default(x, weight, bias)
    require(x.shape[-1] == weight.shape[1])
    return x.new_empty((*x.shape[:-1], weight.shape[0]))
