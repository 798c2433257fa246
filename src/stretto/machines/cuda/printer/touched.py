"""What the units may have touched since their last barrier, and what is known of registers.

A `Touched` belongs to one place in the text of a function. It is moved on over assignments, since
the parts of buffers are said in terms of registers as they are now; it is joined where ways meet;
and it is translated where a function is called and where it returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from stretto.device.expr import Buffer, Dynamic, Index, Reg, Substitution, Var, substitute_index
from stretto.ir.types import DType
from stretto.machines.cuda.printer.accesses import Access
from stretto.machines.cuda.printer.extents import known_ends, mentions, rewritten, widened

LARGEST_STEP = 1 << 16
"""By more a register may wrap around in a loop that somebody waits for, and come back."""
FRAMES = Buffer("frames of callees", DType.U8, (), "frames")
"""The memory behind the frame of an activation, which functions have that it calls."""
OWN_FRAMES = Buffer("frames from here", DType.U8, (), "frames")
"""The same, and the frame of the activation itself."""
STACK_READ, STACK_WRITTEN = Access(None, False), Access(None, True)

Units = Mapping[Access, int]
"""The units that may have made each access since their last barrier, as bits."""


@dataclass(frozen=True, slots=True)
class Touched:
    """values: registers that are known to have a value which follows from other registers. Boxes
    are in terms of those other registers alone."""

    units: Units = field(default_factory=dict[Access, int])
    values: Mapping[Reg, Index] = field(default_factory=dict[Reg, Index])

    def plus(self, accesses: Iterable[Access], units: int) -> Touched:
        found = dict(self.units)
        for access in accesses:
            found[access] = found.get(access, 0) | units
        return replace(self, units=found)

    def without(self, units: int) -> Touched:
        """What is left behind a barrier of these units."""
        left = {one: others & ~units for one, others in self.units.items() if others & ~units}
        return replace(self, units=left)

    def joined(self, other: Touched) -> Touched:
        """Where two ways meet."""
        values = {r: v for r, v in self.values.items() if other.values.get(r) == v}
        return Touched(_union(self.units, other.units), values)

    def contains(self, other: Touched) -> bool:
        """Is nothing new in what an iteration ends with?"""
        return not _news(self.units, other.units) and all(
            other.values.get(register) == value for register, value in self.values.items()
        )

    def grown(self, other: Touched, turn: int) -> Touched:
        """The head of a loop of which an iteration, number `turn`, ends with `other`."""
        values = {r: v for r, v in self.values.items() if other.values.get(r) == v}
        news = _news(self.units, other.units)
        if turn >= _TURNS_WIDENED:
            news = {replace(one, shape=(), box=None): units for one, units in news.items()}
        elif turn >= _TURNS_EXACT:
            news = _widened(self.units, news)
        return Touched(_union(self.units, news), values)

    # ---- registers -----------------------------------------------------------------------------
    def seen(self, access: Access) -> Access:
        """An access by registers as it is in terms of those that have no known value."""
        if access.box is None:
            return access
        box = access.box
        for register, value in self.values.items():
            box = rewritten(box, register, _instead(register, value))
        return replace(access, box=box)

    def assigned(self, register: Reg, index: Index | None) -> Touched:
        """Behind an assignment; of a value that is not known where `index` is None."""
        if index is not None and register.dtype is DType.I64 and _is_followed(index):
            index = substitute_index(index, self._value)
        else:
            index = None
        step = None if index is None else index - Index.of(register)
        if step is not None and step.is_const:
            back = Index.of(register) - step
            return self._with(register, _instead(register, back))
        free, same = self._without(register)
        if index is not None and mentions(index, register):
            index = None if same is None else substitute_index(index, _instead(register, same))
        if index is not None:
            free = replace(free, values={**free.values, register: index})
        return free

    def _value(self, atom: Var | Reg) -> Index:
        known = self.values.get(atom) if isinstance(atom, Reg) else None
        return Index.of(atom) if known is None else known

    def _without(self, register: Reg) -> tuple[Touched, Index | None]:
        """Without mention of a register, which is about to change; and in what terms it was known,
        if it was the one that others follow from."""
        if register in self.values:
            values = {r: v for r, v in self.values.items() if r != register}
            return replace(self, values=values), self.values[register]
        for other, value in self.values.items():
            step = value - Index.of(register)
            if step.is_const:
                same = Index.of(other) - step
                values = {r: v for r, v in self.values.items() if r != other}
                return replace(self, values=values)._with(register, _instead(register, same)), same
        return self._with(register, None), None

    def _with(self, register: Reg, lookup: Substitution | None) -> Touched:
        """With another term for a register, or without what was known in terms of it."""
        units: dict[Access, int] = {}
        for one, found in self.units.items():
            if one.box is not None:
                one = replace(one, box=rewritten(one.box, register, lookup))
            units[one] = units.get(one, 0) | found
        values: dict[Reg, Index] = {}
        for other, value in self.values.items():
            if not mentions(value, register):
                values[other] = value
            elif lookup is not None:
                values[other] = substitute_index(value, lookup)
        return Touched(units, values)

    def renamed(self, trades: Mapping[Buffer, Buffer]) -> Touched:
        """Behind a trade of addresses the names stand for other memory."""
        units: dict[Access, int] = {}
        for one, found in self.units.items():
            buffer = one.buffer
            if buffer is not None and buffer in trades:
                one = replace(one, buffer=trades[buffer])
            units[one] = units.get(one, 0) | found
        return replace(self, units=units)


NOTHING = Touched()
_TURNS_EXACT, _TURNS_WIDENED = 2, 8
"""Iterations of a loop that are followed exactly, and those until which boxes are kept at all."""


def _is_followed(index: Index) -> bool:
    """Whether a value is made of other registers, by small factors, and a small number; what is
    read from memory may be another value the next time."""
    numbers = (index.const, *(factor for _, factor in index.terms))
    return all(abs(number) <= LARGEST_STEP for number in numbers) and not any(
        isinstance(atom, Dynamic | Var) for atom in index.atoms()
    )


def _instead(register: Reg, value: Index) -> Substitution:
    return lambda atom: value if atom == register else Index.of(atom)


def _union(first: Units, second: Units) -> Units:
    keys = first.keys() | second.keys()
    return {key: first.get(key, 0) | second.get(key, 0) for key in keys}


def _news(known: Units, found: Units) -> Units:
    """What is not contained in what is known."""
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
    """The news, each as large as what it has grown from may still become."""
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
