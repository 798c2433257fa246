"""Possible places of local buffers, for the verifier: taken from a DeviceProgram, not from the
planner; and the rule that memory which is written has one name in every function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import permutations, product

import numpy as np

from stretto.components import Partition
from stretto.device.aliases import Bindings, Bound, bindings, param_pairs
from stretto.device.boxes import Boxes, Limits, Mask
from stretto.device.expr import Access, Buffer
from stretto.device.program import (
    FRAME_ALIGNMENT,
    DeviceProgram,
    FrameLayout,
    Placement,
    Schedule,
    sized_bytes,
)
from stretto.device.regions import (
    Interval,
    Region,
    intervals_overlap,
    overlap,
    whole,
    written_buffers,
)
from stretto.device.tree import Call, Leaf, TreeFunction, calls, leaves, rotation, walk
from stretto.device.verifier.form import kernel_buffers
from stretto.device.verifier.touched import ItemRegions
from stretto.errors import VerifyError
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Size


class FramePlaces:
    """Byte ranges of the locals of one function. Rotating buffers may be anywhere in their group.

    Buffers whose size the call decides are assumed to share bytes if they are in one slot and are
    not proved to be disjoint there.

    Raises VerifyError for a local without a place, a place outside of the frame, too small or not
    aligned, and for buffers of a rotating group that overlap or differ in type.
    """

    def __init__(self, function: TreeFunction[Schedule], frame: FrameLayout) -> None:
        self._placements = dict(frame.placements)
        self._sized = dict(frame.sized)
        self._buffers = {buffer.name: buffer for buffer in function.locals}
        for buffer in function.locals:
            if not buffer.is_sized:
                self._check(buffer, frame)
        _check_slots(function, frame)
        self._group = Partition(buffer.name for buffer in function.locals)
        for node in walk(function.body):
            for current, following in rotation(node):
                self._join(current, following)
        fixed = [buffer for buffer in function.locals if not buffer.is_sized]
        names = [buffer.name for buffer in fixed if buffer.nbytes > 0]
        self._near: dict[str, tuple[str, ...]] = {name: (name,) for name in names}
        members = ((name, m) for name in names for m in self._group.members(name))
        for one, other in _meeting([(name, _bytes(self._placements[m])) for name, m in members]):
            if self._are_separate(one, other) and other not in self._near[one]:
                self._near[one] = (*self._near[one], other)
        for one, other in permutations(self._sized, 2):
            if self._are_separate(one, other) and not self._are_apart(one, other):
                self._near[one] = (*self.near(one), other)

    def near(self, name: str) -> tuple[str, ...]:
        """Return the buffer itself and those that may have bytes in common with it."""
        return self._near.get(name, (name,))

    def groups(self) -> list[list[str]]:
        """Return the names of the local buffers, grouped by rotation."""
        return self._group.sets()

    def share(self, a: Boxes, b: Boxes) -> Mask:
        """Return a mask [r, s]: True if regions r and s of two local buffers that are near may
        share a byte."""
        common = np.zeros((len(a), len(b)), np.bool_)
        names = a.buffer.name, b.buffer.name
        if names[0] in self._sized:
            return a.overlap(b) if self._are_alike(*names) else ~common
        for x in self._bytes_of(a):
            for y in self._bytes_of(b):
                common |= (x[:, None, 0] < y[None, :, 1]) & (y[None, :, 0] < x[:, None, 1])
        return common

    def meet(self, a: Region, b: Region) -> bool:
        """Return True if regions of two different local buffers may have a byte in common."""
        if b.buffer.name not in self.near(a.buffer.name):
            return False
        if a.buffer.name in self._sized:
            return True
        return any(intervals_overlap(x, y) for x in self._ranges(a) for y in self._ranges(b))

    def destroyed(self, region: Region) -> Iterator[tuple[str, int, int]]:
        """Yield (name, first, last + 1): bytes of other buffers at fixed places that a write to
        `region` may destroy."""
        if region.buffer.is_sized:
            return
        ranges = self._ranges(region)
        for name in self.near(region.buffer.name)[1:]:
            size = self._placements[name].nbytes
            for member in self._group.members(name):
                start = self._placements[member].offset
                for first, last in ranges:
                    low, high = max(first - start, 0), min(last - start, size)
                    if low < high:
                        yield name, low, high

    def destroyed_sized(self, region: Region) -> Iterator[tuple[str, Region | None]]:
        """Yield the sized buffers that a write to `region` of one may destroy, and the destroyed
        part; None is the whole."""
        name = region.buffer.name
        for other in self.near(name)[1:] if name in self._sized else ():
            alike = self._are_alike(name, other)
            yield other, replace(region, buffer=self._buffers[other]) if alike else None

    def alike(self, name: str) -> tuple[str, ...]:
        """Return the sized buffers at the same place as this one whose elements are the same
        bytes."""
        near = self.near(name)[1:] if name in self._sized else ()
        return tuple(other for other in near if self._are_alike(name, other))

    def _are_apart(self, one: str, other: str) -> bool:
        """Return True if two sized buffers are proved to have no byte in common."""
        a, b = self._sized[one], self._sized[other]
        if a.slot != b.slot:
            return True
        return at_most(a.offset + a.nbytes, b.offset) or at_most(b.offset + b.nbytes, a.offset)

    def _are_alike(self, one: str, other: str) -> bool:
        """Return True if the bytes of each element are those of the same element of the other
        buffer."""
        a, b = self._buffers[one], self._buffers[other]
        alone = len(self._group.members(one)) == len(self._group.members(other)) == 1
        same = a.shape == b.shape and a.dtype.itemsize == b.dtype.itemsize
        return alone and same and self._sized[one].offset == self._sized[other].offset

    def _check(self, buffer: Buffer, frame: FrameLayout) -> None:
        placement = self._placements.get(buffer.name)
        if placement is None:
            raise VerifyError(f"local buffer {buffer.name} has no place in the frame")
        if placement.nbytes < buffer.nbytes:
            raise VerifyError(f"the place of {buffer.name} has only {placement.nbytes} bytes")
        if (
            placement.offset % FRAME_ALIGNMENT
            or not 0 <= placement.offset <= placement.end <= frame.nbytes
        ):
            raise VerifyError(f"the place of {buffer.name} is not aligned or not in the frame")

    def _join(self, current: Buffer, following: Buffer) -> None:
        names = current.name, following.name
        if not self._are_separate(*names):
            return
        for a, b in product(*map(self._group.members, names)):
            if current.is_sized:
                meet = not self._are_apart(a, b)
            else:
                meet = intervals_overlap(_bytes(self._placements[a]), _bytes(self._placements[b]))
            if meet:
                raise VerifyError(f"rotating buffers {a} and {b} overlap")
        self._group.join(*names)

    def _are_separate(self, one: str, other: str) -> bool:
        """Return True if two buffers are not rotated among each other."""
        return self._group.root(one) != self._group.root(other)

    def _bytes_of(self, boxes: Boxes) -> Iterator[Limits]:
        """Yield for each place of the buffer an array [r]: the bytes of the frame that region r
        may occupy."""
        buffer = boxes.buffer
        if buffer.is_sized:
            return
        spans = np.minimum(boxes.spans()[:, 0], buffer.elements) * buffer.dtype.itemsize
        for name in self._group.members(buffer.name):
            yield spans + self._placements[name].offset

    def _ranges(self, region: Region) -> list[Interval]:
        """Return the byte ranges of the frame that a region may occupy."""
        buffer = region.buffer
        if buffer.name not in self._buffers or buffer.is_sized:
            return []
        span = region.span
        size = buffer.dtype.itemsize
        first, last = (0, buffer.nbytes) if span is None else (span[0] * size, span[1] * size)
        starts = (self._placements[name].offset for name in self._group.members(buffer.name))
        return [(start + first, start + last) for start in starts]


def _check_slots(function: TreeFunction[Schedule], frame: FrameLayout) -> None:
    """Check that buffers whose size the call decides are inside their slots, for every size."""
    for number, nbytes in enumerate(frame.slots):
        if Size.of(nbytes) % FRAME_ALIGNMENT != Size() or not at_most(0, nbytes):
            raise VerifyError(f"slot {number} of {function.name} may end where nothing may begin")
    sized = {buffer.name: buffer for buffer in function.locals if buffer.is_sized}
    if list(sized) != [name for name, _ in frame.sized]:
        raise VerifyError(f"the frame of {function.name} lacks sized buffers, or their order")
    for name, place in frame.sized:
        needed = sized_bytes(sized[name])
        if not at_most(needed, place.nbytes):
            raise VerifyError(f"the place of {name} may have less than {needed} bytes")
        if not 0 <= place.slot < len(frame.slots):
            raise VerifyError(f"{name} lies in slot {place.slot} of {len(frame.slots)}")
        end = place.offset + place.nbytes
        if not at_most(0, place.offset) or not at_most(end, frame.slots[place.slot]):
            raise VerifyError(f"the place of {name} may reach beyond its slot")
        if Size.of(place.offset) % FRAME_ALIGNMENT != Size():
            raise VerifyError(f"the place of {name} is not aligned")


def _meeting(spans: list[tuple[str, Interval]]) -> Iterator[tuple[str, str]]:
    """Yield pairs of different names whose spans overlap, each in both orders."""
    open_spans: list[tuple[str, Interval]] = []
    for name, span in sorted(spans, key=lambda item: item[1]):
        open_spans = [item for item in open_spans if item[1][1] > span[0]]
        for other, theirs in open_spans:
            if other != name and intervals_overlap(span, theirs):
                yield name, other
                yield other, name
        open_spans.append((name, span))


def _bytes(placement: Placement) -> Interval:
    return placement.offset, placement.end


def bound_region(param: Buffer, access: Access, write: bool) -> Region:
    """Return the memory of the caller that a param is bound to."""
    buffer = access.buffer
    offset = access.offset
    if not offset.is_const:
        return whole(buffer, write)
    box = (offset.const, offset.const + param.elements)
    if not _is_static(buffer) or not _is_static(param):
        return whole(buffer, write)
    return Region(
        buffer, (buffer.elements,), (None if box == (0, buffer.elements) else box,), write
    )


def _is_static(buffer: Buffer) -> bool:
    return all(isinstance(dim, int) for dim in buffer.shape)


# ---- Check that memory which is written has one name in every function.
#
# Frames give each local buffer separate bytes while it is in use (`initialisation`); this module
# checks the memory that calls bind to params, and the buffers of single kernels.


def check_aliases(
    program: DeviceProgram, places: Mapping[str, FramePlaces], touched: ItemRegions
) -> None:
    """Raise VerifyError if written memory has two names, or if a function does not declare a param
    that it writes."""
    functions = {function.name: function for function in program.tree.functions}
    bound_externals = bindings(program.tree)

    def meet(name: str, pairs: Collection[frozenset[Buffer]], one: Bound, other: Bound) -> bool:
        regions = (bound_region(param, access, write=False) for param, access in (one, other))
        return _may_meet(
            *regions, places=places[name], bound_externals=bound_externals[name], pairs=pairs
        )

    pairs = param_pairs(program.tree, meet)
    for function in functions.values():
        written = _written(function, functions, touched)
        for buffer in written:
            if buffer.kind == "param" and buffer not in function.written:
                raise VerifyError(
                    f"function {function.name} writes {buffer.name}, which it does not declare"
                )
        _check_externals(function, written, bound_externals[function.name], touched)
        name = function.name
        for call in calls(function.body):
            _check_call(call, functions[call.function], partial(meet, name, pairs[name]))
        for kernel in {kernel for leaf in leaves(function.body) for kernel in leaf.kernels}:
            _check_kernel(kernel, places[name], touched)


def _written(
    function: TreeFunction[Schedule],
    functions: Mapping[str, TreeFunction[Schedule]],
    touched: ItemRegions,
) -> set[Buffer]:
    """Return the buffers that a function writes, itself or through params of its callees."""
    found: set[Buffer] = set()
    for schedule in leaves(function.body):
        for name in schedule.kernels:
            found |= written_buffers(touched.kernels[name])
    for call in calls(function.body):
        written = functions[call.function].written
        found |= {access.buffer for param, access in call.tensors if param in written}
    return found


def _check_externals(
    function: TreeFunction[Schedule],
    written: set[Buffer],
    bound_externals: Bindings,
    touched: ItemRegions,
) -> None:
    """Check that no param is bound to an external buffer that the function also accesses by its
    own name."""
    own = {*_accessed(function, touched)}
    for param, externals in bound_externals.items():
        for buffer in sorted(own & externals, key=lambda one: one.name):
            if param in written or buffer in written:
                raise VerifyError(
                    f"function {function.name} accesses {buffer.name} by its name and as "
                    f"{param.name}, and writes it"
                )


def _accessed(function: TreeFunction[Schedule], touched: ItemRegions) -> Iterator[Buffer]:
    for node in walk(function.body):
        match node:
            case Leaf(schedule):
                for name in schedule.kernels:
                    yield from kernel_buffers(touched.kernels[name])
                for item in schedule.statements:
                    yield from (region.buffer for region in touched.regions(item))
            case Call(tensors=tensors):
                yield from (access.buffer for _, access in tensors)
            case _:
                pass


def _may_meet(
    a: Region,
    b: Region,
    *,
    places: FramePlaces,
    bound_externals: Bindings,
    pairs: Collection[frozenset[Buffer]],
) -> bool:
    """Return True if two regions of a function may overlap in some call of it. Params are compared
    by `pairs`: two that are bound to one external buffer in different calls do not overlap."""
    if a.buffer.name == b.buffer.name:
        return overlap(a, b)
    if places.meet(a, b) or frozenset((a.buffer, b.buffer)) in pairs:
        return True
    for one, other in ((a.buffer, b.buffer), (b.buffer, a.buffer)):
        if one.kind == "param" and other.kind != "param":
            return other in bound_externals[one]
    return False


def _check_call(
    call: Call[Schedule], callee: TreeFunction[Schedule], meet: Callable[[Bound, Bound], bool]
) -> None:
    for param, access in call.tensors:
        for other, seen in call.tensors:
            if param is other or param not in callee.written:
                continue
            if meet((param, access), (other, seen)):
                raise VerifyError(
                    f"a call of {call.function} passes {access.buffer.name} as {other.name} and "
                    f"as {param.name}, which is written"
                )


def _check_kernel(name: str, places: FramePlaces, touched: ItemRegions) -> None:
    """Check that a kernel does not write memory under a second name: its tasks, and the elements
    of a stage, have no order."""
    regions = touched.kernel(name)
    names = {region.buffer.name for region in regions}
    for region in regions:
        if region.write and len(names.intersection(places.near(region.buffer.name))) > 1:
            for other in regions:
                if other.buffer.name != region.buffer.name and places.meet(region, other):
                    raise VerifyError(
                        f"kernel {name} accesses {other.buffer.name} and writes "
                        f"{region.buffer.name}, which share memory"
                    )
