"""Possible places of local buffers, for the verifier: taken from a DeviceProgram, not from the
planner; and the rule that memory which is written has one name in every function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations, permutations, product

import numpy as np

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
from stretto.device.tree import Call, Leaf, TreeFunction, leaves, rotation, walk
from stretto.device.verifier.assignment import function_calls
from stretto.device.verifier.form import kernel_buffers
from stretto.device.verifier.touched import ItemRegions
from stretto.errors import VerifyError
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Size


class Places:
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
        for one, other in permutations(self._sized, 2):
            if self._group[one] is not self._group[other] and not self._are_apart(one, other):
                self._near[one] = (*self.near(one), other)

    def near(self, name: str) -> tuple[str, ...]:
        """Return the buffer itself and those that may have bytes in common with it."""
        return self._near.get(name, (name,))

    def groups(self) -> list[list[str]]:
        """Return the names of the local buffers, grouped by rotation."""
        return list({id(group): group for group in self._group.values()}.values())

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
            for member in self._group[name]:
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
        alone = len(self._group[one]) == len(self._group[other]) == 1
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
        one, two = self._group[current.name], self._group[following.name]
        if one is two:
            return
        for a, b in product(one, two):
            if current.is_sized:
                meet = not self._are_apart(a, b)
            else:
                meet = intervals_overlap(_bytes(self._placements[a]), _bytes(self._placements[b]))
            if meet:
                raise VerifyError(f"rotating buffers {a} and {b} overlap")
        one.extend(two)
        self._group |= dict.fromkeys(two, one)

    def _bytes_of(self, boxes: Boxes) -> Iterator[Limits]:
        """Yield for each place of the buffer an array [r]: the bytes of the frame that region r
        may occupy."""
        buffer = boxes.buffer
        if buffer.is_sized:
            return
        spans = np.minimum(boxes.spans()[:, 0], buffer.elements) * buffer.dtype.itemsize
        for name in self._group[buffer.name]:
            yield spans + self._placements[name].offset

    def _ranges(self, region: Region) -> list[Interval]:
        """Return the byte ranges of the frame that a region may occupy."""
        buffer = region.buffer
        if buffer.name not in self._group or buffer.is_sized:
            return []
        span = region.span
        size = buffer.dtype.itemsize
        first, last = (0, buffer.nbytes) if span is None else (span[0] * size, span[1] * size)
        starts = (self._placements[name].offset for name in self._group[buffer.name])
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


BoundExternals = Mapping[str, Mapping[str, frozenset[str]]]
"""For each function and each of its params, the external buffers that it may be bound to."""

Pairs = Mapping[str, Collection[frozenset[str]]]
"""For each function, the pairs of its params that one call may bind to overlapping memory."""


def check_aliases(
    program: DeviceProgram, places: Mapping[str, Places], touched: ItemRegions
) -> None:
    """Raise VerifyError if written memory has two names, or if a function does not declare a param
    that it writes."""
    functions = {function.name: function for function in program.tree.functions}
    bound_externals = _bound_externals(functions)
    pairs = _pairs(functions, places, bound_externals)
    for function in functions.values():
        written = _written(function, functions, touched)
        for buffer in written:
            if buffer.kind == "param" and buffer not in function.written:
                raise VerifyError(
                    f"function {function.name} writes {buffer.name}, which it does not declare"
                )
        _check_externals(function, {b.name for b in written}, bound_externals, touched)
        name = function.name
        meet = partial(
            _may_meet, places=places[name], bound_externals=bound_externals[name], pairs=pairs[name]
        )
        for call in function_calls(function):
            _check_call(call, functions[call.function], meet)
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
    for call in function_calls(function):
        written = functions[call.function].written
        found |= {access.buffer for param, access in call.tensors if param in written}
    return found


def _bound_externals(functions: Mapping[str, TreeFunction[Schedule]]) -> BoundExternals:
    bound_externals: dict[str, dict[str, frozenset[str]]] = {
        name: {param.name: frozenset[str]() for param in function.tensors}
        for name, function in functions.items()
    }
    changed = True
    while changed:
        changed = False
        for name, function in functions.items():
            for call in function_calls(function):
                for param, access in call.tensors:
                    theirs = bound_externals[call.function]
                    more = theirs[param.name] | _memory(access.buffer, bound_externals[name])
                    changed = changed or more != theirs[param.name]
                    theirs[param.name] = more
    return bound_externals


def _memory(buffer: Buffer, params: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the external buffers that a name in a function may refer to."""
    if buffer.kind == "param":
        return params[buffer.name]
    return frozenset() if buffer.kind in ("local", "items") else frozenset({buffer.name})


def _check_externals(
    function: TreeFunction[Schedule],
    written: set[str],
    bound_externals: BoundExternals,
    touched: ItemRegions,
) -> None:
    """Check that no param is bound to an external buffer that the function also accesses by its
    own name."""
    own = {buffer.name for buffer in _accessed(function, touched)}
    for param, externals in bound_externals[function.name].items():
        for name in sorted(externals & own):
            if param in written or name in written:
                raise VerifyError(
                    f"function {function.name} accesses {name} by its name and as {param}, "
                    "and writes it"
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


def _pairs(
    functions: Mapping[str, TreeFunction[Schedule]],
    places: Mapping[str, Places],
    bound_externals: BoundExternals,
) -> Pairs:
    found = {name: set[frozenset[str]]() for name in functions}
    changed = True
    while changed:
        changed = False
        for name, function in functions.items():
            meet = partial(
                _may_meet,
                places=places[name],
                bound_externals=bound_externals[name],
                pairs=found[name],
            )
            for call in function_calls(function):
                theirs = found[call.function]
                before = len(theirs)
                for (one, a), (other, b) in combinations(_bound(call), 2):
                    if meet(a, b):
                        theirs.add(frozenset((one.name, other.name)))
                changed = changed or len(theirs) != before
    return found


def _bound(call: Call[Schedule]) -> list[tuple[Buffer, Region]]:
    """Return the params of a call with the regions that it binds them to."""
    return [(param, bound_region(param, access, write=False)) for param, access in call.tensors]


def _may_meet(
    a: Region,
    b: Region,
    *,
    places: Places,
    bound_externals: Mapping[str, frozenset[str]],
    pairs: Collection[frozenset[str]],
) -> bool:
    """Return True if two regions of a function may overlap in some call of it. Params are compared
    by `pairs`: two that are bound to one external buffer in different calls do not overlap."""
    if a.buffer.name == b.buffer.name:
        return overlap(a, b)
    if places.meet(a, b) or frozenset((a.buffer.name, b.buffer.name)) in pairs:
        return True
    for one, other in ((a.buffer, b.buffer), (b.buffer, a.buffer)):
        if one.kind == "param" and other.kind != "param":
            return other.name in bound_externals[one.name]
    return False


def _check_call(
    call: Call[Schedule], callee: TreeFunction[Schedule], meet: Callable[[Region, Region], bool]
) -> None:
    bound = _bound(call)
    for param, region in bound:
        for other, seen in bound:
            if param is other or param not in callee.written:
                continue
            if meet(region, seen):
                raise VerifyError(
                    f"a call of {call.function} passes {region.buffer.name} as {other.name} and "
                    f"as {param.name}, which is written"
                )


def _check_kernel(name: str, places: Places, touched: ItemRegions) -> None:
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
