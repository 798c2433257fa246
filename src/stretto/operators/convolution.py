"""Convolutions, and windows over the last dims of a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._meta_registrations import calc_conv_nd_return_shape
from torch.fx.experimental.symbolic_shapes import guard_or_false

from stretto.device.expr import Expr, Extent, Index
from stretto.device.operator import Combine
from stretto.ir.core import Value
from stretto.ir.ops import TensorOp
from stretto.ir.sizes import Size
from stretto.lowering.emit import (
    apply,
    conjunction,
    emit,
    number,
    product,
    sum_dtype,
    where,
    within,
)
from stretto.lowering.lazy import Lazy, broadcast, cast, variables
from stretto.lowering.rules import Decline, TensorOpCall, rule, sized_dims, static_dims
from stretto.operators.products import batched_input, operand, value_arguments
from stretto.ops.symints import require
from stretto.ops.table import Cost, Fails, Replaced, describe, shape_rule
from stretto.passes.batching.rules import Batch, batches, rebuilt

# ---- properties ------------------------------------------------------------------------------

describe("conv1d conv2d conv3d", fails=Fails.NEVER)


describe("convolution conv1d conv2d conv3d", cost=Cost.PRODUCT)


describe("convolution", whole=True)


@dataclass(frozen=True, slots=True)
class Window:
    """One dim of a window: `taps` positions, `dilation` apart, from `start` on.

    start: an index over the variable of the output position. guarded: True if part of a window
    may be outside of the input.
    """

    size: int | Size
    taps: int
    start: Index
    dilation: int
    guarded: bool


def tapped(
    lazy: Lazy,
    lead: tuple[Index, ...],
    windows: tuple[Window, ...],
    taps: tuple[Index, ...],
    outside: Expr,
) -> Expr:
    """Return the element at a tap of each window; past the edge `outside`, which determines the
    dtype."""
    places = [w.start + tap * w.dilation for w, tap in zip(windows, taps, strict=True)]
    pairs = zip(windows, places, strict=True)
    conditions = [one for w, place in pairs if w.guarded for one in within(place, w.size)]
    value = cast(lazy.at(*lead, *places), outside.dtype)
    condition = conjunction(conditions)
    return value if condition is None else where(condition, value, outside)


# ---- Convolution as a contraction over channels and window positions of a padded image --------
#
# Canonical form, for two image dims: dims (n, oc, oy, ox), reduce (ic, ky, kx), combine "sum",
# value mul(load of the weight [oc, ic, ky, kx], where(conditions, load of the image [n, c, y, x],
# 0)) with y = oy * stride - padding + ky * dilation and c = (oc // (OC / groups)) * (IC / groups)
# + ic. The conditions 0 <= y, y < H, 0 <= x, x < W are joined by "and" in this order; those of a
# dim that is not padded are left out, and without any the image is a plain load. Variables of
# dims of size 1 are 0.


@rule("convolution")
@rule(*(f"aten.conv{dims}d.{kind}" for dims in (1, 2, 3) for kind in ("default", "padding")))
def _convolution(call: TensorOpCall) -> Lazy:
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
    call: TensorOpCall,
    sizes: tuple[int | Size, ...],
    taps: tuple[int, ...],
    outs: tuple[Extent, ...],
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
    call: TensorOpCall,
    image: Lazy,
    weight: Lazy,
    windows: tuple[Window, ...],
    groups: int,
    dims: tuple[Extent, ...],
    plain: bool,
) -> Lazy:
    """Emit the contraction of a convolution. plain: True if it is the op's unchanged result."""
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


def _finished(call: TensorOpCall, raw: Lazy, bias: Lazy | None, batched: bool) -> Lazy:
    indices = variables(call.shape)
    expr = raw.at(*indices) if batched else raw.at(0, *indices)
    if bias is not None:
        rank = len(call.shape) - (2 if batched else 1)
        column = bias.view((*bias.shape, *(1,) * rank), *variables(bias.shape))
        expr = apply("add", expr, cast(broadcast(column, call.shape).expr, expr.dtype))
    return Lazy(call.dtype, call.shape, cast(expr, call.dtype))


@batches("convolution.default conv1d.default conv2d.default conv3d.default")
def _batch_convolution(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    source = batched_input(batch, op)
    has_batch = source.tensor.rank == value_arguments(op, "weight")[0].tensor.rank
    rows = batch.merge_rows(batch.twins[source]) if has_batch else batch.twins[source]
    (product,) = rebuilt(batch, op, {"input": rows})
    return (batch.split_rows(product, op.result.tensor.shape) if has_batch else product,)


@shape_rule("convolution.default", Replaced.UNBACKED, before="2.13")
def _convolution_shape(
    image: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> torch.Tensor:
    lengths = image.shape[2:]
    every = (_each(item, len(lengths)) for item in (weight.shape[2:], padding, dilation))
    for length, kernel, pad, step in zip(lengths, *every, strict=True):
        require(transposed or length + 2 * pad >= step * (kernel - 1) + 1)
    more = output_padding if transposed else None
    shape = calc_conv_nd_return_shape(
        image, weight, stride, padding, dilation, transposed, groups, more
    )
    if guard_or_false(image.shape[1] == 0):
        shape[1] = 0
    return image.new_empty(shape)


def _each(items: Any, count: int) -> list[Any]:
    """Return one item per dim; a single item is repeated."""
    return list(items) * count if len(items) == 1 else list(items)
