"""Parts of buffers that the statements of a program access, in terms of its registers.

For a kernel it matters where its tasks have barriers: accesses before the first one may conflict
with what the unit did earlier, accesses after the last one with what follows.

A box has a range for each dim of a buffer. Unlike those of `device/regions.py`, the ends of a range
may depend on registers, so that an item appended at position `n` is known to be after the items 0
.. n - 1. The ends are stated in terms of current register values: when a register changes, the ends
of earlier accesses are rewritten (`rewritten`).

Positions outside of a buffer are never touched: they are proved to be in range, or checked, or
masked off. So arithmetic of positions may be compared as if it did not wrap around.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stretto.device.expr import Access as Element
from stretto.device.expr import (
    Buffer,
    ComputedPosition,
    Expr,
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
from stretto.device.registers import Change, Registers
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Quantity
from stretto.ir.types import DType

Shape = tuple[Extent, ...]
Box = tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class BufferAccess:
    """A load or a store. buffer: None is the stack of a recursive program. box: the accessed part
    of the buffer, seen with dims `shape`; None is the whole buffer."""

    buffer: Buffer | None
    writes: bool
    shape: Shape = ()
    box: Box | None = None

    def covers(self, other: BufferAccess) -> bool:
        """Return True if this access surely contains `other`."""
        if (self.buffer, self.writes) != (other.buffer, other.writes):
            return False
        if self.box is None or other.box is None:
            return self.box is None
        return self.shape == other.shape and all(
            (a.low is None or (b.low is not None and at_most(a.low, b.low)))
            and (a.last is None or (b.last is not None and at_most(b.last, a.last)))
            for a, b in zip(self.box, other.box, strict=True)
        )

    def may_overlap(self, other: BufferAccess, registers: Registers) -> bool:
        """Return True if both may touch the same element, provided the buffers are the same."""
        if self.box is None or other.box is None:
            return True
        if self.shape == other.shape:
            pairs = [*zip(self.box, other.box, strict=True)]
        else:
            pairs = [(_span(self.box, self.shape), _span(other.box, other.shape))]
        return not any(_precedes(*sides, registers) for x, y in pairs for sides in ((x, y), (y, x)))


Accesses = frozenset[BufferAccess]


@dataclass(frozen=True, slots=True)
class Phase:
    """Buffers that a task reads and writes between two barriers."""

    reads: frozenset[Buffer] = frozenset()
    writes: frozenset[Buffer] = frozenset()


@dataclass(frozen=True, slots=True)
class KernelAccesses:
    """Accesses of a kernel's tasks around the barriers in them."""

    before_first_barrier: Accesses
    after_last_barrier: Accesses
    has_barrier: bool


def kernel_accesses(kernel: Kernel, phases: Sequence[Phase]) -> KernelAccesses:
    """Return the accesses of all tasks of a kernel together."""
    everything = frozenset(_stage_accesses(kernel))

    def during(phase: Phase) -> Accesses:
        found = {False: phase.reads, True: phase.writes}
        return frozenset(one for one in everything if one.buffer in found[one.writes])

    return KernelAccesses(during(phases[0]), during(phases[-1]), len(phases) > 1)


def _stage_accesses(kernel: Kernel) -> Iterator[BufferAccess]:
    for stage in kernel.stages:
        operator, ranges = stage.operator, stage_ranges(stage, kernel)
        for load in operator.reads():
            yield boxed(load.access, False, ranges)
        yield boxed(operator.out, True, ranges)
        if operator.accumulate:
            yield boxed(operator.out, False, ranges)


# ---- boxes ----
def _precedes(one: Range, other: Range, registers: Registers) -> bool:
    """Return True if a range surely ends before the beginning of another one."""
    if one.last is None or other.low is None:
        return False
    return registers.at_most(one.last + 1, other.low)


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


def stage_ranges(stage: Stage, kernel: Kernel) -> tuple[Range, ...]:
    """Return the ranges of the iteration variables of a stage, over all tasks of its kernel."""
    operator = stage.operator
    box = (_span_range(span, kernel) for span in stage.box)
    return (*box, *(Range(Index(), Index.of(extent) - 1) for extent in operator.reduce))


def _span_range(span: Span, kernel: Kernel) -> Range:
    extent = span.extent if span.grid is None else kernel.grid[span.grid].extent
    return Range(Index(const=span.offset), Index.of(extent) + (span.offset - 1))


def boxed(access: Element, writes: bool, ranges: Sequence[Range]) -> BufferAccess:
    """Return the part of a buffer that is touched while variables have these ranges."""
    pairs = zip(access.index, access.shape, strict=True)
    box = tuple(_clipped(index_range(index, ranges), extent) for index, extent in pairs)
    return BufferAccess(access.buffer, writes, access.shape, box)


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
            case ComputedPosition():
                return Range()
            case _:
                return Range.of(Index.of(quantity))

    return range_of(index, lookup)


# ---- Accesses of the units since their last barrier, and facts about registers.
#
# A `TouchedMemory` belongs to one point in the text of a function. It is rewritten over
# assignments, since the parts of buffers are stated in terms of current registers; it is joined
# where paths join; and it is translated at calls and returns.


FRAMES = Buffer("frames of callees", DType.U8, (), "frames")
"""Pseudo-buffer: the memory after the frame of an activation, where the frames of its
callees are."""
OWN_FRAMES = Buffer("frames from here", DType.U8, (), "frames")
"""Pseudo-buffer: the same, including the frame of the activation itself."""
STACK_READ, STACK_WRITTEN = BufferAccess(None, False), BufferAccess(None, True)

