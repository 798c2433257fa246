"""Pooling: the maximum or mean over windows of the last dims; windows past the edge by `where`."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from stretto.device.expr import Const, Expr, Extent, Index, Position
from stretto.ir.types import DType
from stretto.lowering.lazy import Lazy, cast, variables
from stretto.lowering.rules.emit import emit
from stretto.lowering.rules.scalar import (
    apply,
    compute_dtype,
    conjunction,
    like,
    lowest,
    number,
    sum_dtype,
    where,
    within,
)
from stretto.lowering.rules.table import Call, Decline, rule, static_dims


@dataclass(frozen=True, slots=True)
class Window:
    """One dim: `taps` positions, `dilation` apart, from `start` on.

    `start` is an index of the output position; `last` is the end of the last window.
    """

    size: int
    taps: int
    start: Index
    dilation: int
    padding: int
    last: int

    @property
    def guarded(self) -> bool:
        """Whether a window may lie in part outside of the input."""
        return self.padding > 0 or self.last > self.size

    def inside(self, place: Index) -> list[Expr]:
        """The conditions for `place` to be in the window and in the input."""
        return within(place, self.size) if self.guarded else []


def _amounts(call: Call, name: str, count: int, default: tuple[int, ...]) -> tuple[int, ...]:
    if name not in call.arguments or call.arguments[name] == ():
        return default
    return call.integers(name, count)


def _windows(call: Call, lazy: Lazy, count: int) -> tuple[Window, ...]:
    sizes = static_dims(lazy.shape[-count:])
    outs = static_dims(call.shape[-count:])
    taps = call.integers("kernel_size", count)
    strides = _amounts(call, "stride", count, taps)
    paddings = _amounts(call, "padding", count, (0,) * count)
    dilations = _amounts(call, "dilation", count, (1,) * count)
    places = variables(call.shape)[-count:]
    windows: list[Window] = []
    for n, place in enumerate(places):
        start = place * strides[n] + -paddings[n]
        last = (outs[n] - 1) * strides[n] - paddings[n] + (taps[n] - 1) * dilations[n] + 1
        windows.append(Window(sizes[n], taps[n], start, dilations[n], paddings[n], last))
    return tuple(windows)


def _pool(
    call: Call, lazy: Lazy, windows: tuple[Window, ...], combine: str, dtype: DType, out: bool
) -> Lazy:
    """The input combined over each window, in `dtype`; positions outside count as nothing."""
    dims = call.shape
    reduce = tuple(window.taps for window in windows)
    value = _tap(lazy, windows, dims, number(0 if combine == "sum" else lowest(dtype), dtype))
    return emit(call.low, "pool", dims, reduce, combine, value, call.result if out else None)


def _tap(lazy: Lazy, windows: tuple[Window, ...], dims: tuple[Extent, ...], outside: Expr) -> Expr:
    """The element at a tap of a window; `outside`, which has its dtype, past the edge."""
    taps = variables(tuple(window.taps for window in windows), len(dims))
    places = [w.start + t * w.dilation for w, t in zip(windows, taps, strict=True)]
    conditions = [c for w, p in zip(windows, places, strict=True) for c in w.inside(p)]
    lead = variables(dims)[: len(dims) - len(windows)]
    value = cast(lazy.at(*lead, *places), outside.dtype)
    condition = conjunction(conditions)
    return value if condition is None else where(condition, value, outside)


# ---- maximum ---------------------------------------------------------------------------------


def _maximum(call: Call, count: int) -> Lazy:
    lazy = call.stored("self")
    windows = _windows(call, lazy, count)
    raw = _pool(call, lazy, windows, "max", compute_dtype(lazy.dtype), out=True)
    return Lazy(call.dtype, call.shape, cast(raw.expr, call.dtype))


def _check_static(call: Call) -> None:
    static_dims(call.tensor("self").shape)


@rule("aten.max_pool1d.default")
def _max_pool1d(call: Call) -> Lazy:
    _check_static(call)
    return _maximum(call, 1)


@rule("aten.max_pool2d.default")
def _max_pool2d(call: Call) -> Lazy:
    _check_static(call)
    return _maximum(call, 2)


@rule("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def _max_pool_with_indices(call: Call) -> tuple[Lazy, ...]:
    _check_static(call)
    count = 2 if "2d" in call.op.target else 3
    values = _maximum(call, count)
    if not call.used(1):
        return values, Lazy(DType.I64, call.shape, Const(0, DType.I64))
    lazy = call.stored("self")
    windows = _windows(call, lazy, count)
    tap = _pool(call, lazy, windows, "argmax", compute_dtype(lazy.dtype), out=False).expr
    if lazy.dtype.is_float:
        last = _last_nan(call, lazy, windows).expr
        tap = where(apply("ge", last, like(0, last)), last, tap)
    return values, Lazy(DType.I64, call.shape, _flat_position(tap, windows))


def _last_nan(call: Call, lazy: Lazy, windows: tuple[Window, ...]) -> Lazy:
    """The number of the last tap with a NaN, whose position ATen gives; -1 where there is none."""
    reduce = tuple(window.taps for window in windows)
    dtype = compute_dtype(lazy.dtype)
    value = _tap(lazy, windows, call.shape, number(0, dtype))
    tap = Index()
    for size, variable in zip(reduce, variables(reduce, len(call.shape)), strict=True):
        tap = tap * size + variable
    place = where(apply("isnan", value), Position(tap), Const(-1, DType.I64))
    return emit(call.low, "last_nan", call.shape, reduce, "max", place)


def _flat_position(tap: Expr, windows: tuple[Window, ...]) -> Expr:
    """Number of the pixel at tap number `tap` (row-major in the window)."""
    total: Expr = Const(0, DType.I64)
    for n, window in enumerate(windows):
        inner = prod(w.taps for w in windows[n + 1 :])
        place = apply("remainder", apply("floordiv", tap, like(inner, tap)), like(window.taps, tap))
        offset = apply("mul", place, like(window.dilation, tap))
        pixel = apply("maximum", apply("add", Position(window.start), offset), like(0, tap))
        total = apply("add", apply("mul", total, like(window.size, tap)), pixel)
    return total


# ---- mean ------------------------------------------------------------------------------------


@rule("aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default")
def _avg_pool(call: Call) -> Lazy:
    _check_static(call)
    if not call.dtype.is_float:
        raise Decline("a mean of integers")
    count = int(call.op.target[len("aten.avg_pool")])
    lazy = call.tensor("self")
    windows = _windows(call, lazy, count)
    divisor = _divisor(call, windows)
    lazy = call.cheap("self")
    total = _pool(call, lazy, windows, "sum", sum_dtype(call.dtype), out=False)
    return _mean(call, total, divisor)


def _mean(call: Call, total: Lazy, divisor: Expr) -> Lazy:
    dtype = total.dtype
    if isinstance(divisor, Const):
        size = int(divisor.value)
        exact = size > 0 and size & (size - 1) == 0
        name, by = ("mul", 1 / size) if exact else ("div", size)
        expr = apply(name, total.expr, number(by, dtype))
    else:
        expr = apply("div", total.expr, cast(divisor, dtype))
    return Lazy(call.dtype, call.shape, cast(expr, call.dtype))


def _divisor(call: Call, windows: tuple[Window, ...]) -> Expr:
    """By what a window's sum is divided: constant where all windows are alike."""
    if call.arguments.get("divisor_override") is not None:
        return Const(call.integer("divisor_override"), DType.I64)
    padded = call.flag("count_include_pad")
    total: Expr = Const(1, DType.I64)
    for window in windows:
        total = apply("mul", total, _width(window, window.padding if padded else 0))
    return total


