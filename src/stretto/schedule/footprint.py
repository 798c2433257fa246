"""Footprints: the regions of buffers that each unit touches when an item is divided, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from stretto.device.boxes import ALL, MOST_TASKS, Boxes, Limits, Mask, grouped, meeting
from stretto.device.expr import Buffer
from stretto.device.operator import Kernel
from stretto.device.program import Run
from stretto.device.regions import (
    Body,
    Interval,
    Region,
    Statement,
    block_regions,
    item_regions,
    kernel_reads,
    kernel_regions,
    overlap,
    statement_reads,
    statement_regions,
    task_regions,
)
from stretto.device.tree import Check, Let

# ---- Places of a function's local buffers in its frame, to find out if regions overlap in bytes.


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


@dataclass(frozen=True, slots=True)
class UnitTasks:
    """Tasks of one kernel that one unit runs, as in `Run`."""

    unit: int
    first: int
    count: int | None = 1
    stride: int = 1

    def run(self, kernel: Kernel) -> Run:
        """Return the part as an item of a schedule."""
        return Run(kernel.name, self.first, self.count, self.stride)


Parts = tuple[UnitTasks, ...]
Owners = NDArray[np.int64]
"""The unit of each row."""


@dataclass(frozen=True, slots=True, eq=False)
class Footprint:
    """Accesses of one kind to one buffer. `pieces`: regions, each with the number of its unit.

    present[u]: True if unit u touches anything.
    """

    buffer: Buffer
    write: bool
    pieces: tuple[tuple[Boxes, Owners], ...]
    present: Mask

    def under(self, buffer: Buffer) -> Footprint:
        """Return the footprint on the same places of another buffer."""
        pieces = tuple((boxes.under(buffer), owners) for boxes, owners in self.pieces)
        return replace(self, buffer=buffer, pieces=pieces)

    @property
    def is_lasting(self) -> bool:
        """True if the footprint still holds after registers have changed."""
        return all(boxes.lasting() is boxes for boxes, _ in self.pieces)


Groups = list[tuple[Boxes, Owners]]
"""Regions of one kind, and the owner of each: a unit, or a task."""


def _has_known_tasks(kernel: Kernel) -> bool:
    """True if the regions of each task are examined separately."""
    return kernel.call is None and kernel.is_static and kernel.tasks <= MOST_TASKS


def may_conflict(a: Footprint, b: Footprint, memory: MemoryMap | None = None) -> bool:
    """True if one of the footprints writes, and both touch the same buffer or (if `memory` is
    given) memory that may be shared."""
    return (a.write or b.write) and (memory is not None or a.buffer.name == b.buffer.name)


class Footprints:
    """Factory of footprints that also compares them; results of both are cached."""

    def __init__(self, units: int) -> None:
        self._units = units
        self._tasks: dict[str, Groups] = {}
        self._cut: dict[tuple[str, tuple[tuple[int, int | None, int], ...]], Groups] = {}
        self._parts: dict[tuple[str, int, int], tuple[Region, ...]] = {}
        self._made: dict[tuple[str, Parts], tuple[Footprint, ...]] = {}
        # Keeps the footprints alive, so that no other object can get their `id`.
        self._met: dict[tuple[int, int], tuple[Footprint, Footprint, Mask]] = {}
        self._bytes: dict[int, tuple[Footprint, Limits, Owners]] = {}
        self._lasting: dict[int, tuple[Footprint, Footprint]] = {}

    def of(self, item: Statement, parts: Parts) -> tuple[Footprint, ...]:
        """Return one footprint per buffer and kind of access. Every unit executes a register
        statement."""
        if not isinstance(item, Kernel):
            regions = statement_regions(item)
            pairs = ((u, region) for region in regions for u in range(self._units))
            return self._combined(grouped(pairs))
        key = item.name, parts
        if key not in self._made:
            by_task = _has_known_tasks(item) and all(part.stride != 1 for part in parts)
            groups = self._dealt(item, parts) if by_task else self._owned(item, parts)
            self._made[key] = self._combined(groups)
        return self._made[key]

    def cut(self, kernel: Kernel, parts: Parts) -> Groups:
        """Return the regions that the parts touch; owners are indices of parts. The result is
        cached, because it does not depend on the units of the parts."""
        key = kernel.name, tuple([(part.first, part.count, part.stride) for part in parts])
        if key not in self._cut:
            self._cut[key] = grouped(self._kernel(kernel, parts))
        return self._cut[key]

    def lasting(self, footprint: Footprint) -> Footprint:
        """Return the footprint as it holds after its leaf, where registers may have changed;
        always the same object for one footprint."""
        if id(footprint) not in self._lasting:
            made = footprint
            if not footprint.is_lasting:
                pieces = tuple((boxes.lasting(), owners) for boxes, owners in footprint.pieces)
                made = replace(footprint, pieces=pieces)
            self._lasting[id(footprint)] = footprint, made
        return self._lasting[id(footprint)][1]

    def overlap(self, a: Footprint, b: Footprint, memory: MemoryMap | None = None) -> Mask:
        """Return the mask [u, v]: True if the order of unit u's part of `a` and unit v's part of
        `b` matters.

        Two different buffers overlap where the frame gives them bytes in common.
        """
        if not may_conflict(a, b, memory):
            return np.zeros((self._units, self._units), np.bool_)
        key = id(a), id(b)
        if key not in self._met:
            self._met[key] = a, b, self._compared(a, b, memory)
        return self._met[key][2]

    def _compared(self, a: Footprint, b: Footprint, memory: MemoryMap | None) -> Mask:
        """Compute the mask of `overlap`: by bytes for different buffers, by regions otherwise."""
        met = np.zeros((self._units, self._units), np.bool_)
        names = a.buffer.name, b.buffer.name
        if names[0] != names[1] and (memory is None or names not in memory.alike):
            assert memory is not None
            (ours, our_units), (theirs, their_units) = (self._bytes_of(f, memory) for f in (a, b))
            rows, columns = np.nonzero(meeting(ours, theirs))
            met[our_units[rows], their_units[columns]] = True
            return met
        for boxes, our_units in a.pieces:
            for other, their_units in b.pieces:
                rows, columns = np.nonzero(boxes.overlap(other))
                met[our_units[rows], their_units[columns]] = True
        return met

    def _bytes_of(self, footprint: Footprint, memory: MemoryMap) -> tuple[Limits, Owners]:
        """Return the bytes of the frame that the pieces may touch."""
        if id(footprint) not in self._bytes:
            limits = np.concatenate([memory.bytes_of(boxes) for boxes, _ in footprint.pieces])
            owners = np.concatenate([owners for _, owners in footprint.pieces])
            self._bytes[id(footprint)] = footprint, limits, owners
        return self._bytes[id(footprint)][1:]

    def regions(self, kernel: Kernel, part: UnitTasks) -> tuple[Region, ...]:
        """Return the regions that the part touches."""
        if part.count is None or (part.stride != 1 and part.count != 1):
            return kernel_regions(kernel)
        key = kernel.name, part.first, part.count
        if key not in self._parts:
            self._parts[key] = block_regions(kernel, part.first, part.count)
        return self._parts[key]

    def _owned(self, kernel: Kernel, parts: Parts) -> Groups:
        """Return the regions of the parts, with their units."""
        units = np.array([part.unit for part in parts], np.int64)
        return [(boxes, units[numbers]) for boxes, numbers in self.cut(kernel, parts)]

    def _kernel(self, kernel: Kernel, parts: Parts) -> Iterator[tuple[int, Region]]:
        """Yield the regions of each part, with its number."""
        by_task = _has_known_tasks(kernel)
        for number, part in enumerate(parts):
            if part.stride == 1 or not by_task:
                yield from ((number, region) for region in self.regions(kernel, part))
                continue
            for task in range(part.first, kernel.tasks, part.stride)[: part.count]:
                yield from ((number, region) for region in task_regions(kernel, task))

    def _dealt(self, kernel: Kernel, parts: Parts) -> Groups:
        """Return the regions of all tasks with the unit of each task. The regions do not depend on
        how tasks are dealt; only the units do."""
        if kernel.name not in self._tasks:
            every = ((t, r) for t in range(kernel.tasks) for r in task_regions(kernel, t))
            self._tasks[kernel.name] = grouped(every)
        owner = np.full(kernel.tasks, -1, np.int64)
        for part in parts:
            end = None if part.count is None else part.first + part.count * part.stride
            owner[part.first : end : part.stride] = part.unit
        assert (owner >= 0).all(), "tasks that no part has"
        return [(boxes, owner[tasks]) for boxes, tasks in self._tasks[kernel.name]]

    def _combined(self, groups: Groups) -> tuple[Footprint, ...]:
        """Return one footprint per buffer and kind of access."""
        pieces: dict[tuple[str, bool], list[tuple[Boxes, Owners]]] = {}
        for boxes, owners in groups:
            pieces.setdefault((boxes.buffer.name, boxes.write), []).append((boxes, owners))
        return tuple(
            Footprint(found[0][0].buffer, write, tuple(found), self._present(found))
            for (_, write), found in pieces.items()
        )

    def _present(self, pieces: Iterable[tuple[Boxes, Owners]]) -> Mask:
        present = np.zeros(self._units, np.bool_)
        for _, owners in pieces:
            present[owners] = True
        return present


# ---- Dependence graph of a leaf.


@dataclass(frozen=True, slots=True)
class Node:
    """An item of a leaf. `before`: indices of items that must come first; `depth`: its level."""

    index: int
    item: Statement
    regions: tuple[Region, ...]
    before: tuple[int, ...]
    depth: int


def leaf_nodes(body: Body) -> tuple[Node, ...]:
    """Return the dependence graph of straight-line code, in program order.

    An item depends on earlier ones that access the same memory (one of them writing), on those that
    assign the registers it reads or read the one it assigns, and on every earlier check, because
    code after a check may rely on it.
    """
    nodes: list[Node] = []
    finder = _ConflictFinder()
    for index, item in enumerate(body):
        regions = item_regions(item)
        before = finder.before(index, item, regions)
        depth = 1 + max((nodes[other].depth for other in before), default=-1)
        nodes.append(Node(index, item, regions, tuple(sorted(before)), depth))
    return tuple(nodes)


class _ConflictFinder:
    """Accesses of the earlier items of a leaf."""

    def __init__(self) -> None:
        self._reads: dict[str, list[tuple[int, Region]]] = {}
        self._writes: dict[str, list[tuple[int, Region]]] = {}
        self._assigned: dict[str, int] = {}
        self._readers: dict[str, list[int]] = {}
        self._statement: int | None = None
        self._check: int | None = None

    def before(self, index: int, item: Statement, regions: tuple[Region, ...]) -> set[int]:
        """Return the items that must come before this one, and record this one."""
        found = {other for region in regions for other in self._conflicts(region)}
        if self._check is not None:
            found.add(self._check)
        if isinstance(item, Kernel):
            reads = kernel_reads(item)
        else:
            reads = statement_reads(item)
            # All units must execute the statements in the same order.
            if self._statement is not None:
                found.add(self._statement)
            self._statement = index
            if isinstance(item, Check):
                self._check = index
        names = {reg.name for reg in reads}
        found |= {self._assigned[name] for name in names if name in self._assigned}
        for name in names:
            self._readers.setdefault(name, []).append(index)
        if isinstance(item, Let):
            found |= set(self._readers.pop(item.reg.name, ())) - {index}
            self._assigned[item.reg.name] = index
        for region in regions:
            accesses = self._writes if region.write else self._reads
            accesses.setdefault(region.buffer.name, []).append((index, region))
        return found

    def _conflicts(self, region: Region) -> set[int]:
        """Return the earlier items whose accesses conflict with this region."""
        found = self._writes.get(region.buffer.name, [])
        if region.write:
            found = found + self._reads.get(region.buffer.name, [])
        return {other for other, earlier in found if conflict(earlier, region)}


def conflict(a: Region, b: Region) -> bool:
    """True if the order of two accesses to the memory of one buffer may matter."""
    return (a.write or b.write) and a.buffer.name == b.buffer.name and overlap(a, b)
