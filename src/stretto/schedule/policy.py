"""Interface of scheduling policies, and the plan of a leaf that every policy returns.

A policy decides which unit runs which tasks of which kernel, and in which wave. It inserts no
waits: the synchroniser finds those that a plan needs. A policy is a file of `policies/` that
registers an object; the scheduler tries those that fit the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import accumulate, product
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.device.boxes import Boxes, Mask
from stretto.device.costs import CostModel
from stretto.device.expr import Buffer
from stretto.device.operator import Kernel
from stretto.device.regions import Body, Region, Statement, item_regions, kernel_regions
from stretto.device.tree import Rotation
from stretto.schedule.footprint import Footprint, Footprints, Node, Parts, UnitTasks, leaf_nodes


@dataclass(frozen=True, slots=True)
class Placed:
    """An item in its wave. `parts` is empty for a register statement, which every unit executes."""

    item: Statement
    parts: Parts


@dataclass(frozen=True, slots=True)
class LeafPlan:
    """Waves of a leaf, and the estimated seconds from its start to its end.

    A unit may wait for what other units do in earlier waves, but not for what they do in its own
    wave. The items of one unit run in the order in which they are listed.
    """

    waves: tuple[tuple[Placed, ...], ...]
    seconds: float

    @property
    def placed(self) -> Iterator[Placed]:
        for wave in self.waves:
            yield from wave

    @property
    def regions(self) -> Iterator[Region]:
        """Yield all memory that the leaf touches."""
        for placed in self.placed:
            yield from item_regions(placed.item)


class FunctionPlanner(Protocol):
    """Planner of the leaves of one function; called for them in program order."""

    def plan(self, body: Body) -> LeafPlan: ...

    def rotate(self, pairs: Rotation) -> None:
        """Exchange the buffers of each pair, at the end of a loop."""
        ...


class Policy(Protocol):
    """A scheduling policy; `name` identifies it in reports.

    ranges: a unit that needs several others waits once, for all units from the first to the last of
    them. That suits plans in which neighbouring units do the same thing.
    """

    @property
    def name(self) -> str: ...

    @property
    def ranges(self) -> bool: ...

    def fits(self, units: int, costs: CostModel) -> bool:
        """True if the policy is tried for this machine when the user names none."""
        ...

    def planning_work(self, units: int) -> float:
        """Return the approximate number of looks at a unit that planning one item takes (in units
        of `CostModel.planning_seconds`)."""
        ...

    def planner(self, units: int, costs: CostModel, footprints: Footprints) -> FunctionPlanner:
        """Return a planner for one function. The cache in `footprints` is used again to find the
        waits."""
        ...


POLICIES: dict[str, Policy] = {}
"""All policies, by name."""


def register(policy: Policy) -> None:
    """Add a policy. Its name must be unused."""
    known = POLICIES.setdefault(policy.name, policy)
    assert known is policy, policy.name


def task_seconds(kernel: Kernel, costs: CostModel) -> float:
    """Return the estimated seconds of one task; a default of the cost model if the kernel has
    none."""
    if kernel.seconds > 0:
        return kernel.seconds
    return costs.call_seconds if kernel.call is not None else costs.task_seconds


def kernel_seconds(item: Statement, costs: CostModel) -> float:
    """Return the seconds of all tasks of a kernel, one after the other; a register statement takes
    none."""
    if not isinstance(item, Kernel):
        return 0.0
    tasks = item.tasks if item.is_static else costs.unknown_trips
    return tasks * task_seconds(item, costs)


def part_seconds(kernel: Kernel, part: UnitTasks, costs: CostModel) -> float:
    """Return the seconds of the tasks of a part, one after the other."""
    count = part.count
    if count is None:
        count = -(-costs.unknown_trips // part.stride)
    return count * task_seconds(kernel, costs)


Awaited = frozenset[tuple[int, int]]
"""Pairs that an item waits for: the index of an earlier item, and a unit that runs a part of it."""


def waves(
    placed: Sequence[tuple[int, Placed, Sequence[int], Awaited]], units: int
) -> tuple[tuple[Placed, ...], ...]:
    """Return the waves of items given in the order of their placement as (index, item, its units,
    what it waits for).

    An item that waits for another unit is in a later wave than what it waits for. So are the items
    that follow an awaited one on its own unit, so that the signal comes as early as possible.
    """
    awaited = {pair for _, _, _, after in placed for pair in after}
    lowest = [0] * units
    wave_of: dict[int, int] = {}
    found: list[list[Placed]] = []
    for index, item, own, after in placed:
        wave = max(lowest[unit] for unit in own)
        wave = max([wave, *(wave_of[other] + 1 for other, _ in after)])
        wave_of[index] = wave
        for unit in own:
            lowest[unit] = wave + ((index, unit) in awaited)
        found += [[] for _ in range(len(found), wave + 1)]
        found[wave].append(item)
    return tuple(tuple(wave) for wave in found)


def equal_blocks(tasks: int, units: int) -> Parts:
    """Divide tasks into contiguous blocks: task t to unit t * units // tasks, the same for all
    kernels with that number of tasks."""
    bounds = [-(-unit * tasks // units) for unit in range(units + 1)]
    return tuple(
        UnitTasks(unit, bounds[unit], bounds[unit + 1] - bounds[unit])
        for unit in range(units)
        if bounds[unit] < bounds[unit + 1]
    )


def levelled(kernel: Kernel, free: Sequence[float], costs: CostModel) -> Parts | None:
    """Return blocks sized so that all units finish together, given when each is free; None if they
    are about equally free."""
    each = task_seconds(kernel, costs)
    if max(free) - min(free) < each / 2:
        return None
    loads = sorted((time, unit) for unit, time in enumerate(free))
    sizes = [0] * len(free)
    for _ in range(kernel.tasks):
        time, unit = heappop(loads)
        sizes[unit] += 1
        heappush(loads, (time + each, unit))
    starts = accumulate(sizes, initial=0)
    return tuple(
        UnitTasks(u, start, n) for u, (start, n) in enumerate(zip(starts, sizes, strict=False)) if n
    )


def is_small(item: Statement, costs: CostModel) -> bool:
    """True if the item takes less time than `CostModel.small_waits` waits."""
    return kernel_seconds(item, costs) < costs.small_waits * costs.wait_seconds


def by_priority(body: Body, costs: CostModel) -> list[Node]:
    """Return the items of a leaf level by level of their dependences, the longest of a level
    first."""
    return sorted(
        leaf_nodes(body),
        key=lambda node: (node.depth, -kernel_seconds(node.item, costs), node.index),
    )


def only_parts(kernel: Kernel, units: int) -> Parts | None:
    """Return the parts of a kernel if there is only one way to divide its tasks, else None."""
    if kernel.call is not None:
        return (UnitTasks(0, 0),)
    if not kernel.is_static:
        return tuple(UnitTasks(unit, unit, None, units) for unit in range(units))
    if kernel.tasks == 0:
        return ()
    return (UnitTasks(0, 0, kernel.tasks),) if units == 1 else None


# ---- Times of the items of a leaf, for policies that place them one after the other.
#
# An item is placed on its units after everything already placed there. It begins when they are
# free, and when what it needs from other units has finished and the wait for it is over.


Times = NDArray[np.float64]
MOST_WRITERS = 8
"""Number of kernels remembered as writers of a buffer; if more write it, only the latest are
retained."""


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """A placed item. finish[u]: when unit u is next free; unchanged for units that have no part of
    it. awaited: indices of earlier items, each with a mask of the units whose parts it needs."""

    node: Node
    parts: Parts
    units: tuple[int, ...]
    footprints: tuple[Footprint, ...]
    finish: Times
    awaited: tuple[tuple[int, Mask], ...]

    @property
    def after(self) -> Awaited:
        """Items and units that the item waits for."""
        return frozenset(
            (index, int(unit)) for index, units in self.awaited for unit in np.flatnonzero(units)
        )


@dataclass(frozen=True, slots=True)
class Write:
    """A kernel's write to a buffer. dealt: (tasks, offset) if its tasks are dealt round-robin."""

    footprint: Footprint
    leaf: int
    dealt: tuple[int, int] | None


