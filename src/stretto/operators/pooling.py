"""Pooling: the maximum or mean over windows of the last dims; `where` guards the edges."""

from __future__ import annotations

from math import prod

from stretto.device.expr import Const, Expr, Index, Position
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
    neutral,
    number,
    sum_dtype,
    where,
)
from stretto.lowering.lazy import Lazy, cast, variables
from stretto.lowering.rules import Decline, TensorOpCall, rule, sized_dims, static_dims
from stretto.operators.convolution import Window, tapped
from stretto.ops.table import Fails, MergeRows, describe

# ---- properties ------------------------------------------------------------------------------

describe(
    "max_pool1d max_pool2d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d",
    fails=Fails.NEVER,
)
describe("avg_pool1d max_pool1d", batching=MergeRows(3))
describe(
    "avg_pool2d max_pool2d max_pool2d_with_indices _adaptive_avg_pool2d adaptive_avg_pool2d",
    batching=MergeRows(4),
)
describe("max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d", whole=True)


def _image_dims(call: TensorOpCall) -> int:
    """Return the number of dims that the pool runs over, from its name."""
    return int(next(letter for letter in call.op.target if letter.isdigit()))


def _amounts(
    call: TensorOpCall, name: str, count: int, default: tuple[int, ...]
) -> tuple[int, ...]:
    if name not in call.arguments or call.arguments[name] == ():
        return default
    return call.integers(name, count)


def _pool_windows(call: TensorOpCall, lazy: Lazy) -> tuple[Window, ...]:
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


def _taps(call: TensorOpCall, windows: tuple[Window, ...]) -> tuple[Index, ...]:
    return variables(tuple(window.taps for window in windows), len(call.shape))


def _element(call: TensorOpCall, lazy: Lazy, windows: tuple[Window, ...], outside: Expr) -> Expr:
    lead = variables(call.shape)[: len(call.shape) - len(windows)]
    return tapped(lazy, lead, windows, _taps(call, windows), outside)


def _pool(
    call: TensorOpCall,
    lazy: Lazy,
    windows: tuple[Window, ...],
    combine: Combine,
    *,
    out: bool = False,
) -> Lazy:
    """Combine the input over each window; positions outside are neutral."""
    is_sum = combine is Combine.SUM
    dtype = sum_dtype(call.dtype) if is_sum else compute_dtype(lazy.dtype)
    value = _element(call, lazy, windows, neutral(Combine.SUM if is_sum else Combine.MAX, dtype))
    reduce = tuple(window.taps for window in windows)
    return emit(call.low, "pool", call.shape, reduce, combine, value, call.result if out else None)


def _check_known(call: TensorOpCall) -> None:
    sized_dims(call.tensor("self").shape)


# ---- maximum ---------------------------------------------------------------------------------


@rule("max_pool1d max_pool2d")
@rule("max_pool2d_with_indices max_pool3d_with_indices")
def _max_pool(call: TensorOpCall) -> tuple[Lazy, ...]:
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


def _last_nan(call: TensorOpCall, lazy: Lazy, windows: tuple[Window, ...]) -> Lazy:
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
def _avg_pool(call: TensorOpCall) -> Lazy:
    _check_known(call)
    if not call.dtype.is_float:
        raise Decline("a mean of integers")
    windows = _pool_windows(call, call.tensor("self"))
    divisor = _divisor(call, windows)
    return _mean(call, _pool(call, call.cheap("self"), windows, Combine.SUM), divisor)


def _mean(call: TensorOpCall, total: Lazy, divisor: Expr) -> Lazy:
    if isinstance(divisor, Const):
        size = int(divisor.value)
        exact = size > 0 and size & (size - 1) == 0
        name, by = ("mul", 1 / size) if exact else ("div", size)
        expr = apply(name, total.expr, number(by, total.dtype))
    else:
        expr = apply("div", total.expr, cast(divisor, total.dtype))
    return Lazy(call.dtype, call.shape, cast(expr, call.dtype))


def _divisor(call: TensorOpCall, windows: tuple[Window, ...]) -> Expr:
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
def _adaptive_avg_pool(call: TensorOpCall) -> Lazy:
    return _mean(call, *_adaptive(call, Combine.SUM))


@rule("adaptive_max_pool2d")
def _adaptive_max_pool2d(call: TensorOpCall) -> tuple[Lazy, ...]:
    if call.used(1):
        raise Decline("the positions of the maxima")
    return _adaptive(call, Combine.MAX)[0], Lazy(DType.I64, call.shape, Const(0, DType.I64))


def _adaptive(call: TensorOpCall, combine: Combine) -> tuple[Lazy, Expr]:
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
        value = where(condition, value, neutral(combine, dtype))
    total = emit(call.low, "pool", call.shape, reduce, combine, value)
    return Lazy(total.dtype, call.shape, total.expr), widths


def _widest(size: int, out: int) -> int:
    """Return the size of the largest window."""
    return max((-(-(o + 1) * size // out)) - o * size // out for o in range(out))
