"""One leaf of a team: items one after the other, before each the waits that it needs.

Step i + 1 is the end of item i, so a wait before item i is for a step of at most i, and no two
units can wait for each other. What the units know of each other's steps is a matrix, kept for every
step. A unit that needs several others waits once: for all units from the first to the last of them,
at the latest step needed. A signal stands before the next item of its unit, where someone waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stretto.device.boxes import Mask
from stretto.device.operator import Kernel
from stretto.device.program import Item, Schedule, Signal, Wait
from stretto.device.regions import Statement
from stretto.device.relation import compose
from stretto.schedule.footprint import Footprint, Footprints
from stretto.schedule.wavefront import Parts

Steps = NDArray[np.int32]

NEVER = -1
"""As a step: nothing is known, nothing is needed. 0 is the start of the leaf."""

TouchKey = tuple[int, int, str, str, bool]


@dataclass(frozen=True, slots=True, eq=False)
class Touch:
    """A footprint left by item number `item` of leaf number `leaf` on what was then `origin`."""

    leaf: int
    item: int
    origin: str
    footprint: Footprint

    @property
    def key(self) -> TouchKey:
        footprint = self.footprint
        return self.leaf, self.item, self.origin, footprint.buffer.name, footprint.write


Pending = Mapping[TouchKey, tuple[Touch, Mask]]
"""Accesses that may not be over for everyone. [u, v]: unit u knows that unit v's part is over."""


@dataclass(frozen=True, slots=True, eq=False)
class _Demand:
    """What comes needs to know that accesses are over: met[u, v]: unit u of those of unit v.

    They are over at `step` of this leaf, or since before it, as those know whom `seen` tells.
    """

    met: Mask
    step: int
    seen: Mask | None


