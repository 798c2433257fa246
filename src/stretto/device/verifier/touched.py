"""Regions that the items of a DeviceProgram touch, for the verifier, and coverage of operators."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import prod

import numpy as np

from stretto.device.boxes import MOST_TASKS, part
from stretto.device.expr import (
    Access,
    Atom,
    ComputedPosition,
    Extent,
    Index,
    Reg,
    Var,
    is_known,
    known_size,
)
from stretto.device.operator import Kernel, Operator, Piece, Stage
from stretto.device.program import Item, Run
from stretto.device.regions import (
    Body,
    Interval,
    Region,
    block_regions,
    covers,
    intervals_overlap,
    kernel_reads,
    kernel_regions,
    merged,
    stage_regions,
    statement_regions,
    without_units,
)
from stretto.device.tree import Check, Let, Tree
from stretto.device.verifier.symbols import kernel_symbols
from stretto.errors import VerifyError

# ---- Kernels compute their operators: by a template that can, and every element once.
#
# An operator may be computed in parts, by several stages of the kernels of one leaf: their boxes
# together are its dims.


Part = tuple[Interval | None, ...]
"""The part of an operator's dims that a stage computes; None is the whole dim."""


def check_coverage(tree: Tree[Body]) -> None:
    """Raise VerifyError for an operator of which a part is not computed, or computed more than
    once.

    Parts whose size is known only at run time are not checked here.
    """
    for body in tree.leaves():
        parts: dict[Operator, list[Part]] = {}
        unknown: set[Operator] = set()
        for kernel in (item for item in body if isinstance(item, Kernel)):
            for stage in kernel.stages:
                part = computed_part(kernel, stage)
                if part is None:
                    unknown.add(stage.operator)
                else:
                    parts.setdefault(stage.operator, []).append(part)
        for operator, found in parts.items():
            if operator not in unknown:
                _check(operator, found)


def check_templates(kernels: Iterable[Kernel]) -> None:
    """Raise VerifyError for a stage whose template cannot compute its operator."""
    for kernel in kernels:
        for stage in kernel.stages:
            template = stage.template
            try:
                found = template.parsed(stage.operator, dict(template.choices), template.packed)
            except ValueError as error:
                raise VerifyError(
                    f"kernel {kernel.name}, template {template.name}: {error}"
                ) from error
            if found != template:
                raise VerifyError(
                    f"template {template.name} of kernel {kernel.name} is of another operator"
                )


def computed_part(kernel: Kernel, stage: Stage) -> Part | None:
    """Return the part that all tasks of a kernel compute in one of its stages; None if that is not
    known."""
    part: list[Interval | None] = []
    for span, dim in zip(stage.box, stage.operator.dims, strict=True):
        extent = span.extent if span.grid is None else kernel.grid[span.grid].extent
        if span.offset == 0 and extent == dim:
            part.append(None)
        elif isinstance(extent, int) and isinstance(dim, int):
            part.append((span.offset, span.offset + extent))
        else:
            return None
    return tuple(part)


def is_partition(operator: Operator, parts: Collection[Part]) -> bool:
    """Return True if parts cover an operator without overlap. Parts of a dim must be whole unless
    its size is a number."""
    if any(_overlap(one, other) for one, other in combinations(parts, 2)):
        return False
    fixed = [n for n, dim in enumerate(operator.dims) if isinstance(dim, int)]
    whole = {n: (0, dim) for n, dim in enumerate(operator.dims) if isinstance(dim, int)}
    lengths = (prod(b - a for a, b in (part[n] or whole[n] for n in fixed)) for part in parts)
    return sum(lengths) == prod(dim for _, dim in whole.values())


def _check(operator: Operator, parts: list[Part]) -> None:
    """Check the parts of one operator. A leaf may contain it several times; then all elements are
    computed equally often."""
    extents = [dim if isinstance(dim, int) else 1 for dim in operator.dims]
    size = prod(extents)
    boxes = [
        [(0, extent) if one is None else one for one, extent in zip(part, extents, strict=True)]
        for part in parts
    ]
    done = sum(prod(last - first for first, last in box) for box in boxes)
    if size and done % size:
        raise VerifyError(
            f"the kernels compute {done % size} of the {size} elements of operator {operator.name}"
        )
    if size and not _is_even(extents, boxes):
        raise VerifyError(
            f"a part of operator {operator.name} is computed more than once, another one "
            f"{'not at all' if done == size else 'less often'}"
        )


