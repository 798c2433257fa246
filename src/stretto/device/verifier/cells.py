"""The elements of a buffer in few pieces: those together that lie in the same regions.

What is known of a buffer is a mask with one entry per cell instead of one per element. Programs
access large buffers in few regions, so cells are few however large a buffer is. The cells of a
buffer whose size is known at the call only are a grid: a dim that is a number is divided where
regions begin and end, one that is symbolic into the tiles of the cut that most regions have.
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
from stretto.device.regions import Interval, Part, Region

Positions = NDArray[np.int64]
Selection = slice | NDArray[np.bool_]
"""Some cells, as an index into a mask."""


MOST_CELLS = 1 << 12
"""A grid of more cells is not made: the buffer is one cell."""


@dataclass(frozen=True, slots=True)
class Axis:
    """How a dim of a sized buffer is divided: at `starts`, or into the tiles of `cut`."""

    extent: Extent
    starts: tuple[int, ...] = (0,)
    cut: TileDim | None = None

    @staticmethod
    def of(dim: Extent, parts: Sequence[Part]) -> Axis:
        """As the parts of a dim want it."""
        if isinstance(dim, int):
            ends = {end for part in parts if isinstance(part, tuple) for end in part}
            return Axis(dim, tuple(sorted({0, *(end for end in ends if 0 < end < dim)})))
        dims = (part.dim for part in parts if isinstance(part, Piece))
        cuts = Counter(dim for dim in dims if isinstance(dim, TileDim))
        # The order of regions is that of a set: of equally frequent cuts the text decides.
        cut = max(cuts, key=lambda cut: (cuts[cut], str(cut)), default=None)
        return Axis(dim, tuple(range(1 if cut is None else cut.tiles)), cut)

    def cells(self, part: Part) -> tuple[slice, bool]:
        """The cells that have something of a part; whether they have nothing else."""
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
    """Cell number n begins at element starts[n], and ends where the next one begins; of a sized
    buffer it is number n of the grid of `axes`."""

    buffer: Buffer
    starts: Positions
    axes: tuple[Axis, ...] = ()
    _known: dict[Region, Selection] = field(default_factory=dict[Region, Selection])

    @staticmethod
    def of(buffer: Buffer, regions: Iterable[Region], spans: Iterable[Interval]) -> Cells:
        """The cells that regions and spans of elements cut a buffer into."""
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
        """The cells of a buffer whose size is known at the call only."""
        boxes = [region.box for region in regions if region.shape == buffer.shape]
        axes = tuple(
            Axis.of(dim, [box[number] for box in boxes]) for number, dim in enumerate(buffer.shape)
        )
        count = prod(len(axis.starts) for axis in axes)
        if count > MOST_CELLS:
            axes, count = tuple(map(Axis, buffer.shape)), 1
        return Cells(buffer, np.arange(count, dtype=np.int64), axes)

    def is_exact(self, region: Region) -> bool:
        """Whether the cells of a region have nothing beside it."""
        if not self.buffer.is_sized:
            return True
        if region.shape != self.buffer.shape:
            return all(part is None for part in region.box)
        parts = zip(self.axes, region.box, strict=True)
        return not self.axes or all(axis.cells(part)[1] for axis, part in parts)

    def none(self) -> NDArray[np.bool_]:
        """A mask of no cells."""
        return np.zeros(len(self.starts), np.bool_)

    def region(self, region: Region) -> Selection:
        """The cells of a region, which must be one of those that made the cells."""
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
        """The cells of a sized buffer that have something of a region."""
        if region.shape != self.buffer.shape:
            return slice(0, len(self.starts))
        found = np.zeros([len(axis.starts) for axis in self.axes], np.bool_)
        parts = zip(self.axes, region.box, strict=True)
        found[tuple(axis.cells(part)[0] for axis, part in parts)] = True
        return found.reshape(-1)

    def span(self, span: Interval) -> slice:
        """The cells of neighbouring elements."""
        first, last = np.searchsorted(self.starts, span)
        return slice(int(first), int(last))


def _runs(region: Region, elements: int) -> tuple[Positions, int]:
    """Where the runs of neighbouring elements of a region begin, and the length that all have.

    A dim whose extent is known at run time only has as many elements as the buffer has room for.
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