def _width(window: Window, allowed: int) -> Expr:
    """The number of counted positions: those up to `allowed` outside of the input."""
    whole = window.last <= window.size + allowed and allowed == window.padding
    if whole:
        return Const(window.taps, DType.I64)
    stop = Position(window.start + window.taps)
    end = apply("minimum", stop, Const(window.size + allowed, DType.I64))
    start = apply("maximum", Position(window.start), Const(-allowed, DType.I64))
    return apply("sub", end, start)


# ---- adaptive --------------------------------------------------------------------------------


@rule("aten.adaptive_avg_pool1d.default")
def _adaptive_avg_pool1d(call: Call) -> Lazy:
    return _adaptive_mean(call, 1)


@rule("aten.adaptive_avg_pool2d.default", "aten._adaptive_avg_pool2d.default")
def _adaptive_avg_pool2d(call: Call) -> Lazy:
    return _adaptive_mean(call, 2)


@rule("aten.adaptive_avg_pool3d.default", "aten._adaptive_avg_pool3d.default")
def _adaptive_avg_pool3d(call: Call) -> Lazy:
    return _adaptive_mean(call, 3)


@rule("aten.adaptive_max_pool2d.default")
def _adaptive_max_pool2d(call: Call) -> tuple[Lazy, ...]:
    if call.used(1):
        raise Decline("the positions of the maxima")
    return _adaptive(call, 2, "max")[0], Lazy(DType.I64, call.shape, Const(0, DType.I64))


def _adaptive_mean(call: Call, count: int) -> Lazy:
    total, divisor = _adaptive(call, count, "sum")
    return _mean(call, total, divisor)


def _adaptive(call: Call, count: int, combine: str) -> tuple[Lazy, Expr]:
    """Windows floor(o * size / outs) .. ceil((o + 1) * size / outs) combined, and their sizes."""
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
        neutral = number(0 if combine == "sum" else lowest(dtype), dtype)
        value = where(condition, value, neutral)
    total = emit(call.low, "pool", call.shape, reduce, combine, value)
    return Lazy(total.dtype, call.shape, total.expr), widths


def _widest(size: int, out: int) -> int:
    """The size of the largest window."""
    return max((-(-(o + 1) * size // out)) - o * size // out for o in range(out))