Units = Mapping[BufferAccess, int]
"""By access, the units that may have made it since their last barrier, as bits."""


@dataclass(frozen=True, slots=True)
class TouchedMemory:
    """Accesses and facts at one point. Boxes are stated in terms of registers without a known
    value."""

    units: Units = field(default_factory=dict[BufferAccess, int])
    registers: Registers = field(default_factory=Registers)

    def plus(self, accesses: Iterable[BufferAccess], units: int) -> TouchedMemory:
        found = dict(self.units)
        for access in accesses:
            found[access] = found.get(access, 0) | units
        return replace(self, units=found)

    def without(self, units: int) -> TouchedMemory:
        """Return what remains after a barrier of these units."""
        left = {one: others & ~units for one, others in self.units.items() if others & ~units}
        return replace(self, units=left)

    def joined(self, other: TouchedMemory) -> TouchedMemory:
        """Join two paths."""
        registers = self.registers.joined(other.registers)
        mine, theirs = self._relative_to_lengths(other), other._relative_to_lengths(self)
        return TouchedMemory(_union(mine, theirs), registers)

    def _relative_to_lengths(self, other: TouchedMemory) -> Units:
        """Restate single positions that only this path has. If a register is one number here and
        another one there, a constant position is restated relative to it: if the register is
        the length of a list, its last item is then the last one on both paths."""
        for register, value in self.registers.values.items():
            theirs = other.registers.values.get(register)
            if theirs is not None and theirs != value and theirs.is_const and value.is_const:
                back = Index.of(register) - value
                return {
                    one if one in other.units else _from_end(one, back): units
                    for one, units in self.units.items()
                }
        return self.units

    def contains(self, other: TouchedMemory) -> bool:
        """Return True if `other`, the end of an iteration, adds nothing."""
        return not _news(self.units, other.units) and self.registers.contains(other.registers)

    def grown(self, other: TouchedMemory, turn: int) -> TouchedMemory:
        """Return the head of a loop, of which iteration number `turn` ends with `other`."""
        news = _news(self.units, other.units)
        if turn < _TURNS_EXACT:
            registers = self.registers.joined(other.registers)
            return TouchedMemory(_union(self.units, news), registers)
        if turn < _TURNS_WIDENED:
            news = _widened(self.units, news)
        else:
            news = {replace(one, shape=(), box=None): units for one, units in news.items()}
        return TouchedMemory(_union(self.units, news), self.registers.grown(other.registers))

    def in_known_terms(self, access: BufferAccess) -> BufferAccess:
        """Restate an access by current registers in terms of those without a known value."""
        if access.box is None:
            return access
        box = tuple(part.map(self.registers.known) for part in access.box)
        return replace(access, box=box)

    def varying(self, registers: Iterable[Reg]) -> TouchedMemory:
        """Drop the values of registers that a loop changes before its first iteration, so that its
        accesses are stated as in the other iterations."""
        gone = {*registers}
        values = {r: value for r, value in self.registers.values.items() if r not in gone}
        return replace(self, registers=replace(self.registers, values=values))

    def assigned(self, register: Reg, expr: Expr | None) -> TouchedMemory:
        """Return the state after an assignment. expr: None if the value is not known."""
        registers, changes = self.registers.assigned(register, expr)
        units = self.units
        for change in changes:
            units = _changed(units, change)
        return TouchedMemory(units, registers)

    def renamed(self, trades: Mapping[Buffer, Buffer]) -> TouchedMemory:
        """Return the state after a trade of addresses: names now refer to each other's memory."""
        units: dict[BufferAccess, int] = {}
        for one, found in self.units.items():
            buffer = one.buffer
            if buffer is not None and buffer in trades:
                one = replace(one, buffer=trades[buffer])
            units[one] = units.get(one, 0) | found
        return replace(self, units=units)


NOTHING = TouchedMemory()
_TURNS_EXACT, _TURNS_WIDENED = 2, 8
"""Iterations of a loop that are analysed exactly, and those until which boxes are retained (after
that, whole buffers)."""


def _from_end(one: BufferAccess, back: Index) -> BufferAccess:
    if not one.box:
        return one
    first, *others = one.box
    if first.single is None or not first.single.is_const:
        return one
    return replace(one, box=(Range.of(first.single + back), *others))


def _changed(units: Units, change: Change) -> Units:
    found: dict[BufferAccess, int] = {}
    for one, others in units.items():
        if one.box is not None:
            one = replace(one, box=rewritten(one.box, change.register, change.substitution))
        found[one] = found.get(one, 0) | others
    return found


def _union(first: Units, second: Units) -> Units:
    keys = first.keys() | second.keys()
    return {key: first.get(key, 0) | second.get(key, 0) for key in keys}


def _news(known: Units, found: Units) -> Units:
    """Return what `found` has and `known` does not cover."""
    news: dict[BufferAccess, int] = {}
    for access, units in found.items():
        if units & ~known.get(access, 0):
            for other, others in known.items():
                if other.covers(access):
                    units &= ~others
            if units:
                news[access] = units
    return news


def _widened(known: Units, news: Units) -> Units:
    """Replace each new access by a box that extends a known one to all positions it may still grow
    into."""
    found: dict[BufferAccess, int] = {}
    for access, units in news.items():
        best, most = access, 0
        for other in known:
            if access.box is None or other.box is None or access.shape != other.shape:
                continue
            if (other.buffer, other.writes) == (access.buffer, access.writes):
                box = widened(other.box, access.box)
                if known_ends(box) > most:
                    best, most = replace(access, box=box), known_ends(box)
        found[best] = found.get(best, 0) | units
    return found
