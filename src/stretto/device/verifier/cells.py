"""Cells of a buffer: groups of elements that lie in the same regions.

Facts about a buffer are masks with one entry per cell instead of one per element. Programs access
large buffers in few regions, so there are few cells however large a buffer is. The cells of a
buffer whose size is known only at the call are a grid: a dim that is a number is divided where
regions begin and end, a symbolic dim into the tiles of the cut that most regions have.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from stretto.device.expr import Buffer, Extent, row_major
from stretto.device.operator import Piece, TileDim
from stretto.device.regions import Interval, Part, Region, sees_as_many

Positions = NDArray[np.int64]
Selection = slice | NDArray[np.bool_]
"""Some cells, as an index into a mask."""


MOST_CELLS = 1 << 12
"""Maximum number of cells of a grid; a buffer that needs more becomes one cell."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The division of a dim of a sized buffer: at `starts`, or into the tiles of `cut`."""

    extent: Extent
    starts: tuple[int, ...] = (0,)
    cut: TileDim | None = None

    @staticmethod
    def of(dim: Extent, parts: Sequence[Part]) -> Axis:
        """Divide a dim at the boundaries of parts, or by the most frequent cut."""
        if isinstance(dim, int):
            ends = {end for part in parts if isinstance(part, tuple) for end in part}
            return Axis(dim, tuple(sorted({0, *(end for end in ends if 0 < end < dim)})))
        dims = (part.dim for part in parts if isinstance(part, Piece))
        cuts = Counter(dim for dim in dims if isinstance(dim, TileDim))
        # Regions come from a set: the text breaks ties, so that the result is deterministic.
        cut = max(cuts, key=lambda cut: (cuts[cut], str(cut)), default=None)
        return Axis(dim, tuple(range(1 if cut is None else cut.tiles)), cut)

    def cells(self, part: Part) -> tuple[slice, bool]:
        """Return the cells that overlap a part, and True if they contain nothing else."""
        if part is None:
            return slice(None), True
        if isinstance(part, Piece):
            same = part.dim == self.cut
            return (slice(part.first, part.last), True) if same else (slice(None), False)
        if self.cut is not None:
            return slice(None), False
        low, high = part
        cells = slice(bisect_right(self.starts, low) - 1, bisect_left(self.starts, high))
        return cells, low in self.starts and high in (*self.starts, self.extent)


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of a buffer: cell n begins at element starts[n] and ends where the next one
    begins; for a sized buffer it is number n of the grid of `axes`."""

    buffer: Buffer
    starts: Positions
    axes: tuple[Axis, ...] = ()
    _known: dict[Region, Selection] = field(default_factory=dict[Region, Selection])

    @staticmethod
    def of(buffer: Buffer, regions: Iterable[Region], spans: Iterable[Interval]) -> Cells:
        """Cut a buffer into cells at the boundaries of regions and spans of elements."""
        if buffer.is_sized:
            return Cells._grid(buffer, regions)
        cuts = [np.zeros(1, np.int64)]
        for region in regions:
            starts, length = _runs(region, buffer.elements)
            cuts += [starts, starts + length]
        cuts.append(np.array([end for span in spans for end in span], np.int64))
        inside = np.unique(np.concatenate(cuts))
        return Cells(buffer, inside[(inside >= 0) & (inside < buffer.elements)])

    @staticmethod
    def _grid(buffer: Buffer, regions: Iterable[Region]) -> Cells:
        """Return the cells of a buffer whose size is known only at the call."""
        boxes = [region.box for region in regions if region.shape == buffer.shape]
        axes = tuple(
            Axis.of(dim, [box[number] for box in boxes]) for number, dim in enumerate(buffer.shape)
        )
        count = prod(len(axis.starts) for axis in axes)
        if count > MOST_CELLS:
            axes, count = tuple(map(Axis, buffer.shape)), 1
        return Cells(buffer, np.arange(count, dtype=np.int64), axes)

    def is_exact(self, region: Region) -> bool:
        """Return True if the cells of a region contain no other elements."""
        if not self.buffer.is_sized:
            return True
        if region.shape != self.buffer.shape:
            all_of_it = all(part is None for part in region.box)
            return all_of_it and sees_as_many(region.shape, self.buffer.shape)
        parts = zip(self.axes, region.box, strict=True)
        return not self.axes or all(axis.cells(part)[1] for axis, part in parts)

    def none(self) -> NDArray[np.bool_]:
        """Return a mask of no cells."""
        return np.zeros(len(self.starts), np.bool_)

    def region(self, region: Region) -> Selection:
        """Return the cells of a region, which must be one of those that the cells were cut by."""
        if region not in self._known and self.buffer.is_sized:
            self._known[region] = self._in_grid(region)
        if region not in self._known:
            starts, length = _runs(region, self.buffer.elements)
            if len(starts) == 1:
                found: Selection = self.span((int(starts[0]), int(starts[0] + length)))
            else:
                edges = np.zeros(len(self.starts) + 1, np.int64)
                np.add.at(edges, np.searchsorted(self.starts, starts), 1)
                np.add.at(edges, np.searchsorted(self.starts, starts + length), -1)
                found = np.cumsum(edges[:-1]) > 0
            self._known[region] = found
        return self._known[region]

    def _in_grid(self, region: Region) -> Selection:
        """Return the cells of a sized buffer that overlap a region."""
        if region.shape != self.buffer.shape:
            return slice(0, len(self.starts))
        found = np.zeros([len(axis.starts) for axis in self.axes], np.bool_)
        parts = zip(self.axes, region.box, strict=True)
        found[tuple(axis.cells(part)[0] for axis, part in parts)] = True
        return found.reshape(-1)

    def span(self, span: Interval) -> slice:
        """Return the cells of a range of elements."""
        first, last = np.searchsorted(self.starts, span)
        return slice(int(first), int(last))


def _runs(region: Region, elements: int) -> tuple[Positions, int]:
    """Return the starts of a region's contiguous runs of elements, and the length that all runs
    have.

    A dim whose extent is known only at run time has as many elements as the buffer has room for.
    """
    shape = [dim if isinstance(dim, int) else -1 for dim in region.shape]
    if -1 in shape:
        inner = prod(shape[1:])
        shape[0] = elements // inner if inner else 0
    strides = row_major(tuple(shape))
    starts, length = np.zeros(1, np.int64), 1
    for dim in reversed(range(len(shape))):
        interval = region.box[dim]
        if not isinstance(interval, tuple):
            interval = 0, shape[dim]
        first, last = max(interval[0], 0), min(interval[1], shape[dim])
        if first >= last:
            return np.zeros(0, np.int64), 0
        if len(starts) == 1 and length == strides[dim]:
            starts, length = starts + first * strides[dim], (last - first) * strides[dim]
        else:
            steps = np.arange(first, last, dtype=np.int64) * strides[dim]
            starts = (steps[:, None] + starts[None, :]).reshape(-1)
    return starts, length
