"""Parts of buffers that accesses may touch, in terms of the registers of the program.

A box has a range for each dim of a buffer. Unlike those of `device/regions.py`, the ends of a range
may depend on registers, so that an item appended at position `n` is known to be after the items 0
.. n - 1. The ends are stated in terms of current register values: when a register changes, the ends
of earlier accesses are rewritten (`rewritten`).

Positions outside of a buffer are never touched: they are proved to be in range, or checked, or
masked off. So arithmetic of positions may be compared as if it did not wrap around.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stretto.device.expr import (
    Access,
    Dynamic,
    Extent,
    Index,
    Quotient,
    Reg,
    Remainder,
    Substitution,
    Var,
    strides,
    substitute_index,
)
from stretto.device.operator import Kernel, Span, Stage
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Atom
from stretto.machines.cuda.printer.registers import Registers


@dataclass(frozen=True, slots=True)
class Range:
    """The positions from `low` to `high` - 1. None: that end is not known."""

    low: Index | None = None
    high: Index | None = None

    def precedes(self, other: Range, registers: Registers) -> bool:
        """Return True if this range surely ends at or before the beginning of the other one."""
        if self.high is None or other.low is None:
            return False
        return registers.at_most(self.high, other.low)


Shape = tuple[Extent, ...]
Box = tuple[Range, ...]


def may_meet(a: Box, shape: Shape, b: Box, other: Shape, registers: Registers) -> bool:
    """Return True if two boxes of one buffer, seen with these dims, may have an element in common.
    registers: facts about the registers in the boxes."""
    if shape == other:
        pairs = zip(a, b, strict=True)
    else:
        pairs = iter([(_span(a, shape), _span(b, other))])
    return not any(x.precedes(y, registers) or y.precedes(x, registers) for x, y in pairs)


def covers(outer: Box, inner: Box) -> bool:
    """Return True if a box surely contains another one of the same dims."""
    return all(
        (a.low is None or (b.low is not None and at_most(a.low, b.low)))
        and (a.high is None or (b.high is not None and at_most(b.high, a.high)))
        for a, b in zip(outer, inner, strict=True)
    )


def widened(old: Box, new: Box) -> Box:
    """Return a box that contains both. An end at which `new` is or may be larger becomes unknown,
    so that a fixpoint over a loop is reached soon."""
    return tuple(
        Range(
            a.low if a.low is not None and b.low is not None and at_most(a.low, b.low) else None,
            a.high
            if a.high is not None and b.high is not None and at_most(b.high, a.high)
            else None,
        )
        for a, b in zip(old, new, strict=True)
    )


def known_ends(box: Box) -> int:
    """Return the number of ends of a box that are known."""
    return sum((one.low is not None) + (one.high is not None) for one in box)


def rewritten(box: Box, changed: Reg, lookup: Substitution | None) -> Box:
    """Substitute a changed register in a box; if `lookup` is None, ends that depend on it become
    unknown."""

    def end(index: Index | None) -> Index | None:
        if index is None or all(a != changed for a in index.atoms()):
            return index
        return None if lookup is None else substitute_index(index, lookup)

    return tuple(Range(end(one.low), end(one.high)) for one in box)


def mapped(box: Box, change: Callable[[Index], Index]) -> Box:
    """Apply `change` to all ends of a box."""
    return tuple(
        Range(
            None if one.low is None else change(one.low),
            None if one.high is None else change(one.high),
        )
        for one in box
    )


def _span(box: Box, shape: Shape) -> Range:
    """Return the range from the first to the last element, counted from the start of the buffer."""
    low, last = Index(), Index()
    for one, extent, stride in zip(box, shape, strides(shape), strict=True):
        low = low + (Index() if one.low is None else one.low) * stride
        end = extent if one.high is None else one.high
        if one.high is None and isinstance(extent, Reg):
            return Range(low)
        last = last + (Index.of(end) - 1) * stride
    return Range(low, last + 1)


# ---- boxes of accesses ---------------------------------------------------------------------------
def stage_ranges(stage: Stage, kernel: Kernel) -> tuple[Range, ...]:
    """Return the ranges of the iteration variables of a stage, over all tasks of its kernel."""
    operator = stage.operator
    box = (_span_range(span, kernel) for span in stage.box)
    return (*box, *(Range(Index(), Index.of(extent)) for extent in operator.reduce))


def _span_range(span: Span, kernel: Kernel) -> Range:
    extent = span.extent if span.grid is None else kernel.grid[span.grid].extent
    return Range(Index(const=span.offset), Index.of(extent) + span.offset)


def access_box(access: Access, ranges: Sequence[Range]) -> Box:
    """Return the part of `access.shape` that is touched while variables have these ranges."""
    pairs = zip(access.index, access.shape, strict=True)
    return tuple(_clipped(index_range(index, ranges), extent) for index, extent in pairs)


def _clipped(found: Range, extent: Extent) -> Range:
    """Drop positions that are surely outside of the dim."""
    low, high = found.low, found.high
    low = Index() if low is not None and at_most(low, 0) else low
    if high is not None and not isinstance(extent, Reg) and at_most(extent, high):
        high = Index.of(extent)
    return Range(low, high)


def index_range(index: Index, ranges: Sequence[Range]) -> Range:
    """Return the range from the smallest to the largest value of an index."""
    low: Index | None = Index(const=index.const)
    high: Index | None = low
    for atom, factor in index.terms:
        first, last = _atom_ends(atom, ranges)
        if factor < 0:
            first, last = last, first
        low = None if low is None or first is None else low + first * factor
        high = None if high is None or last is None else high + last * factor
    return Range(low, None if high is None else high + 1)


def _atom_ends(atom: Atom, ranges: Sequence[Range]) -> tuple[Index | None, Index | None]:
    """Return the smallest and the largest value of an atom; None if unknown."""
    match atom:
        case Var(number):
            high = ranges[number].high
            return ranges[number].low, None if high is None else high - 1
        case Quotient(inner, int(divisor)):
            first, last = _ends(inner, ranges)
            return _divided(first, divisor), _divided(last, divisor)
        case Remainder(inner, int(divisor)):
            first, last = _ends(inner, ranges)
            if first is None or last is None or not (first.is_const and last.is_const):
                return Index(), Index(const=divisor - 1)
            if first.const // divisor != last.const // divisor:
                return Index(), Index(const=divisor - 1)
            return first % divisor, last % divisor
        case _ if any(isinstance(part, Var | Dynamic) for part in Index.of(atom).atoms()):
            return None, None
        case _:
            return Index.of(atom), Index.of(atom)


def _ends(index: Index, ranges: Sequence[Range]) -> tuple[Index | None, Index | None]:
    found = index_range(index, ranges)
    return found.low, None if found.high is None else found.high - 1


def _divided(end: Index | None, divisor: int) -> Index | None:
    return None if end is None else end // divisor
