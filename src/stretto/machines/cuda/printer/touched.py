"""Accesses of the units since their last barrier, and facts about registers.

A `Touched` belongs to one point in the text of a function. It is rewritten over assignments, since
the parts of buffers are stated in terms of current registers; it is joined where paths join; and it
is translated at calls and returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from stretto.device.expr import Buffer, Expr, Index, Reg
from stretto.device.ranges import Range
from stretto.ir.types import DType
from stretto.machines.cuda.printer.accesses import Access, known_ends, rewritten, widened
from stretto.machines.cuda.printer.registers import Change, Registers

FRAMES = Buffer("frames of callees", DType.U8, (), "frames")
"""Pseudo-buffer: the memory after the frame of an activation, where the frames of its
callees are."""
OWN_FRAMES = Buffer("frames from here", DType.U8, (), "frames")
"""Pseudo-buffer: the same, including the frame of the activation itself."""
STACK_READ, STACK_WRITTEN = Access(None, False), Access(None, True)

Units = Mapping[Access, int]
"""By access, the units that may have made it since their last barrier, as bits."""


@dataclass(frozen=True, slots=True)
class Touched:
    """Accesses and facts at one point. Boxes are stated in terms of registers without a known
    value."""

    units: Units = field(default_factory=dict[Access, int])
    registers: Registers = field(default_factory=Registers)

    def plus(self, accesses: Iterable[Access], units: int) -> Touched:
        found = dict(self.units)
        for access in accesses:
            found[access] = found.get(access, 0) | units
        return replace(self, units=found)

    def without(self, units: int) -> Touched:
        """Return what remains after a barrier of these units."""
        left = {one: others & ~units for one, others in self.units.items() if others & ~units}
        return replace(self, units=left)

    def joined(self, other: Touched) -> Touched:
        """Join two paths."""
        registers = self.registers.joined(other.registers)
        mine, theirs = self._told_by_lengths(other), other._told_by_lengths(self)
        return Touched(_union(mine, theirs), registers)

    def _told_by_lengths(self, other: Touched) -> Units:
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

    def contains(self, other: Touched) -> bool:
        """Return True if `other`, the end of an iteration, adds nothing."""
        return not _news(self.units, other.units) and self.registers.contains(other.registers)

    def grown(self, other: Touched, turn: int) -> Touched:
        """Return the head of a loop, of which iteration number `turn` ends with `other`."""
        news = _news(self.units, other.units)
        if turn < _TURNS_EXACT:
            registers = self.registers.joined(other.registers)
            return Touched(_union(self.units, news), registers)
        if turn < _TURNS_WIDENED:
            news = _widened(self.units, news)
        else:
            news = {replace(one, shape=(), box=None): units for one, units in news.items()}
        return Touched(_union(self.units, news), self.registers.grown(other.registers))

    def seen(self, access: Access) -> Access:
        """Restate an access by current registers in terms of those without a known value."""
        if access.box is None:
            return access
        box = tuple(part.map(self.registers.known) for part in access.box)
        return replace(access, box=box)

    def varying(self, registers: Iterable[Reg]) -> Touched:
        """Drop the values of registers that a loop changes before its first iteration, so that its
        accesses are stated as in the other iterations."""
        gone = {*registers}
        values = {r: value for r, value in self.registers.values.items() if r not in gone}
        return replace(self, registers=replace(self.registers, values=values))

    def assigned(self, register: Reg, expr: Expr | None) -> Touched:
        """Return the state after an assignment. expr: None if the value is not known."""
        registers, changes = self.registers.assigned(register, expr)
        units = self.units
        for change in changes:
            units = _changed(units, change)
        return Touched(units, registers)

    def renamed(self, trades: Mapping[Buffer, Buffer]) -> Touched:
        """Return the state after a trade of addresses: names now refer to each other's memory."""
        units: dict[Access, int] = {}
        for one, found in self.units.items():
            buffer = one.buffer
            if buffer is not None and buffer in trades:
                one = replace(one, buffer=trades[buffer])
            units[one] = units.get(one, 0) | found
        return replace(self, units=units)


NOTHING = Touched()
_TURNS_EXACT, _TURNS_WIDENED = 2, 8
"""Iterations of a loop that are analysed exactly, and those until which boxes are retained (after
that, whole buffers)."""


def _from_end(one: Access, back: Index) -> Access:
    if not one.box:
        return one
    first, *others = one.box
    if first.single is None or not first.single.is_const:
        return one
    return replace(one, box=(Range.of(first.single + back), *others))


def _changed(units: Units, change: Change) -> Units:
    found: dict[Access, int] = {}
    for one, others in units.items():
        if one.box is not None:
            one = replace(one, box=rewritten(one.box, change.register, change.lookup))
        found[one] = found.get(one, 0) | others
    return found


def _union(first: Units, second: Units) -> Units:
    keys = first.keys() | second.keys()
    return {key: first.get(key, 0) | second.get(key, 0) for key in keys}


def _news(known: Units, found: Units) -> Units:
    """Return what `found` has and `known` does not cover."""
    news: dict[Access, int] = {}
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
    found: dict[Access, int] = {}
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
