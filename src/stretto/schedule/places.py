"""Where local buffers may lie, for the verifier: read off a DeviceProgram, not off the planner."""

from __future__ import annotations

from stretto.errors import VerifyError
from stretto.kernels.expr import Buffer
from stretto.kernels.regions import Interval, Region
from stretto.kernels.tree import For, TreeFunction, While, walk
from stretto.schedule.program import Frame, Placement, Schedule


class Places:
    """Byte ranges of the locals of one function. Rotating buffers may be anywhere in their group.

    Raises VerifyError for a local without a place, a place outside of the frame, too small or not
    aligned, and for buffers of a rotating group that overlap or differ in type.
    """

    def __init__(self, function: TreeFunction[Schedule], frame: Frame) -> None:
        self._placements = dict(frame.placements)
        for buffer in function.locals:
            self._check(buffer, frame)
        self._group = {buffer.name: [buffer.name] for buffer in function.locals}
        for node in walk(function.body):
            if isinstance(node, For | While):
                for current, following in node.rotate:
                    self._join(current, following)
        names = [buffer.name for buffer in function.locals if buffer.nbytes > 0]
        self._near = {
            name: (name, *(other for other in names if self._touch(name, other))) for name in names
        }

    def near(self, name: str) -> tuple[str, ...]:
        """The buffer itself and those that may have bytes in common with it."""
        return self._near.get(name, (name,))

    def share(self, a: Region, b: Region) -> bool:
        """May two regions of different local buffers have a byte in common?"""
        if b.buffer.name not in self.near(a.buffer.name):
            return False
        return any(_meet(x, y) for x in self._ranges(a) for y in self._ranges(b))

    def elements_hit(self, region: Region, other: Buffer) -> Interval | None:
        """The elements of `other` that a write to `region` may destroy."""
        found: list[Interval] = []
        for first, last in self._ranges(region):
            for start in (self._placements[name].offset for name in self._group[other.name]):
                low = max(first - start, 0) // other.dtype.itemsize
                high = -(-min(last - start, other.nbytes) // other.dtype.itemsize)
                if low < high:
                    found.append((low, high))
        if not found:
            return None
        return min(low for low, _ in found), max(high for _, high in found)

    def _check(self, buffer: Buffer, frame: Frame) -> None:
        placement = self._placements.get(buffer.name)
        if placement is None:
            raise VerifyError(f"local buffer {buffer.name} has no place in the frame")
        if placement.nbytes < buffer.nbytes:
            raise VerifyError(f"the place of {buffer.name} has only {placement.nbytes} bytes")
        if placement.offset % 64 or not 0 <= placement.offset <= frame.nbytes - placement.nbytes:
            raise VerifyError(f"the place of {buffer.name} is not aligned or not in the frame")

    def _join(self, current: Buffer, following: Buffer) -> None:
        if (current.dtype, current.shape) != (following.dtype, following.shape):
            raise VerifyError(f"{current.name} and {following.name} rotate but differ in type")
        if current.name not in self._group or following.name not in self._group:
            raise VerifyError(f"{current.name} and {following.name} rotate but are not both local")
        one, two = self._group[current.name], self._group[following.name]
        if one is two:
            return
        for a in one:
            for b in two:
                if _meet(_bytes(self._placements[a]), _bytes(self._placements[b])):
                    raise VerifyError(f"rotating buffers {a} and {b} overlap")
        one.extend(two)
        self._group |= dict.fromkeys(two, one)

    def _touch(self, a: str, b: str) -> bool:
        if self._group[a] is self._group[b]:
            return False
        return any(
            _meet(_bytes(self._placements[x]), _bytes(self._placements[y]))
            for x in self._group[a]
            for y in self._group[b]
        )

    def _ranges(self, region: Region) -> list[Interval]:
        """The bytes of the frame that a region may be."""
        buffer = region.buffer
        if buffer.name not in self._group:
            return []
        span = region.span
        size = buffer.dtype.itemsize
        first, last = (0, buffer.nbytes) if span is None else (span[0] * size, span[1] * size)
        starts = (self._placements[name].offset for name in self._group[buffer.name])
        return [(start + first, start + last) for start in starts]


def _bytes(placement: Placement) -> Interval:
    return placement.offset, placement.offset + placement.nbytes


def _meet(a: Interval, b: Interval) -> bool:
    return a[0] < b[1] and b[0] < a[1]
