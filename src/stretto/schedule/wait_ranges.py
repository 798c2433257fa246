"""Which units each unit waits for, as ranges of neighbours: few of them, and narrow ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.device.boxes import Mask
from stretto.device.program import Wait

Steps = NDArray[np.int32]

NEVER = -1
"""As a step: nothing is known, nothing is needed. 0 is the start of the leaf."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """At most one wait per unit: unit u waits for first[u] .. last[u] - 1 to reach steps[u]."""

    first: Steps
    last: Steps
    steps: Steps

    def waits(self) -> Iterator[tuple[int, Wait]]:
        """The waits, each with its unit."""
        for unit in np.flatnonzero(self.steps >= 0).tolist():
            low, high = int(self.first[unit]), int(self.last[unit])
            yield unit, Wait(low, int(self.steps[unit]), high - low)

    def kinds(self) -> Iterator[tuple[tuple[int, int, int], list[int]]]:
        """The different (first, last, step), each with its units."""
        found: dict[tuple[int, int, int], list[int]] = {}
        rows = zip(self.first.tolist(), self.last.tolist(), self.steps.tolist(), strict=True)
        for unit, row in enumerate(rows):
            if row[2] >= 0:
                found.setdefault(row, []).append(unit)
        yield from found.items()

    @property
    def mask(self) -> Mask:
        """[u, v]: does unit u wait for unit v?"""
        units = np.arange(len(self.steps))
        inside = (self.first[:, None] <= units) & (units < self.last[:, None])
        return inside & (self.steps >= 0)[:, None]


def hull(wanted: Mask, steps: Steps) -> Ranges:
    """From the first to the last unit wanted."""
    found = wanted.any(axis=1)
    first = np.where(found, wanted.argmax(axis=1), 0)
    last = np.where(found, wanted.shape[1] - wanted[:, ::-1].argmax(axis=1), 0)
    return Ranges(first.astype(np.int32), last.astype(np.int32), steps)


def runs(wanted: Mask, steps: Steps) -> Ranges:
    """The first neighbours wanted: nobody waits for itself, so a unit may be one of them."""
    units = wanted.shape[1]
    first = wanted.argmax(axis=1)
    allowed = wanted | np.eye(units, dtype=np.bool_)
    stops = ~allowed & (np.arange(units) > first[:, None])
    last = np.where(stops.any(axis=1), stops.argmax(axis=1), units)
    narrow = hull(wanted & (np.arange(units) < last[:, None]), steps)
    return shared_ranges(narrow)


def shared_ranges(ranges: Ranges) -> Ranges:
    """A unit at the end of a range that others wait for has that range too: for itself nobody
    waits, and one text then does for all of them."""
    rows = zip(ranges.first.tolist(), ranges.last.tolist(), ranges.steps.tolist(), strict=True)
    same = set(rows)
    first, last = ranges.first.copy(), ranges.last.copy()
    for unit in np.flatnonzero(ranges.steps >= 0).tolist():
        low, high, step = int(first[unit]), int(last[unit]), int(ranges.steps[unit])
        if low == unit + 1 and (unit, high, step) in same:
            first[unit] = unit
        elif high == unit and (low, unit + 1, step) in same:
            last[unit] = unit + 1
    return Ranges(first, last, ranges.steps)
