"""Windows over the last dims of a tensor: convolution, pooling and resampling."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from stretto.device.expr import Const, Expr, Extent, Index, Position, dynamic_index
from stretto.device.operator import Combine
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Size
from stretto.ir.types import DType
from stretto.lowering.emit import (
    apply,
    compute_dtype,
    conjunction,
    emit,
    like,
    lowest,
    number,
    product,
    sum_dtype,
    where,
    within,
)
from stretto.lowering.lazy import Lazy, broadcast, cast, variables
from stretto.lowering.rules import Call, Decline, rule, sized_dims, static_dims
from stretto.operators.products import operand


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


def _finished(call: Call, raw: Lazy, bias: Lazy | None, batched: bool) -> Lazy:
    indices = variables(call.shape)
    expr = raw.at(*indices) if batched else raw.at(0, *indices)
    if bias is not None:
        rank = len(call.shape) - (2 if batched else 1)
        column = bias.view((*bias.shape, *(1,) * rank), *variables(bias.shape))
        expr = apply("add", expr, cast(broadcast(column, call.shape).expr, expr.dtype))
    return Lazy(call.dtype, call.shape, cast(expr, call.dtype))


# ---- Pooling: the maximum or mean over windows of the last dims; `where` guards the edges -----


def _image_dims(call: Call) -> int:
    """Return the number of dims that the pool runs over, from its name."""
    return int(next(letter for letter in call.op.target if letter.isdigit()))


def _amounts(call: Call, name: str, count: int, default: tuple[int, ...]) -> tuple[int, ...]:
    if name not in call.arguments or call.arguments[name] == ():
        return default
    return call.integers(name, count)


def _pool_windows(call: Call, lazy: Lazy) -> tuple[Window, ...]:
    count = _image_dims(call)
    sizes, outs = sized_dims(lazy.shape[-count:]), sized_dims(call.shape[-count:])
    taps = call.integers("kernel_size", count)
    strides = _amounts(call, "stride", count, taps)
    paddings = _amounts(call, "padding", count, (0,) * count)
    dilations = _amounts(call, "dilation", count, (1,) * count)
    windows: list[Window] = []
    for n, place in enumerate(variables(call.shape)[-count:]):
        last = (outs[n] - 1) * strides[n] - paddings[n] + (taps[n] - 1) * dilations[n] + 1
        guarded = paddings[n] > 0 or not at_most(last, sizes[n])
        start = place * strides[n] + -paddings[n]
        windows.append(Window(sizes[n], taps[n], start, dilations[n], guarded))
    return tuple(windows)


def _taps(call: Call, windows: tuple[Window, ...]) -> tuple[Index, ...]:
    return variables(tuple(window.taps for window in windows), len(call.shape))


def _element(call: Call, lazy: Lazy, windows: tuple[Window, ...], outside: Expr) -> Expr:
    lead = variables(call.shape)[: len(call.shape) - len(windows)]
    return tapped(lazy, lead, windows, _taps(call, windows), outside)


def _pool(
    call: Call, lazy: Lazy, windows: tuple[Window, ...], combine: Combine, *, out: bool = False
) -> Lazy:
    """Combine the input over each window; positions outside are neutral."""
    is_sum = combine is Combine.SUM
    dtype = sum_dtype(call.dtype) if is_sum else compute_dtype(lazy.dtype)
    value = _element(call, lazy, windows, number(0 if is_sum else lowest(dtype), dtype))
    reduce = tuple(window.taps for window in windows)
    return emit(call.low, "pool", call.shape, reduce, combine, value, call.result if out else None)


def _check_known(call: Call) -> None:
    sized_dims(call.tensor("self").shape)


# ---- maximum ---------------------------------------------------------------------------------


@rule("max_pool1d max_pool2d")
@rule("max_pool2d_with_indices max_pool3d_with_indices")
def _max_pool(call: Call) -> tuple[Lazy, ...]:
    _check_known(call)
    lazy = call.stored("self")
    windows = _pool_windows(call, lazy)
    raw = _pool(call, lazy, windows, Combine.MAX, out=True)
    values = Lazy(call.dtype, call.shape, cast(raw.expr, call.dtype))
    if len(call.op.results) == 1:
        return (values,)
    if not call.used(1):
        return values, Lazy(DType.I64, call.shape, Const(0, DType.I64))
    tap = _pool(call, lazy, windows, Combine.ARGMAX).expr
    if lazy.dtype.is_float:
        last = _last_nan(call, lazy, windows).expr
        tap = where(apply("ge", last, like(0, last)), last, tap)
    return values, Lazy(DType.I64, call.shape, _flat_position(tap, windows))


def _last_nan(call: Call, lazy: Lazy, windows: tuple[Window, ...]) -> Lazy:
    """Return the number of the last tap with a NaN, whose position ATen returns; -1 if there is
    none."""
    value = _element(call, lazy, windows, number(0, compute_dtype(lazy.dtype)))
    reduce = tuple(window.taps for window in windows)
    tap = Index()
    for size, variable in zip(reduce, _taps(call, windows), strict=True):
        tap = tap * size + variable
    place = where(apply("isnan", value), Position(tap), Const(-1, DType.I64))
    return emit(call.low, "last_nan", call.shape, reduce, Combine.MAX, place)


def _size(size: int | Size) -> Expr:
    return Const(size, DType.I64) if isinstance(size, int) else Position(size)


def _flat_position(tap: Expr, windows: tuple[Window, ...]) -> Expr:
    """Return the number of the pixel at tap number `tap` (row-major in the window)."""
    total: Expr = Const(0, DType.I64)
    for n, window in enumerate(windows):
        inner = prod(w.taps for w in windows[n + 1 :])
        place = apply("remainder", apply("floordiv", tap, like(inner, tap)), like(window.taps, tap))
        offset = apply("mul", place, like(window.dilation, tap))
        pixel = apply("maximum", apply("add", Position(window.start), offset), like(0, tap))
        total = apply("add", apply("mul", total, cast(_size(window.size), tap.dtype)), pixel)
    return total


# ---- mean ------------------------------------------------------------------------------------


@rule("avg_pool1d avg_pool2d avg_pool3d")
def _avg_pool(call: Call) -> Lazy:
    _check_known(call)
    if not call.dtype.is_float:
        raise Decline("a mean of integers")
    windows = _pool_windows(call, call.tensor("self"))
    divisor = _divisor(call, windows)
    return _mean(call, _pool(call, call.cheap("self"), windows, Combine.SUM), divisor)


def _mean(call: Call, total: Lazy, divisor: Expr) -> Lazy:
    if isinstance(divisor, Const):
        size = int(divisor.value)
        exact = size > 0 and size & (size - 1) == 0
        name, by = ("mul", 1 / size) if exact else ("div", size)
        expr = apply(name, total.expr, number(by, total.dtype))
    else:
        expr = apply("div", total.expr, cast(divisor, total.dtype))
    return Lazy(call.dtype, call.shape, cast(expr, call.dtype))


def _divisor(call: Call, windows: tuple[Window, ...]) -> Expr:
    """Return the divisor of a window's sum: a constant if all windows are equal."""
    if call.arguments.get("divisor_override") is not None:
        return Const(call.integer("divisor_override"), DType.I64)
    count = len(windows)
    total: Expr = Const(1, DType.I64)
    paddings = _amounts(call, "padding", count, (0,) * count)
    outs = sized_dims(call.shape[-count:])
    strides = _amounts(call, "stride", count, tuple(window.taps for window in windows))
    for window, padding, out, stride in zip(windows, paddings, outs, strides, strict=True):
        allowed = padding if call.flag("count_include_pad") else 0
        last = (out - 1) * stride - padding + window.taps
        whole = at_most(last, window.size + allowed) and allowed == padding
        total = apply("mul", total, _width(window, allowed, whole))
    return total


