"""Where the local buffers of a function may lie in its frame, for who asks whether bytes meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from stretto.device.boxes import ALL, Boxes, Limits
from stretto.device.expr import Buffer
from stretto.device.regions import Interval


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """Bytes of local buffers in their frame.

    `extents`: where the elements of a buffer may lie. `sharing`: the other buffers that it may
    have bytes in common with. Rotating buffers trade places, so each may lie in the whole block
    of its group; buffers of one group are always apart. `alike`: buffers that lie at one place, and
    have the same elements there.
    """

    extents: Mapping[str, Interval] = field(default_factory=dict[str, Interval])
    moving: frozenset[str] = frozenset()
    sharing: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    alike: frozenset[tuple[str, str]] = frozenset()

    def near(self, name: str) -> tuple[str, ...]:
        """The buffers that may have bytes in common with this one, itself first."""
        return name, *self.sharing.get(name, ())

    def bytes_of(self, boxes: Boxes) -> Limits:
        """[r, 0]: the bytes of the frame that region r may touch, first and last + 1."""
        first, last = self.extents[boxes.buffer.name]
        found = np.empty((len(boxes), 1, 2), np.int64)
        found[:] = first, last
        if boxes.buffer.name not in self.moving:
            spans = boxes.spans()
            known = spans[:, 0, 1] < ALL
            found[known] = first + spans[known] * boxes.buffer.dtype.itemsize
        return found


def same_memory(one: Buffer, other: Buffer) -> bool:
    """Whether elements of the same index are the same bytes where two buffers begin together."""
    return one.dtype.itemsize == other.dtype.itemsize and one.shape == other.shape
