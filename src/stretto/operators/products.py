"""Contractions: matrix products, single and batched.

Canonical form: combine "sum", value mul(load of A, load of B), dims the dims of the output, one
reduction dim. Operands that are not plain loads are stored first, except results of calls that
may be rows (`row_results`), whose row is the same for all elements. A bias is added lazily to
the result.
"""

from __future__ import annotations

from stretto.device.expr import Apply, Expr, Extent, Index, Load, is_known, known_size
from stretto.device.operator import Combine
from stretto.ir.core import Value
from stretto.ir.ops import Argument
from stretto.ir.types import DType
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
from stretto.lowering.rules import Call, Decline, all_static, rule
from stretto.operators.views import reshaped, swapped


def operand(call: Call, argument: Argument) -> Lazy:
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
    call: Call, left: Lazy, right: Lazy, result: Value | None, dtype: DType | None = None
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


def finished(call: Call, raw: Lazy, bias: Lazy | None = None) -> Lazy:
    """Return the contraction in the dims and dtype of the result, plus a bias."""
    lazy = reshaped(call, raw)
    if bias is None:
        return Lazy(call.dtype, call.shape, cast(lazy.expr, call.dtype))
    added = cast(broadcast(bias, call.shape).expr, lazy.dtype)
    return Lazy(call.dtype, call.shape, cast(apply("add", lazy.expr, added), call.dtype))


@rule("mm bmm")
def _mm(call: Call) -> Lazy:
    name = "other" if "other" in call.arguments else "mat2"
    left, right = (operand(call, call.arguments[n]) for n in ("self", name))
    return finished(call, matmul(call, left, right, call.result))


@rule("stretto.byte_mm.default")
def _byte_mm(call: Call) -> Lazy:
    left, right = (operand(call, call.arguments[n]) for n in ("bytes", "weight"))
    return matmul(call, left, right, call.result, DType.I32)


@rule("mv")
def _mv(call: Call) -> Lazy:
    left, right = (operand(call, call.arguments[n]) for n in ("self", "vec"))
    return finished(call, matmul(call, left, column(right), call.result))


@rule("dot vdot inner")
def _dot(call: Call) -> Lazy:
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
def _outer(call: Call) -> Lazy:
    compute = compute_dtype(call.dtype)
    sides = (column(call.cheap("self")), call.cheap("vec2"))
    a, b = (cast(cast(broadcast(x, call.shape).expr, call.dtype), compute) for x in sides)
    return Lazy(call.dtype, call.shape, cast(apply("mul", a, b), call.dtype))


@rule("matmul")
def _matmul(call: Call) -> Lazy:
    left, right = (operand(call, call.arguments[n]) for n in ("self", "other"))
    left = row(left) if left.rank == 1 else left
    if right.rank <= 2:
        left = flattened(left)
    right = column(right) if right.rank == 1 else right
    return finished(call, matmul(call, left, right, call.result))


@rule("linear")
def _linear(call: Call) -> Lazy:
    left, weight = (operand(call, call.arguments[n]) for n in ("input", "weight"))
    left = flattened(row(left) if left.rank == 1 else left)
    right = column(weight) if weight.rank == 1 else swapped(weight, 0, 1)
    bias = call.optional("bias")
    raw = matmul(call, left, right, None if bias is not None else call.result)
    return finished(call, raw, bias)


@rule("addmm baddbmm addmv")
def _addmm(call: Call) -> Lazy:
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


def _skips_product(call: Call) -> bool:
    """True if ATen skips the product: with alpha 0, BLAS does not read the factors, which may be
    NaN or infinite. ATen's own loops do multiply: those for f16 and bf16, and (depending on
    sizes) for batches."""
    if call.arguments["alpha"] != 0 or call.op.target == "aten.baddbmm.default":
        return False
    return call.dtype in (DType.F32, DType.F64)


def scaled(call: Call, name: str, expr: Expr) -> Expr:
    """Return the expression times a scalar argument of the op; unchanged if that is 1."""
    if call.arguments[name] == 1:
        return expr
    return apply("mul", expr, cast(call.scalar(name), expr.dtype))
