"""Reductions over dims: sums, extrema, their positions, moments, norms, scans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod

import torch

from stretto.device.expr import ComputedPosition, Const, Expr, Extent, Index, Position
from stretto.device.operator import Combine, Operator
from stretto.ir.core import Value
from stretto.ir.ops import TensorOp
from stretto.ir.types import DType
from stretto.lowering.emit import (
    apply,
    compute_dtype,
    computed,
    keep_dims,
    like,
    mapped,
    over,
    reduction,
    sum_dtype,
    truth,
    where,
)
from stretto.lowering.lazy import Lazy, cast, placed_at, stored, variables
from stretto.lowering.rules import Decline, TensorOpCall, rule
from stretto.ops.arguments import argument
from stretto.ops.table import AllDims, Cost, Fails, Replaced, ShiftDims, describe, shape_rule
from stretto.passes.batching.rules import Batch, NotBatchable, batches, only_batched, shift_dims

# ---- properties ------------------------------------------------------------------------------

describe(
    "logsumexp sum all max.default min.default aminmax var std var_mean std_mean norm "
    "linalg_vector_norm cumprod",
    fails=Fails.NEVER,
)


describe("all amax amin any argmax argmin max mean min prod sum", cost=Cost.ELEMENT)


describe(
    "max.dim min.dim any.dim any.dims all.dim all.dims prod.dim_int cumsum cumprod logsumexp",
    batching=ShiftDims(),
)


describe(
    "sum.dim_IntList mean.dim amax amin var.correction std.correction var_mean.correction "
    "var.dim std.dim var_mean.dim std_mean.dim linalg_vector_norm",
    batching=ShiftDims(none_is_all=True),
)


describe("var var_mean std std_mean sum mean max min all cumsum", whole=True)


describe(
    "max.default max.dim min.default min.dim amax.default amin.default aminmax.default "
    "argmax.default argmin.default median.dim nanmedian.dim mode.default",
    needs_elements=True,
)
for _name, _target in (
    *(("sum", "sum.dim_IntList"), ("mean", "mean.dim"), ("max", "amax.default")),
    *(("min", "amin.default"), ("any", "any.dims"), ("all", "all.dims")),
):
    describe(f"{_name}.default", batching=AllDims(f"aten.{_target}"))


def shaped(call: TensorOpCall, lazy: Lazy, dims: tuple[int, ...], rank: int) -> Lazy:
    """Return a reduced tensor in the dims and dtype of the first result."""
    if len(call.shape) == rank and lazy.rank != rank:
        lazy = keep_dims(lazy, dims, rank)
    return Lazy(call.dtype, call.shape, cast(lazy.expr, call.dtype))


def count(shape: tuple[Extent, ...], dims: tuple[int, ...]) -> int | Index:
    """Return the number of elements that are combined."""
    total = Index(const=1)
    for dim in dims:
        total = total * shape[dim]
    return total.dim


def divided(expr: Expr, by: int | Index, less: int | float = 0) -> Expr:
    """Return expr / (by - less), as a multiplication if that is exact."""
    if isinstance(by, Index):
        divisor = apply("sub", cast(Position(by), expr.dtype), like(less, expr))
        return apply("div", expr, apply("maximum", divisor, like(0, expr)))
    size = max(by - less, 0)
    if isinstance(size, int) and size > 0 and size & (size - 1) == 0:
        return apply("mul", expr, like(1 / size, expr)) if size > 1 else expr
    return apply("div", expr, like(size, expr))


Prepare = Callable[[TensorOpCall, Lazy], Lazy]
"""Converts the operand into the values to combine."""


def _summed(call: TensorOpCall, lazy: Lazy) -> Lazy:
    return computed(computed(lazy, call.dtype), sum_dtype(call.dtype))


def _tested(call: TensorOpCall, lazy: Lazy) -> Lazy:
    return mapped(lazy, truth(lazy.expr))


def _compared(call: TensorOpCall, lazy: Lazy) -> Lazy:
    return computed(lazy, compute_dtype(lazy.dtype))


_REDUCTIONS: dict[Combine, tuple[Prepare, str]] = {
    Combine.SUM: (_summed, "sum.default sum.dim_IntList"),
    Combine.PROD: (_summed, "prod.default prod.dim_int"),
    Combine.ANY: (_tested, "any.default any.dim any.dims"),
    Combine.ALL: (_tested, "all.default all.dim all.dims"),
    Combine.MAX: (_compared, "max.default amax.default"),
    Combine.MIN: (_compared, "min.default amin.default"),
    Combine.ARGMAX: (_compared, "argmax.default"),
    Combine.ARGMIN: (_compared, "argmin.default"),
}


for _combine, (_prepare, _names) in _REDUCTIONS.items():

    @rule(*(f"aten.{_name}" for _name in _names.split()))
    def _reduced(
        call: TensorOpCall, combine: Combine = _combine, prepare: Prepare = _prepare
    ) -> Lazy:
        lazy = call.tensor("self")
        none = prepare is _tested and call.arguments.get("dim") == ()
        dims = () if none else call.axes(lazy.rank)
        found = reduction(call.low, prepare(call, lazy), dims, combine, call.result)
        return shaped(call, found, dims, lazy.rank)


@rule("mean mean.dim")
def _mean(call: TensorOpCall) -> Lazy:
    lazy = call.tensor("self")
    dims = call.axes(lazy.rank)
    size = count(lazy.shape, dims)
    source = computed(computed(lazy, call.dtype), compute_dtype(call.dtype))
    total = reduction(call.low, source, dims, Combine.SUM)
    return shaped(call, mapped(total, divided(total.expr, size)), dims, lazy.rank)


# ---- extrema ---------------------------------------------------------------------------------


for _combine, _position in ((Combine.MAX, Combine.ARGMAX), (Combine.MIN, Combine.ARGMIN)):

    @rule(f"aten.{_combine}.dim")
    def _extreme(
        call: TensorOpCall, combine: Combine = _combine, position: Combine = _position
    ) -> tuple[Lazy, ...]:
        return _extreme_and_position(call, combine, position)


def _extreme_and_position(
    call: TensorOpCall, combine: Combine, position: Combine
) -> tuple[Lazy, ...]:
    """Return the values as loads at the positions, and the positions."""
    lazy = call.tensor("self")
    dim = call.axis(lazy.rank)
    if lazy.rank == 0:
        return lazy, Lazy(DType.I64, (), Const(0, DType.I64))
    lazy = call.cheap("self")
    source = _compared(call, lazy)
    if not call.used(1):
        values = reduction(call.low, source, (dim,), combine, call.result)
        places = Lazy(DType.I64, values.shape, Const(0, DType.I64))
    else:
        places = reduction(call.low, source, (dim,), position, call.op.results[1])
        indices = list(variables(places.shape))
        indices.insert(
            dim, Index.of(ComputedPosition(places.expr)) if lazy.shape[dim] != 1 else Index()
        )
        values = Lazy(lazy.dtype, places.shape, lazy.at(*indices))
    first = shaped(call, values, (dim,), lazy.rank)
    if len(call.shape) == lazy.rank:
        places = keep_dims(places, (dim,), lazy.rank)
    return first, places


@rule("aminmax")
def _aminmax(call: TensorOpCall) -> tuple[Lazy, ...]:
    lazy = call.cheap("self")
    dims = call.axes(lazy.rank)
    source = _compared(call, lazy)
    pairs = zip((Combine.MIN, Combine.MAX), call.op.results, strict=True)
    parts = [reduction(call.low, source, dims, one, result) for one, result in pairs]
    return tuple(shaped(call, part, dims, lazy.rank) for part in parts)


# ---- moments ---------------------------------------------------------------------------------


def mean_of(call: TensorOpCall, lazy: Lazy, dims: tuple[int, ...]) -> Lazy:
    """Return the mean over `dims`, cheap enough to read once per element."""
    size = count(lazy.shape, dims)
    total = reduction(call.low, lazy, dims, Combine.SUM)
    mean = mapped(total, divided(total.expr, size))
    return mean if isinstance(size, int) and size & (size - 1) == 0 else stored_small(call, mean)


def stored_small(call: TensorOpCall, lazy: Lazy) -> Lazy:
    """Store a tensor with one value per row, because every element of the row reads it."""
    return call.low.materialise(lazy, "row")


def squares(call: TensorOpCall, lazy: Lazy, mean: Lazy, dims: tuple[int, ...]) -> Lazy:
    """Return the sum over `dims` of (x - mean) squared."""
    centred = apply("sub", lazy.expr, over(mean, dims, lazy))
    square = mapped(lazy, apply("mul", centred, centred))
    return reduction(call.low, square, dims, Combine.SUM)


def _moments(call: TensorOpCall) -> tuple[Lazy, Lazy, tuple[int, ...]]:
    """Return variance, mean and dims of the op; computed in F64 as in ATen, because squares
    overflow F32."""
    rank = call.tensor("self").rank
    dims = call.axes(rank)
    correction = _correction(call)
    size = count(call.tensor("self").shape, dims)
    lazy = computed(call.cheap("self"), DType.F64)
    mean = mean_of(call, lazy, dims)
    total = squares(call, lazy, mean, dims)
    return mapped(total, divided(total.expr, size, correction)), mean, dims


def _correction(call: TensorOpCall) -> int | float:
    if "unbiased" in call.arguments:
        return int(call.flag("unbiased"))
    return call.number("correction") if call.has("correction") else 1


for _name, _has_root, _with_mean in (
    *(("var", False, False), ("std", True, False)),
    *(("var_mean", False, True), ("std_mean", True, True)),
):

    @rule(*(f"aten.{_name}.{_kind}" for _kind in ("correction", "dim", "default")))
    def _spread(
        call: TensorOpCall, has_root: bool = _has_root, with_mean: bool = _with_mean
    ) -> tuple[Lazy, ...]:
        variance, mean, dims = _moments(call)
        rank = call.tensor("self").rank
        first = mapped(variance, apply("sqrt", variance.expr)) if has_root else variance
        parts = (first, mean) if with_mean else (first,)
        return tuple(shaped(call, part, dims, rank) for part in parts)


# ---- norms -----------------------------------------------------------------------------------


@rule("logsumexp")
def _logsumexp(call: TensorOpCall) -> Lazy:
    source = call.cheap("self")
    lazy = computed(source, compute_dtype(call.dtype))
    dims = call.axes(lazy.rank)
    if 0 in [lazy.shape[dim] for dim in dims]:
        raise Decline("an empty reduction")
    top = reduction(call.low, lazy, dims, Combine.MAX)
    shift = where(apply("isinf", top.expr), like(0, top.expr), top.expr)
    raised = apply("sub", lazy.expr, over(mapped(top, shift), dims, lazy))
    total = reduction(call.low, mapped(lazy, apply("exp", raised)), dims, Combine.SUM)
    return shaped(
        call, mapped(total, apply("add", apply("log", total.expr), shift)), dims, lazy.rank
    )


@rule(
    "linalg_vector_norm norm.Scalar norm.ScalarOpt_dim norm.ScalarOpt_dtype "
    "norm.ScalarOpt_dim_dtype",
)
def _norm(call: TensorOpCall) -> Lazy:
    name = "ord" if "ord" in call.arguments else "p"
    order = float(call.number(name)) if call.has(name) else 2.0
    source = call.tensor("self")
    dims = call.axes(source.rank)
    lazy = computed(computed(source, call.dtype), compute_dtype(call.dtype))
    if order != 0 and all(source.shape[dim] == 1 for dim in dims):
        order = inf  # the norm of one element is its magnitude, whose power might overflow
    combine, term = _norm_term(lazy.expr, order)
    total = reduction(call.low, mapped(lazy, term), dims, combine, name="norm")
    return shaped(call, mapped(total, _root(total.expr, order)), dims, source.rank)


def _norm_term(x: Expr, order: float) -> tuple[Combine, Expr]:
    """Return the combination and the term of a norm."""
    if order == 2:
        return Combine.SUM, apply("mul", x, x)
    if order == 0:
        return Combine.SUM, cast(apply("ne", x, like(0, x)), x.dtype)
    size = apply("abs", x)
    if order in (inf, -inf):
        return (Combine.MAX if order > 0 else Combine.MIN), size
    return Combine.SUM, size if order == 1 else apply("pow", size, like(order, x))


def _root(total: Expr, order: float) -> Expr:
    if order in (0, 1, inf, -inf):
        return total
    return apply("sqrt", total) if order == 2 else apply("pow", total, like(1 / order, total))


# ---- scans -----------------------------------------------------------------------------------


for _combine in (Combine.CUMSUM, Combine.CUMPROD):

    @rule(f"aten.{_combine}.default")
    def _cumulated(call: TensorOpCall, combine: Combine = _combine) -> Lazy:
        return _scan(call, combine)


def _scan(call: TensorOpCall, combine: Combine) -> Lazy:
    """Emit a scan: the dim moves to the end, as the reduction dim, and the store uses its
    variable."""
    lazy = call.tensor("self")
    if lazy.rank == 0:
        return computed(lazy, call.dtype)
    dim = call.axis(lazy.rank)
    dtype = sum_dtype(call.dtype)
    dims = (*lazy.shape[:dim], *lazy.shape[dim + 1 :])
    outer = list(variables(dims))
    outer.insert(dim, variables((lazy.shape[dim],), len(dims))[0])
    value = cast(cast(lazy.at(*outer), call.dtype), dtype)
    result = call.result if dtype is call.dtype else None
    buffer = call.low.output(result) if result else call.low.new_buffer(combine, dtype, lazy.shape)
    if 0 not in lazy.shape:
        out = placed_at(buffer, lazy.shape, tuple(outer))
        operator = Operator(
            combine, dims, (lazy.shape[dim],), combine, value, out, source=call.low.source
        )
        call.low.emit(operator)
    return computed(stored(buffer, lazy.shape), call.dtype)


@batches("argmax.default argmin.default")
def _batch_arg(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    """argmax and argmin. Without a dim, they run over all elements in row-major order."""
    if argument(op, "dim") is not None:
        return shift_dims(batch, op, ShiftDims())
    _, value = only_batched(batch, op)
    size = prod(value.tensor.static_shape()) if value.tensor.is_static else None
    if not size or argument(op, "keepdim"):
        raise NotBatchable("it runs over all dims at once")
    flat = batch.reshape(batch.twins[value], (batch.length, size))
    return (batch.emit(op.target, flat, 1),)


@shape_rule("linalg_vector_norm.default", Replaced.ALWAYS, before="2.12")
def _norm_shape(
    x: torch.Tensor,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """torch's own rule keeps a last dim of size 1."""
    return torch.ops.aten.sum.dim_IntList(x.abs(), dim, keepdim, dtype=dtype)