def _is_even(extents: Sequence[int], boxes: Sequence[Sequence[Interval]]) -> bool:
    """Return True if every element is in the same number of boxes."""
    cuts = [
        sorted({0, extent, *(end for box in boxes for end in box[dim])})
        for dim, extent in enumerate(extents)
    ]
    times = np.zeros([len(ends) - 1 for ends in cuts], np.int64)
    for box in boxes:
        pairs = zip(cuts, box, strict=True)
        times[tuple(slice(ends.index(low), ends.index(high)) for ends, (low, high) in pairs)] += 1
    return bool((times == times.flat[0]).all())


def _overlap(one: Part, other: Part) -> bool:
    return all(
        a is None or b is None or intervals_overlap(a, b) for a, b in zip(one, other, strict=True)
    )


class ItemRegions:
    """The regions of items, computed once per verification: they take most of the verifier's time.

    inside: kernels whose accesses `bounds` found to be in range, with the register ranges it
    assumed.
    """

    def __init__(self, kernels: Mapping[str, Kernel]) -> None:
        self.kernels = kernels
        self.inside: set[tuple[str, tuple[tuple[Reg, Interval], ...]]] = set()
        self._whole: dict[str, tuple[Region, ...]] = {}
        self._registers: dict[str, frozenset[Reg]] = {}
        self._sized: dict[str, bool] = {}
        self._exposed: dict[Run, tuple[Region, ...]] = {}
        self._regions: dict[Run, tuple[Region, ...]] = {}
        self._tasks: dict[tuple[str, int], tuple[tuple[Region, ...], ...]] = {}
        self._handed: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        self._apart: dict[str, frozenset[str]] = {}
        self._partly: dict[str, frozenset[str]] = {}

    def kernel(self, name: str) -> tuple[Region, ...]:
        """Return the regions that the tasks of a kernel touch."""
        if name not in self._whole:
            self._whole[name] = kernel_regions(self.kernels[name])
        return self._whole[name]

    def registers(self, name: str) -> frozenset[Reg]:
        """Return the registers that a kernel reads."""
        if name not in self._registers:
            self._registers[name] = frozenset(kernel_reads(self.kernels[name]))
        return self._registers[name]

    def is_sized(self, name: str) -> bool:
        """Return True if a kernel computes with sizes that are known only at the call."""
        if name not in self._sized:
            self._sized[name] = any(True for _ in kernel_symbols(self.kernels[name]))
        return self._sized[name]

    def tasks(self, name: str) -> int:
        """Return the number of tasks of a kernel whose grid is static."""
        kernel = self.kernels[name]
        return 1 if kernel.call is not None else kernel.tasks

    def partly_written(self, name: str) -> frozenset[str]:
        """Return the names of the buffers of which a kernel may write less than its regions."""
        if name not in self._partly:
            kernel = self.kernels[name]
            sized = self.is_sized(name)
            self._partly[name] = frozenset(
                operator.out.buffer.name
                for operator, stages in _by_operator(kernel.stages).items()
                if not (stores_whole(kernel, stages) if sized else stores_all(stages[0]))
            )
        return self._partly[name]

    def apart(self, name: str) -> frozenset[str]:
        """Return the names of the buffers of which each task of a kernel certainly accesses
        separate elements."""
        if name not in self._apart:
            self._apart[name] = frozenset(_apart(self.kernels[name]))
        return self._apart[name]

    def regions(self, item: Item) -> tuple[Region, ...]:
        """Return all regions that an item touches."""
        match item:
            case Run():
                if item not in self._regions:
                    self._regions[item] = self._of_run(item)
                return self._regions[item]
            case Let() | Check():
                return statement_regions(item)
            case _:
                return ()

    def _of_run(self, run: Run) -> tuple[Region, ...]:
        kernel = self.kernels[run.kernel]
        if run.count is None or kernel.call is not None:
            return self.kernel(run.kernel)
        if run.stride == 1 and (run.count > 1 or len(kernel.stages) == 1):
            return block_regions(kernel, run.first, run.count)
        if kernel.tasks > MOST_TASKS and run.count > 1:
            return self.kernel(run.kernel)
        tasks = range(run.first, kernel.tasks, run.stride)[: run.count]
        return tuple(r for task in tasks for stage in self._task(run.kernel, task) for r in stage)

    def _task(self, name: str, task: int) -> tuple[tuple[Region, ...], ...]:
        """Return the regions that a task touches, stage by stage."""
        if (name, task) not in self._tasks:
            self._tasks[name, task] = tuple(stage_regions(self.kernels[name], task))
        return self._tasks[name, task]

    def exposed(self, item: Item) -> tuple[Region, ...]:
        """Return the regions that an item reads without having written them before, in the same
        task."""
        match item:
            case Run():
                if item not in self._exposed:
                    self._exposed[item] = tuple(self._exposed_by(item))
                return self._exposed[item]
            case _:
                return self.regions(item)

    def _exposed_by(self, run: Run) -> Iterator[Region]:
        reads = [region for region in self.regions(run) if not region.write]
        kernel = self.kernels[run.kernel]
        if run.count is None and self.is_sized(run.kernel):
            own = self._written_before(kernel)
            yield from (r for r in reads if r.buffer.name not in own)
            return
        if len(kernel.stages) == 1 or run.count is None or kernel.call is not None:
            yield from reads
            return
        hidden, doubtful = self._internal_buffers(kernel)
        yield from (r for r in reads if r.buffer.name not in hidden | doubtful)
        if not doubtful:
            return
        partly = self.partly_written(run.kernel)
        found: dict[Region, None] = {}
        for task in range(run.first, kernel.tasks, run.stride)[: run.count]:
            for region in _unwritten(self._task(run.kernel, task), partly):
                if region.buffer.name in doubtful:
                    found[region] = None
        yield from found

    def _written_before(self, kernel: Kernel) -> frozenset[str]:
        """Return the names of buffers that stages write as a whole before others read them, if
        each task has separate elements: then the task that reads an element has written it."""
        written: set[str] = set()
        needed: set[str] = set()
        before: list[Stage] = []
        for stage in kernel.stages:
            needed |= {load.access.buffer.name for load in stage.operator.reads()} - written
            before.append(stage)
            if stores_whole(kernel, _by_operator(before)[stage.operator]):
                written.add(stage.operator.out.buffer.name)
        return frozenset(written & self.apart(kernel.name)) - needed

    def _internal_buffers(self, kernel: Kernel) -> tuple[frozenset[str], frozenset[str]]:
        """Return the names of buffers that stages write and later ones read: those that each task
        certainly writes before it reads them, and those for which it depends on the task.

        If each task has separate elements, those that all tasks together write before reading
        are written by the task that reads them.
        """
        if kernel.name not in self._handed:
            stages = kernel.stages
            read = {load.access.buffer.name for s in stages for load in s.operator.reads()}
            both = read & {stage.operator.out.buffer.name for stage in stages}
            partly = self.partly_written(kernel.name)
            needed = {r.buffer.name for r in _unwritten(stage_regions(kernel), partly)}
            hidden = (both & self.apart(kernel.name)) - needed
            self._handed[kernel.name] = frozenset(hidden), frozenset(both - hidden)
        return self._handed[kernel.name]


