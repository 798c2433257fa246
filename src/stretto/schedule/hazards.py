"""Which accesses are still pending, and who knows that they are done.

Between leaves a `State` holds every access that some unit might not know to be finished, with the
set of units that know. Inside a leaf `LeafHazards` adds steps: the access of wave w is done once
its unit has published step w + 1, and a unit that waits for (v, s) also learns what v knew when it
published s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from stretto.device.expr import Buffer
from stretto.device.regions import Interval, Region, covers, overlap


@dataclass(frozen=True, slots=True)
class Layout:
    """Bytes of local buffers in their frame.

    `extents`: where the elements of a buffer may lie. `sharing`: the other buffers that it may
    have bytes in common with. Rotating buffers trade places, so each may lie in the whole block
    of its group; buffers of one group are always apart.
    """

    extents: Mapping[str, Interval] = field(default_factory=dict[str, Interval])
    moving: frozenset[str] = frozenset()
    sharing: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def bytes_of(self, region: Region) -> Interval:
        """Bytes of the frame that the region may touch."""
        first, last = self.extents[region.buffer.name]
        span = region.span
        if span is None or region.buffer.name in self.moving:
            return first, last
        size = region.buffer.dtype.itemsize
        return first + span[0] * size, first + span[1] * size

    def conflict(self, a: Region, b: Region) -> bool:
        """May the order of the two accesses matter?"""
        if not (a.write or b.write):
            return False
        if a.buffer.name == b.buffer.name:
            return overlap(a, b)
        if b.buffer.name not in self.sharing.get(a.buffer.name, ()):
            return False
        x, y = self.bytes_of(a), self.bytes_of(b)
        return x[0] < y[1] and y[0] < x[1]


@dataclass(frozen=True, slots=True)
class Touch:
    """Unit `unit` has accessed `region`."""

    unit: int
    region: Region


@dataclass(frozen=True, slots=True)
class State:
    """Pending accesses, each with the bit set of the units that know it to be done."""

    pending: Mapping[Touch, int] = field(default_factory=dict[Touch, int])

    def merge(self, other: State) -> State:
        """What holds when either state may be the true one."""
        merged = dict(self.pending)
        for touch, seen in other.pending.items():
            merged[touch] = merged.get(touch, seen) & seen
        return State(merged)

    def join(self, one: State, other: State) -> State:
        """After a branch that starts in this state and ends in `one` or in `other`.

        An access that is pending at the end of one arm only may have been replaced in the other
        (`LeafHazards.touch`). Its new access is known there, but those who know of it at the end of
        the first arm need not know of the old one: of them, only who knew before the branch does.
        """
        joined = dict(one.merge(other).pending)
        for touch, seen in self.pending.items():
            if (touch in one.pending) != (touch in other.pending):
                joined[touch] &= seen
        return State(joined)

    def rotate(self, pairs: Iterable[tuple[Buffer, Buffer]]) -> State:
        """After the buffers of each pair have traded places."""
        swapped: dict[str, Buffer] = {}
        for current, following in pairs:
            swapped |= {current.name: following, following.name: current}
        if not swapped:
            return self
        renamed: dict[Touch, int] = {}
        for touch, seen in self.pending.items():
            region = touch.region
            if region.buffer.name in swapped:
                buffer = swapped[region.buffer.name]
                touch = Touch(touch.unit, Region(buffer, region.shape, region.box, region.write))
            renamed[touch] = renamed.get(touch, seen) & seen
        return State(renamed)

    def unseen(self, unit: int, matters: Callable[[Region], bool]) -> tuple[int, ...]:
        """Units that together know all pending accesses that matter and `unit` does not know of."""
        return covering(
            seen
            for touch, seen in self.pending.items()
            if not seen >> unit & 1 and matters(touch.region)
        )


def covering(sets: Iterable[int]) -> tuple[int, ...]:
    """Few units such that each bit set holds one of them."""
    left = set(sets)
    chosen: list[int] = []
    while left:
        units = range(max(left).bit_length())
        best = max(units, key=lambda unit: sum(seen >> unit & 1 for seen in left))
        chosen.append(best)
        left = {seen for seen in left if not seen >> best & 1}
    return tuple(sorted(chosen))


@dataclass(frozen=True, slots=True)
class _Record:
    """With `step` 0: pending since before the leaf, known to `seen`. Otherwise: done at `step`."""

    touch: Touch
    step: int
    seen: int = 0


class LeafHazards:
    """The pending accesses while the items of one leaf are laid out, wave by wave."""

    def __init__(self, state: State, units: int, layout: Layout) -> None:
        self._units = units
        self._layout = layout
        self._records: dict[str, list[_Record]] = {}
        for touch, seen in state.pending.items():
            self._add(_Record(touch, 0, seen))
        # _known[u][v]: unit u knows what v did before it published this step; -1: nothing.
        self._known = [[-1] * units for _ in range(units)]
        self._published: dict[tuple[int, int], list[int]] = {}
        self.implied = 0

    def needed(self, unit: int, regions: Iterable[Region]) -> dict[int, int]:
        """The steps of other units to wait for before `unit` accesses `regions`: {unit: step}.

        Conflicts that need no wait, because `unit` knows already, are counted in `implied`.
        """
        steps: dict[int, int] = {}
        before: set[int] = set()
        implied: set[int] = set()
        for region in regions:
            for record in self._near(region):
                other = record.touch.unit
                if other == unit or (record.step and steps.get(other, 0) >= record.step):
                    continue
                if not self._layout.conflict(record.touch.region, region):
                    continue
                if self._knows(unit, record):
                    implied.add(other)
                elif record.step:
                    steps[other] = record.step
                else:
                    before.add(record.seen)
        self.implied += len(implied - steps.keys())
        return self._irredundant(unit, steps, before)

    def wait(self, unit: int, other: int, step: int) -> None:
        """`unit` waits until `other` has published `step`."""
        self._learn(self._known[unit], other, step)

    def touch(self, unit: int, regions: Iterable[Region], step: int) -> None:
        """`unit` accesses `regions`, which is done when it publishes `step`."""
        for region in regions:
            records = self._records.get(region.buffer.name, [])
            records[:] = [r for r in records if not self._replaces(unit, region, r)]
            self._add(_Record(Touch(unit, region), step))

    def publish(self, step: int) -> None:
        """Every unit publishes `step`: the end of wave step - 1."""
        for unit in range(self._units):
            self._published[unit, step] = list(self._known[unit])

    def finish(self) -> State:
        """What is pending after the leaf."""
        everyone = (1 << self._units) - 1
        pending: dict[Touch, int] = {}
        for records in self._records.values():
            for record in records:
                seen = 1 << record.touch.unit
                for unit in range(self._units):
                    seen |= self._knows(unit, record) << unit
                if seen != everyone:
                    pending[record.touch] = pending.get(record.touch, seen) & seen
        return State(pending)

    def _add(self, record: _Record) -> None:
        self._records.setdefault(record.touch.region.buffer.name, []).append(record)

    def _near(self, region: Region) -> Iterable[_Record]:
        name = region.buffer.name
        yield from self._records.get(name, ())
        for other in self._layout.sharing.get(name, ()):
            yield from self._records.get(other, ())

    def _knows(self, unit: int, record: _Record) -> bool:
        known = self._known[unit]
        if record.step > 0:
            return known[record.touch.unit] >= record.step
        if record.seen >> unit & 1:
            return True
        return any(step >= 0 and record.seen >> other & 1 for other, step in enumerate(known))

    def _learn(self, known: list[int], other: int, step: int) -> None:
        known[other] = max(known[other], step)
        for third, their in enumerate(self._published.get((other, step), ())):
            known[third] = max(known[third], their)

    def _irredundant(self, unit: int, steps: dict[int, int], before: set[int]) -> dict[int, int]:
        """Few waits that give all `steps`, and of each bit set in `before` one unit's step 0."""
        kept: dict[int, int] = {}
        known = list(self._known[unit])
        for other, step in sorted(steps.items(), key=lambda item: -item[1]):
            if known[other] >= step:
                self.implied += 1
            else:
                self._learn(known, other, step)
                kept[other] = step
        started = sum(1 << other for other, step in enumerate(known) if step >= 0)
        left = [seen for seen in before if not seen & started]
        kept |= dict.fromkeys(covering(left), 0)
        self.implied += len(before) - len(left)
        return dict(sorted(kept.items()))

    def _replaces(self, unit: int, region: Region, record: _Record) -> bool:
        """Does who waits for the new access of `unit` need nothing more for the old one?"""
        if not covers(region, record.touch.region):
            return False
        if record.touch.unit == unit:
            return region.write or not record.touch.region.write
        return region.write and self._knows(unit, record)
