"""Windows over the last dims of a tensor, as convolutions and pools have them."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.device.expr import Expr, Index
from stretto.ir.sizes import Size
from stretto.lowering.lazy import Lazy, cast
from stretto.lowering.rules.scalar import conjunction, where, within


@dataclass(frozen=True, slots=True)
class Window:
    """One dim: `taps` positions, `dilation` apart, from `start` on.

    start: an index over the variable of the output position. guarded: whether a window may lie in
    part outside of the input.
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
    """The element at a tap of each window; `outside`, which has its dtype, past the edge."""
    places = [w.start + tap * w.dilation for w, tap in zip(windows, taps, strict=True)]
    pairs = zip(windows, places, strict=True)
    conditions = [one for w, place in pairs if w.guarded for one in within(place, w.size)]
    value = cast(lazy.at(*lead, *places), outside.dtype)
    condition = conjunction(conditions)
    return value if condition is None else where(condition, value, outside)
