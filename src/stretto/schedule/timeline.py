"""When the items of a leaf run, for policies that place them one after the other.

An item is placed on its units behind all that they have been given so far. It begins there when
they are free, and when what it needs of other units is over: a signal and a wait later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from stretto.device.boxes import Mask
from stretto.device.costs import CostModel
from stretto.device.expr import Buffer
from stretto.device.operator import Kernel
from stretto.device.regions import kernel_regions
from stretto.device.tree import Rotation
from stretto.schedule.dependence import Node
from stretto.schedule.footprint import Footprint, Footprints, Parts
from stretto.schedule.policy import Awaited, LeafPlan, Placed, occupied, part_seconds, waves

Times = NDArray[np.float64]
MOST_WRITERS = 8
"""Of a buffer written by more kernels than this only the latest ones are remembered."""


@dataclass(frozen=True, slots=True)
class Step:
    """A placed item. finish[u]: when unit u has done its part; the others have none."""

    node: Node
    parts: Parts
    units: tuple[int, ...]
    footprints: tuple[Footprint, ...]
    finish: Times
    after: Awaited


class Writers:
    """Which units wrote what lies in memory when a leaf begins: those of leaves before it."""

    def __init__(self) -> None:
        self._written: dict[str, tuple[Footprint, ...]] = {}

    def of(self, name: str) -> tuple[Footprint, ...]:
        return self._written.get(name, ())

    def note(self, steps: Iterable[Step]) -> None:
        """A leaf is over. What a kernel overwrites as a whole nobody else has written."""
        for step in steps:
            if not isinstance(step.node.item, Kernel):
                continue
            whole = {
                region.buffer.name
                for region in kernel_regions(step.node.item)
                if region.write and all(interval is None for interval in region.box)
            }
            for footprint in step.footprints:
                if footprint.write:
                    name = footprint.buffer.name
                    earlier = () if name in whole else self.of(name)[1 - MOST_WRITERS :]
                    self._written[name] = (*earlier, footprint)

    def rotate(self, pairs: Rotation) -> None:
        """The buffers of each pair trade places."""
        for current, following in pairs:
            ahead = self._written.pop(current.name, ())
            behind = self._written.pop(following.name, ())
            self._written[following.name] = _under(following, ahead)
            self._written[current.name] = _under(current, behind)


def _under(buffer: Buffer, footprints: tuple[Footprint, ...]) -> tuple[Footprint, ...]:
    return tuple(footprint.under(buffer) for footprint in footprints)


class Timeline:
    """The items of one leaf that have been placed so far. free[u]: when unit u has done its."""

    def __init__(
        self, units: int, costs: CostModel, footprints: Footprints, writers: Writers
    ) -> None:
        self.units = units
        self.costs = costs
        self.footprints = footprints
        self.writers = writers
        self.free: Times = np.zeros(units)
        self.steps: dict[int, Step] = {}
        self._others = ~np.eye(units, dtype=np.bool_)

    def fitted(self, node: Node, parts: Parts) -> Step:
        """An item as it would run; `parts` is empty for a statement, which all units execute."""
        footprints = self.footprints.of(node.item, parts)
        wait = self.costs.wait_seconds
        start = np.where(self._reads_earlier(footprints), np.maximum(self.free, wait), self.free)
        after: set[tuple[int, int]] = set()
        for index in node.before:
            step = self.steps.get(index)
            met = None if step is None else self._met(footprints, step.footprints)
            if step is None or met is None:
                continue
            start = np.maximum(start, np.where(met, step.finish + wait, 0.0).max(axis=1))
            after |= {(index, int(unit)) for unit in np.flatnonzero(met.any(axis=0))}
        finish = start
        units = tuple(range(self.units))
        if isinstance(node.item, Kernel):
            finish, units = self.free.copy(), tuple(dict.fromkeys(part.unit for part in parts))
            finish[list(units)] = start[list(units)]
            for part in parts:
                busy = list(occupied(node.item, part.unit, self.units))
                begin = max(finish[part.unit], self.free[busy].max())
                finish[busy] = begin + part_seconds(node.item, part, self.costs)
        return Step(node, parts, units, footprints, finish, frozenset(after))

    def place(self, step: Step) -> None:
        if step.units:
            self.free = step.finish
            self.steps[step.node.index] = step

    def plan(self) -> LeafPlan:
        steps = [
            (s.node.index, Placed(s.node.item, s.parts), s.units, s.after) for s in self.placed
        ]
        return LeafPlan(waves(steps, self.units), float(self.free.max()))

    @property
    def placed(self) -> tuple[Step, ...]:
        """In the order of their placement."""
        return tuple(self.steps.values())

    # ---- what an item needs --------------------------------------------------------------------
    def _reads_earlier(self, footprints: tuple[Footprint, ...]) -> Mask:
        """[u]: does unit u read what another unit wrote before this leaf?"""
        found = np.zeros(self.units, np.bool_)
        for footprint in footprints:
            for writer in () if footprint.write else self.writers.of(footprint.buffer.name):
                met = self.footprints.meeting(footprint, writer) & self._others
                found |= met.any(axis=1)
        return found

    def _met(
        self, footprints: tuple[Footprint, ...], earlier: tuple[Footprint, ...]
    ) -> Mask | None:
        """[u, v]: does unit u need that unit v's part of an earlier item is over?"""
        met: Mask | None = None
        for one, other in product(footprints, earlier):
            if one.buffer.name == other.buffer.name and (one.write or other.write):
                more = self.footprints.meeting(one, other)
                met = more if met is None else met | more
        return None if met is None else met & self._others
