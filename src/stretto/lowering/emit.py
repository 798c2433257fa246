"""Emitting of operators (reductions, contractions), and building of scalar expressions."""

from __future__ import annotations

from math import inf

import torch

from stretto.device.expr import Apply, Const, Expr, Extent, Index, Load, Position
from stretto.device.functions import FUNCTIONS, ResultDtype, wrapped
from stretto.device.operator import POSITIONS, Combine, Operator
from stretto.ir.core import Value
from stretto.ir.types import DType
from stretto.lowering.lazy import Lazy, cast, permute, placed, reshape, stored, variables
from stretto.lowering.lower_function import Lowering


def emit(
    low: Lowering,
    name: str,
    dims: tuple[Extent, ...],
    reduce: tuple[Extent, ...],
    combine: Combine,
    value: Expr,
    result: Value | None = None,
) -> Lazy:
    """Emit an operator for `value` over `dims`, stored in `result` if that has its dtype."""
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
    """Return the tensor combined over `dims`, which are removed, in its own dtype."""
    kept = tuple(dim for dim in range(lazy.rank) if dim not in dims)
    turned = permute(lazy, (*kept, *dims))
    shape = turned.shape[: len(kept)]
    reduce = turned.shape[len(kept) :]
    if all(extent == 1 for extent in reduce):
        expr = Const(0, DType.I64) if combine in POSITIONS else turned.expr
        return Lazy(expr.dtype, shape, expr)
    return emit(low, name or combine, shape, reduce, combine, turned.expr, result)


def keep_dims(lazy: Lazy, dims: tuple[int, ...], rank: int) -> Lazy:
    """Return a reduced tensor with dims of size 1 at the places of the reduced ones."""
    kept = [dim for dim in range(rank) if dim not in dims]
    shape: list[Extent] = [1] * rank
    for place, dim in enumerate(kept):
        shape[dim] = lazy.shape[place]
    return reshape(lazy, tuple(shape))


def computed(lazy: Lazy, dtype: DType) -> Lazy:
    """Return the tensor converted to `dtype`."""
    return Lazy(dtype, lazy.shape, cast(lazy.expr, dtype))


def mapped(lazy: Lazy, expr: Expr) -> Lazy:
    """Return a tensor of the same dims with `expr` as its element."""
    return Lazy(expr.dtype, lazy.shape, expr)


def over(part: Lazy, dims: tuple[int, ...], whole: Lazy) -> Expr:
    """Return the element of `part`, a tensor that has all dims of `whole` except `dims`."""
    indices = variables(whole.shape)
    return part.at(*(indices[dim] for dim in range(whole.rank) if dim not in dims))


# ---- contractions ----------------------------------------------------------------------------


