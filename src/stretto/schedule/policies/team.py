"""The team policy: many units that do the same thing, as the thread blocks of one GPU kernel.

Items of a leaf are taken level by level of their dependences, the longest of a level first. The
tasks of a kernel are dealt round-robin, as in a wave of Rammer (section 4.2): task t runs on unit
(offset + t) mod units, and the next kernel's offset is where the last one ended. A kernel stays
with the producers of what it reads where that saves a wait: task by task if each reads only what
one unit wrote, and as a whole if one unit wrote all of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.device.boxes import Mask
from stretto.device.costs import CostModel
from stretto.device.expr import Buffer
from stretto.device.operator import Kernel
from stretto.device.regions import Body
from stretto.device.tree import Rotation
from stretto.schedule.dependence import Node, leaf_nodes
from stretto.schedule.footprint import Footprint, Footprints, Part, Parts
from stretto.schedule.policy import LeafPlan, Placed, expected_tasks, register, task_seconds

Times = NDArray[np.float64]

MOST_WRITERS = 8
"""Of a buffer written by more kernels than this the policy remembers only the latest ones."""


@dataclass(frozen=True, slots=True)
class _Writer:
    """Who has written a buffer; `dealt`: (tasks, offset) where the tasks were dealt."""

    footprint: Footprint
    dealt: tuple[int, int] | None
    leaf: int


@dataclass(frozen=True, slots=True)
class TeamPolicy:
    """Deals tasks by rule, without a look at each: for many units that do the same thing."""

    name: str = "team"
    ranges: bool = True

    def fits(self, units: int, costs: CostModel) -> bool:
        return True

    def planning_seconds(self, items: int, units: int) -> float:
        return items * (5e-4 + 1e-4 * units)

    def planner(self, units: int, costs: CostModel, footprints: Footprints) -> _Planner:
        return _Planner(units, costs, footprints)


class _Planner:
    """Plans the leaves of one function, in the order of its text."""

    def __init__(self, units: int, costs: CostModel, footprints: Footprints) -> None:
        self._units = units
        self._costs = costs
        self._footprints = footprints
        self._writers: dict[str, tuple[_Writer, ...]] = {}
        self._leaf = 0
        self._next = 0
        self._free: Times = np.zeros(units)

    def plan(self, body: Body) -> LeafPlan:
        """A leaf in which every item is a wave of its own."""
        self._leaf += 1
        self._next = 0
        self._free = np.zeros(self._units)
        finish: dict[int, tuple[tuple[Footprint, ...], Times]] = {}
        waves: list[tuple[Placed, ...]] = []
        for node in sorted(leaf_nodes(body), key=self._priority):
            parts: Parts = ()
            if isinstance(node.item, Kernel):
                parts = self._parts(node.item)
                if not parts:
                    continue
            waves.append((Placed(node.item, parts),))
            footprints = self._footprints.of(node.item, parts)
            before = [finish[index] for index in node.before if index in finish]
            finish[node.index] = footprints, self._run(node, parts, footprints, before)
            self._note(node, parts, footprints)
        return LeafPlan(tuple(waves), float(self._free.max()))

    def rotate(self, pairs: Rotation) -> None:
        for current, following in pairs:
            ahead = self._writers.pop(current.name, ())
            behind = self._writers.pop(following.name, ())
            self._writers[following.name] = _under(following, ahead)
            self._writers[current.name] = _under(current, behind)

    def _priority(self, node: Node) -> tuple[int, float, int]:
        total = self._total(node.item) if isinstance(node.item, Kernel) else 0.0
        return node.depth, -total, node.index

    def _total(self, kernel: Kernel) -> float:
        return task_seconds(kernel, self._costs) * expected_tasks(kernel, self._costs)

    # ---- where the tasks run -------------------------------------------------------------------
    def _parts(self, kernel: Kernel) -> Parts:
        if kernel.call is not None:
            return (Part(0, 0),)
        if not kernel.is_static:
            return tuple(Part(u, u, None, self._units) for u in range(self._units))
        if kernel.tasks == 0:
            return ()
        if self._units == 1:
            return (Part(0, 0, kernel.tasks),)
        sources = self._sources(kernel)
        if kernel.tasks == 1 and len(sources):
            return (Part(self._freest(sources), 0),)
        is_small = self._total(kernel) < self._costs.wait_seconds
        if is_small and len(sources) == 1:
            return (Part(int(sources[0]), 0, kernel.tasks),)
        aligned = self._aligned(kernel)
        return self._dealt_next(kernel.tasks) if aligned is None else aligned

    def _sources(self, kernel: Kernel) -> NDArray[np.int64]:
        """The units that wrote what the kernel reads."""
        found = np.zeros(self._units, np.bool_)
        for footprint in self._footprints.of(kernel, (Part(0, 0, kernel.tasks),)):
            for writer in self._writers_of(footprint):
                found |= self._footprints.meeting(footprint, writer.footprint)[0]
        return np.flatnonzero(found)

    def _writers_of(self, footprint: Footprint) -> tuple[_Writer, ...]:
        return () if footprint.write else self._writers.get(footprint.buffer.name, ())

    def _freest(self, units: NDArray[np.int64]) -> int:
        return int(units[np.argmin(self._free[units])])

    def _dealt_next(self, tasks: int) -> Parts:
        """Beside the last kernel. What fits on the units without wrapping around does not wrap:
        a wait for it then covers few other units."""
        if tasks <= self._units < self._next + tasks:
            self._next = 0
        offset, self._next = self._next, (self._next + tasks) % self._units
        return deal(tasks, offset, self._units)

    def _aligned(self, kernel: Kernel) -> Parts | None:
        """Each task on the unit that wrote all it reads, if the offset of a producer does that."""
        reads = [f for f in self._footprints.of(kernel, (Part(0, 0, kernel.tasks),)) if not f.write]
        writers = [writer for footprint in reads for writer in self._writers_of(footprint)]
        offsets = {w.dealt[1] for w in writers if w.dealt and w.dealt[0] == kernel.tasks}
        for offset in sorted(offsets):
            parts = deal(kernel.tasks, offset, self._units)
            if not any(
                _elsewhere(self._footprints.meeting(footprint, writer.footprint)).any()
                for footprint in self._footprints.of(kernel, parts)
                for writer in self._writers_of(footprint)
            ):
                return parts
        return None

    # ---- what follows from it ------------------------------------------------------------------
    def _run(
        self,
        node: Node,
        parts: Parts,
        footprints: tuple[Footprint, ...],
        before: list[tuple[tuple[Footprint, ...], Times]],
    ) -> Times:
        """When each unit has done its part of an item; they are busy until then."""
        start = self._free.copy()
        for theirs, finish in before:
            met = self._meeting(footprints, theirs)
            ready = np.where(_elsewhere(met), finish[None, :] + self._costs.wait_seconds, 0.0)
            start = np.maximum(start, ready.max(axis=1))
        for footprint in footprints:
            for writer in self._writers_of(footprint):
                if writer.leaf != self._leaf:
                    met = self._footprints.meeting(footprint, writer.footprint)
                    waiting = _elsewhere(met).any(axis=1)
                    start = np.maximum(start, np.where(waiting, self._costs.wait_seconds, 0.0))
        finish = start
        if isinstance(node.item, Kernel):
            finish = self._free.copy()
            each = task_seconds(node.item, self._costs)
            for part in parts:
                count = part.count
                if count is None:
                    count = -(-self._costs.unknown_trips // self._units)
                finish[part.unit] = start[part.unit] + each * count
        self._free = finish
        return finish

    def _meeting(self, ours: tuple[Footprint, ...], theirs: tuple[Footprint, ...]) -> Mask:
        met = np.zeros((self._units, self._units), np.bool_)
        for a in ours:
            for b in theirs:
                met |= self._footprints.meeting(a, b)
        return met

    def _note(self, node: Node, parts: Parts, footprints: tuple[Footprint, ...]) -> None:
        if not isinstance(node.item, Kernel):
            return
        dealt = None
        if node.item.is_static and len(parts) == min(node.item.tasks, self._units):
            dealt = node.item.tasks, (parts[0].unit - parts[0].first) % self._units
        whole = {
            region.buffer.name
            for region in node.regions
            if region.write and all(interval is None for interval in region.box)
        }
        for footprint in footprints:
            if footprint.write:
                name = footprint.buffer.name
                earlier = () if name in whole else self._writers.get(name, ())[1 - MOST_WRITERS :]
                self._writers[name] = (*earlier, _Writer(footprint, dealt, self._leaf))


def deal(tasks: int, offset: int, units: int) -> Parts:
    """Task t on unit (offset + t) mod units."""
    starts = ((unit, (unit - offset) % units) for unit in range(units))
    return tuple(
        Part(unit, first, -(-(tasks - first) // units), units)
        for unit, first in starts
        if first < tasks
    )


def _elsewhere(met: Mask) -> Mask:
    """The conflicts between different units."""
    return met & ~np.eye(len(met), dtype=np.bool_)


def _under(buffer: Buffer, writers: tuple[_Writer, ...]) -> tuple[_Writer, ...]:
    return tuple(_Writer(w.footprint.under(buffer), w.dealt, w.leaf) for w in writers)


register(TeamPolicy())
