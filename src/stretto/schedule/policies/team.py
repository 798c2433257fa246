"""The team policy: assign tasks by rule to many uniform units, as thread blocks of a GPU kernel.

Items of a leaf are taken level by level of their dependences, the longest of a level first. The
tasks of a kernel are dealt round-robin, as in a wave of Rammer (section 4.2): task t runs on unit
(offset + t) mod units, and the offset of the next kernel is where the last one ended. A kernel runs
on the units that produced its inputs where that saves a wait: task by task if each task reads only
what one unit wrote, and as a whole if one unit wrote all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from stretto.device.boxes import Mask
from stretto.device.costs import CostModel
from stretto.device.expr import Buffer
from stretto.device.operator import Kernel
from stretto.device.regions import Body, Statement, kernel_regions
from stretto.device.tree import Rotation
from stretto.schedule.footprint import Footprint, Footprints, Part, Parts, may_meet
from stretto.schedule.policy import (
    LeafPlan,
    Placed,
    by_priority,
    kernel_seconds,
    only_parts,
    part_seconds,
    register,
)

Times = NDArray[np.float64]

MOST_WRITERS = 8
"""Number of kernels remembered as writers of a buffer; if more write it, only the latest are
retained."""


@dataclass(frozen=True, slots=True)
class _Writer:
    """A kernel's write to a buffer. `dealt`: (tasks, offset) if dealt round-robin."""

    footprint: Footprint
    dealt: tuple[int, int] | None
    leaf: int


@dataclass(frozen=True, slots=True)
class TeamPolicy:
    """Policy that assigns tasks by rule, without estimates: for many uniform units."""

    name: str = "team"
    ranges: bool = True

    def fits(self, units: int, costs: CostModel) -> bool:
        return True

    def planning_work(self, units: int) -> float:
        return 40 + 8.5 * units

    def planner(self, units: int, costs: CostModel, footprints: Footprints) -> _TeamPlanner:
        return _TeamPlanner(units, costs, footprints)


