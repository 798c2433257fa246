"""The order that waits and signals impose on the items of one leaf, for the verifier.

Every unit is run as far as its waits allow, repeatedly: units that stay blocked are a
deadlock. For each item this yields what certainly precedes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.device.program import Item, Schedule, Signal, Wait
from stretto.errors import VerifyError


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """Items that are certainly finished. done[v]: number of items of unit v; start[v]: True if the
    knowledge of unit v at the start of the leaf is included."""

    done: NDArray[np.int32]
    start: NDArray[np.bool_]

    def join(self, other: Knowledge) -> Knowledge:
        return Knowledge(np.maximum(self.done, other.done), self.start | other.start)


@dataclass(frozen=True, slots=True, eq=False)
class LeafOrder:
    """before[u][i]: what is finished when item i of unit u begins; end[u]: what u knows at the end.

    sequence: all items as (unit, index), in an order that the waits allow.
    """

    before: tuple[tuple[Knowledge, ...], ...]
    end: tuple[Knowledge, ...]
    sequence: tuple[tuple[int, int], ...]


class Orders:
    """The orders of the leaves of a program, each computed once."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Schedule, LeafOrder]] = {}

    def __call__(self, schedule: Schedule) -> LeafOrder:
        # The schedule is stored with its order, so that its id is not reused.
        if id(schedule) not in self._found:
            self._found[id(schedule)] = schedule, order_leaf(schedule)
        return self._found[id(schedule)][1]


def order_leaf(schedule: Schedule) -> LeafOrder:
    """Compute the order of a leaf. Raise VerifyError for steps out of range, signals that do not
    grow, and deadlocks."""
    if schedule.steps < 0:
        raise VerifyError(f"a leaf of {schedule.steps} steps: what was published is taken back")
    if schedule.steps == 0 and any(isinstance(i, Wait) for items in schedule.units for i in items):
        # A unit that waits for step 0 of the next leaf would not learn what this one waited for.
        raise VerifyError("a leaf with waits publishes nothing at its end")
    for unit, items in enumerate(schedule.units):
        _check_steps(unit, items, schedule)
    return _Runner(schedule).run()


def _check_steps(unit: int, items: tuple[Item, ...], schedule: Schedule) -> None:
    last = 0
    for item in items:
        if isinstance(item, Signal):
            # The last step is published by the end of the leaf: a wait for it, or in the next
            # leaf, is for everything in this one.
            if not last < item.step < schedule.steps:
                raise VerifyError(
                    f"unit {unit} publishes step {item.step} after step {last} in a leaf of "
                    f"{schedule.steps} steps"
                )
            last = item.step
        elif isinstance(item, Wait):
            if not 0 <= item.step <= schedule.steps:
                raise VerifyError(
                    f"unit {unit} waits for step {item.step}, which no leaf publishes"
                )
            _check_units(unit, item, len(schedule.units))


def _check_units(unit: int, wait: Wait, units: int) -> None:
    end = wait.unit + wait.count
    if wait.count < 1 or not 0 <= wait.unit < end <= units:
        raise VerifyError(f"unit {unit} waits for unit {wait.unit if wait.count < 2 else end - 1}")
    if wait.count == 1 and wait.unit == unit:
        raise VerifyError(f"unit {unit} waits for unit {unit}")


class _Published:
    """The knowledge of the units when they published an awaited step; rows by unit."""

    def __init__(self, units: int) -> None:
        self.units = np.zeros(units, np.bool_)
        self.done: NDArray[np.int32] = np.zeros((units, units), np.int32)
        self.start = np.zeros((units, units), np.bool_)
        # The joint knowledge of units (first, last + 1), once all of them have published.
        self._joined: dict[tuple[int, int], Knowledge] = {}

    def has(self, unit: int, wait: Wait) -> bool:
        """Return True if all units of the wait have published, except the waiting one itself."""
        first, last = wait.unit, wait.unit + wait.count
        missing = wait.count - int(np.count_nonzero(self.units[first:last]))
        return missing == 0 or (missing == 1 and first <= unit < last and not self.units[unit])

    def knowledge(self, wait: Wait) -> Knowledge:
        """Return the knowledge after a wait. It contains nothing about the waiting unit itself,
        which has not published this step yet."""
        span = wait.unit, wait.unit + wait.count
        if span in self._joined:
            return self._joined[span]
        rows = slice(*span)
        joined = Knowledge(
            self.done[rows].max(axis=0), np.logical_or.reduce(self.start[rows], axis=0)
        )
        if self.units[rows].all():
            self._joined[span] = joined
        return joined


class _Runner:
    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        units = len(schedule.units)
        none = np.zeros(units, np.int32)
        self._known = [Knowledge(none, np.arange(units) == unit) for unit in range(units)]
        self._at = [0] * units
        self._ended = [False] * units
        self._last = [0] * units
        self._before: list[list[Knowledge]] = [[] for _ in range(units)]
        self._sequence: list[tuple[int, int]] = []
        awaited = {
            item.step for items in schedule.units for item in items if isinstance(item, Wait)
        }
        self._published = {step: _Published(units) for step in sorted(awaited)}
        if 0 in self._published:
            start = self._published[0]
            start.units[:] = True
            np.fill_diagonal(start.start, val=True)

    def run(self) -> LeafOrder:
        units = range(len(self._schedule.units))
        while True:
            moved = [self._advance(unit) for unit in units]
            if not any(moved):
                break
        stuck = [u for u in units if self._at[u] < len(self._schedule.units[u])]
        if stuck:
            waits = "; ".join(self._wait_text(unit) for unit in stuck)
            raise VerifyError(f"deadlock: {waits}")
        return LeafOrder(
            tuple(tuple(before) for before in self._before),
            tuple(self._known),
            tuple(self._sequence),
        )

    def _wait_text(self, unit: int) -> str:
        item = self._schedule.units[unit][self._at[unit]]
        assert isinstance(item, Wait)
        there = self._published[item.step].units
        other = next(other for other in item.others(unit) if not there[other])
        return f"unit {unit} waits for unit {other} to publish step {item.step}"

    def _advance(self, unit: int) -> bool:
        """Run the unit until it must wait; return True if it made progress or reached its end."""
        items = self._schedule.units[unit]
        start = self._at[unit]
        while self._at[unit] < len(items):
            item = items[self._at[unit]]
            if isinstance(item, Wait):
                published = self._published[item.step]
                if not published.has(unit, item):
                    break
                self._known[unit] = self._known[unit].join(published.knowledge(item))
            elif isinstance(item, Signal):
                self._publish(unit, item.step)
            self._before[unit].append(self._known[unit])
            self._sequence.append((unit, self._at[unit]))
            self._at[unit] += 1
        if self._at[unit] == len(items) and not self._ended[unit]:
            self._publish(unit, self._schedule.steps)
            self._ended[unit] = True
            return True
        return self._at[unit] > start

    def _publish(self, unit: int, step: int) -> None:
        """Record the knowledge for each awaited step that this signal is the first to reach."""
        for awaited, published in self._published.items():
            if self._last[unit] < awaited <= step:
                published.units[unit] = True
                published.done[unit] = self._known[unit].done
                published.done[unit, unit] = self._at[unit]
                published.start[unit] = self._known[unit].start
        self._last[unit] = max(self._last[unit], step)
