"""Composition of a simulated run, and the reasons for its time.

Every unit's time is cut into segments without gaps. The critical path is found from its
end: a task of a unit is preceded by that unit's previous segment; the end of a wait by the
unit that was waited for. Its links add up to the time of the run, so a run, or a leaf of
the program, is bound by what most of that time was spent on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class Bound(StrEnum):
    """Activities that time is spent on."""

    COMPUTE = "compute"
    BANDWIDTH = "bandwidth"
    OVERHEAD = "overhead"
    WAIT = "waits"


WORK = (Bound.COMPUTE, Bound.BANDWIDTH)


@dataclass(frozen=True, slots=True)
class Cause:
    """The end of a wait: `unit` published at `time`, after its first `segments` segments."""

    time: float
    unit: int
    segments: int


@dataclass(frozen=True, slots=True)
class UnitActivity:
    """Activity of a unit from `start` to `end`; before `ready` a task only begins.

    kernel: its number in the program, and `task` the task's; -1 for other segments. leaf: the
    leaf of the program's text. cause: the end of a wait.
    """

    bound: Bound
    start: float
    ready: float
    end: float
    leaf: int
    kernel: int = -1
    task: int = -1
    cause: Cause | None = None

    @property
    def is_task(self) -> bool:
        return self.kernel >= 0


@dataclass(frozen=True, slots=True)
class Link:
    """A part of the critical path, on `unit`; leaf and kernel are -1 if it belongs to none."""

    bound: Bound
    unit: int
    start: float
    end: float
    leaf: int = -1
    kernel: int = -1

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class LeafSummary:
    """A leaf of the program over the whole run. critical: seconds of the critical path, by what
    they are spent on. busy, idle: seconds of all units together."""

    title: str
    runs: int
    critical: Mapping[Bound, float]
    busy: float
    idle: float

    @property
    def seconds(self) -> float:
        """Seconds that it adds to the time of the run."""
        return sum(self.critical.values())

    @property
    def bound(self) -> Bound:
        return max(Bound, key=lambda bound: self.critical.get(bound, 0.0))


@dataclass(frozen=True)
class Simulation:
    """A simulated run; all times in seconds from the call. segments: by unit, in order.

    runs: number of runs of each leaf. titles: of the leaves. names: of the kernels.
    """

    device: str
    seconds: float
    segments: tuple[tuple[UnitActivity, ...], ...]
    runs: tuple[int, ...]
    titles: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def units(self) -> int:
        return len(self.segments)

    @property
    def tasks(self) -> int:
        return sum(segment.is_task for unit in self.segments for segment in unit)

    def spent(self, unit: int, bound: Bound) -> float:
        """Return the seconds that a unit spent on one kind of bound."""
        found = self.segments[unit]
        if bound is Bound.OVERHEAD:
            begun = sum(s.ready - s.start for s in found)
            return begun + sum(s.end - s.ready for s in found if s.bound is bound)
        return sum(s.end - s.ready for s in found if s.bound is bound)

    def utilisation(self, unit: int) -> float:
        """Return the part of the run in which a unit computes or moves bytes, from 0 to 1."""
        worked = sum(self.spent(unit, bound) for bound in WORK)
        return worked / self.seconds if self.seconds else 0.0

    @cached_property
    def critical_path(self) -> tuple[Link, ...]:
        """The links from the call to the end, without gaps."""
        unit = max(range(self.units), key=self._end, default=0)
        position = len(self.segments[unit]) - 1 if self.segments else -1
        found: list[Link] = []
        while position >= 0:
            segment = self.segments[unit][position]
            position -= 1
            if segment.cause is None:
                found += _links(unit, segment)
                continue
            cause = segment.cause
            begun = Link(Bound.WAIT, unit, cause.time, segment.end, segment.leaf)
            unit, position = cause.unit, cause.segments - 1
            found.append(begun)
        first = found[-1].start if found else self.seconds
        found.append(Link(Bound.OVERHEAD, unit, 0.0, first))
        return tuple(link for link in reversed(found) if link.seconds > 0)

    @property
    def dependent_waits(self) -> int:
        """Number of waits on the critical path: each is for a unit that had itself waited for the
        previous one."""
        return sum(link.bound is Bound.WAIT for link in self.critical_path)

    def _end(self, unit: int) -> float:
        return self.segments[unit][-1].end if self.segments[unit] else 0.0

    @cached_property
    def critical(self) -> dict[Bound, float]:
        """The seconds of the critical path, by what they are spent on."""
        total = dict.fromkeys(Bound, 0.0)
        for link in self.critical_path:
            total[link.bound] += link.seconds
        return total

    @cached_property
    def stretches(self) -> tuple[LeafSummary, ...]:
        """Every leaf that has run, in the order of the program."""
        critical: dict[int, dict[Bound, float]] = defaultdict(lambda: defaultdict(float))
        for link in self.critical_path:
            critical[link.leaf][link.bound] += link.seconds
        busy: dict[int, float] = defaultdict(float)
        idle: dict[int, float] = defaultdict(float)
        for segment in (s for unit in self.segments for s in unit):
            target = idle if segment.bound is Bound.WAIT else busy
            target[segment.leaf] += segment.end - segment.start
        return tuple(
            LeafSummary(title, self.runs[leaf], dict(critical[leaf]), busy[leaf], idle[leaf])
            for leaf, title in enumerate(self.titles)
            if self.runs[leaf]
        )

    def gaps(self, most: int) -> list[tuple[int, UnitActivity]]:
        """Return the `most` longest waits, with the unit that waits."""
        waits = [(u, s) for u, unit in enumerate(self.segments) for s in unit if s.cause]
        return sorted(waits, key=lambda found: found[1].start - found[1].end)[:most]


def _links(unit: int, segment: UnitActivity) -> tuple[Link, Link]:
    """Return the links of a segment other than a wait: its work, then its beginning."""
    begun = Link(Bound.OVERHEAD, unit, segment.start, segment.ready, segment.leaf, segment.kernel)
    done = Link(segment.bound, unit, segment.ready, segment.end, segment.leaf, segment.kernel)
    return done, begun
