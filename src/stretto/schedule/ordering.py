"""The order that waits and signals give the items of one leaf, for the verifier.

Every unit is run as far as its waits allow, over and over: units that get stuck are a deadlock. On
the way each item learns what surely comes before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.errors import VerifyError
from stretto.schedule.program import Item, Schedule, Signal, Wait


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What is over for sure. done[v]: how many items of unit v; start: bit set of the units whose
    own knowledge at the start of the leaf is included."""

    done: tuple[int, ...]
    start: int

    def join(self, other: Knowledge) -> Knowledge:
        done = tuple(max(a, b) for a, b in zip(self.done, other.done, strict=True))
        return Knowledge(done, self.start | other.start)


@dataclass(frozen=True, slots=True)
class LeafOrder:
    """before[u][i]: what is over when item i of unit u begins; end[u]: what u knows at the end.

    sequence: all items as (unit, index), in an order that the waits allow.
    """

    before: tuple[tuple[Knowledge, ...], ...]
    end: tuple[Knowledge, ...]
    sequence: tuple[tuple[int, int], ...]


def order_leaf(schedule: Schedule) -> LeafOrder:
    """Raises VerifyError for steps out of range, signals that do not grow, and deadlocks."""
    if schedule.steps == 0 and any(schedule.units):
        # Who waits for step 0 of the next leaf would not learn what this one has waited for.
        raise VerifyError("a leaf with items publishes nothing at its end")
    for unit, items in enumerate(schedule.units):
        _check_steps(unit, items, schedule)
    return _Runner(schedule).run()


def _check_steps(unit: int, items: tuple[Item, ...], schedule: Schedule) -> None:
    last = 0
    for item in items:
        if isinstance(item, Signal):
            if not last < item.step <= schedule.steps:
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
            if item.unit == unit or not 0 <= item.unit < len(schedule.units):
                raise VerifyError(f"unit {unit} waits for unit {item.unit}")


class _Runner:
    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        units = len(schedule.units)
        self._known = [Knowledge((0,) * units, 1 << unit) for unit in range(units)]
        self._at = [0] * units
        # For each unit the steps it has published so far, with what it knew then.
        self._published: list[list[tuple[int, Knowledge]]] = [[] for _ in range(units)]
        self._before: list[list[Knowledge]] = [[] for _ in range(units)]
        self._sequence: list[tuple[int, int]] = []

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
        return f"unit {unit} waits for unit {item.unit} to publish step {item.step}"

    def _advance(self, unit: int) -> bool:
        """Runs the unit until it must wait; True if it came forward."""
        items = self._schedule.units[unit]
        start = self._at[unit]
        while self._at[unit] < len(items):
            item = items[self._at[unit]]
            if isinstance(item, Wait):
                learnt = self._learn(item)
                if learnt is None:
                    break
                self._known[unit] = self._known[unit].join(learnt)
            elif isinstance(item, Signal):
                self._publish(unit, item.step)
            self._before[unit].append(self._known[unit])
            self._sequence.append((unit, self._at[unit]))
            self._at[unit] += 1
        if self._at[unit] == len(items):
            self._publish_end(unit)
        return self._at[unit] > start

    def _publish_end(self, unit: int) -> None:
        if not self._published[unit] or self._published[unit][-1][0] < self._schedule.steps:
            self._publish(unit, self._schedule.steps)

    def _publish(self, unit: int, step: int) -> None:
        own = [0] * len(self._schedule.units)
        own[unit] = self._at[unit]
        self._published[unit].append((step, self._known[unit].join(Knowledge(tuple(own), 0))))

    def _learn(self, wait: Wait) -> Knowledge | None:
        """What a wait gives; None when the step has not been published yet."""
        if wait.step == 0:
            return Knowledge((0,) * len(self._schedule.units), 1 << wait.unit)
        return next(
            (known for step, known in self._published[wait.unit] if step >= wait.step), None
        )
