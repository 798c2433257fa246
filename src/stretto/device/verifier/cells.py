"""The elements of a buffer in few pieces: those together that lie in the same regions.

What is known of a buffer is a mask with one entry per cell instead of one per element. Programs
access large buffers in few regions, so cells are few however large a buffer is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from stretto.device.expr import Buffer, row_major
from stretto.device.regions import Interval, Region

Positions = NDArray[np.int64]
Selection = slice | NDArray[np.bool_]
"""Some cells, as an index into a mask."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Cell number n begins at element starts[n], and ends where the next one begins."""

    buffer: Buffer
    starts: Positions
    _known: dict[Region, Selection] = field(default_factory=dict[Region, Selection])

    @staticmethod
    def of(buffer: Buffer, regions: Iterable[Region], spans: Iterable[Interval]) -> Cells:
        """The cells that regions and spans of elements cut a buffer into.

        A buffer whose size is known at the call only is one cell.
        """
        if buffer.is_sized:
            return Cells(buffer, np.zeros(1, np.int64))
        cuts = [np.zeros(1, np.int64)]
        for region in regions:
            starts, length = _runs(region, buffer.elements)
            cuts += [starts, starts + length]
        cuts.append(np.array([end for span in spans for end in span], np.int64))
        inside = np.unique(np.concatenate(cuts))
        return Cells(buffer, inside[(inside >= 0) & (inside < buffer.elements)])

    def none(self) -> NDArray[np.bool_]:
        """A mask of no cells."""
        return np.zeros(len(self.starts), np.bool_)

    def region(self, region: Region) -> Selection:
        """The cells of a region, which must be one of those that made the cells."""
        if self.buffer.is_sized:
            return slice(0, 1)
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
        if interval is None:
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
