"""Emitting operators: a reduction or a contraction into its buffer, the result as a lazy tensor."""

from __future__ import annotations

from math import inf

from stretto.device.expr import Apply, Const, Expr, Extent, Index, Load, Position
from stretto.device.functions import FUNCTIONS, Result, wrapped
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


# ---- Building scalar expressions: functions by name, numbers, casts between storage and
# computation.
#
# Values of f16 and bf16 are computed in f32. Arithmetic of i64 positions stays affine
# (`Position`), so that an index such as `i + 1` of a loop counter `i` is still known to be one.


def apply(function: str, *args: Expr) -> Expr:
    """The function of the arguments, which have one dtype (but for `where`)."""
    folded = _affine(function, args)
    if folded is not None:
        return folded
    match FUNCTIONS[function].result:
        case Result.TEST | Result.LOGICAL:
            dtype = DType.BOOL
        case Result.ARMS:
            dtype = args[1].dtype
        case _:
            dtype = args[0].dtype
    return Apply(function, args, dtype)


LARGEST_FACTOR = 1 << 24
"""A position has no larger factors, and no constant from the square of this on: iteration variables
are smaller than 2^38, so that positions made of them alone do not wrap around."""


def _affine(function: str, args: tuple[Expr, ...]) -> Expr | None:
    """Integer arithmetic on positions as a position."""
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
    """False where the quotient would be simplified though the index may have wrapped around."""
    if divisor == 1 or index.is_const:
        return True
    return not index.may_wrap or any(factor % divisor for _, factor in index.terms)


def number(value: bool | int | float, dtype: DType) -> Expr:
    """A number of the given dtype."""
    return cast(_plain(value), dtype)


def _plain(value: bool | int | float) -> Const:
    if isinstance(value, bool):
        return Const(value, DType.BOOL)
    return Const(value, DType.I64 if isinstance(value, int) else DType.F64)


def like(value: bool | int | float, expr: Expr) -> Expr:
    """A number of the dtype of `expr`."""
    return number(value, expr.dtype)


def is_number(expr: Expr, value: int) -> bool:
    """Whether the expression is known to be a number."""
    return isinstance(expr, Const) and expr.value == value


def where(condition: Expr, then: Expr, orelse: Expr) -> Expr:
    return apply("where", condition, then, orelse)


def conjunction(conditions: list[Expr]) -> Expr | None:
    """All of the conditions; None when there are none."""
    total: Expr | None = None
    for condition in conditions:
        total = condition if total is None else apply("and", total, condition)
    return total


def within(index: Index, size: int | Index) -> list[Expr]:
    """0 <= index < size, as two conditions."""
    place = Position(index)
    low = apply("ge", place, Const(0, DType.I64))
    return [low, apply("lt", place, Position(Index.of(size)))]


def compute_dtype(dtype: DType) -> DType:
    """The dtype in which values of `dtype` are computed."""
    return DType.F32 if dtype in (DType.F16, DType.BF16) else dtype


def sum_dtype(dtype: DType) -> DType:
    """The dtype in which a sum or product of values of `dtype` is accumulated."""
    return compute_dtype(dtype) if dtype.is_float else DType.I64


def lowest(dtype: DType) -> bool | int | float:
    """The neutral element of max."""
    if dtype.is_float:
        return -inf
    if dtype is DType.BOOL:
        return False
    return 0 if dtype is DType.U8 else -(1 << (8 * dtype.itemsize - 1))


def truth(expr: Expr) -> Expr:
    """The expression as a condition: is it other than 0."""
    return expr if expr.dtype is DType.BOOL else apply("ne", expr, like(0, expr))
