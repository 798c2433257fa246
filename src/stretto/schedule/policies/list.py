"""The list policy: place the item on the longest path first, each task where it finishes earliest.

Critical-path list scheduling (Coffman and Graham, 1972; with the cost of moving between units:
Topcuoglu et al., "Performance-effective and low-complexity task scheduling", 2002, HEFT). The
priority of an item is the longest path from its start to the end of the leaf, with a wait on every
edge. Among the items whose inputs are ready when a unit is next free, the one with the highest
priority is placed. Its tasks are assigned in blocks to the units on which they finish first, with
the waits for other units included; or all to one unit, where that is no later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import groupby
from math import inf

import numpy as np

from stretto.device.costs import CostModel
from stretto.device.operator import Kernel
from stretto.device.regions import Body
from stretto.device.tree import Rotation
from stretto.schedule import policy
from stretto.schedule.footprint import Footprint, Footprints, Node, Parts, UnitTasks, leaf_nodes

BLOCKS = 64
"""Number of blocks of tasks that are placed individually, or two per unit if that is more."""


@dataclass(frozen=True, slots=True)
class ListPolicy:
    """Policy that follows the critical path of a leaf instead of its dependence levels."""

    name: str = "list"
    ranges: bool = False

    def fits(self, units: int, costs: CostModel) -> bool:
        return False

    def planning_work(self, units: int) -> float:
        return 60 + 4 * units

    def planner(self, units: int, costs: CostModel, footprints: Footprints) -> ListPlanner:
        return ListPlanner(units, costs, footprints)


class ListPlanner:
    """Planner of the leaves of one function, in program order."""

    def __init__(self, units: int, costs: CostModel, footprints: Footprints) -> None:
        self._units = units
        self._costs = costs
        self._footprints = footprints
        self._writers = policy.Writers()

    def plan(self, body: Body) -> policy.LeafPlan:
        timeline = self.timeline(leaf_nodes(body))
        for step in timeline.placed:
            self._writers.note(step)
        return timeline.plan()

    def rotate(self, pairs: Rotation) -> None:
        self._writers.rotate(pairs)

    def timeline(self, nodes: Sequence[Node]) -> policy.Timeline:
        """Place all items of a leaf."""
        timeline = policy.Timeline(self._units, self._costs, self._footprints, self._writers)
        for node in self._in_order(nodes, timeline):
            fits = [timeline.fitted(node, parts) for parts in self._candidates(node, timeline)]
            timeline.place(self._best(node, fits))
        return timeline

    # ---- order -----------------------------------------------------------------------------
    def _in_order(self, nodes: Sequence[Node], timeline: policy.Timeline) -> Iterator[Node]:
        """Yield the items, each after those that it depends on. The caller must place an item
        before it requests the next one."""
        remaining = paths(nodes, self._units, self._costs)
        needed = [len(node.before) for node in nodes]
        behind: list[list[int]] = [[] for _ in nodes]
        for node in nodes:
            for other in node.before:
                behind[other].append(node.index)
        ready_at = [0.0] * len(nodes)
        coming = [(0.0, node.index) for node in nodes if not node.before]
        ready: list[tuple[float, int]] = []
        while coming or ready:
            now = float(timeline.free.min())
            while coming and (coming[0][0] <= now or not ready):
                now = max(now, coming[0][0])
                index = heappop(coming)[1]
                heappush(ready, (-remaining[index], index))
            index = heappop(ready)[1]
            yield nodes[index]
            end = max(ready_at[index], _end(timeline.steps.get(index)))
            for other in behind[index]:
                ready_at[other] = max(ready_at[other], end)
                needed[other] -= 1
                if not needed[other]:
                    heappush(coming, (ready_at[other], other))

    # ---- placement -------------------------------------------------------------------------
    def _candidates(self, node: Node, timeline: policy.Timeline) -> Iterator[Parts]:
        """Yield ways to divide the tasks among the units, those on fewer units first."""
        kernel = node.item
        only = policy.only_parts(kernel, self._units) if isinstance(kernel, Kernel) else ()
        if only is not None or not isinstance(kernel, Kernel):
            yield only or ()
            return
        blocks = policy.equal_blocks(kernel.tasks, min(max(BLOCKS, 2 * self._units), kernel.tasks))
        ready = self._ready(kernel, blocks, node, timeline)
        whole = np.maximum(timeline.free, ready.max(axis=0))
        unit = min(range(self._units), key=lambda unit: float(whole[unit]))
        yield (UnitTasks(unit, 0, kernel.tasks),)
        if kernel.tasks == 1:
            return
        if (ready == ready[0]).all():
            free = [float(time) for time in np.maximum(timeline.free, ready[0])]
            parts = policy.levelled(kernel, free, self._costs)
            yield policy.equal_blocks(kernel.tasks, self._units) if parts is None else parts
        else:
            found = self._earliest(kernel, blocks, ready, timeline.free)
            if len(found) <= 4 * self._units:
                yield found
        yield policy.equal_blocks(kernel.tasks, self._units)

    def _ready(
        self, kernel: Kernel, blocks: Parts, node: Node, timeline: policy.Timeline
    ) -> policy.Times:
        """Return times [b, u]: when unit u knows that everything block b depends on is finished."""
        over = np.full((len(blocks), self._units), -inf)
        begun = np.zeros(self._units)
        before: dict[str, list[tuple[Footprint, policy.Times]]] = defaultdict(list)
        for index in node.before:
            if (step := timeline.steps.get(index)) is not None:
                for footprint in step.footprints:
                    before[footprint.buffer.name].append((footprint, step.finish))
        for boxes, rows in self._footprints.cut(kernel, blocks):
            name = boxes.buffer.name
            earlier = timeline.writers.of(boxes)
            for footprint, finish in (*before[name], *((w.footprint, begun) for w in earlier)):
                if not (footprint.write or boxes.write):
                    continue
                for other, units in footprint.pieces:
                    ours, theirs = np.nonzero(boxes.overlap(other))
                    place = rows[ours], units[theirs]
                    over[place] = np.maximum(over[place], finish[units[theirs]])
        return self._learned(over)

    def _learned(self, over: policy.Times) -> policy.Times:
        """Add the wait after which a unit learns what other units have finished."""
        if self._units == 1:
            return over
        rows = np.arange(len(over))
        last = over.argmax(axis=1)
        others = np.repeat(over[rows, last][:, None], self._units, axis=1)
        without = over.copy()
        without[rows, last] = -inf
        others[rows, last] = without.max(axis=1)
        return np.maximum(over, others + self._costs.wait_seconds)

    def _earliest(
        self, kernel: Kernel, blocks: Parts, ready: policy.Times, free: policy.Times
    ) -> Parts:
        """Assign each block, in order, to the unit on which it finishes first, and join neighbours
        on one unit."""
        each, free = policy.task_seconds(kernel, self._costs), free.copy()
        chosen: list[int] = []
        for number, block in enumerate(blocks):
            start = np.maximum(free, ready[number])
            unit = int(np.argmin(start))
            usual = number * self._units // len(blocks)
            unit = usual if start[usual] <= start[unit] else unit
            free[unit] = start[unit] + (block.count or 0) * each
            chosen.append(unit)
        parts: list[UnitTasks] = []
        for unit, group in groupby(zip(chosen, blocks, strict=True), key=lambda pair: pair[0]):
            found = [block for _, block in group]
            parts.append(UnitTasks(unit, found[0].first, sum(block.count or 0 for block in found)))
        return tuple(parts)

    def _best(self, node: Node, fits: list[policy.PlacedItem]) -> policy.PlacedItem:
        """Return the candidate that finishes first. A small kernel is split only if no unit has to
        wait."""
        if policy.is_small(node.item, self._costs):
            fits = [fit for fit in fits if len(fit.units) == 1 or not fit.after] or fits
        return min(fits, key=_end)


def paths(nodes: Sequence[Node], units: int, costs: CostModel) -> list[float]:
    """Return for each item the seconds of the longest path from its start to the leaf's end."""
    found = [0.0] * len(nodes)
    for node in reversed(nodes):
        seconds = policy.kernel_seconds(node.item, costs)
        if isinstance(node.item, Kernel) and policy.only_parts(node.item, units) is None:
            seconds *= -(-node.item.tasks // units) / node.item.tasks
        found[node.index] += seconds
        for other in node.before:
            found[other] = max(found[other], found[node.index] + costs.wait_seconds)
    return found


def _end(step: policy.PlacedItem | None) -> float:
    """Return when the last unit has finished its part; 0 if nothing is placed."""
    return 0.0 if step is None or not step.units else float(step.finish[list(step.units)].max())


policy.register(ListPolicy())
