"""The progress counters of the units: what has been published when, and who waits for what."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass

from stretto.simulator.result import Cause

START = Cause(0.0, 0, 0)
"""What has been published before the run."""


@dataclass(slots=True)
class _Waiting:
    """A unit that waits for `left` more units. last: the latest of the others."""

    unit: int
    left: int
    last: Cause


class Progress:
    """One counter per unit; it begins at 0 and only grows."""

    def __init__(self, units: int) -> None:
        self._values: list[list[int]] = [[0] for _ in range(units)]
        self._causes: list[list[Cause]] = [[START] for _ in range(units)]
        self._waiting: list[dict[int, list[_Waiting]]] = [defaultdict(list) for _ in range(units)]

    def wait(self, unit: int, others: tuple[int, ...], value: int) -> Cause | None:
        """The last of the publications that a wait is for; None where one is still to come: then
        `publish` will name the unit."""
        last, missing = START, list[int]()
        for other in others:
            values = self._values[other]
            if values[-1] < value:
                missing.append(other)
                continue
            found = self._causes[other][bisect_left(values, value)]
            if found.time > last.time:
                last = found
        if not missing:
            return last
        waiting = _Waiting(unit, len(missing), last)
        for other in missing:
            self._waiting[other][value].append(waiting)
        return None

    def publish(self, value: int, cause: Cause) -> list[tuple[int, Cause]]:
        """Notes that a unit publishes a value; the units whose waits that ends, and the last
        publication that each has waited for."""
        self._values[cause.unit].append(value)
        self._causes[cause.unit].append(cause)
        waiting = self._waiting[cause.unit]
        ended: list[tuple[int, Cause]] = []
        for wanted in sorted(wanted for wanted in waiting if wanted <= value):
            for item in waiting.pop(wanted):
                item.left -= 1
                if cause.time >= item.last.time:
                    item.last = cause
                if item.left == 0:
                    ended.append((item.unit, item.last))
        return ended