def _unwritten(stages: Iterable[tuple[Region, ...]], partly: frozenset[str]) -> Iterator[Region]:
    """Yield the regions that stages read and earlier ones have not certainly written."""
    written: list[Region] = []
    for regions in stages:
        for region in regions:
            if not region.write:
                yield from _missing(region, written)
        written += [r for r in regions if r.write and r.buffer.name not in partly]


def _missing(region: Region, written: list[Region]) -> Iterator[Region]:
    """Yield the parts of a region that the written ones together do not certainly contain."""
    same = [other for other in written if other.buffer == region.buffer]
    if not same:
        yield region
    if not same or any(covers(other, region) for other in same):
        return
    pieces = (part for one in (region, *same) for part in one.box if isinstance(part, Piece))
    if region.buffer.is_sized or any(pieces):
        if not any(covers(other, region) for other in merged(same)):
            yield region
        return
    missing = np.zeros(region.buffer.elements, np.bool_)
    part(missing, region)[...] = True
    for other in same:
        part(missing, other)[...] = False
    if not missing.any():
        return
    ends = [*(np.flatnonzero(missing[1:] != missing[:-1]) + 1).tolist()]
    ends = [0] * bool(missing[0]) + ends + [region.buffer.elements] * bool(missing[-1])
    for first, last in zip(ends[::2], ends[1::2], strict=True):
        yield Region(region.buffer, (region.buffer.elements,), ((first, last),), write=False)