def _width(window: Window, allowed: int, whole: bool) -> Expr:
    """Return the number of counted positions: those up to `allowed` outside of the input."""
    if whole:
        return Const(window.taps, DType.I64)
    stop = Position(window.start + window.taps)
    end = apply("minimum", stop, _size(window.size + allowed))
    start = apply("maximum", Position(window.start), Const(-allowed, DType.I64))
    return apply("sub", end, start)


# ---- adaptive --------------------------------------------------------------------------------


@rule(*(f"aten.adaptive_avg_pool{count}d.default" for count in (1, 2, 3)))
@rule("_adaptive_avg_pool2d _adaptive_avg_pool3d")
def _adaptive_avg_pool(call: Call) -> Lazy:
    return _mean(call, *_adaptive(call, Combine.SUM))


@rule("adaptive_max_pool2d")
def _adaptive_max_pool2d(call: Call) -> tuple[Lazy, ...]:
    if call.used(1):
        raise Decline("the positions of the maxima")
    return _adaptive(call, Combine.MAX)[0], Lazy(DType.I64, call.shape, Const(0, DType.I64))


def _adaptive(call: Call, combine: Combine) -> tuple[Lazy, Expr]:
    """Combine windows floor(o * size / outs) .. ceil((o + 1) * size / outs); return the result and
    their sizes."""
    count = _image_dims(call)
    sizes = static_dims(call.tensor("self").shape[-count:])
    outs = static_dims(call.shape[-count:])
    if 0 in call.shape or 0 in sizes:
        raise Decline("nothing to combine")
    lazy = call.cheap("self")
    places = variables(call.shape)[-count:]
    starts = [(o * size) // out for o, size, out in zip(places, sizes, outs, strict=True)]
    ends = [(o * s + (s + n - 1)) // n for o, s, n in zip(places, sizes, outs, strict=True)]
    reduce = tuple(_widest(size, out) for size, out in zip(sizes, outs, strict=True))
    taps = variables(reduce, len(call.shape))
    inside: list[Expr] = []
    widths: Expr = Const(1, DType.I64)
    for n, (size, out) in enumerate(zip(sizes, outs, strict=True)):
        if size % out:
            inside.append(apply("lt", Position(starts[n] + taps[n]), Position(ends[n])))
        widths = apply("mul", widths, apply("sub", Position(ends[n]), Position(starts[n])))
    dtype = sum_dtype(call.dtype)
    lead = variables(call.shape)[:-count]
    value = cast(lazy.at(*lead, *(s + t for s, t in zip(starts, taps, strict=True))), dtype)
    condition = conjunction(inside)
    if condition is not None:
        neutral = number(0 if combine is Combine.SUM else lowest(dtype), dtype)
        value = where(condition, value, neutral)
    total = emit(call.low, "pool", call.shape, reduce, combine, value)
    return Lazy(total.dtype, call.shape, total.expr), widths


def _widest(size: int, out: int) -> int:
    """Return the size of the largest window."""
    return max((-(-(o + 1) * size // out)) - o * size // out for o in range(out))


# ---- Resampling of images, nearest and linear: pixels are loads at computed positions ---------


@rule(
    "upsample_nearest1d upsample_nearest1d.vec upsample_nearest2d upsample_nearest2d.vec "
    "upsample_nearest3d upsample_nearest3d.vec",
)
def _nearest(call: Call) -> Lazy:
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
def _linear(call: Call) -> Lazy:
    name = "self" if "self" in call.arguments else "input"
    dtype = compute_dtype(call.dtype)
    if not dtype.is_float or 0 in call.shape:
        raise Decline("integers, or nothing to compute")
    static_dims(call.tensor(name).shape[2:])
    lazy = call.cheap(name)
    number, channel, *places = variables(call.shape)
    if dtype is not call.dtype and len(places) != 2:
        raise Decline("ATen rounds every step to the dtype of the image")
    blends = [_blend(call, lazy, n, place, dtype) for n, place in enumerate(places)]

    def blended(*pixel: Index) -> Expr:
        if len(pixel) == len(blends):
            return cast(lazy.at(number, channel, *pixel), dtype)
        blend = blends[len(pixel)]
        return _mixed(blended(*pixel, blend.first), blended(*pixel, blend.second), blend.share)

    return Lazy(call.dtype, call.shape, cast(blended(), call.dtype))


def _mixed(first: Expr, second: Expr, share: Expr) -> Expr:
    rest = apply("sub", like(1, share), share)
    return apply("add", apply("mul", rest, first), apply("mul", share, second))


def _blend(call: Call, lazy: Lazy, number: int, place: Index, dtype: DType) -> Blend:
    """Return the input pixels around an output position along one dim."""
    old, new = static_dims((lazy.shape[2 + number], call.shape[2 + number]))
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


def _ratio(call: Call, number: int, old: int, new: int) -> float:
    """Return input pixels per output pixel: from the given scale, or else from the sizes."""
    if call.has("scale_factors"):
        factors = call.arguments["scale_factors"]
        assert isinstance(factors, tuple)
        factor = factors[number]
        return 1 / factor if isinstance(factor, float) else old / new
    names = [key for key in call.arguments if key.startswith("scales")]
    given = names and call.has(names[number])
    return 1 / float(call.number(names[number])) if given else old / new
