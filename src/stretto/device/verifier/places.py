"""Where local buffers may lie, for the verifier: read off a DeviceProgram, not off the planner."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stretto.device.boxes import Boxes, Limits, Mask
from stretto.device.expr import Buffer, known_size
from stretto.device.program import FRAME_ALIGNMENT, FrameLayout, Placement, Schedule
from stretto.device.regions import Interval, Region
from stretto.device.tree import TreeFunction, rotation, walk
from stretto.errors import VerifyError
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Size


class Places:
    """Byte ranges of the locals of one function. Rotating buffers may be anywhere in their group.

    Raises VerifyError for a local without a place, a place outside of the frame, too small or not
    aligned, and for buffers of a rotating group that overlap or differ in type.
    """

    def __init__(self, function: TreeFunction[Schedule], frame: FrameLayout) -> None:
        self._placements = dict(frame.placements)
        self._sized = frozenset(buffer.name for buffer in function.locals if buffer.is_sized)
        for buffer in function.locals:
            if buffer.name not in self._sized:
                self._check(buffer, frame)
        _check_sized(function, frame)
        self._group = {buffer.name: [buffer.name] for buffer in function.locals}
        for node in walk(function.body):
            for current, following in rotation(node):
                self._join(current, following)
        fixed = [buffer for buffer in function.locals if not buffer.is_sized]
        names = [buffer.name for buffer in fixed if buffer.nbytes > 0]
        self._near: dict[str, tuple[str, ...]] = {name: (name,) for name in names}
        for one, other in _meeting(
            [(name, _bytes(self._placements[m])) for name in names for m in self._group[name]]
        ):
            if self._group[one] is not self._group[other] and other not in self._near[one]:
                self._near[one] = (*self._near[one], other)

    def near(self, name: str) -> tuple[str, ...]:
        """The buffer itself and those that may have bytes in common with it."""
        return self._near.get(name, (name,))

    def groups(self) -> list[list[str]]:
        """Names of the local buffers, those that may trade places together."""
        return list({id(group): group for group in self._group.values()}.values())

    def share(self, a: Boxes, b: Boxes) -> Mask:
        """[r, s]: may regions of two local buffers that are near have a byte in common?"""
        common = np.zeros((len(a), len(b)), np.bool_)
        for x in self._bytes_of(a):
            for y in self._bytes_of(b):
                common |= (x[:, None, 0] < y[None, :, 1]) & (y[None, :, 0] < x[:, None, 1])
        return common

    def meet(self, a: Region, b: Region) -> bool:
        """May regions of two different local buffers have a byte in common?"""
        if b.buffer.name not in self.near(a.buffer.name):
            return False
        return any(_meet(x, y) for x in self._ranges(a) for y in self._ranges(b))

    def destroyed(self, region: Region) -> Iterator[tuple[str, int, int]]:
        """(name, first, last + 1): bytes of other buffers that a write to `region` may destroy."""
        ranges = self._ranges(region)
        for name in self.near(region.buffer.name)[1:]:
            size = self._placements[name].nbytes
            for member in self._group[name]:
                start = self._placements[member].offset
                for first, last in ranges:
                    low, high = max(first - start, 0), min(last - start, size)
                    if low < high:
                        yield name, low, high

    def _check(self, buffer: Buffer, frame: FrameLayout) -> None:
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
        for a in one if not current.is_sized else ():
            for b in two:
                if _meet(_bytes(self._placements[a]), _bytes(self._placements[b])):
                    raise VerifyError(f"rotating buffers {a} and {b} overlap")
        one.extend(two)
        self._group |= dict.fromkeys(two, one)

    def _bytes_of(self, boxes: Boxes) -> Iterator[Limits]:
        """[r]: the bytes of the frame that region r may be, for each place of the buffer."""
        buffer = boxes.buffer
        if buffer.is_sized:
            return
        spans = np.minimum(boxes.spans()[:, 0], buffer.elements) * buffer.dtype.itemsize
        for name in self._group[buffer.name]:
            yield spans + self._placements[name].offset

    def _ranges(self, region: Region) -> list[Interval]:
        """The bytes of the frame that a region may be."""
        buffer = region.buffer
        if buffer.name not in self._group or buffer.is_sized:
            return []
        span = region.span
        size = buffer.dtype.itemsize
        first, last = (0, buffer.nbytes) if span is None else (span[0] * size, span[1] * size)
        starts = (self._placements[name].offset for name in self._group[buffer.name])
        return [(start + first, start + last) for start in starts]


def _check_sized(function: TreeFunction[Schedule], frame: FrameLayout) -> None:
    """Buffers whose size the call decides lie one after the other, for every size."""
    sized = [buffer for buffer in function.locals if buffer.is_sized]
    if [buffer.name for buffer in sized] != [name for name, _ in frame.sized]:
        raise VerifyError(f"the frame of {function.name} has not its sized buffers in order")
    end: int | Size = frame.nbytes
    for buffer, (name, place) in zip(sized, frame.sized, strict=True):
        needed = known_size(buffer.shape) * buffer.dtype.itemsize
        if not at_most(needed, place.nbytes):
            raise VerifyError(f"the place of {name} may have less than {needed} bytes")
        if not at_most(end, place.offset):
            raise VerifyError(f"the place of {name} may overlap what is before it")
        if Size.of(place.offset) % FRAME_ALIGNMENT != Size():
            raise VerifyError(f"the place of {name} is not aligned")
        end = place.end


def _meeting(spans: list[tuple[str, Interval]]) -> Iterator[tuple[str, str]]:
    """Pairs of different names whose spans meet, each in both orders."""
    open_spans: list[tuple[str, Interval]] = []
    for name, span in sorted(spans, key=lambda item: item[1]):
        open_spans = [item for item in open_spans if item[1][1] > span[0]]
        for other, theirs in open_spans:
            if other != name and _meet(span, theirs):
                yield name, other
                yield other, name
        open_spans.append((name, span))


def _bytes(placement: Placement) -> Interval:
    return placement.offset, placement.offset + placement.nbytes


def _meet(a: Interval, b: Interval) -> bool:
    return a[0] < b[1] and b[0] < a[1]
