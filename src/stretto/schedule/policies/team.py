"""The team policy: assign tasks by rule to many uniform units, as thread blocks of a GPU kernel.

Items of a leaf are taken level by level of their dependences, the longest of a level first. The
tasks of a kernel are dealt round-robin, as in a wave of Rammer (section 4.2): task t runs on unit
(offset + t) mod units, and the offset of the next kernel is where the last one ended. A kernel runs
on the units that produced its inputs where that saves a wait: task by task if each task reads only
what one unit wrote, and as a whole if one unit wrote all of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stretto.device.boxes import Mask
from stretto.device.costs import CostModel
from stretto.device.operator import Kernel
from stretto.device.regions import Body
from stretto.device.tree import Rotation
from stretto.schedule import policy
from stretto.schedule.footprint import Footprint, Footprints, Parts, UnitTasks


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
        self._writers = policy.Writers()
        self._next = 0
        self._others = ~np.eye(units, dtype=np.bool_)

    def plan(self, body: Body) -> policy.LeafPlan:
        """Plan a leaf; every item is a separate wave."""
        self._next = 0
        timeline = policy.Timeline(self._units, self._costs, self._footprints, self._writers)
        for node in policy.by_priority(body, self._costs):
            parts: Parts = ()
            if isinstance(node.item, Kernel):
                parts = self._parts(node.item, timeline.free)
                if not parts:
                    continue
            step = timeline.fitted(node, parts)
            timeline.place(step)
            self._writers.note(step, self._dealt(step))
        waves = tuple((policy.Placed(step.node.item, step.parts),) for step in timeline.placed)
        return policy.LeafPlan(waves, float(timeline.free.max()))

    def rotate(self, pairs: Rotation) -> None:
        self._writers.rotate(pairs)

    # ---- placement of tasks --------------------------------------------------------------------
    def _parts(self, kernel: Kernel, free: policy.Times) -> Parts:
        """Choose the parts of a kernel, by the rules of the module docstring."""
        only = policy.only_parts(kernel, self._units)
        if only is not None:
            return only
        whole = self._footprints.of(kernel, (UnitTasks(0, 0, kernel.tasks),))
        sources = np.flatnonzero(self._read_from(whole)[0])
        if kernel.tasks == 1 and len(sources):
            return (UnitTasks(int(sources[np.argmin(free[sources])]), 0),)
        is_small = policy.kernel_seconds(kernel, self._costs) < self._costs.wait_seconds
        if is_small and len(sources) == 1:
            return (UnitTasks(int(sources[0]), 0, kernel.tasks),)
        aligned = self._aligned(kernel, whole)
        return self._dealt_next(kernel.tasks) if aligned is None else aligned

    def _read_from(self, footprints: tuple[Footprint, ...]) -> Mask:
        """Return the mask [u, v]: True if unit u reads what unit v wrote."""
        met = np.zeros((self._units, self._units), np.bool_)
        for footprint in footprints:
            for write in self._writers.of(footprint):
                met |= self._footprints.overlap(footprint, write.footprint)
        return met

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
        writes = [write for footprint in whole for write in self._writers.of(footprint)]
        offsets = {w.dealt[1] for w in writes if w.dealt and w.dealt[0] == kernel.tasks}
        for offset in sorted(offsets):
            parts = deal(kernel.tasks, offset, self._units)
            if not (self._read_from(self._footprints.of(kernel, parts)) & self._others).any():
                return parts
        return None

    def _dealt(self, step: policy.PlacedItem) -> tuple[int, int] | None:
        """Return the number of tasks and the offset of a kernel that is dealt round-robin."""
        kernel, parts = step.node.item, step.parts
        if not isinstance(kernel, Kernel) or not kernel.is_static:
            return None
        if len(parts) != min(kernel.tasks, self._units):
            return None
        return kernel.tasks, (parts[0].unit - parts[0].first) % self._units


def deal(tasks: int, offset: int, units: int) -> Parts:
    """Deal tasks round-robin: task t to unit (offset + t) mod units."""
    starts = ((unit, (unit - offset) % units) for unit in range(units))
    return tuple(
        UnitTasks(unit, first, -(-(tasks - first) // units), units)
        for unit, first in starts
        if first < tasks
    )


policy.register(TeamPolicy())
