"""Record of which unit produced what, so that consumers can run where their inputs are."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.device.expr import Buffer
from stretto.device.operator import Kernel, Piece, TileDim
from stretto.device.regions import Interval, Part, Region, covers, overlap, task_regions

MOST_TASKS = 256
"""Kernels with more tasks are not examined task by task."""


class Producers:
    """The latest writers of each buffer, in program order."""

    def __init__(self) -> None:
        self._written: dict[str, list[tuple[int, Region]]] = {}

    def add(self, unit: int, regions: Iterable[Region]) -> None:
        """Record the writes of a unit; an earlier write that is covered is dropped."""
        for region in regions:
            if region.write:
                written = self._written.setdefault(region.buffer.name, [])
                written[:] = [item for item in written if not covers(region, item[1])]
                written.append((unit, region))

    def rotate(self, pairs: Iterable[tuple[Buffer, Buffer]]) -> None:
        """Exchange the records of the two buffers of each pair."""
        for current, following in pairs:
            names = current.name, following.name
            ahead, behind = (self._written.pop(name, []) for name in names)
            self._written[names[1]] = [(unit, _renamed(r, following)) for unit, r in ahead]
            self._written[names[0]] = [(unit, _renamed(r, current)) for unit, r in behind]

    def shares(self, regions: Iterable[Region], units: int) -> list[int]:
        """Return for each unit the number of elements read that it has produced."""
        shares = [0] * units
        for region in regions:
            if not region.write:
                for unit, produced in self._written.get(region.buffer.name, ()):
                    if overlap(region, produced):
                        shares[unit] += _common(region, produced)
        return shares

    def others(self, unit: int, regions: Iterable[Region]) -> bool:
        """True if `unit` reads something that another unit produced."""
        return any(
            writer != unit and overlap(region, produced)
            for region in regions
            if not region.write
            for writer, produced in self._written.get(region.buffer.name, ())
        )


def favourites(kernel: Kernel, producers: Producers, units: int) -> list[int | None]:
    """Return for each task the unit that produced most of what only some tasks read; None for no
    preference.

    Data that all tasks read (the vector of a matrix-vector product) gives no preference.
    """
    if kernel.tasks > MOST_TASKS:
        return [None] * kernel.tasks
    shares = [producers.shares(task_regions(kernel, t), units) for t in range(kernel.tasks)]
    common = [min(column) for column in zip(*shares, strict=True)]
    found: list[int | None] = []
    for row in shares:
        own = [share - base for share, base in zip(row, common, strict=True)]
        best = max(own)
        found.append(own.index(best) if best > 0 and own.count(best) == 1 else None)
    return found


def _renamed(region: Region, buffer: Buffer) -> Region:
    return Region(buffer, region.shape, region.box, region.write)


def _common(a: Region, b: Region) -> int:
    """Estimate the number of elements that two overlapping regions have in common."""
    if a.shape != b.shape:
        first, second = a.span, b.span
        if first is None or second is None:
            return 1
        return min(first[1], second[1]) - max(first[0], second[0])
    total = 1
    for x, y, extent in zip(a.box, b.box, a.shape, strict=True):
        size = extent if isinstance(extent, int) else _tiles(x, y)
        (first, last), (low, high) = _numbers(x, size), _numbers(y, size)
        total *= max(min(last, high) - max(first, low), 1)
    return total


def _tiles(*parts: Part) -> int:
    """Return the number of tiles that a dim is cut into."""
    dims = (part.dim for part in parts if isinstance(part, Piece))
    return max((dim.tiles for dim in dims if isinstance(dim, TileDim)), default=1)


def _numbers(part: Part, size: int) -> Interval:
    if isinstance(part, Piece):
        return part.first, part.last
    return (0, size) if part is None else part
