"""Reductions over dims: sums, extrema, their positions, moments, norms, scans; normalisation."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import torch

from stretto.device.expr import Buffer, Const, Dynamic, Expr, Extent, Index, Position
from stretto.device.operator import Combine, Operator
from stretto.ir.types import DType
from stretto.lowering.emit import (
    apply,
    compute_dtype,
    computed,
    emit,
    keep_dims,
    like,
    mapped,
    over,
    reduction,
    sum_dtype,
    truth,
    where,
)
from stretto.lowering.lazy import (
    Lazy,
    cast,
    constant,
    placed_at,
    select,
    stored,
    variables,
    whole_buffer,
)
from stretto.lowering.rules import Call, Decline, rule, static_dims


def shaped(call: Call, lazy: Lazy, dims: tuple[int, ...], rank: int) -> Lazy:
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


Prepare = Callable[[Call, Lazy], Lazy]
"""Converts the operand into the values to combine."""


def _summed(call: Call, lazy: Lazy) -> Lazy:
    return computed(computed(lazy, call.dtype), sum_dtype(call.dtype))


def _tested(call: Call, lazy: Lazy) -> Lazy:
    return mapped(lazy, truth(lazy.expr))


def _compared(call: Call, lazy: Lazy) -> Lazy:
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
    def _reduced(call: Call, combine: Combine = _combine, prepare: Prepare = _prepare) -> Lazy:
        lazy = call.tensor("self")
        none = prepare is _tested and call.arguments.get("dim") == ()
        dims = () if none else call.axes(lazy.rank)
        found = reduction(call.low, prepare(call, lazy), dims, combine, call.result)
        return shaped(call, found, dims, lazy.rank)


@rule("mean mean.dim")
def _mean(call: Call) -> Lazy:
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
        call: Call, combine: Combine = _combine, position: Combine = _position
    ) -> tuple[Lazy, ...]:
        return _extreme_and_position(call, combine, position)


def _extreme_and_position(call: Call, combine: Combine, position: Combine) -> tuple[Lazy, ...]:
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
        indices.insert(dim, Index.of(Dynamic(places.expr)) if lazy.shape[dim] != 1 else Index())
        values = Lazy(lazy.dtype, places.shape, lazy.at(*indices))
    first = shaped(call, values, (dim,), lazy.rank)
    if len(call.shape) == lazy.rank:
        places = keep_dims(places, (dim,), lazy.rank)
    return first, places


@rule("aminmax")
def _aminmax(call: Call) -> tuple[Lazy, ...]:
    lazy = call.cheap("self")
    dims = call.axes(lazy.rank)
    source = _compared(call, lazy)
    pairs = zip((Combine.MIN, Combine.MAX), call.op.results, strict=True)
    parts = [reduction(call.low, source, dims, one, result) for one, result in pairs]
    return tuple(shaped(call, part, dims, lazy.rank) for part in parts)


# ---- moments ---------------------------------------------------------------------------------


def mean_of(call: Call, lazy: Lazy, dims: tuple[int, ...]) -> Lazy:
    """Return the mean over `dims`, cheap enough to read once per element."""
    size = count(lazy.shape, dims)
    total = reduction(call.low, lazy, dims, Combine.SUM)
    mean = mapped(total, divided(total.expr, size))
    return mean if isinstance(size, int) and size & (size - 1) == 0 else stored_small(call, mean)


def stored_small(call: Call, lazy: Lazy) -> Lazy:
    """Store a tensor with one value per row, because every element of the row reads it."""
    return call.low.materialise(lazy, "row")


def squares(call: Call, lazy: Lazy, mean: Lazy, dims: tuple[int, ...]) -> Lazy:
    """Return the sum over `dims` of (x - mean) squared."""
    centred = apply("sub", lazy.expr, over(mean, dims, lazy))
    square = mapped(lazy, apply("mul", centred, centred))
    return reduction(call.low, square, dims, Combine.SUM)


def _moments(call: Call) -> tuple[Lazy, Lazy, tuple[int, ...]]:
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


def _correction(call: Call) -> int | float:
    if "unbiased" in call.arguments:
        return int(call.flag("unbiased"))
    return call.number("correction") if call.has("correction") else 1


for _name, _has_root, _with_mean in (
    *(("var", False, False), ("std", True, False)),
    *(("var_mean", False, True), ("std_mean", True, True)),
):

    @rule(*(f"aten.{_name}.{_kind}" for _kind in ("correction", "dim", "default")))
    def _spread(
        call: Call, has_root: bool = _has_root, with_mean: bool = _with_mean
    ) -> tuple[Lazy, ...]:
        variance, mean, dims = _moments(call)
        rank = call.tensor("self").rank
        first = mapped(variance, apply("sqrt", variance.expr)) if has_root else variance
        parts = (first, mean) if with_mean else (first,)
        return tuple(shaped(call, part, dims, rank) for part in parts)


# ---- norms -----------------------------------------------------------------------------------


@rule("logsumexp")
def _logsumexp(call: Call) -> Lazy:
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
def _norm(call: Call) -> Lazy:
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
    def _cumulated(call: Call, combine: Combine = _combine) -> Lazy:
        return _scan(call, combine)


def _scan(call: Call, combine: Combine) -> Lazy:
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


# ---- Normalisation: layer, group, instance, root-mean-square norm; batch norm in inference ----


def _statistics(
    call: Call, lazy: Lazy, dims: tuple[int, ...], eps: float, *, moments: bool = False
) -> tuple[Lazy, Lazy]:
    """Return mean and 1 / sqrt(variance + eps) over `dims`, stored.

    moments: give NaN if the square of the mean or the variance overflows, as ATen does, which
    combines the moments of parts of a row (`RowwiseMoments`), and multiplies such a square by
    zero there.
    """
    mean = _row_mean(call, lazy, dims)
    total = squares(call, lazy, mean, dims)
    variance = divided(total.expr, count(lazy.shape, dims))
    if moments:
        square = apply("mul", mean.at(*variables(total.shape)), mean.at(*variables(total.shape)))
        variance = apply(
            "add", variance, apply("mul", apply("add", variance, square), like(0, square))
        )
    rstd = apply("rsqrt", apply("add", variance, like(eps, variance)))
    return mean, stored_small(call, mapped(total, rstd))


def _row_mean(call: Call, lazy: Lazy, dims: tuple[int, ...]) -> Lazy:
    """Return the mean over `dims`: the first element plus the mean of the differences from it.

    So the mean of any number of equal elements is exact, and centring them gives 0. A plain sum
    is rounded, and the factor 1 / sqrt(eps) makes that visible.
    """
    first = lazy
    for dim in sorted(dims, reverse=True):
        first = select(first, dim, 0)
    distance = apply("sub", lazy.expr, over(first, dims, lazy))
    total = reduction(call.low, mapped(lazy, distance), dims, Combine.SUM)
    mean = apply("add", first.expr, divided(total.expr, count(lazy.shape, dims)))
    return stored_small(call, mapped(total, mean))


def _affine(call: Call, x: Expr, weight: Expr | None, bias: Expr | None) -> Lazy:
    """Return x * weight + bias as the result."""
    x = x if weight is None else apply("mul", x, cast(weight, x.dtype))
    x = x if bias is None else apply("add", x, cast(bias, x.dtype))
    return Lazy(call.dtype, call.shape, cast(x, call.dtype))


def _source(call: Call, name: str = "input") -> Lazy:
    lazy = call.cheap(name)
    if not lazy.dtype.is_float or 0 in lazy.shape:
        raise Decline("nothing to normalise")
    return computed(lazy, compute_dtype(lazy.dtype))


def _trailing(call: Call, name: str, rank: int) -> Expr | None:
    """Return the element of a parameter that has the last dims of the input."""
    lazy = call.optional(name)
    if lazy is None:
        return None
    return lazy.at(*variables(call.shape)[rank - lazy.rank :])


@rule("layer_norm native_layer_norm")
def _layer_norm(call: Call) -> Lazy | tuple[Lazy, ...]:
    eps = float(call.number("eps"))
    lazy = _source(call)
    rank = lazy.rank
    first = rank - len(call.integers("normalized_shape"))
    dims = tuple(range(first, rank))
    mean, rstd = _statistics(call, lazy, dims, eps, moments=True)
    centred = apply("sub", lazy.expr, over(mean, dims, lazy))
    normal = apply("mul", centred, over(rstd, dims, lazy))
    out = _affine(call, normal, *(_trailing(call, name, rank) for name in ("weight", "bias")))
    if len(call.op.results) == 1:
        return out
    dtype = call.op.results[1].tensor.dtype
    return out, *(computed(keep_dims(part, dims, rank), dtype) for part in (mean, rstd))


@rule("rms_norm")
def _rms_norm(call: Call) -> Lazy:
    eps = float(call.number("eps")) if call.has("eps") else None
    lazy = _source(call)
    first = lazy.rank - len(call.integers("normalized_shape"))
    dims = tuple(range(first, lazy.rank))
    square = mapped(lazy, apply("mul", lazy.expr, lazy.expr))
    total = reduction(call.low, square, dims, Combine.SUM)
    mean = divided(total.expr, count(lazy.shape, dims))
    floor = torch.finfo(call.tensor("input").dtype.torch).eps if eps is None else eps
    rstd = stored_small(call, mapped(total, apply("rsqrt", apply("add", mean, like(floor, mean)))))
    normal = apply("mul", lazy.expr, over(rstd, dims, lazy))
    return _affine(call, normal, _trailing(call, "weight", lazy.rank), None)


# ---- groups of channels ----------------------------------------------------------------------


@rule("group_norm native_group_norm")
def _group_norm(call: Call) -> Lazy | tuple[Lazy, ...]:
    name = "group" if "group" in call.arguments else "num_groups"
    out, mean, rstd = _grouped(call, call.integer(name), moments=True)
    if len(call.op.results) == 1:
        return out
    dtype = call.op.results[1].tensor.dtype
    return out, computed(mean, dtype), computed(rstd, dtype)


@rule("instance_norm")
def _instance_norm(call: Call) -> Lazy:
    if not call.flag("use_input_stats"):
        raise Decline("running statistics")
    channels = static_dims(call.tensor("input").shape)[1]
    return _grouped(call, channels)[0]


def _grouped(call: Call, groups: int, *, moments: bool = False) -> tuple[Lazy, Lazy, Lazy]:
    """Return the normalised tensor, and mean and rstd [n, groups]."""
    eps = float(call.number("eps"))
    lazy = _source(call, "input")
    static_dims(lazy.shape[1:2])
    number, channels, *spatial = lazy.shape
    assert isinstance(channels, int)
    width = channels // groups
    shape = (number, groups, width, *spatial)
    n, g, c, *rest = variables(shape)
    split = lazy.view(shape, n, g * width + c, *rest)
    mean, rstd = _statistics(call, split, tuple(range(2, len(shape))), eps, moments=moments)
    n, channel, *_ = variables(lazy.shape)
    centre, scale = mean.at(n, channel // width), rstd.at(n, channel // width)
    if not spatial:
        return _scaled(call, lazy, centre, scale, "weight"), mean, rstd
    weight = call.optional("weight")
    if weight is not None:
        scale = apply("mul", scale, cast(weight.at(channel), scale.dtype))
    centre, scale = _per_channel(call, lazy, centre), _per_channel(call, lazy, scale)
    return _scaled(call, lazy, centre, scale, None), mean, rstd


def _per_channel(call: Call, lazy: Lazy, expr: Expr) -> Expr:
    """Store a value per instance and channel, so that elements need not compute their group."""
    part = emit(call.low, "row", lazy.shape[:2], (), Combine.NONE, expr)
    return part.at(*variables(lazy.shape)[:2])


def _scaled(call: Call, lazy: Lazy, centre: Expr, scale: Expr, weight: str | None) -> Lazy:
    """Return (x - centre) * scale, times the weight of the channel, if any, plus its bias."""
    normal = apply("mul", apply("sub", lazy.expr, centre), scale)
    channel = variables(lazy.shape)[1]
    given = (None if name is None else call.optional(name) for name in (weight, "bias"))
    return _affine(call, normal, *(None if part is None else part.at(channel) for part in given))


# ---- batch norm ------------------------------------------------------------------------------


@rule("_native_batch_norm_legit_no_training native_batch_norm cudnn_batch_norm batch_norm")
def _batch_norm_in_inference(call: Call) -> tuple[Lazy, ...]:
    if call.arguments.get("training", False) is not False:
        raise Decline("training")
    return _batch_norm(call), *_nothing(call)


@rule("_native_batch_norm_legit.no_stats")
def _batch_norm_of_itself(call: Call) -> tuple[Lazy, ...]:
    """Normalise by the statistics of the current batch."""
    if not call.flag("training"):
        raise Decline("no statistics")
    eps = float(call.number("eps"))
    lazy = _source(call)
    dims = tuple(dim for dim in range(lazy.rank) if dim != 1)
    mean, rstd = _statistics(call, lazy, dims, eps)
    place = variables(lazy.shape)[1]
    out = _scaled(call, lazy, mean.at(place), rstd.at(place), "weight")
    dtype = call.op.results[1].tensor.dtype
    return out, computed(mean, dtype), computed(rstd, dtype)


def _nothing(call: Call) -> tuple[Lazy, ...]:
    """Return the saved statistics, which are empty in inference."""
    kinds = [value.tensor for value in call.op.results[1:]]
    if any(call.used(n + 1) and kind.shape != (0,) for n, kind in enumerate(kinds)):
        raise Decline("saved statistics")
    return tuple(constant(0, kind.dtype, call.low.extents(kind.shape)) for kind in kinds)


def _batch_norm(call: Call) -> Lazy:
    eps = float(call.number("eps" if "eps" in call.arguments else "epsilon"))
    lazy = call.tensor("input")
    if not call.has("running_mean") or not call.has("running_var"):
        raise Decline("no running statistics")
    folded = _folded(call, eps) or _scale_and_shift(call, eps)
    channel = variables(lazy.shape)[1]
    scale, shift = (part.at(channel) for part in folded)
    x = cast(lazy.expr, compute_dtype(lazy.dtype))
    return _affine(call, x, scale, shift)


_PARAMETERS = ("running_mean", "running_var", "weight", "bias")


def _folded(call: Call, eps: float) -> tuple[Lazy, Lazy] | None:
    """Return scale and shift as new constants if all parameters are constants, else None."""
    given = [name for name in _PARAMETERS if call.has(name)]
    buffers = {name: whole_buffer(call.tensor(name)) for name in given}
    found: dict[str, Buffer] = {n: b for n, b in buffers.items() if b and b.kind == "constant"}
    if len(found) != len(buffers):
        return None
    tensors = {n: call.low.externals.tensors[b.slot].detach().double() for n, b in found.items()}
    scale = (tensors["running_var"] + eps).rsqrt()
    scale = scale * tensors["weight"] if "weight" in tensors else scale
    shift = -tensors["running_mean"] * scale
    shift = shift + tensors["bias"] if "bias" in tensors else shift
    dtype = compute_dtype(call.dtype)
    key = "+".join(f"{name}:{buffer.name}" for name, buffer in found.items())
    parts = [("scale", scale), ("shift", shift)]
    named = [(f"{part}({key},{eps!r})", tensor.to(dtype.torch)) for part, tensor in parts]
    first, second = (stored(call.low.externals.constant(k, tensor)) for k, tensor in named)
    return first, second


def _scale_and_shift(call: Call, eps: float) -> tuple[Lazy, Lazy]:
    """Return scale and shift, computed at run time once per channel."""
    dtype = compute_dtype(call.dtype)
    mean, variance = (computed(call.tensor(n), dtype) for n in ("running_mean", "running_var"))
    scale = apply("rsqrt", apply("add", variance.expr, like(eps, variance.expr)))
    if call.has("weight"):
        scale = apply("mul", scale, cast(call.tensor("weight").expr, dtype))
    scales = stored_small(call, mapped(variance, scale))
    shift = apply("neg", apply("mul", mean.expr, scales.expr))
    if call.has("bias"):
        shift = apply("add", shift, cast(call.tensor("bias").expr, dtype))
    return scales, stored_small(call, mapped(mean, shift))
