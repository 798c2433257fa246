"""What the items of a DeviceProgram touch, for the verifier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from stretto.kernels.expr import Access, Atom, Dynamic, Index, Reg, Var
from stretto.kernels.operator import Kernel, Operator, Stage
from stretto.kernels.regions import (
    Interval,
    Region,
    block_regions,
    covers,
    kernel_regions,
    kernel_registers,
    stage_regions,
    statement_regions,
)
from stretto.kernels.tree import Check, Let
from stretto.schedule.boxes import MOST_TASKS, part
from stretto.schedule.program import Item, Run


class Touched:
    """Looks at every run once: regions of many tasks are most of the verifier's time.

    inside: kernels whose accesses `bounds` has found to be in range, with what it knew then.
    """

    def __init__(self, kernels: Mapping[str, Kernel]) -> None:
        self.kernels = kernels
        self.inside: set[tuple[str, tuple[tuple[Reg, Interval], ...]]] = set()
        self._whole: dict[str, tuple[Region, ...]] = {}
        self._registers: dict[str, frozenset[str]] = {}
        self._exposed: dict[Run, tuple[Region, ...]] = {}
        self._regions: dict[Run, tuple[Region, ...]] = {}
        self._apart: dict[str, frozenset[str]] = {}
        self._partly: dict[str, frozenset[str]] = {}

    def kernel(self, name: str) -> tuple[Region, ...]:
        """All that the tasks of a kernel touch."""
        if name not in self._whole:
            self._whole[name] = kernel_regions(self.kernels[name])
        return self._whole[name]

    def registers(self, name: str) -> frozenset[str]:
        """Names of the registers that a kernel reads."""
        if name not in self._registers:
            self._registers[name] = frozenset(kernel_registers(self.kernels[name]))
        return self._registers[name]

    def partly_written(self, name: str) -> frozenset[str]:
        """Names of the buffers of which a kernel's regions tell more than it surely writes."""
        if name not in self._partly:
            stages = self.kernels[name].stages
            operators = [stage.operator for stage in stages if not stores_all(stage)]
            self._partly[name] = frozenset(operator.out.buffer.name for operator in operators)
        return self._partly[name]

    def apart(self, name: str) -> frozenset[str]:
        """Names of the buffers of which each task of a kernel surely has elements of its own."""
        if name not in self._apart:
            self._apart[name] = frozenset(_apart(self.kernels[name]))
        return self._apart[name]

    def regions(self, item: Item) -> tuple[Region, ...]:
        """All that an item touches."""
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
        if kernel.is_static and run.stride != 1 and kernel.tasks > MOST_TASKS:
            return self.kernel(run.kernel)
        if run.count != 1 and run.stride == 1:
            return block_regions(kernel, run.first, run.count or 1)
        return tuple(region for step in self._steps(run) for region in step)

    def exposed(self, item: Item) -> tuple[Region, ...]:
        """What an item reads that it has not written before, in the same task."""
        match item:
            case Run():
                if item not in self._exposed:
                    self._exposed[item] = tuple(self._exposed_by(item))
                return self._exposed[item]
            case _:
                return self.regions(item)

    def _exposed_by(self, run: Run) -> Iterator[Region]:
        kernel = self.kernels[run.kernel]
        if len(kernel.stages) == 1 or run.count is None or kernel.call is not None:
            yield from (region for region in self.regions(run) if not region.write)
            return
        partly = self.partly_written(run.kernel)
        found: dict[Region, None] = {}
        for task in range(run.first, kernel.tasks, run.stride)[: run.count]:
            written: list[Region] = []
            for regions in stage_regions(kernel, task):
                for region in regions:
                    if not region.write and not _is_covered(region, written):
                        found[region] = None
                more = [r for r in regions if r.write and r.buffer.name not in partly]
                written += more
        yield from found

    def _steps(self, run: Run) -> Iterator[tuple[Region, ...]]:
        kernel = self.kernels[run.kernel]
        if run.count is None or kernel.call is not None:
            yield self.kernel(run.kernel)
        elif len(kernel.stages) == 1 and run.stride == 1:
            yield block_regions(kernel, run.first, run.count)
        else:
            for task in range(run.first, kernel.tasks, run.stride)[: run.count]:
                yield from stage_regions(kernel, task)


def _is_covered(region: Region, written: list[Region]) -> bool:
    """Do the written regions together surely contain the whole of a region?"""
    same = [other for other in written if other.buffer == region.buffer]
    if not same or any(covers(other, region) for other in same):
        return bool(same)
    mask = np.zeros(region.buffer.elements, np.bool_)
    for other in same:
        part(mask, other)[...] = True
    return bool(part(mask, region).all())


def stores_all(stage: Stage) -> bool:
    """Does a stage surely write every element of its regions?

    It does if each index of the result is one variable, forwards or backwards, or a number, and no
    extent is known at run time only.
    """
    operator = stage.operator
    if any(isinstance(extent, Reg) for extent in _extents(operator)):
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


def _extents(operator: Operator) -> tuple[int | Reg, ...]:
    return (*operator.dims, *operator.reduce)


def _apart(kernel: Kernel) -> Iterator[str]:
    """Buffers that all stages access with the position in each grid dim as one of the indices."""
    accesses: dict[str, list[tuple[Stage, Access]]] = {}
    for stage in kernel.stages:
        operator = stage.operator
        for access in (operator.out, *(load.access for load in operator.reads())):
            accesses.setdefault(access.buffer.name, []).append((stage, access))
    cut = [g for g, dim in enumerate(kernel.grid) if not (kernel.is_static and dim.tiles < 2)]
    for name, found in accesses.items():
        if all(_is_told_by(found, grid) for grid in cut):
            yield name


def _is_told_by(found: list[tuple[Stage, Access]], grid: int) -> bool:
    """Is there an index that is the position in this grid dim, the same in all accesses?"""
    positions = [set(_positions(stage, access, grid)) for stage, access in found]
    return bool(set.intersection(*positions)) and len({access.shape for _, access in found}) == 1


def _positions(stage: Stage, access: Access, grid: int) -> Iterator[tuple[int, int, Index]]:
    """(dim, factor, offset) of each index that is factor * position + offset.

    The offset is a number, or the same for all tasks.
    """
    for dim, index in enumerate(access.index):
        offset = Index(const=index.const)
        moving: list[tuple[Atom, int]] = []
        for atom, factor in index.terms:
            if any(isinstance(inner, Var | Dynamic) for inner in Index.of(atom).atoms()):
                moving.append((atom, factor))
            else:
                offset = offset + Index(((atom, factor),))
        if len(moving) == 1:
            atom, factor = moving[0]
            if isinstance(atom, Var) and atom.number < len(stage.box):
                span = stage.box[atom.number]
                if span.grid == grid and factor:
                    yield dim, factor, offset + factor * span.offset
