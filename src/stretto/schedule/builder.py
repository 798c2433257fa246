"""The mechanisms of scheduling: append work to units, wait, publish. What goes where is policy.

A `LeafBuilder` lays out one leaf wave by wave. `append` finds and inserts the waits that the work
needs; signals are inserted at the end, where someone waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stretto.device.operator import Kernel
from stretto.device.program import Item, Run, Schedule, Signal, Wait
from stretto.device.regions import Region, block_regions, kernel_regions, statement_regions
from stretto.device.tree import Check, Let
from stretto.errors import ScheduleError
from stretto.schedule.hazards import Layout, LeafHazards, State


@dataclass(frozen=True, slots=True)
class Part:
    """The tasks of one kernel that one unit runs, as in `Run`."""

    unit: int
    first: int
    count: int | None = 1
    stride: int = 1

    def run(self, kernel: Kernel) -> Run:
        return Run(kernel.name, self.first, self.count, self.stride)


def part_regions(kernel: Kernel, part: Part) -> tuple[Region, ...]:
    """What the part touches."""
    if part.count is None or part.stride != 1:
        return kernel_regions(kernel)
    return block_regions(kernel, part.first, part.count)


class LeafBuilder:
    """Items of one leaf for `units` units, starting from the pending accesses of `state`.

    `relevant` says which regions can take part in a conflict at all (constants cannot).
    """

    def __init__(
        self, state: State, units: int, layout: Layout, relevant: Callable[[Region], bool]
    ) -> None:
        self._items: list[list[Item]] = [[] for _ in range(units)]
        self._ends: list[list[int]] = []
        self._hazards = LeafHazards(state, units, layout)
        self._relevant = relevant
        self._units = units

    @property
    def implied(self) -> int:
        """Conflicts that needed no wait, because of the unit's own order or other waits."""
        return self._hazards.implied

    @property
    def wave(self) -> int:
        """Number of the wave at hand."""
        return len(self._ends)

    def append(self, kernel: Kernel, parts: Iterable[Part]) -> None:
        """Runs the parts, each after the waits that it needs."""
        touched: list[tuple[int, tuple[Region, ...]]] = []
        for part in parts:
            regions = self._filter(part_regions(kernel, part))
            self._wait_for(part.unit, regions, kernel.name)
            self._items[part.unit].append(part.run(kernel))
            touched.append((part.unit, regions))
        for unit, regions in touched:
            self._hazards.touch(unit, regions, self.wave + 1)

    def state(self, item: Let | Check) -> None:
        """Every unit executes the statement."""
        regions = self._filter(statement_regions(item))
        for unit in range(self._units):
            self._wait_for(unit, regions, "a register statement")
            self._items[unit].append(item)
        for unit in range(self._units):
            self._hazards.touch(unit, regions, self.wave + 1)

    def wait(self, unit: int, other: int, step: int) -> None:
        self._hazards.wait(unit, other, step)
        self._items[unit].append(Wait(other, step))

    def close_wave(self) -> None:
        """What follows is in the next wave, and may wait for this one."""
        self._ends.append([len(items) for items in self._items])
        self._hazards.publish(self.wave)

    def finish(self) -> tuple[Schedule, State]:
        """The schedule, and what is pending after it."""
        steps = self.wave
        awaited = {
            (item.unit, item.step)
            for items in self._items
            for item in items
            if isinstance(item, Wait) and item.step > 0
        }
        for unit, step in sorted(awaited, reverse=True):
            # The end of the leaf publishes `steps` by itself, and nothing waits for that inside.
            self._items[unit].insert(self._ends[step - 1][unit], Signal(step))
        units = tuple(tuple(items) for items in self._items)
        return Schedule(units, steps), self._hazards.finish()

    def _filter(self, regions: Iterable[Region]) -> tuple[Region, ...]:
        return tuple(region for region in regions if self._relevant(region))

    def _wait_for(self, unit: int, regions: tuple[Region, ...], what: str) -> None:
        for other, step in self._hazards.needed(unit, regions).items():
            if step > self.wave:
                raise ScheduleError(
                    f"{what} on unit {unit} would wait for unit {other} in one wave",
                    remedy="this is a bug of the scheduling policy; please report it",
                )
            self.wait(unit, other, step)