class TeamLeaf:
    def __init__(self, number: int, pending: Pending, units: int, footprints: Footprints) -> None:
        self._number = number
        self._units = units
        self._footprints = footprints
        self._before = pending
        self._inside: list[tuple[Touch, int]] = []
        # known[u, v]: the last step of unit v that unit u knows to be published.
        self._known: Steps = np.full((units, units), NEVER, np.int32)
        np.fill_diagonal(self._known, 0)
        self._published = [self._known.copy()]
        self._items: list[list[Item]] = [[] for _ in range(units)]
        # For each item, where in the units' lists what belongs to it begins.
        self._starts: list[list[int]] = [[0] * units]
        self.implied = 0

    def append(self, item: Statement, parts: Parts, footprints: tuple[Footprint, ...]) -> None:
        """The parts of a kernel, or a register statement for every unit, after their waits."""
        self._wait(list(self._conflicts(footprints)))
        if isinstance(item, Kernel):
            for part in parts:
                self._items[part.unit].append(part.run(item))
        else:
            for items in self._items:
                items.append(item)
        step = len(self._published)
        for footprint in footprints:
            touch = Touch(self._number, step, footprint.buffer.name, footprint)
            self._inside.append((touch, step))
        self._close()

    def settle(self, matters: Callable[[Footprint], bool]) -> None:
        """Every unit waits until all accesses that matter are over."""
        if self._wait(list(self._everything(matters))):
            self._close()

    def finish(self, keep: Callable[[str], bool]) -> tuple[Schedule, Pending]:
        """The schedule, and what is pending after it in the buffers to keep."""
        pending: dict[TouchKey, tuple[Touch, Mask]] = {}
        for touch, seen in self._all(self._known):
            if keep(touch.footprint.buffer.name) and not seen.all():
                # The unit that accesses the same again has done so before.
                pending[touch.key] = touch, seen
            else:
                pending.pop(touch.key, None)
        return self._schedule(), pending

    # ---- what is needed ------------------------------------------------------------------------
    def _all(self, known: Steps) -> Iterator[tuple[Touch, Mask]]:
        """All accesses so far, with who knows of whose part that it is over."""
        for touch, seen in self._before.values():
            yield touch, self._seen(seen, known)
        for touch, step in self._inside:
            yield touch, (known >= step) | ~touch.footprint.present

    def _seen(self, seen: Mask, known: Steps) -> Mask:
        """What was known before the leaf, handed on by those who have waited for each other."""
        met = known >= 0
        if np.count_nonzero(met) == self._units:
            return seen
        return compose(met, seen)

    def _conflicts(self, footprints: tuple[Footprint, ...]) -> Iterator[_Demand]:
        for footprint in footprints:
            name, write = footprint.buffer.name, footprint.write
            for touch, seen in self._before.values():
                other = touch.footprint
                if other.buffer.name == name and (other.write or write):
                    yield _Demand(self._footprints.conflicts(footprint, other), 0, seen)
            for touch, step in self._inside:
                other = touch.footprint
                if other.buffer.name == name and (other.write or write):
                    yield _Demand(self._footprints.conflicts(footprint, other), step, None)

    def _everything(self, matters: Callable[[Footprint], bool]) -> Iterator[_Demand]:
        everyone = np.ones((self._units, self._units), np.bool_)
        for touch, seen in self._before.values():
            if matters(touch.footprint):
                yield _Demand(everyone, 0, seen)
        for touch, step in self._inside:
            if matters(touch.footprint):
                yield _Demand(everyone & touch.footprint.present, step, None)

    def _needed(self, demands: list[_Demand], known: Steps) -> Steps:
        """[u, v]: the step of unit v that unit u has to wait for."""
        needed: Steps = np.full((self._units, self._units), NEVER, np.int32)
        for demand in demands:
            if demand.seen is None:
                missing = demand.met & (known < demand.step)
            else:
                missing = demand.met & ~self._seen(demand.seen, known)
            needed[missing] = np.maximum(needed[missing], demand.step)
        np.fill_diagonal(needed, NEVER)
        return needed

    # ---- waits ---------------------------------------------------------------------------------
    def _wait(self, demands: list[_Demand]) -> bool:
        """One wait per unit that needs any; False if none does.

        A wait for the latest step often tells all the rest; where it does not it is widened.
        """
        wanted = self._needed(demands, self._known)
        conflicts = np.zeros_like(wanted, np.bool_)
        for demand in demands:
            conflicts |= demand.met
        np.fill_diagonal(conflicts, val=False)
        waiting = (wanted >= 0).any(axis=1)
        self.implied += int(np.count_nonzero(conflicts.any(axis=1) & ~waiting))
        if not waiting.any():
            return False
        steps: Steps = wanted.max(axis=1)
        latest = (wanted == steps[:, None]) & (wanted >= 0)
        first, last = _hull(latest)
        rest = self._needed(demands, self._learn(first, last, steps))
        wide = (rest >= 0).any(axis=1)
        first_of_all, last_of_all = _hull(wanted >= 0)
        first = np.where(wide, first_of_all, first)
        last = np.where(wide, last_of_all, last)
        first, last = _alike(first, last, steps)
        self._known = self._learn(first, last, steps)
        for unit in np.flatnonzero(steps >= 0).tolist():
            low, high = int(first[unit]), int(last[unit])
            self._items[unit].append(Wait(low, int(steps[unit]), high - low))
        return True

    def _learn(self, first: Steps, last: Steps, steps: Steps) -> Steps:
        """What the units know after unit u's wait for first[u] .. last[u] - 1 to reach steps[u]."""
        known = self._known.copy()
        waits = np.stack([first, last, steps], axis=1)
        waiting = np.flatnonzero(steps >= 0)
        kinds, kind_of = np.unique(waits[waiting], axis=0, return_inverse=True)
        for kind, (low, high, step) in enumerate(kinds.tolist()):
            learnt = self._published[step][low:high].max(axis=0)
            learnt[low:high] = np.maximum(learnt[low:high], step)
            units = waiting[kind_of.reshape(-1) == kind]
            known[units] = np.maximum(known[units], learnt)
        return known

    def _close(self) -> None:
        """The end of an item: everybody may publish it."""
        np.fill_diagonal(self._known, len(self._published))
        self._published.append(self._known.copy())
        self._starts.append([len(items) for items in self._items])

    # ---- the schedule --------------------------------------------------------------------------
    def _schedule(self) -> Schedule:
        """Steps are numbered anew: only those that someone waits for count."""
        awaited: dict[int, set[int]] = {}
        for unit, items in enumerate(self._items):
            for item in items:
                if isinstance(item, Wait) and item.step > 0:
                    awaited.setdefault(item.step, set()).update(item.others(unit))
        number = {step: new for new, step in enumerate((0, *sorted(awaited)))}
        units = tuple(
            self._unit(unit, [step for step in sorted(awaited) if unit in awaited[step]], number)
            for unit in range(self._units)
        )
        return Schedule(units, len(number) if any(units) else 0)

    def _unit(self, unit: int, steps: list[int], number: Mapping[int, int]) -> tuple[Item, ...]:
        """The items of a unit, with its signals: of several at one place the last says it all."""
        items = [
            Wait(item.unit, number[item.step], item.count) if isinstance(item, Wait) else item
            for item in self._items[unit]
        ]
        places = {self._starts[step][unit]: number[step] for step in steps}
        # What the end of the leaf publishes needs no signal.
        places.pop(len(items), None)
        bounds = sorted({0, *places, len(items)})
        signalled: list[Item] = []
        for low, high in pairwise(bounds):
            if low in places:
                signalled.append(Signal(places[low]))
            signalled.extend(items[low:high])
        return tuple(signalled)


def _alike(first: Steps, last: Steps, steps: Steps) -> tuple[Steps, Steps]:
    """A unit at the end of a range that others wait for has that range too: for itself nobody
    waits, and one text then does for all of them."""
    ranges = set(zip(first.tolist(), last.tolist(), steps.tolist(), strict=True))
    first, last = first.copy(), last.copy()
    for unit in np.flatnonzero(steps >= 0).tolist():
        low, high, step = int(first[unit]), int(last[unit]), int(steps[unit])
        if low == unit + 1 and (unit, high, step) in ranges:
            first[unit] = unit
        elif high == unit and (low, unit + 1, step) in ranges:
            last[unit] = unit + 1
    return first, last


def _hull(wanted: Mask) -> tuple[Steps, Steps]:
    """The first column that is set in each row, and the last one + 1; 0, 0 where none is."""
    found = wanted.any(axis=1)
    first = np.where(found, wanted.argmax(axis=1), 0)
    last = np.where(found, wanted.shape[1] - wanted[:, ::-1].argmax(axis=1), 0)
    return first.astype(np.int32), last.astype(np.int32)
