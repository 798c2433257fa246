"""Emitting operators: a reduction or a contraction into its buffer, the result as a lazy tensor."""

from __future__ import annotations

from stretto.device.expr import Apply, Const, Expr, Extent, Index, Load
from stretto.device.operator import POSITIONS, Combine, Operator
from stretto.ir.core import Value
from stretto.ir.types import DType
from stretto.lowering.function import Lowering
from stretto.lowering.lazy import Lazy, cast, permute, placed, reshape, stored, variables


def emit(
    low: Lowering,
    name: str,
    dims: tuple[Extent, ...],
    reduce: tuple[Extent, ...],
    combine: Combine,
    value: Expr,
    result: Value | None = None,
) -> Lazy:
    """Computes `value` over `dims`, into the place of `result` if that has its dtype."""
    dtype = DType.I64 if combine in POSITIONS else value.dtype
    if result is not None and result.tensor.dtype is dtype:
        buffer = low.output(result)
    else:
        buffer = low.new_buffer(name, dtype, dims)
    if 0 not in dims:
        out = placed(buffer, dims)
        low.emit(Operator(name, dims, reduce, combine, value, out, source=low.source))
    return stored(buffer, dims)


def reduction(
    low: Lowering,
    lazy: Lazy,
    dims: tuple[int, ...],
    combine: Combine,
    result: Value | None = None,
    *,
    name: str = "",
) -> Lazy:
    """The tensor combined over `dims`, which disappear, in its own dtype."""
    kept = tuple(dim for dim in range(lazy.rank) if dim not in dims)
    turned = permute(lazy, (*kept, *dims))
    shape = turned.shape[: len(kept)]
    reduce = turned.shape[len(kept) :]
    if all(extent == 1 for extent in reduce):
        expr = Const(0, DType.I64) if combine in POSITIONS else turned.expr
        return Lazy(expr.dtype, shape, expr)
    return emit(low, name or combine, shape, reduce, combine, turned.expr, result)


def keep_dims(lazy: Lazy, dims: tuple[int, ...], rank: int) -> Lazy:
    """A reduced tensor with dims of size 1 where the reduced ones were."""
    kept = [dim for dim in range(rank) if dim not in dims]
    shape: list[Extent] = [1] * rank
    for place, dim in enumerate(kept):
        shape[dim] = lazy.shape[place]
    return reshape(lazy, tuple(shape))


def computed(lazy: Lazy, dtype: DType) -> Lazy:
    """The tensor in another dtype."""
    return Lazy(dtype, lazy.shape, cast(lazy.expr, dtype))


def mapped(lazy: Lazy, expr: Expr) -> Lazy:
    """A tensor of the same dims with another element."""
    return Lazy(expr.dtype, lazy.shape, expr)


def over(part: Lazy, dims: tuple[int, ...], whole: Lazy) -> Expr:
    """The element of a tensor that has all dims of `whole` but `dims`."""
    indices = variables(whole.shape)
    return part.at(*(indices[dim] for dim in range(whole.rank) if dim not in dims))


# ---- contractions ----------------------------------------------------------------------------


def factor_of(low: Lowering, lazy: Lazy) -> Lazy:
    """An operand of a contraction: plain loads at affine positions, copied when they are not.

    A conversion of stored f16 or bf16 to f32 stays with the load.
    """
    inner = lazy.expr
    if isinstance(inner, Apply) and inner.function == "cast":
        inner = inner.args[0]
        if inner.dtype not in (DType.F16, DType.BF16) or lazy.dtype is not DType.F32:
            inner = lazy.expr
    if isinstance(inner, Load) and all(index.is_affine for index in inner.access.index):
        return lazy
    return low.store(lazy, low.new_buffer("t", lazy.dtype, lazy.shape))


def product(left: Expr, right: Expr, dtype: DType) -> Expr:
    """One term of a contraction."""
    return Apply("mul", (cast(left, dtype), cast(right, dtype)), dtype)


def index_of(dim: Extent, number: int) -> Index:
    """Variable `number`, or 0 for a dim of size 1."""
    return variables((dim,), number)[0]
