"""Parts of buffers that accesses may touch, in terms of the registers of the program.

A box has a range for each dim of a buffer. Unlike those of `device/regions.py`, the ends of a range
may depend on registers, so that an item appended at position `n` is known to be after the items 0
.. n - 1. The ends are stated in terms of current register values: when a register changes, the ends
of earlier accesses are rewritten (`rewritten`).

Positions outside of a buffer are never touched: they are proved to be in range, or checked, or
masked off. So arithmetic of positions may be compared as if it did not wrap around.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.device.expr import (
    Access,
    Dynamic,
    Extent,
    Index,
    Reg,
    Substitution,
    Var,
    strides,
    substitute_index,
)
from stretto.device.operator import Kernel, Span, Stage
from stretto.device.ranges import Range, range_of
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Quantity
from stretto.machines.cuda.printer.registers import Registers

Shape = tuple[Extent, ...]
Box = tuple[Range, ...]


def may_meet(a: Box, shape: Shape, b: Box, other: Shape, registers: Registers) -> bool:
    """Return True if two boxes of one buffer, seen with these dims, may have an element in common.
    registers: facts about the registers in the boxes."""
    if shape == other:
        pairs = zip(a, b, strict=True)
    else:
        pairs = iter([(_span(a, shape), _span(b, other))])
    return not any(_precedes(*sides, registers) for x, y in pairs for sides in ((x, y), (y, x)))


def _precedes(one: Range, other: Range, registers: Registers) -> bool:
    """Return True if a range surely ends before the beginning of another one."""
    if one.last is None or other.low is None:
        return False
    return registers.at_most(one.last + 1, other.low)


def covers(outer: Box, inner: Box) -> bool:
    """Return True if a box surely contains another one of the same dims."""
    return all(
        (a.low is None or (b.low is not None and at_most(a.low, b.low)))
        and (a.last is None or (b.last is not None and at_most(b.last, a.last)))
        for a, b in zip(outer, inner, strict=True)
    )


def widened(old: Box, new: Box) -> Box:
    """Return a box that contains both. An end at which `new` is or may be larger becomes unknown,
    so that a fixpoint over a loop is reached soon."""
    return tuple(
        Range(
            a.low if a.low is not None and b.low is not None and at_most(a.low, b.low) else None,
            a.last
            if a.last is not None and b.last is not None and at_most(b.last, a.last)
            else None,
        )
        for a, b in zip(old, new, strict=True)
    )


def known_ends(box: Box) -> int:
    """Return the number of ends of a box that are known."""
    return sum((one.low is not None) + (one.last is not None) for one in box)


def rewritten(box: Box, changed: Reg, lookup: Substitution | None) -> Box:
    """Substitute a changed register in a box; if `lookup` is None, ends that depend on it become
    unknown."""

    def end(index: Index) -> Index | None:
        if all(a != changed for a in index.atoms()):
            return index
        return None if lookup is None else substitute_index(index, lookup)

    return tuple(one.map(end) for one in box)


def _span(box: Box, shape: Shape) -> Range:
    """Return the range from the first to the last element, counted from the start of the buffer."""
    low, last = Index(), Index()
    for one, extent, stride in zip(box, shape, strides(shape), strict=True):
        low = low + (Index() if one.low is None else one.low) * stride
        if one.last is None and isinstance(extent, Reg):
            return Range(low)
        last = last + (Index.of(extent) - 1 if one.last is None else one.last) * stride
    return Range(low, last)


# ---- boxes of accesses ---------------------------------------------------------------------------
def stage_ranges(stage: Stage, kernel: Kernel) -> tuple[Range, ...]:
    """Return the ranges of the iteration variables of a stage, over all tasks of its kernel."""
    operator = stage.operator
    box = (_span_range(span, kernel) for span in stage.box)
    return (*box, *(Range(Index(), Index.of(extent) - 1) for extent in operator.reduce))


def _span_range(span: Span, kernel: Kernel) -> Range:
    extent = span.extent if span.grid is None else kernel.grid[span.grid].extent
    return Range(Index(const=span.offset), Index.of(extent) + (span.offset - 1))


def access_box(access: Access, ranges: Sequence[Range]) -> Box:
    """Return the part of `access.shape` that is touched while variables have these ranges."""
    pairs = zip(access.index, access.shape, strict=True)
    return tuple(_clipped(index_range(index, ranges), extent) for index, extent in pairs)


def _clipped(found: Range, extent: Extent) -> Range:
    """Drop positions that are surely outside of the dim."""
    low, last = found.low, found.last
    low = Index() if low is not None and at_most(low, 0) else low
    if last is not None and not isinstance(extent, Reg) and at_most(extent, last + 1):
        last = Index.of(extent) - 1
    return Range(low, last)


def index_range(index: Index, ranges: Sequence[Range]) -> Range:
    """Return the range from the smallest to the largest value of an index."""

    def lookup(quantity: Quantity) -> Range:
        match quantity:
            case Var(number):
                return ranges[number]
            case Dynamic():
                return Range()
            case _:
                return Range.of(Index.of(quantity))

    return range_of(index, lookup)