def stores_all(stage: Stage) -> bool:
    """Return True if a stage certainly writes every element of its regions.

    It does if each index of the result is one variable, forwards or backwards, or a number,
    and all extents are numbers.
    """
    operator = stage.operator
    if not all(isinstance(extent, int) for extent in (*operator.dims, *operator.reduce)):
        return False
    used: set[int] = set()
    for index in operator.out.index:
        if len(index.terms) > 1:
            return False
        for atom, factor in index.terms:
            if not isinstance(atom, Var) or factor not in (1, -1) or atom.number in used:
                return False
            used.add(atom.number)
    return True


def _by_operator(stages: Iterable[Stage]) -> dict[Operator, list[Stage]]:
    found: dict[Operator, list[Stage]] = {}
    for stage in stages:
        found.setdefault(stage.operator, []).append(stage)
    return found


def stores_whole(kernel: Kernel, stages: Sequence[Stage]) -> bool:
    """Return True if all tasks of some stages of one operator together certainly write every
    element of a buffer.

    They do if each dim of the buffer is one parallel dim of the operator, of the same size,
    and the boxes of the tasks cover the operator.
    """
    operator, out = stages[0].operator, stages[0].operator.out
    if not all(map(is_known, (*operator.dims, *out.shape, *out.buffer.shape))):
        return False
    if known_size(out.shape) != known_size(out.buffer.shape):
        return False
    parts = {computed_part(kernel, stage) for stage in stages}
    if None in parts or not is_partition(operator, [part for part in parts if part is not None]):
        return False
    used: set[int] = set()
    for index, extent in zip(out.index, out.shape, strict=True):
        if extent == 1 and index == Index():
            continue
        if len(index.terms) != 1 or index.const or index.terms[0][1] != 1:
            return False
        atom = index.terms[0][0]
        if not isinstance(atom, Var) or atom.number in used or atom.number >= len(operator.dims):
            return False
        if operator.dims[atom.number] != extent:
            return False
        used.add(atom.number)
    return True


def _apart(kernel: Kernel) -> Iterator[str]:
    """Yield the buffers that all stages access with the position in each grid dim as one of the
    indices."""
    accesses: dict[str, list[tuple[Stage, Access]]] = {}
    for stage in kernel.stages:
        operator = stage.operator
        for access in (operator.out, *(load.access for load in operator.reads())):
            accesses.setdefault(access.buffer.name, []).append((stage, access))
    cut = [g for g, dim in enumerate(kernel.grid) if not (kernel.is_static and dim.tiles < 2)]
    for name, found in accesses.items():
        if all(_has_grid_position(found, grid, kernel.grid[grid].extent) for grid in cut):
            yield name


def _has_grid_position(found: list[tuple[Stage, Access]], grid: int, size: Extent) -> bool:
    """Return True if the position in this grid dim, of `size` positions, is one of the indices,
    the same in all accesses."""
    positions = [set(_positions(stage, access, grid, size)) for stage, access in found]
    shapes = {without_units(access.shape) for _, access in found}
    return bool(set.intersection(*positions)) and len(shapes) == 1


def _positions(
    stage: Stage, access: Access, grid: int, size: Extent
) -> Iterator[tuple[int, int, Index]]:
    """Yield (dim, factor, offset) for each index that is factor * position + offset.

    The offset is a number, or the same for all tasks. Offsets that differ by a multiple of
    all positions are equivalent: the four gates of an LSTM cell. Dims of size 1 are ignored
    unless they have an index that is not constant: a list with room for one item, whose
    number of items is known at run time.
    """
    pairs = zip(access.index, access.shape, strict=True)
    indices = [index for index, dim in pairs if dim != 1 or index.terms]
    for dim, index in enumerate(indices):
        offset = Index(const=index.const)
        moving: list[tuple[Atom, int]] = []
        for atom, factor in index.terms:
            if any(isinstance(inner, Var | ComputedPosition) for inner in Index.of(atom).atoms()):
                moving.append((atom, factor))
            else:
                offset = offset + Index(((atom, factor),))
        if len(moving) == 1:
            atom, factor = moving[0]
            if isinstance(atom, Var) and atom.number < len(stage.box):
                span = stage.box[atom.number]
                if span.grid == grid and factor:
                    offset = offset + factor * span.offset
                    if isinstance(size, int) and size:
                        offset = Index(offset.terms, offset.const % (factor * size))
                    yield dim, factor, offset