class _TeamPlanner:
    """Planner of the leaves of one function, in program order."""

    def __init__(self, units: int, costs: CostModel, footprints: Footprints) -> None:
        self._units = units
        self._costs = costs
        self._footprints = footprints
        self._writers: dict[str, tuple[_Writer, ...]] = {}
        self._leaf = 0
        self._next = 0
        self._free: Times = np.zeros(units)
        self._others = ~np.eye(units, dtype=np.bool_)

    def plan(self, body: Body) -> LeafPlan:
        """Plan a leaf; every item is a separate wave."""
        self._leaf += 1
        self._next = 0
        self._free = np.zeros(self._units)
        finish: dict[int, tuple[tuple[Footprint, ...], Times]] = {}
        waves: list[tuple[Placed, ...]] = []
        for node in by_priority(body, self._costs):
            parts: Parts = ()
            if isinstance(node.item, Kernel):
                parts = self._parts(node.item)
                if not parts:
                    continue
            waves.append((Placed(node.item, parts),))
            footprints = self._footprints.of(node.item, parts)
            before = [finish[index] for index in node.before if index in finish]
            finish[node.index] = footprints, self._run(node.item, parts, footprints, before)
            if isinstance(node.item, Kernel):
                self._note(node.item, parts, footprints)
        return LeafPlan(tuple(waves), float(self._free.max()))

    def rotate(self, pairs: Rotation) -> None:
        for current, following in pairs:
            ahead = self._writers.pop(current.name, ())
            behind = self._writers.pop(following.name, ())
            self._writers[following.name] = _under(following, ahead)
            self._writers[current.name] = _under(current, behind)

    # ---- placement of tasks --------------------------------------------------------------------
    def _parts(self, kernel: Kernel) -> Parts:
        """Choose the parts of a kernel, by the rules of the module docstring."""
        only = only_parts(kernel, self._units)
        if only is not None:
            return only
        whole = self._footprints.of(kernel, (Part(0, 0, kernel.tasks),))
        sources = np.flatnonzero(self._read_from(whole)[0])
        if kernel.tasks == 1 and len(sources):
            return (Part(int(sources[np.argmin(self._free[sources])]), 0),)
        is_small = kernel_seconds(kernel, self._costs) < self._costs.wait_seconds
        if is_small and len(sources) == 1:
            return (Part(int(sources[0]), 0, kernel.tasks),)
        aligned = self._aligned(kernel, whole)
        return self._dealt_next(kernel.tasks) if aligned is None else aligned

    def _read_from(self, footprints: tuple[Footprint, ...], leaf: int | None = None) -> Mask:
        """Return the mask [u, v]: True if unit u reads what unit v wrote in a leaf other than
        `leaf`."""
        met = np.zeros((self._units, self._units), np.bool_)
        for footprint in footprints:
            for writer in self._writers_of(footprint):
                if writer.leaf != leaf:
                    met |= self._footprints.meeting(footprint, writer.footprint)
        return met

    def _writers_of(self, footprint: Footprint) -> tuple[_Writer, ...]:
        """Return the recorded writers of what a footprint reads; none if it writes."""
        return () if footprint.write else self._writers.get(footprint.buffer.name, ())

    def _dealt_next(self, tasks: int) -> Parts:
        """Deal the tasks from where the last kernel ended. Tasks that fit on the units without
        wrapping around start at unit 0 instead, so that a wait for them covers few other units."""
        if tasks <= self._units < self._next + tasks:
            self._next = 0
        offset, self._next = self._next, (self._next + tasks) % self._units
        return deal(tasks, offset, self._units)

    def _aligned(self, kernel: Kernel, whole: tuple[Footprint, ...]) -> Parts | None:
        """Return parts with the offset of a producer, if then each task reads only what its own
        unit wrote; else None."""
        writers = [writer for footprint in whole for writer in self._writers_of(footprint)]
        offsets = {w.dealt[1] for w in writers if w.dealt and w.dealt[0] == kernel.tasks}
        for offset in sorted(offsets):
            parts = deal(kernel.tasks, offset, self._units)
            if not self._elsewhere(self._read_from(self._footprints.of(kernel, parts))).any():
                return parts
        return None

    # ---- times and writers ---------------------------------------------------------------------
    def _run(
        self,
        item: Statement,
        parts: Parts,
        footprints: tuple[Footprint, ...],
        before: list[tuple[tuple[Footprint, ...], Times]],
    ) -> Times:
        """Return when each unit has finished its part of an item, and mark the units as busy until
        then."""
        wait = self._costs.wait_seconds
        waiting = self._elsewhere(self._read_from(footprints, self._leaf)).any(axis=1)
        start = np.maximum(self._free, np.where(waiting, wait, 0.0))
        for theirs, finish in before:
            for a, b in product(footprints, theirs):
                if may_meet(a, b):
                    met = self._elsewhere(self._footprints.meeting(a, b))
                    start = np.maximum(start, np.where(met, finish + wait, 0.0).max(axis=1))
        if not isinstance(item, Kernel):
            self._free = start
            return start
        finish = self._free.copy()
        for part in parts:
            finish[part.unit] = start[part.unit] + part_seconds(item, part, self._costs)
        self._free = finish
        return finish

    def _elsewhere(self, met: Mask) -> Mask:
        """Drop the diagonal: keep only what happens between different units."""
        return met & self._others

    def _note(self, kernel: Kernel, parts: Parts, footprints: tuple[Footprint, ...]) -> None:
        """Record the writes of a kernel. One that overwrites a whole buffer replaces its earlier
        writers."""
        dealt = None
        if kernel.is_static and len(parts) == min(kernel.tasks, self._units):
            dealt = kernel.tasks, (parts[0].unit - parts[0].first) % self._units
        whole = {
            region.buffer.name
            for region in kernel_regions(kernel)
            if region.write and all(interval is None for interval in region.box)
        }
        for footprint in footprints:
            if footprint.write:
                name = footprint.buffer.name
                earlier = () if name in whole else self._writers.get(name, ())[1 - MOST_WRITERS :]
                self._writers[name] = (*earlier, _Writer(footprint, dealt, self._leaf))


def deal(tasks: int, offset: int, units: int) -> Parts:
    """Deal tasks round-robin: task t to unit (offset + t) mod units."""
    starts = ((unit, (unit - offset) % units) for unit in range(units))
    return tuple(
        Part(unit, first, -(-(tasks - first) // units), units)
        for unit, first in starts
        if first < tasks
    )


def _under(buffer: Buffer, writers: tuple[_Writer, ...]) -> tuple[_Writer, ...]:
    return tuple(_Writer(w.footprint.under(buffer), w.dealt, w.leaf) for w in writers)


register(TeamPolicy())
