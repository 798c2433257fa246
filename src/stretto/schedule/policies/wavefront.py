"""The wavefront policy: try several placements of each kernel and take the earliest finish.

Items of a leaf are taken level by level of their dependences, the longest of a level first (Rammer,
section 4.2). For each kernel the policy estimates the finish of these placements: equal blocks on
all units, each task on the unit that produced its inputs, larger blocks on the units that are free
earlier, or the whole kernel on one unit. Only a dependence *between units* starts a new wave: a
consumer on the same unit as its producer needs no wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from stretto.device.boxes import numbers
from stretto.device.costs import CostModel
from stretto.device.expr import Buffer
from stretto.device.operator import Kernel, Piece, TileDim
from stretto.device.regions import Body, Interval, Region, Statement, covers, overlap, task_regions
from stretto.device.tree import Rotation
from stretto.schedule.footprint import Footprints, Node, Parts, UnitTasks, conflict
from stretto.schedule.policy import (
    LeafPlan,
    Placed,
    by_priority,
    equal_blocks,
    is_small,
    levelled,
    only_parts,
    part_seconds,
    register,
    waves,
)

# ---- Record of which unit produced what, so that consumers can run where their inputs are.


MOST_TASKS = 256
"""Kernels with more tasks are not examined task by task."""


class Producers:
    """The latest writers of each buffer, in program order."""

    def __init__(self) -> None:
        self._written: dict[str, list[tuple[int, Region]]] = {}

    def add(self, unit: int, regions: Iterable[Region]) -> None:
        """Record the writes of a unit; an earlier write that is covered is dropped."""
        for region in regions:
            if region.write:
                written = self._written.setdefault(region.buffer.name, [])
                written[:] = [item for item in written if not covers(region, item[1])]
                written.append((unit, region))

    def rotate(self, pairs: Iterable[tuple[Buffer, Buffer]]) -> None:
        """Exchange the records of the two buffers of each pair."""
        for current, following in pairs:
            names = current.name, following.name
            ahead, behind = (self._written.pop(name, []) for name in names)
            self._written[names[1]] = [(unit, _renamed(r, following)) for unit, r in ahead]
            self._written[names[0]] = [(unit, _renamed(r, current)) for unit, r in behind]

    def shares(self, regions: Iterable[Region], units: int) -> list[int]:
        """Return for each unit the number of elements read that it has produced."""
        shares = [0] * units
        for region in regions:
            if not region.write:
                for unit, produced in self._written.get(region.buffer.name, ()):
                    if overlap(region, produced):
                        shares[unit] += _common(region, produced)
        return shares

    def others(self, unit: int, regions: Iterable[Region]) -> bool:
        """True if `unit` reads something that another unit produced."""
        return any(
            writer != unit and overlap(region, produced)
            for region in regions
            if not region.write
            for writer, produced in self._written.get(region.buffer.name, ())
        )


def favourites(kernel: Kernel, producers: Producers, units: int) -> list[int | None]:
    """Return for each task the unit that produced most of what only some tasks read; None for no
    preference.

    Data that all tasks read (the vector of a matrix-vector product) gives no preference.
    """
    if kernel.tasks > MOST_TASKS:
        return [None] * kernel.tasks
    shares = [producers.shares(task_regions(kernel, t), units) for t in range(kernel.tasks)]
    common = [min(column) for column in zip(*shares, strict=True)]
    found: list[int | None] = []
    for row in shares:
        own = [share - base for share, base in zip(row, common, strict=True)]
        best = max(own)
        found.append(own.index(best) if best > 0 and own.count(best) == 1 else None)
    return found


def _renamed(region: Region, buffer: Buffer) -> Region:
    return Region(buffer, region.shape, region.box, region.write)


def _common(a: Region, b: Region) -> int:
    """Estimate the number of elements that two overlapping regions have in common."""
    if a.shape != b.shape:
        first, second = a.span, b.span
        if first is None or second is None:
            return 1
        return min(first[1], second[1]) - max(first[0], second[0])
    total = 1
    for x, y, extent in zip(a.box, b.box, a.shape, strict=True):
        size = extent if isinstance(extent, int) else _tiles(x, y)
        (first, last), (low, high) = numbers(x, size), numbers(y, size)
        total *= max(min(last, high) - max(first, low), 1)
    return total


def _tiles(*parts: Interval | Piece | None) -> int:
    """Return the number of tiles that a dim is cut into."""
    dims = (part.dim for part in parts if isinstance(part, Piece))
    return max((dim.tiles for dim in dims if isinstance(dim, TileDim)), default=1)


@dataclass(frozen=True, slots=True)
class _Share:
    """Work of one unit for an item: the finish time and the regions touched."""

    unit: int
    finish: float
    regions: tuple[Region, ...]


@dataclass(frozen=True, slots=True)
class _Fit:
    """A candidate placement of an item. `after`: the (item index, unit) pairs that it waits for."""

    parts: Parts
    shares: tuple[_Share, ...]
    after: frozenset[tuple[int, int]]

    @property
    def finish(self) -> float:
        return max((share.finish for share in self.shares), default=0.0)


@dataclass(frozen=True, slots=True)
class WavefrontPolicy:
    """Policy that estimates every candidate placement of a kernel: better plans, for few units."""

    name: str = "wavefront"
    ranges: bool = False

    def fits(self, units: int, costs: CostModel) -> bool:
        return units == 1 or not costs.uniform

    def planning_work(self, units: int) -> float:
        return 40 + units * units

    def planner(self, units: int, costs: CostModel, footprints: Footprints) -> _WavefrontPlanner:
        return _WavefrontPlanner(units, costs, footprints)


class _WavefrontPlanner:
    """Planner of the leaves of one function, in program order."""

    def __init__(self, units: int, costs: CostModel, footprints: Footprints) -> None:
        self._units = units
        self._costs = costs
        self._footprints = footprints
        self._producers = Producers()
        self._free: list[float] = []
        self._placed: list[tuple[Node, _Fit]] = []
        self._shares: dict[int, tuple[_Share, ...]] = {}

    def plan(self, body: Body) -> LeafPlan:
        self._free = [0.0] * self._units
        self._placed = []
        self._shares = {}
        for node in by_priority(body, self._costs):
            fits = [self._fit(node, parts) for parts in self._candidates(node.item)]
            self._place(node, self._best(node.item, fits))
        return LeafPlan(self._waves(), max(self._free))

    def rotate(self, pairs: Rotation) -> None:
        self._producers.rotate(pairs)

    def _candidates(self, item: Statement) -> Iterator[Parts]:
        """Yield ways to divide the tasks among the units; on ties the earlier one is taken."""
        only = only_parts(item, self._units) if isinstance(item, Kernel) else ()
        if only is not None or not isinstance(item, Kernel):
            yield only or ()
            return
        blocks = equal_blocks(item.tasks, self._units)
        if item.tasks > 1:
            following = self._following(item, blocks)
            if following is not None:
                yield following
            if not is_small(item, self._costs):
                yield blocks
                if (parts := levelled(item, self._free, self._costs)) is not None:
                    yield parts
        for unit in self._single_units(item):
            yield (UnitTasks(unit, 0, item.tasks),)

    def _following(self, kernel: Kernel, blocks: Parts) -> Parts | None:
        """Return parts that run each task on the unit that produced its inputs; None if no task
        has a preference or there would be too many parts."""
        wanted = favourites(kernel, self._producers, self._units)
        if all(unit is None for unit in wanted):
            return None
        default = [part.unit for part in blocks for _ in range(part.count or 0)]
        units = [d if w is None else w for w, d in zip(wanted, default, strict=True)]
        parts: list[UnitTasks] = []
        first = 0
        for unit, group in groupby(units):
            count = len(list(group))
            parts.append(UnitTasks(unit, first, count))
            first += count
        return tuple(parts) if len(parts) <= 4 * self._units else None

    def _single_units(self, kernel: Kernel) -> list[int]:
        """Return the units to try for the whole kernel: the one that produced most of its inputs,
        and the one free earliest. With at most four units, all of them."""
        regions = self._footprints.regions(kernel, UnitTasks(0, 0, kernel.tasks))
        shares = self._producers.shares(regions, self._units)
        if self._units <= 4:
            return sorted(range(self._units), key=lambda unit: -shares[unit])
        freest = self._free.index(min(self._free))
        return list(dict.fromkeys((shares.index(max(shares)), freest)))

    def _best(self, item: Statement, fits: list[_Fit]) -> _Fit:
        """Return the candidate that finishes first; a small kernel is split only if no unit has to
        wait."""
        if is_small(item, self._costs):
            fits = [fit for fit in fits if len(fit.parts) == 1 or not fit.after] or fits
        return min(fits, key=lambda fit: fit.finish)

    def _fit(self, node: Node, parts: Parts) -> _Fit:
        """Return the finish times and waits of an item if it were divided into `parts`."""
        after: set[tuple[int, int]] = set()
        shares: list[_Share] = []
        for unit, seconds, regions in self._work(node, parts):
            start = self._free[unit]
            waits = self._conflicts(node, unit, regions)
            if waits:
                ready = max(share.finish for share in waits.values())
                start = max(start, ready + self._costs.wait_seconds)
            elif self._producers.others(unit, regions):
                start = max(start, self._costs.wait_seconds)
            after |= waits.keys()
            shares.append(_Share(unit, start + seconds, regions))
        return _Fit(parts, tuple(shares), frozenset(after))

    def _work(self, node: Node, parts: Parts) -> Iterator[tuple[int, float, tuple[Region, ...]]]:
        """Yield the work of each unit as (unit, seconds, regions). Every unit executes a
        statement."""
        if not isinstance(node.item, Kernel):
            yield from ((unit, 0.0, node.regions) for unit in range(self._units))
            return
        seconds = dict.fromkeys((part.unit for part in parts), 0.0)
        regions: dict[int, tuple[Region, ...]] = dict.fromkeys(seconds, ())
        for part in parts:
            seconds[part.unit] += part_seconds(node.item, part, self._costs)
            regions[part.unit] += self._footprints.regions(node.item, part)
        yield from ((unit, seconds[unit], regions[unit]) for unit in seconds)

    def _conflicts(
        self, node: Node, unit: int, regions: tuple[Region, ...]
    ) -> dict[tuple[int, int], _Share]:
        """Return the shares of other units that must finish first, keyed by (item index, unit)."""
        return {
            (index, share.unit): share
            for index in node.before
            for share in self._shares[index]
            if share.unit != unit and any(conflict(a, b) for a in share.regions for b in regions)
        }

    def _place(self, node: Node, fit: _Fit) -> None:
        """Record the placement of an item."""
        if fit.shares:
            self._placed.append((node, fit))
        self._shares[node.index] = fit.shares
        for share in fit.shares:
            self._free[share.unit] = share.finish
            self._producers.add(share.unit, share.regions)

    def _waves(self) -> tuple[tuple[Placed, ...], ...]:
        placed = [
            (node.index, Placed(node.item, fit.parts), [s.unit for s in fit.shares], fit.after)
            for node, fit in self._placed
        ]
        return waves(placed, self._units)


register(WavefrontPolicy())
