"""Convolution as a contraction over channels and window positions of a padded image.

Canonical form, for two image dims: dims (n, oc, oy, ox), reduce (ic, ky, kx), combine "sum", value
mul(load of the weight [oc, ic, ky, kx], where(conditions, load of the image [n, c, y, x], 0)) with
y = oy * stride - padding + ky * dilation and c = (oc // (OC / groups)) * (IC / groups) + ic.
The conditions 0 <= y, y < H, 0 <= x, x < W are joined by "and" in this order; those of a dim that
is not padded are left out, and without any the image is a plain load. Variables of dims of size 1
are 0.
"""

from __future__ import annotations

from stretto.device.expr import Extent, Index
from stretto.device.operator import Combine
from stretto.ir.sizes import Size
from stretto.lowering.lazy import Lazy, broadcast, cast, variables
from stretto.lowering.rules.contract import operand
from stretto.lowering.rules.emit import emit, product
from stretto.lowering.rules.scalar import apply, number, sum_dtype
from stretto.lowering.rules.table import Call, Decline, rule, sized_dims, static_dims
from stretto.lowering.rules.windows import Window, tapped


@rule("convolution")
@rule(*(f"aten.conv{dims}d.{kind}" for dims in (1, 2, 3) for kind in ("default", "padding")))
def _convolution(call: Call) -> Lazy:
    image, weight = call.tensor("input"), call.tensor("weight")
    spatial = weight.rank - 2
    if call.arguments.get("transposed", False):
        raise Decline("a transposed convolution")
    taps = static_dims(weight.shape)[2:]
    windows = _windows(call, sized_dims(image.shape[-spatial:]), taps, call.shape[-spatial:])
    groups = call.integer("groups")
    if call.dtype.is_integer or 0 in call.shape:
        raise Decline("integers, or nothing to compute")
    image, weight = (operand(call, call.arguments[name]) for name in ("input", "weight"))
    batched = image.rank == spatial + 2
    if not batched:
        image = image.view((1, *image.shape), *variables(image.shape, 1))
    shape = call.shape if batched else (1, *call.shape)
    bias = call.optional("bias")
    plain = bias is None and batched
    raw = convolve(call, image, weight, windows, groups, shape, plain)
    return _finished(call, raw, bias, batched)


def _windows(
    call: Call, sizes: tuple[int | Size, ...], taps: tuple[int, ...], outs: tuple[Extent, ...]
) -> tuple[Window, ...]:
    count = len(sizes)
    strides, dilations = (call.integers(name, count) for name in ("stride", "dilation"))
    paddings = call.arguments["padding"]
    if paddings == "valid":
        paddings = (0,) * count
    elif paddings == "same":
        paddings = tuple(d * (t - 1) // 2 for d, t in zip(dilations, taps, strict=True))
    else:
        paddings = call.integers("padding", count)
    is_padded = [padding > 0 or call.arguments["padding"] == "same" for padding in paddings]
    places = variables(outs, 2)
    return tuple(
        Window(size, tap, place * stride + -padding, dilation, guarded)
        for size, tap, place, stride, padding, dilation, guarded in zip(
            sizes, taps, places, strides, paddings, dilations, is_padded, strict=True
        )
    )


def convolve(
    call: Call,
    image: Lazy,
    weight: Lazy,
    windows: tuple[Window, ...],
    groups: int,
    dims: tuple[Extent, ...],
    plain: bool,
) -> Lazy:
    reduce = weight.shape[1:]
    number_, channel, *_ = variables(dims)
    inner, *taps = variables(reduce, len(dims))
    out_channels, in_channels = weight.shape[0], weight.shape[1]
    assert isinstance(out_channels, int) and isinstance(in_channels, int)
    group = channel // (out_channels // groups) if groups > 1 else Index()
    dtype = sum_dtype(call.dtype)
    lead = (number_, group * in_channels + inner)
    pixel = tapped(image, lead, windows, tuple(taps), number(0, dtype))
    value = product(weight.at(channel, inner, *taps), pixel, dtype)
    result = call.result if plain else None
    return emit(call.low, "convolution", dims, reduce, Combine.SUM, value, result)


def _finished(call: Call, raw: Lazy, bias: Lazy | None, batched: bool) -> Lazy:
    indices = variables(call.shape)
    expr = raw.at(*indices) if batched else raw.at(0, *indices)
    if bias is not None:
        rank = len(call.shape) - (2 if batched else 1)
        column = bias.view((*bias.shape, *(1,) * rank), *variables(bias.shape))
        expr = apply("add", expr, cast(broadcast(column, call.shape).expr, expr.dtype))
    return Lazy(call.dtype, call.shape, cast(expr, call.dtype))