class Writers:
    """The kernels that wrote the memory of a function. leaf: the number of the current leaf."""

    def __init__(self) -> None:
        self.leaf = 0
        self._written: dict[str, tuple[Write, ...]] = {}

    def of(self, read: Footprint | Boxes) -> tuple[Write, ...]:
        """Return the recorded writes of the buffer that is read; none for a write."""
        return () if read.write else self._written.get(read.buffer.name, ())

    def note(self, step: PlacedItem, dealt: tuple[int, int] | None = None) -> None:
        """Record the writes of a step. A kernel that overwrites a whole buffer replaces its earlier
        writers."""
        if not isinstance(step.node.item, Kernel):
            return
        whole = {
            region.buffer.name
            for region in kernel_regions(step.node.item)
            if region.write and all(interval is None for interval in region.box)
        }
        for footprint in step.footprints:
            if footprint.write:
                name = footprint.buffer.name
                earlier = () if name in whole else self._written.get(name, ())[1 - MOST_WRITERS :]
                self._written[name] = (*earlier, Write(footprint, self.leaf, dealt))

    def rotate(self, pairs: Rotation) -> None:
        """Exchange the records of the two buffers of each pair."""
        for current, following in pairs:
            ahead = self._written.pop(current.name, ())
            behind = self._written.pop(following.name, ())
            self._written[following.name] = _under(following, ahead)
            self._written[current.name] = _under(current, behind)