def factor_of(low: Lowering, lazy: Lazy) -> Lazy:
    """Return an operand of a contraction: plain loads at affine positions, copied if it is not.

    A conversion of stored f16 or bf16 to f32 is not a reason to copy.
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
    """Return one term of a contraction."""
    return Apply("mul", (cast(left, dtype), cast(right, dtype)), dtype)


def index_of(dim: Extent, number: int) -> Index:
    """Return variable `number`, or 0 for a dim of size 1."""
    return variables((dim,), number)[0]


# ---- Scalar expressions: functions by name, numbers, casts between storage and computation ----
#
# Values of f16 and bf16 are computed in f32. Arithmetic on i64 positions stays affine
# (`Position`), so that `i + 1` of a loop counter `i` is still recognised as an index.


def apply(function: str, *args: Expr) -> Expr:
    """Return the function applied to arguments, which have one dtype (except for `where`)."""
    folded = _affine(function, args)
    if folded is not None:
        return folded
    match FUNCTIONS[function].result:
        case ResultDtype.TEST | ResultDtype.LOGICAL:
            dtype = DType.BOOL
        case ResultDtype.ARMS:
            dtype = args[1].dtype
        case _:
            dtype = args[0].dtype
    return Apply(function, args, dtype)


LARGEST_FACTOR = 1 << 24
"""Limit of factors in a position; constants stay below its square. Iteration variables are smaller
than 2^38, so positions that consist only of them do not wrap around."""


def _affine(function: str, args: tuple[Expr, ...]) -> Expr | None:
    """Return integer arithmetic on positions as a position, or None."""
    indices = [index for index in map(_index, args) if index is not None]
    if len(indices) != len(args):
        return None
    match function, indices:
        case "add", [a, b]:
            return _expr(a + b)
        case "sub", [a, b]:
            return _expr(a + b * -1)
        case "neg", [a]:
            return _expr(a * -1)
        case "mul", [a, b] if b.is_const:
            return _expr(a * b.const)
        case "mul", [a, b] if a.is_const:
            return _expr(b * a.const)
        case "floordiv", [a, b] if b.is_const and b.const > 0 and _divides_exactly(a, b.const):
            return _expr(a // b.const)
        case "remainder", [a, b] if b.is_const and b.const > 0 and _divides_exactly(a, b.const):
            return _expr(a % b.const)
        case _:
            return None


def _index(expr: Expr) -> Index | None:
    match expr:
        case Position(index):
            return index
        case Const(value, DType.I64):
            return Index(const=int(value))
        case _:
            return None


def _expr(index: Index) -> Expr | None:
    if index.is_const:
        return Const(wrapped(index.const, DType.I64), DType.I64)
    small = all(abs(factor) < LARGEST_FACTOR for _, factor in index.terms)
    return Position(index) if small and abs(index.const) < LARGEST_FACTOR**2 else None


def _divides_exactly(index: Index, divisor: int) -> bool:
    """False if the quotient would be simplified although the index may have wrapped around."""
    if divisor == 1 or index.is_const:
        return True
    return not index.may_wrap or any(factor % divisor for _, factor in index.terms)


def number(value: bool | int | float, dtype: DType) -> Expr:
    """Return a number of the given dtype."""
    return cast(_plain(value), dtype)


def _plain(value: bool | int | float) -> Const:
    if isinstance(value, bool):
        return Const(value, DType.BOOL)
    return Const(value, DType.I64 if isinstance(value, int) else DType.F64)


def like(value: bool | int | float, expr: Expr) -> Expr:
    """Return a number of the dtype of `expr`."""
    return number(value, expr.dtype)


def is_number(expr: Expr, value: int) -> bool:
    """True if the expression is the constant `value`."""
    return isinstance(expr, Const) and expr.value == value


def where(condition: Expr, then: Expr, orelse: Expr) -> Expr:
    return apply("where", condition, then, orelse)


def conjunction(conditions: list[Expr]) -> Expr | None:
    """Return the conjunction of the conditions; None if there are none."""
    total: Expr | None = None
    for condition in conditions:
        total = condition if total is None else apply("and", total, condition)
    return total


def within(index: Index, size: int | Index) -> list[Expr]:
    """Return 0 <= index < size as two conditions."""
    place = Position(index)
    low = apply("ge", place, Const(0, DType.I64))
    return [low, apply("lt", place, Position(Index.of(size)))]


def compute_dtype(dtype: DType) -> DType:
    """Return the dtype in which values of `dtype` are computed."""
    return DType.F32 if dtype in (DType.F16, DType.BF16) else dtype


def sum_dtype(dtype: DType) -> DType:
    """Return the dtype in which a sum or product of values of `dtype` is accumulated."""
    return compute_dtype(dtype) if dtype.is_float else DType.I64


def neutral(combine: Combine, dtype: DType) -> Const:
    """Return the neutral element of a combination."""
    if dtype is DType.BOOL:
        return Const(combine in (Combine.PROD, Combine.MIN, Combine.ALL), dtype)
    if combine not in (Combine.MAX, Combine.MIN):
        one = combine in (Combine.PROD, Combine.ALL)
        return Const(float(one) if dtype.is_float else int(one), dtype)
    if dtype.is_float:
        return Const(-inf if combine == Combine.MAX else inf, dtype)
    limits = torch.iinfo(dtype.torch)
    return Const(limits.min if combine == Combine.MAX else limits.max, dtype)


def truth(expr: Expr) -> Expr:
    """Return the condition that the expression is not 0."""
    return expr if expr.dtype is DType.BOOL else apply("ne", expr, like(0, expr))
