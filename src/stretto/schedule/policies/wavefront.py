"""The wavefront policy: which unit runs what, and in which wave.

Items of a leaf are taken level by level of their dependences, the longest of a level first (Rammer,
section 4.2). Each kernel goes where it is estimated to finish first: in equal blocks on all units,
with the producers of its inputs, filling up the units that are free earlier, or as a whole on one
unit. Only a dependence *between units* starts a new wave: a consumer on the unit of its producer
needs no wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from stretto.device.costs import CostModel
from stretto.device.operator import Kernel
from stretto.device.regions import Body, Region, Statement
from stretto.device.tree import Rotation
from stretto.schedule.affinity import Producers, favourites
from stretto.schedule.footprint import Footprints, Node, Part, Parts, conflict
from stretto.schedule.policy import (
    LeafPlan,
    Placed,
    by_priority,
    equal_blocks,
    kernel_seconds,
    only_parts,
    part_seconds,
    register,
    task_seconds,
    waves,
)


@dataclass(frozen=True, slots=True)
class _Share:
    """What one unit does of an item, and when it is done."""

    unit: int
    finish: float
    regions: tuple[Region, ...]


@dataclass(frozen=True, slots=True)
class _Fit:
    """An item as it would be placed. `after`: what of other units it waits for, (item, unit)."""

    parts: Parts
    shares: tuple[_Share, ...]
    after: frozenset[tuple[int, int]]

    @property
    def finish(self) -> float:
        return max((share.finish for share in self.shares), default=0.0)


@dataclass(frozen=True, slots=True)
class WavefrontPolicy:
    """Looks at every place where a kernel could run: the finer plan, for few units."""

    name: str = "wavefront"
    ranges: bool = False

    def fits(self, units: int, costs: CostModel) -> bool:
        return units == 1 or not costs.uniform

    def planning_work(self, units: int) -> float:
        return 40 + units * units

    def planner(self, units: int, costs: CostModel, footprints: Footprints) -> _WavefrontPlanner:
        return _WavefrontPlanner(units, costs, footprints)


class _WavefrontPlanner:
    """Plans the leaves of one function, in the order of its text."""

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

    def _is_small(self, item: Statement) -> bool:
        least = self._costs.small_waits * self._costs.wait_seconds
        return kernel_seconds(item, self._costs) < least

    def _candidates(self, item: Statement) -> Iterator[Parts]:
        """Ways to share the tasks out, the preferred one of equals first."""
        only = only_parts(item, self._units) if isinstance(item, Kernel) else ()
        if only is not None or not isinstance(item, Kernel):
            yield only or ()
            return
        blocks = equal_blocks(item.tasks, self._units)
        if item.tasks > 1:
            following = self._following(item, blocks)
            if following is not None:
                yield following
            if not self._is_small(item):
                yield blocks
                yield from self._levelled(item)
        for unit in self._single_units(item):
            yield (Part(unit, 0, item.tasks),)

    def _following(self, kernel: Kernel, blocks: Parts) -> Parts | None:
        """Each task on the unit of its inputs; None when that says nothing, or too many parts."""
        wanted = favourites(kernel, self._producers, self._units)
        if all(unit is None for unit in wanted):
            return None
        default = [part.unit for part in blocks for _ in range(part.count or 0)]
        units = [d if w is None else w for w, d in zip(wanted, default, strict=True)]
        parts: list[Part] = []
        first = 0
        for unit, group in groupby(units):
            count = len(list(group))
            parts.append(Part(unit, first, count))
            first += count
        return tuple(parts) if len(parts) <= 4 * self._units else None

    def _levelled(self, kernel: Kernel) -> Iterator[Parts]:
        """Blocks of such sizes that all units finish together."""
        each = task_seconds(kernel, self._costs)
        if max(self._free) - min(self._free) < each / 2:
            return
        count = kernel.tasks
        loads = list(self._free)
        sizes = [0] * self._units
        for _ in range(count):
            unit = loads.index(min(loads))
            loads[unit] += each
            sizes[unit] += 1
        starts = [sum(sizes[:unit]) for unit in range(self._units)]
        yield tuple(Part(u, starts[u], sizes[u]) for u in range(self._units) if sizes[u])

    def _single_units(self, kernel: Kernel) -> list[int]:
        """Units worth trying for the whole kernel: where most of its inputs are, the freest."""
        regions = self._footprints.regions(kernel, Part(0, 0, kernel.tasks))
        shares = self._producers.shares(regions, self._units)
        if self._units <= 4:
            return sorted(range(self._units), key=lambda unit: -shares[unit])
        freest = self._free.index(min(self._free))
        return list(dict.fromkeys((shares.index(max(shares)), freest)))

    def _best(self, item: Statement, fits: list[_Fit]) -> _Fit:
        """The one that finishes first; a small kernel is split only where no unit has to wait."""
        if self._is_small(item):
            fits = [fit for fit in fits if len(fit.parts) == 1 or not fit.after] or fits
        return min(fits, key=lambda fit: fit.finish)

    def _fit(self, node: Node, parts: Parts) -> _Fit:
        """When the item would run if it were shared out like this."""
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
        """What each unit has to do: (unit, seconds, regions)."""
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
        """What other units have to finish first, by (item, unit)."""
        return {
            (index, share.unit): share
            for index in node.before
            for share in self._shares[index]
            if share.unit != unit and any(conflict(a, b) for a in share.regions for b in regions)
        }

    def _place(self, node: Node, fit: _Fit) -> None:
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