def _under(buffer: Buffer, writes: tuple[Write, ...]) -> tuple[Write, ...]:
    return tuple(replace(write, footprint=write.footprint.under(buffer)) for write in writes)


class Timeline:
    """Items of the next leaf placed so far. free[u]: when unit u has finished its items."""

    def __init__(
        self, units: int, costs: CostModel, footprints: Footprints, writers: Writers
    ) -> None:
        self.units = units
        self.costs = costs
        self.footprints = footprints
        self.writers = writers
        writers.leaf += 1
        self.free: Times = np.zeros(units)
        self.steps: dict[int, PlacedItem] = {}
        self._others = ~np.eye(units, dtype=np.bool_)

    def fitted(self, node: Node, parts: Parts) -> PlacedItem:
        """Return an item as it would run with these parts; `parts` is empty for a statement, which
        all units execute."""
        footprints = self.footprints.of(node.item, parts)
        wait = self.costs.wait_seconds
        start = np.where(self._reads_earlier(footprints), np.maximum(self.free, wait), self.free)
        awaited: list[tuple[int, Mask]] = []
        for index in node.before:
            step = self.steps.get(index)
            met = None if step is None else self._met(footprints, step.footprints)
            if step is None or met is None:
                continue
            start = np.maximum(start, np.where(met, step.finish + wait, 0.0).max(axis=1))
            awaited.append((index, np.asarray(met.any(axis=0))))
        finish = start
        units = tuple(range(self.units))
        if isinstance(node.item, Kernel):
            finish, units = self.free.copy(), tuple(dict.fromkeys(part.unit for part in parts))
            finish[list(units)] = start[list(units)]
            for part in parts:
                finish[part.unit] += part_seconds(node.item, part, self.costs)
        return PlacedItem(node, parts, units, footprints, finish, tuple(awaited))

    def place(self, step: PlacedItem) -> None:
        """Record a step and make its units busy until its finish."""
        if step.units:
            self.free = step.finish
            self.steps[step.node.index] = step

    def plan(self) -> LeafPlan:
        """Return the plan of the items placed so far."""
        steps = [
            (s.node.index, Placed(s.node.item, s.parts), s.units, s.after) for s in self.placed
        ]
        return LeafPlan(waves(steps, self.units), float(self.free.max()))

    @property
    def placed(self) -> tuple[PlacedItem, ...]:
        """Steps in the order of their placement."""
        return tuple(self.steps.values())

    # ---- dependences on other units ------------------------------------------------------------
    def _reads_earlier(self, footprints: tuple[Footprint, ...]) -> Mask:
        """Return the mask [u]: True if unit u reads what another unit wrote before this leaf."""
        found = np.zeros(self.units, np.bool_)
        for footprint in footprints:
            for write in self.writers.of(footprint):
                if write.leaf != self.writers.leaf:
                    met = self.footprints.overlap(footprint, write.footprint) & self._others
                    found |= met.any(axis=1)
        return found

    def _met(
        self, footprints: tuple[Footprint, ...], earlier: tuple[Footprint, ...]
    ) -> Mask | None:
        """Return the mask [u, v]: True if unit u must wait for unit v's part of an earlier item;
        None if no two of their footprints conflict."""
        met: Mask | None = None
        for one, other in product(footprints, earlier):
            if one.buffer.name == other.buffer.name and (one.write or other.write):
                more = self.footprints.overlap(one, other)
                met = more if met is None else met | more
        return None if met is None else met & self._others
