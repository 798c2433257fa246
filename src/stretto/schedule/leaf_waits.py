"""Waits of one leaf, and what the units know of each other's progress at every step of it.

Step w + 1 is the end of wave w. A wait in a wave is for an earlier step, so no two units can wait
for each other. The knowledge of the units is a matrix per step: a vector clock for each unit. A
unit that waits for a step also learns what the other unit knew when it published that step, of
third units too, which makes later waits unnecessary. A signal is placed at the end of a wave only
if some unit waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stretto.device.analyses import compose
from stretto.device.boxes import Mask
from stretto.device.operator import Kernel
from stretto.device.program import Item, Schedule, Signal, Wait
from stretto.errors import ScheduleError
from stretto.schedule.footprint import Footprint, Footprints, MemoryMap
from stretto.schedule.policy import Placed

# ---- Ranges of neighbouring units that each unit waits for: few of them, and narrow ones.


Steps = NDArray[np.int32]

NEVER = -1
"""Step that means: nothing is known, or nothing is needed. Step 0 is the start of the leaf."""


@dataclass(frozen=True, slots=True, eq=False)
class WaitRanges:
    """At most one wait per unit: unit u waits until units first[u] .. last[u] - 1 have reached
    steps[u]."""

    first: Steps
    last: Steps
    steps: Steps

    def waits(self) -> Iterator[tuple[int, Wait]]:
        """Yield each wait with its unit."""
        for unit in np.flatnonzero(self.steps >= 0).tolist():
            low, high = int(self.first[unit]), int(self.last[unit])
            yield unit, Wait(low, int(self.steps[unit]), high - low)

    def kinds(self) -> Iterator[tuple[tuple[int, int, int], list[int]]]:
        """Yield the distinct (first, last, step), each with its units."""
        found: dict[tuple[int, int, int], list[int]] = {}
        rows = zip(self.first.tolist(), self.last.tolist(), self.steps.tolist(), strict=True)
        for unit, row in enumerate(rows):
            if row[2] >= 0:
                found.setdefault(row, []).append(unit)
        yield from found.items()

    @property
    def mask(self) -> Mask:
        """Mask [u, v]: True if unit u waits for unit v."""
        units = np.arange(len(self.steps))
        inside = (self.first[:, None] <= units) & (units < self.last[:, None])
        return inside & (self.steps >= 0)[:, None]


def hull(wanted: Mask, steps: Steps) -> WaitRanges:
    """Return for each unit the range from its first to its last wanted unit."""
    found = wanted.any(axis=1)
    first = np.where(found, wanted.argmax(axis=1), 0)
    last = np.where(found, wanted.shape[1] - wanted[:, ::-1].argmax(axis=1), 0)
    return WaitRanges(first.astype(np.int32), last.astype(np.int32), steps)


def runs(wanted: Mask, steps: Steps) -> WaitRanges:
    """Return for each unit its first run of consecutive wanted units. The unit itself may be
    inside the run, since no unit waits for itself."""
    units = wanted.shape[1]
    first = wanted.argmax(axis=1)
    allowed = wanted | np.eye(units, dtype=np.bool_)
    stops = ~allowed & (np.arange(units) > first[:, None])
    last = np.where(stops.any(axis=1), stops.argmax(axis=1), units)
    narrow = hull(wanted & (np.arange(units) < last[:, None]), steps)
    return shared_ranges(narrow)


def shared_ranges(ranges: WaitRanges) -> WaitRanges:
    """Give a unit at the end of a range that other units wait for that same range. It does not
    wait for itself, and one text then serves all of them."""
    rows = zip(ranges.first.tolist(), ranges.last.tolist(), ranges.steps.tolist(), strict=True)
    same = set(rows)
    first, last = ranges.first.copy(), ranges.last.copy()
    for unit in np.flatnonzero(ranges.steps >= 0).tolist():
        low, high, step = int(first[unit]), int(last[unit]), int(ranges.steps[unit])
        if low == unit + 1 and (unit, high, step) in same:
            first[unit] = unit
        elif high == unit and (low, unit + 1, step) in same:
            last[unit] = unit + 1
    return WaitRanges(first, last, ranges.steps)


TouchKey = tuple[int, int, str, str, bool]


@dataclass(frozen=True, slots=True, eq=False)
class AccessRecord:
    """A footprint of item number `item` of leaf number `leaf`, on the buffer that was then named
    `origin`."""

    leaf: int
    item: int
    origin: str
    footprint: Footprint

    @property
    def key(self) -> TouchKey:
        """Key of the access in `Pending`."""
        footprint = self.footprint
        return self.leaf, self.item, self.origin, footprint.buffer.name, footprint.write


Pending = Mapping[TouchKey, tuple[AccessRecord, Mask]]
"""Accesses that some unit may not know to be over. Mask [u, v]: unit u knows that unit v's part is
over."""


@dataclass(frozen=True, slots=True)
class SyncSetting:
    """Inputs of the waits of a function.

    ranges: a unit that needs several others waits once, for all units between them.
    """

    units: int
    footprints: Footprints
    memory: MemoryMap
    ranges: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Access:
    """An access so far: over at `step` of this leaf if `seen` is None, else from before the leaf,
    with `seen` as in `Pending`."""

    touch: AccessRecord
    step: int
    seen: Mask | None


@dataclass(frozen=True, slots=True, eq=False)
class _Demand:
    """Units that must know that an access is over: met[u, v] for unit v's part and unit u (u !=
    v)."""

    met: Mask
    access: _Access


class LeafWaits:
    """Builder of a leaf: takes its items wave by wave, and inserts the waits that they need.

    keep: returns True for a buffer that may be accessed after the leaf. publishes: other units may
    wait for this leaf; False in a parallel loop.
    """

    def __init__(
        self,
        number: int,
        pending: Pending,
        setting: SyncSetting,
        keep: Callable[[str], bool],
        *,
        publishes: bool = True,
    ) -> None:
        self._number = number
        self._units = setting.units
        self._setting = setting
        self._keep = keep
        self._publishes = publishes
        self._count = 0
        self._others = ~np.eye(self._units, dtype=np.bool_)
        self._accesses: dict[str, list[_Access]] = {}
        for touch, seen in pending.values():
            self._add(_Access(touch, 0, seen))
        # [u, v]: the last step of unit v that unit u knows to be published.
        self._known: Steps = np.where(self._others, np.int32(NEVER), np.int32(0))
        self._published = [self._known]
        self._items: list[list[Item]] = [[] for _ in range(self._units)]
        # For each step, the place of its signal in the list of each unit.
        self._ends: list[list[int]] = [[0] * self._units]
        # [u, v]: number of times unit u waits for unit v.
        self.pairs = np.zeros((self._units, self._units), np.int64)
        self._handed: dict[tuple[bytes, int], Mask] = {}

    @property
    def is_empty(self) -> bool:
        return not any(self._items)

    def append(self, placed: Placed, footprints: tuple[Footprint, ...]) -> None:
        """Append the parts of a kernel, or a register statement for every unit, after the waits
        they need."""
        self._wait([demand for footprint in footprints for demand in self._conflicts(footprint)])
        if isinstance(placed.item, Kernel):
            for part in placed.parts:
                self._items[part.unit].append(part.run(placed.item))
        else:
            for items in self._items:
                items.append(placed.item)
        self._count += 1
        for footprint in footprints:
            touch = AccessRecord(self._number, self._count, footprint.buffer.name, footprint)
            self._add(_Access(touch, len(self._published), None))

    def close_wave(self) -> None:
        """End the wave: items appended later may wait for those appended so far."""
        self._known = np.where(self._others, self._known, np.int32(len(self._published)))
        self._published.append(self._known)
        self._ends.append([len(items) for items in self._items])

    def barrier(self) -> None:
        """Make every unit wait for all that the others have done."""
        self.wait_for(0, self._units)

    def wait_for(self, first: int, count: int) -> None:
        """Make every unit wait for all that `count` units from `first` on have done."""
        if self._units == 1:
            return
        self.close_wave()
        others = self._others.copy()
        others[:, :first] = others[:, first + count :] = False
        for unit, items in enumerate(self._items):
            if others[unit].any():
                items.append(Wait(first, len(self._published) - 1, count))
        self.pairs = self.pairs + others

    def settled(self, matters: Callable[[Footprint], bool], pairs: Mask | None = None) -> LeafWaits:
        """Return the leaf with waits at its end: unit u waits until all accesses of unit v for
        which `matters` is true are over, where pairs[u, v]. Return the leaf itself if no wait
        is needed."""
        pairs = self._others if pairs is None else pairs & self._others
        demands = [
            _Demand(pairs & access.touch.footprint.present, access)
            for accesses in self._accesses.values()
            for access in accesses
            if matters(access.touch.footprint)
        ]
        settled = copy(self)
        settled._items = [list(items) for items in self._items]
        if not settled._wait(demands):
            return self
        settled._published, settled._ends = list(self._published), list(self._ends)
        settled.close_wave()
        return settled

    def pending(self) -> Pending:
        """Return the accesses that are pending after the leaf."""
        pending: dict[TouchKey, tuple[AccessRecord, Mask]] = {}
        for name, accesses in self._accesses.items():
            for access in accesses if self._keep(name) else ():
                touch, seen = self._lasting(access.touch), self._seen(access)
                if seen.all():
                    pending.pop(touch.key, None)
                else:
                    # Replaces that of an earlier iteration, which was over before this one.
                    pending[touch.key] = touch, seen
        return pending

    def _lasting(self, touch: AccessRecord) -> AccessRecord:
        """Return the touch with a footprint that holds after the leaf, where registers may have
        changed."""
        footprint = self._setting.footprints.lasting(touch.footprint)
        return touch if footprint is touch.footprint else replace(touch, footprint=footprint)

    # ---- demands -------------------------------------------------------------------------------
    def _add(self, access: _Access) -> None:
        self._accesses.setdefault(access.touch.footprint.buffer.name, []).append(access)

    def _seen(self, access: _Access, known: Steps | None = None) -> Mask:
        """Return the mask [u, v]: True if unit u knows that unit v's part of the access is over.

        Knowledge from before the leaf spreads to the units that have waited for a unit that has it.
        """
        known = self._known if known is None else known
        if access.seen is None:
            return (known >= access.step) | ~access.touch.footprint.present
        met = (known >= 0) & self._others
        if not met.any():
            return access.seen
        key = met.tobytes(), id(access)
        if key not in self._handed:
            self._handed[key] = access.seen | compose(met, access.seen)
        return self._handed[key]

    def _conflicts(self, footprint: Footprint) -> Iterator[_Demand]:
        """Yield the demands of a footprint: accesses that conflict with it and that some unit does
        not know to be over."""
        setting = self._setting
        for name in setting.memory.near(footprint.buffer.name):
            for access in self._accesses.get(name, ()):
                other = access.touch.footprint
                if (other.write or footprint.write) and not self._seen(access).all():
                    met = setting.footprints.overlap(footprint, other, setting.memory)
                    yield _Demand(met & self._others, access)

    def _needed(self, demands: Iterable[_Demand], known: Steps) -> Steps:
        """Return [u, v]: the step of unit v that unit u has to wait for, or NEVER."""
        needed: Steps = np.full((self._units, self._units), NEVER, np.int32)
        for demand in demands:
            missing = demand.met & ~self._seen(demand.access, known)
            needed[missing] = np.maximum(needed[missing], demand.access.step)
        return needed

    # ---- waits ---------------------------------------------------------------------------------
    def _wait(self, demands: list[_Demand]) -> bool:
        """Insert the waits; return False if none is needed."""
        if not demands:
            return False
        needed = self._needed(demands, self._known)
        latest = needed.max()
        if latest >= len(self._published):
            raise ScheduleError(
                "an item would wait for another unit's item of the same wave",
                remedy="this is a bug of the scheduling policy; please report it",
            )
        if latest == NEVER:
            return False
        exact = not self._setting.ranges
        made = list(self._exact(demands, needed)) if exact else [self._wide(demands, needed)]
        for ranges in made:
            self.pairs = self.pairs + (ranges.mask & self._others)
        found = [wait for ranges in made for wait in ranges.waits()]
        for unit, wait in sorted(found, key=lambda pair: (pair[0], pair[1].unit)):
            self._items[unit].append(wait)
        return True

    def _wide(self, demands: list[_Demand], needed: Steps) -> WaitRanges:
        """Return one wait per unit: for the units needed at the latest step, which often implies
        the rest; where it does not, for all units needed."""
        steps: Steps = needed.max(axis=1)
        latest = hull((needed == steps[:, None]) & (needed >= 0), steps)
        rest = self._needed(demands, self._learn(latest))
        wide = (rest >= 0).any(axis=1)
        every = hull(needed >= 0, steps)
        ranges = WaitRanges(
            np.where(wide, every.first, latest.first),
            np.where(wide, every.last, latest.last),
            steps,
        )
        return self._learnt(shared_ranges(ranges))

    def _exact(self, demands: list[_Demand], needed: Steps) -> Iterator[WaitRanges]:
        """Yield waits for exactly the units needed, the latest steps first, because these also
        tell of other units."""
        while needed.max() >= 0:
            steps: Steps = needed.max(axis=1)
            yield self._learnt(runs((needed == steps[:, None]) & (needed >= 0), steps))
            needed = self._needed(demands, self._known)

    def _learnt(self, ranges: WaitRanges) -> WaitRanges:
        """Record that the units have made these waits; return them."""
        self._known = self._learn(ranges)
        return ranges

    def _learn(self, ranges: WaitRanges) -> Steps:
        """Return what the units know after these waits."""
        known = self._known.copy()
        for (low, high, step), units in ranges.kinds():
            learnt = self._published[step][low:high].max(axis=0)
            learnt[low:high] = np.maximum(learnt[low:high], step)
            known[units] = np.maximum(known[units], learnt)
        return known

    # ---- the schedule --------------------------------------------------------------------------
    def schedule(self) -> Schedule:
        """Return the schedule. Steps are renumbered: only those that some unit waits for remain."""
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
        return Schedule(units, len(number) if any(units) and self._publishes else 0)

    def _unit(self, unit: int, steps: list[int], number: Mapping[int, int]) -> tuple[Item, ...]:
        """Return the items of a unit with its signals. Of several signals at one place only the
        last is needed."""
        items = [
            Wait(item.unit, number[item.step], item.count) if isinstance(item, Wait) else item
            for item in self._items[unit]
        ]
        places = {self._ends[step][unit]: number[step] for step in steps}
        # The end of the leaf publishes by itself.
        places.pop(len(items), None)
        bounds = sorted({0, *places, len(items)})
        signalled: list[Item] = []
        for low, high in pairwise(bounds):
            if low in places:
                signalled.append(Signal(places[low]))
            signalled.extend(items[low:high])
        return tuple(signalled)
