"""Resampling of images, nearest and linear: pixels are loads at computed positions."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.device.expr import Const, Expr, Index, Position, dynamic_index
from stretto.ir.types import DType
from stretto.lowering.emit import apply, compute_dtype, like
from stretto.lowering.lazy import Lazy, cast, variables
from stretto.lowering.rules import Decline, TensorOpCall, rule, static_dims
from stretto.ops.table import Fails, describe

# ---- properties ------------------------------------------------------------------------------

describe(
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d "
    "upsample_bilinear2d upsample_trilinear3d",
    fails=Fails.NEVER,
)
describe(
    "upsample_nearest2d upsample_linear1d upsample_bilinear2d upsample_trilinear3d", whole=True
)


@rule(
    "upsample_nearest1d upsample_nearest1d.vec upsample_nearest2d upsample_nearest2d.vec "
    "upsample_nearest3d upsample_nearest3d.vec",
)
def _nearest(call: TensorOpCall) -> Lazy:
    lazy = call.tensor("self" if "self" in call.arguments else "input")
    indices = list(variables(call.shape))
    for dim in range(2, lazy.rank):
        old, new = static_dims((lazy.shape[dim], call.shape[dim]))
        if new % old:
            raise Decline("the scale is not a whole number")
        indices[dim] = indices[dim] // (new // old)
    return lazy.view(call.shape, *indices)


@dataclass(frozen=True, slots=True)
class Blend:
    """Two neighbours along one dim, and the share of the second."""

    first: Index
    second: Index
    share: Expr


@rule(
    "upsample_linear1d upsample_linear1d.vec upsample_bilinear2d upsample_bilinear2d.vec "
    "upsample_trilinear3d upsample_trilinear3d.vec",
)
def _linear(call: TensorOpCall) -> Lazy:
    name = "self" if "self" in call.arguments else "input"
    dtype = compute_dtype(call.dtype)
    if not dtype.is_float or 0 in call.shape:
        raise Decline("integers, or nothing to compute")
    number, channel, *places = variables(call.shape)
    if dtype is not call.dtype and len(places) != 2:
        raise Decline("ATen rounds every step to the dtype of the image")
    sizes = static_dims(call.tensor(name).shape[2:])
    blends = [
        _blend(call, n, size, place, dtype)
        for n, (size, place) in enumerate(zip(sizes, places, strict=True))
    ]
    lazy = call.cheap(name)

    def blended(*pixel: Index) -> Expr:
        if len(pixel) == len(blends):
            return cast(lazy.at(number, channel, *pixel), dtype)
        blend = blends[len(pixel)]
        return _mixed(blended(*pixel, blend.first), blended(*pixel, blend.second), blend.share)

    return Lazy(call.dtype, call.shape, cast(blended(), call.dtype))


def _mixed(first: Expr, second: Expr, share: Expr) -> Expr:
    rest = apply("sub", like(1, share), share)
    return apply("add", apply("mul", rest, first), apply("mul", share, second))


def _blend(call: TensorOpCall, number: int, old: int, place: Index, dtype: DType) -> Blend:
    """Return the input pixels around an output position along one dim."""
    (new,) = static_dims(call.shape[2 + number : 3 + number])
    position = cast(Position(place), dtype)
    if call.flag("align_corners"):
        ratio = (old - 1) / (new - 1) if new > 1 else 0.0
        source = apply("mul", position, like(ratio, position))
    else:
        ratio = like(_ratio(call, number, old, new), position)
        half = like(0.5, position)
        source = apply("sub", apply("mul", apply("add", position, half), ratio), half)
        source = apply("maximum", source, like(0, position))
    last = Const(old - 1, DType.I64)
    first = apply("minimum", cast(source, DType.I64), last)
    second = apply("minimum", apply("add", first, Const(1, DType.I64)), last)
    share = apply("sub", source, cast(first, dtype))
    return Blend(dynamic_index(first), dynamic_index(second), share)


def _ratio(call: TensorOpCall, number: int, old: int, new: int) -> float:
    """Return input pixels per output pixel: from the given scale, or else from the sizes."""
    if call.has("scale_factors"):
        factors = call.arguments["scale_factors"]
        assert isinstance(factors, tuple)
        factor = factors[number]
        return 1 / factor if isinstance(factor, float) else old / new
    names = [key for key in call.arguments if key.startswith("scales")]
    given = names and call.has(names[number])
    return 1 / float(call.number(names[number])) if given else old / new
