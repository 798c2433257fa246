"""Places of a function's local buffers in its frame, to find out if regions overlap in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from stretto.device.boxes import ALL, Boxes, Limits
from stretto.device.expr import Buffer
from stretto.device.regions import Interval


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """Byte ranges of local buffers in their frame.

    `extents`: the range in which the elements of a buffer are. `sharing`: the other buffers with
    which it may have bytes in common. Rotating buffers (`moving`) trade places, so the extent of
    each is the whole block of its group; buffers of one group never overlap. `alike`: pairs of
    buffers at the same place whose elements have the same layout.
    """

    extents: Mapping[str, Interval] = field(default_factory=dict[str, Interval])
    moving: frozenset[str] = frozenset()
    sharing: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    alike: frozenset[tuple[str, str]] = frozenset()

    def near(self, name: str) -> tuple[str, ...]:
        """Return the buffers that may have bytes in common with this one, itself first."""
        return name, *self.sharing.get(name, ())

    def bytes_of(self, boxes: Boxes) -> Limits:
        """Return limits [r, 0]: the first and last + 1 byte of the frame that region r touches."""
        first, last = self.extents[boxes.buffer.name]
        found = np.empty((len(boxes), 1, 2), np.int64)
        found[:] = first, last
        if boxes.buffer.name not in self.moving:
            spans = boxes.spans()
            known = spans[:, 0, 1] < ALL
            found[known] = first + spans[known] * boxes.buffer.dtype.itemsize
        return found


def same_memory(one: Buffer, other: Buffer) -> bool:
    """True if elements of equal index have the same bytes when both buffers begin together."""
    return one.dtype.itemsize == other.dtype.itemsize and one.shape == other.shape
