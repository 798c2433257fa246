"""Normalisation: layer, group, instance, root-mean-square norm; batch norm in inference."""

from __future__ import annotations

import torch

from stretto.device.expr import Buffer, Expr
from stretto.device.operator import Combine
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
)
from stretto.lowering.lazy import Lazy, cast, constant, select, stored, variables, whole_buffer
from stretto.lowering.rules import Decline, TensorOpCall, rule, static_dims
from stretto.operators.reductions import count, divided, squares, stored_small
from stretto.ops.table import Fails, KeepDims, MergeRows, describe

# ---- properties ------------------------------------------------------------------------------

describe(
    "layer_norm group_norm batch_norm rms_norm instance_norm native_batch_norm cudnn_batch_norm",
    fails=Fails.NEVER,
)
describe("layer_norm native_layer_norm", batching=KeepDims(1))
describe("group_norm", batching=MergeRows(2))
describe("native_layer_norm native_group_norm", whole=True)


def _statistics(
    call: TensorOpCall, lazy: Lazy, dims: tuple[int, ...], eps: float, *, moments: bool = False
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


def _row_mean(call: TensorOpCall, lazy: Lazy, dims: tuple[int, ...]) -> Lazy:
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


def _affine(call: TensorOpCall, x: Expr, weight: Expr | None, bias: Expr | None) -> Lazy:
    """Return x * weight + bias as the result."""
    x = x if weight is None else apply("mul", x, cast(weight, x.dtype))
    x = x if bias is None else apply("add", x, cast(bias, x.dtype))
    return Lazy(call.dtype, call.shape, cast(x, call.dtype))


def _source(call: TensorOpCall, name: str = "input") -> Lazy:
    given = call.tensor(name)
    if not given.dtype.is_float or 0 in given.shape:
        raise Decline("nothing to normalise")
    lazy = call.cheap(name)
    return computed(lazy, compute_dtype(lazy.dtype))


def _trailing(call: TensorOpCall, name: str, rank: int) -> Expr | None:
    """Return the element of a parameter that has the last dims of the input."""
    lazy = call.optional(name)
    if lazy is None:
        return None
    return lazy.at(*variables(call.shape)[rank - lazy.rank :])


@rule("layer_norm native_layer_norm")
def _layer_norm(call: TensorOpCall) -> Lazy | tuple[Lazy, ...]:
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
def _rms_norm(call: TensorOpCall) -> Lazy:
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
def _group_norm(call: TensorOpCall) -> Lazy | tuple[Lazy, ...]:
    name = "group" if "group" in call.arguments else "num_groups"
    out, mean, rstd = _grouped(call, call.integer(name), moments=True)
    if len(call.op.results) == 1:
        return out
    dtype = call.op.results[1].tensor.dtype
    return out, computed(mean, dtype), computed(rstd, dtype)


@rule("instance_norm")
def _instance_norm(call: TensorOpCall) -> Lazy:
    if not call.flag("use_input_stats"):
        raise Decline("running statistics")
    channels = static_dims(call.tensor("input").shape)[1]
    return _grouped(call, channels)[0]


def _grouped(call: TensorOpCall, groups: int, *, moments: bool = False) -> tuple[Lazy, Lazy, Lazy]:
    """Return the normalised tensor, and mean and rstd [n, groups]."""
    eps = float(call.number("eps"))
    (channels,) = static_dims(call.tensor("input").shape[1:2])
    lazy = _source(call, "input")
    number, _, *spatial = lazy.shape
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


def _per_channel(call: TensorOpCall, lazy: Lazy, expr: Expr) -> Expr:
    """Store a value per instance and channel, so that elements need not compute their group."""
    part = emit(call.low, "row", lazy.shape[:2], (), Combine.NONE, expr)
    return part.at(*variables(lazy.shape)[:2])


def _scaled(call: TensorOpCall, lazy: Lazy, centre: Expr, scale: Expr, weight: str | None) -> Lazy:
    """Return (x - centre) * scale, times the weight of the channel, if any, plus its bias."""
    normal = apply("mul", apply("sub", lazy.expr, centre), scale)
    channel = variables(lazy.shape)[1]
    given = (None if name is None else call.optional(name) for name in (weight, "bias"))
    return _affine(call, normal, *(None if part is None else part.at(channel) for part in given))


# ---- batch norm ------------------------------------------------------------------------------


@rule("_native_batch_norm_legit_no_training native_batch_norm cudnn_batch_norm batch_norm")
def _batch_norm_in_inference(call: TensorOpCall) -> tuple[Lazy, ...]:
    if call.arguments.get("training", False) is not False:
        raise Decline("training")
    nothing = _nothing(call)
    return _batch_norm(call), *nothing


@rule("_native_batch_norm_legit.no_stats")
def _batch_norm_of_itself(call: TensorOpCall) -> tuple[Lazy, ...]:
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


def _nothing(call: TensorOpCall) -> tuple[Lazy, ...]:
    """Return the saved statistics, which are empty in inference."""
    kinds = [value.tensor for value in call.op.results[1:]]
    if any(call.used(n + 1) and kind.shape != (0,) for n, kind in enumerate(kinds)):
        raise Decline("saved statistics")
    return tuple(constant(0, kind.dtype, call.low.extents(kind.shape)) for kind in kinds)


def _batch_norm(call: TensorOpCall) -> Lazy:
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


def _folded(call: TensorOpCall, eps: float) -> tuple[Lazy, Lazy] | None:
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


def _scale_and_shift(call: TensorOpCall, eps: float) -> tuple[Lazy, Lazy]:
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
