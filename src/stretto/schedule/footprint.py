"""What the units touch of a buffer when an item is shared out among them, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stretto.device.boxes import MOST_TASKS, Boxes, Mask, grouped
from stretto.device.expr import Buffer
from stretto.device.operator import Kernel
from stretto.device.regions import (
    Region,
    Statement,
    kernel_regions,
    statement_regions,
    task_regions,
)
from stretto.device.tree import Check, Let
from stretto.schedule.builder import Part


@dataclass(frozen=True, slots=True, eq=False)
class Footprint:
    """Accesses of one kind to one buffer. pieces: regions, each with the number of its unit."""

    units: int
    buffer: Buffer
    write: bool
    pieces: tuple[tuple[Boxes, NDArray[np.int64]], ...]

    @property
    def present(self) -> Mask:
        """[u]: does unit u touch anything?"""
        found = np.zeros(self.units, np.bool_)
        for _, owners in self.pieces:
            found[owners] = True
        return found

    @property
    def sample(self) -> Region:
        """One of the regions."""
        return self.pieces[0][0].regions[0]

    def under(self, buffer: Buffer) -> Footprint:
        return replace(self, buffer=buffer)


class Footprints:
    """Makes footprints, and compares them; remembers both."""

    def __init__(self, units: int) -> None:
        self._units = units
        self._tasks: dict[str, list[tuple[Region, ...]]] = {}
        self._made: dict[tuple[str, tuple[Part, ...]], tuple[Footprint, ...]] = {}
        # The footprints are kept with the answer, for their `id` to stay theirs.
        self._met: dict[tuple[int, int], tuple[Footprint, Footprint, Mask]] = {}

    def of(self, item: Statement, parts: tuple[Part, ...]) -> tuple[Footprint, ...]:
        """One per buffer and kind of access. A register statement is executed by every unit."""
        if not isinstance(item, Kernel):
            return self._combined(self._statement(item))
        key = item.name, parts
        if key not in self._made:
            self._made[key] = self._combined(self._kernel(item, parts))
        return self._made[key]

    def conflicts(self, a: Footprint, b: Footprint) -> Mask:
        """[u, v]: does the order of unit u's part of `a` and unit v's part of `b` matter?"""
        if a.buffer.name != b.buffer.name or not (a.write or b.write):
            return np.zeros((self._units, self._units), np.bool_)
        key = id(a), id(b)
        if key not in self._met:
            self._met[key] = a, b, _meeting(a, b)
        return self._met[key][2]

    def _statement(self, item: Let | Check) -> Iterator[tuple[int, Region]]:
        for region in statement_regions(item):
            yield from ((unit, region) for unit in range(self._units))

    def _kernel(self, kernel: Kernel, parts: tuple[Part, ...]) -> Iterator[tuple[int, Region]]:
        for part in parts:
            if kernel.call is not None or not kernel.is_static or kernel.tasks > MOST_TASKS:
                yield from ((part.unit, region) for region in kernel_regions(kernel))
                continue
            regions = self._task_regions(kernel)
            for task in range(part.first, kernel.tasks, part.stride)[: part.count]:
                yield from ((part.unit, region) for region in regions[task])

    def _task_regions(self, kernel: Kernel) -> list[tuple[Region, ...]]:
        if kernel.name not in self._tasks:
            self._tasks[kernel.name] = [task_regions(kernel, t) for t in range(kernel.tasks)]
        return self._tasks[kernel.name]

    def _combined(self, regions: Iterable[tuple[int, Region]]) -> tuple[Footprint, ...]:
        pieces: dict[tuple[str, bool], list[tuple[Boxes, NDArray[np.int64]]]] = {}
        for boxes, owners in grouped(regions):
            pieces.setdefault((boxes.buffer.name, boxes.write), []).append((boxes, owners))
        return tuple(
            Footprint(self._units, found[0][0].buffer, write, tuple(found))
            for (_, write), found in pieces.items()
        )


def _meeting(a: Footprint, b: Footprint) -> Mask:
    met = np.zeros((a.units, b.units), np.bool_)
    for ours, our_units in a.pieces:
        for theirs, their_units in b.pieces:
            rows, columns = np.nonzero(ours.overlap(theirs))
            met[our_units[rows], their_units[columns]] = True
    return met
