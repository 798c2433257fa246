"""Finds data races: for each piece of memory, who accessed it last and at what time of whose clock.

Every unit has a vector clock. A unit that publishes a step keeps its clock with it; a unit that
waits for a step takes over the clock of the *first* publication that satisfies the wait, which is
all the wait guarantees. Two accesses are ordered if the later unit's clock knows the earlier access
(as in FastTrack).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stretto.errors import RunError

Clock = NDArray[np.int32]
Places = NDArray[np.int64]


class RaceError(RunError):
    """Two units access the same memory, one of them writing, and nothing orders them."""


class UninitialisedRead(RunError):
    """A task reads memory that nothing has written. buffer: the name by which it does."""

    buffer = ""


@dataclass(slots=True)
class Clocks:
    """What each unit knows of the others, and what each has published."""

    units: int
    known: list[Clock] = field(init=False)
    published: list[list[int]] = field(init=False)
    snapshots: list[list[Clock]] = field(init=False)

    def __post_init__(self) -> None:
        start = np.zeros(self.units, np.int32)
        self.known = [start + (np.arange(self.units) == u) for u in range(self.units)]
        self.known = [clock.astype(np.int32) for clock in self.known]
        self.published = [[0] for _ in range(self.units)]
        self.snapshots = [[start] for _ in range(self.units)]

    def publish(self, unit: int, value: int) -> None:
        self.published[unit].append(value)
        self.snapshots[unit].append(self.known[unit].copy())
        self.known[unit][unit] += 1

    def has_published(self, unit: int, value: int) -> bool:
        return self.published[unit][-1] >= value

    def join(self, unit: int, other: int, value: int) -> None:
        """`unit` has waited until `other` had published `value`."""
        first = bisect_left(self.published[other], value)
        np.maximum(self.known[unit], self.snapshots[other][first], out=self.known[unit])


class Shadow:
    """The last accesses to `pieces` pieces of one memory. Grows when places beyond are touched.

    Events are numbers of whatever the caller keeps. `written` tells that all is initialised.
    """

    def __init__(self, name: str, clocks: Clocks, pieces: int, written: bool) -> None:
        self.name = name
        self._clocks = clocks
        self._initialised = written
        self._writer = np.full(pieces, -1, np.int32)
        self._written_at = np.zeros(pieces, np.int32)
        self._write_event = np.zeros(pieces, np.int32)
        self._read_at = np.zeros((clocks.units, pieces), np.int32)
        self._read_event = np.zeros((clocks.units, pieces), np.int32)

    def grow(self, pieces: int) -> None:
        more = pieces - len(self._writer)
        if more > 0:
            self._writer = np.pad(self._writer, (0, more), constant_values=-1)
            self._written_at = np.pad(self._written_at, (0, more))
            self._write_event = np.pad(self._write_event, (0, more))
            self._read_at = np.pad(self._read_at, ((0, 0), (0, more)))
            self._read_event = np.pad(self._read_event, ((0, 0), (0, more)))

    def read(self, unit: int, places: Places, event: int) -> tuple[int, int] | None:
        """Notes a read; (place, event of the write) if nothing orders a write before it."""
        writers = self._writer[places]
        if not self._initialised and bool((writers < 0).any()):
            place = int(places[writers < 0][0])
            raise UninitialisedRead(f"{self.name} is read at {place} before it is written")
        self._read_at[unit, places] = self._clocks.known[unit][unit]
        self._read_event[unit, places] = event
        return self._unordered_write(unit, places, writers)

    def write(self, unit: int, places: Places, event: int) -> tuple[int, int] | None:
        """Notes a write; (place, event) of an access that nothing orders before it."""
        found = self._unordered_write(unit, places, self._writer[places])
        if found is None:
            found = self._unordered_read(unit, places)
        self._writer[places] = unit
        self._written_at[places] = self._clocks.known[unit][unit]
        self._write_event[places] = event
        return found

    def _unordered_write(
        self, unit: int, places: Places, writers: NDArray[np.int32]
    ) -> tuple[int, int] | None:
        known = self._clocks.known[unit]
        wrong = (writers >= 0) & (writers != unit) & (self._written_at[places] > known[writers])
        if not wrong.any():
            return None
        place = int(places[wrong][0])
        return place, int(self._write_event[place])

    def _unordered_read(self, unit: int, places: Places) -> tuple[int, int] | None:
        wrong = self._read_at[:, places] > self._clocks.known[unit][:, None]
        wrong[unit] = False
        if not wrong.any():
            return None
        reader, position = (int(found[0]) for found in np.nonzero(wrong))
        place = int(places[position])
        return place, int(self._read_event[reader, place])
