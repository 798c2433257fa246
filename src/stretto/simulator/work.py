"""Work of one task on a device: its seconds of arithmetic, and the bytes of each buffer that it
moves."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf, prod

from stretto.device.analyses import meetings
from stretto.device.costs import CostModel
from stretto.device.evaluate import Number, Ranges, span_range, task_count, tile_ranges
from stretto.device.expr import Access, Buffer, Extent, Index, Reg, Var
from stretto.device.operator import Combine, Kernel, Operator, as_executed
from stretto.device.program import DeviceProgram, Schedule
from stretto.device.program import Run as Tasks
from stretto.device.regions import index_range, kernel_regions
from stretto.device.runs import recursive_functions
from stretto.device.tree import If, Leaf, Node, children, is_loop
from stretto.ir.sizes import Product, Symbol
from stretto.simulator.devices import Device
from stretto.simulator.library_kernels import library_estimate

TENSOR_TEMPLATE = "dot"
"""The template of the CUDA machine that uses tensor cores."""


@dataclass(frozen=True, slots=True)
class KeptPart:
    """The loads of a kernel that a unit keeps on chip. shares: the part of each buffer, by name.
    shared_bytes: bytes that the task reads from shared memory; the rest is in registers."""

    shares: Mapping[str, float]
    shared_bytes: int = 0


Kept = Mapping[str, KeptPart]
"""By kernel."""


@dataclass(frozen=True, slots=True)
class TaskWork:
    """Work of one task. overhead: seconds before it works. compute: seconds of arithmetic on one
    unit. moved: bytes by buffer name, without those that stay within the task."""

    overhead: float
    compute: float
    moved: tuple[tuple[str, float], ...] = ()

    @property
    def nbytes(self) -> float:
        return sum(count for _, count in self.moved)

    def keeping(self, kept: KeptPart, device: Device) -> TaskWork:
        """Return the work if a unit has these parts of buffers on chip. Reads of shared memory do
        not overlap with the arithmetic on them."""
        left = ((name, count * (1 - kept.shares.get(name, 0.0))) for name, count in self.moved)
        moved = tuple((name, count) for name, count in left if count > 0)
        seconds = kept.shared_bytes / device.on_chip_bandwidth
        return replace(self, compute=self.compute + seconds, moved=moved)


class KnownRegisters(dict[str, Number]):
    """Registers by name; one whose value is not known has the usual one."""

    def __init__(self, values: Mapping[str, Number], usual: int) -> None:
        super().__init__(values)
        self._usual = usual

    def __missing__(self, name: str) -> Number:
        return self._usual


class Works:
    """Work of the tasks of a program on one device; tasks with equal tile sizes share one
    computation."""

    def __init__(self, kernels: tuple[Kernel, ...], device: Device, costs: CostModel) -> None:
        self._kernels = {kernel.name: as_executed(kernel) for kernel in kernels}
        self._device = device
        self._costs = costs
        self._known: dict[tuple[str, tuple[int, ...]], TaskWork] = {}

    def add(self, kernels: Iterable[Kernel]) -> None:
        """Add kernels; one whose name is known already is the same kernel."""
        for kernel in kernels:
            if kernel.name not in self._kernels:
                self._kernels[kernel.name] = as_executed(kernel)

    def kernel(self, name: str) -> Kernel:
        return self._kernels[name]

    def task(self, kernel: Kernel, task: int, registers: Mapping[str, Number]) -> TaskWork:
        """Return the work of one task. registers: a `KnownRegisters`."""
        tile = tile_ranges(kernel, task, registers)
        key = kernel.name, tuple(last - first for first, last in tile)
        if key not in self._known:
            self._known[key] = self._work(kernel, tile, registers)
        return self._known[key]

    def leaf_seconds(self, schedule: Schedule) -> float:
        """Estimate the seconds of work of the longest unit of a leaf, for comparing arms of
        branches."""
        usual = KnownRegisters({}, self._costs.unknown_trips)

        def seconds(item: Tasks) -> float:
            work = self.task(self._kernels[item.kernel], 0, usual)
            count = self._costs.unknown_trips if item.count is None else item.count
            alone = max(work.compute, work.nbytes / self._device.unit_bandwidth)
            return count * (work.overhead + alone)

        return max(
            (sum(seconds(i) for i in u if isinstance(i, Tasks)) for u in schedule.units),
            default=0.0,
        )

    def _work(self, kernel: Kernel, tile: Ranges, registers: Mapping[str, Number]) -> TaskWork:
        if kernel.call is not None:
            return self._call(kernel)
        compute, computes = 0.0, False
        moved: dict[str, float] = {}
        made: set[Buffer] = set()
        for stage in kernel.stages:
            operator = stage.operator
            box = tuple(span_range(span, tile, registers) for span in stage.box)
            points = prod((max(last - first, 0) for first, last in box), start=1)
            if not points:
                continue
            whole = max(self._costs.points(operator.dims), 1)
            compute += self._seconds(operator, stage.template.name) * points / whole
            computes = True
            self._add_moved(operator, box, made, moved)
            made.add(operator.out.buffer)
        if not computes:
            return TaskWork(self._device.start_seconds, 0.0)
        if self._device.trusts_estimates and kernel.seconds > 0:
            compute = max(kernel.seconds * self._full_share(kernel, tile), 0.0)
        overhead = self._device.start_seconds
        if any(True for stage in kernel.stages for _ in stage.operator.reads()):
            overhead += self._device.latency_seconds
        overhead += self._device.stage_seconds * meetings(kernel.stages)
        return TaskWork(overhead, compute, tuple(moved.items()))

    def _full_share(self, kernel: Kernel, tile: Ranges) -> float:
        """Return the size of a task relative to a full one; tasks at the edge may be smaller."""
        full, part = 1, 1
        for dim, (first, last) in zip(kernel.grid, tile, strict=True):
            extent = self._costs.size(dim.extent)
            full *= dim.tile if dim.parts is None else max(-(-extent // dim.parts), 1)
            part *= last - first
        return min(part / full, 1.0)

    def _seconds(self, operator: Operator, template: str) -> float:
        """Return the seconds of arithmetic of a whole operator on one unit."""
        device = self._device
        work = self._costs.work(operator)
        if operator.combine in (Combine.SUM, Combine.ATTENTION):
            found = [load.dtype for load in operator.reads()]
            dtype = max(found, key=lambda d: d.itemsize, default=operator.value.dtype)
            rate = device.peak(dtype, template == TENSOR_TEMPLATE)
        else:
            if operator.combine is not Combine.KERNEL:
                work -= self._costs.points((*operator.dims, *operator.reduce))
            rate = device.functions
        return max(work, 0) / (rate * device.efficiency / device.units)

    def _add_moved(
        self, operator: Operator, box: Ranges, made: set[Buffer], moved: dict[str, float]
    ) -> None:
        """Add the bytes that an operator loads and stores, except loads of a buffer that an
        earlier stage of the task has written: it is on chip."""
        ranges = (*box, *((0, self._costs.size(extent)) for extent in operator.reduce))
        accesses = [load.access for load in operator.reads() if load.access.buffer not in made]
        for access in dict.fromkeys((*accesses, operator.out)):
            buffer = access.buffer
            nbytes = self._touched(access, ranges) * buffer.dtype.itemsize
            most = self._costs.points(buffer.shape) * buffer.dtype.itemsize
            moved[buffer.name] = min(moved.get(buffer.name, 0) + nbytes, most)

    def _touched(self, access: Access, ranges: Ranges) -> float:
        """Return an upper bound of the elements of a buffer that an access touches."""
        used = {n for index in access.index for n in _variables(index) if n < len(ranges)}
        points = prod((ranges[n][1] - ranges[n][0] for n in used), start=1)
        region = 1
        for index, extent in zip(access.index, access.shape, strict=True):
            region *= self._length(index, extent, ranges)
        return min(points, region)

    def _length(self, index: Index, extent: Extent, ranges: Ranges) -> int:
        """Return an upper bound of the positions of a dim that an index takes."""
        most = max(self._costs.size(extent), 1)
        fixed = Index(tuple((a, c) for a, c in index.terms if not _is_fixed(a)), 0)
        found = index_range(fixed, ranges)
        return most if found is None else min(found[1] - found[0], most)

    def _call(self, kernel: Kernel) -> TaskWork:
        """Return the work of a library call, at the rates of the whole device; on a GPU it also
        ends the launch before it and begins another one after it."""
        assert kernel.call is not None
        device = self._device
        launches = 0 if device.trusts_estimates else 2
        overhead = device.start_seconds + launches * device.launch_seconds
        if device.trusts_estimates:
            buffers = {item for item in kernel.call.operands if isinstance(item, Buffer)}
            nbytes = sum(self._costs.points(b.shape) * b.dtype.itemsize for b in buffers)
            moving = nbytes / device.memory_bandwidth
            return TaskWork(overhead, max(device.call_seconds, moving, kernel.seconds))
        found = library_estimate(kernel.call, device, self._costs)
        seconds = max(device.call_seconds, found.seconds(device))
        return TaskWork(overhead + found.overhead, seconds)


def _variables(index: Index) -> set[int]:
    """Return the iteration variables that an index depends on, also through dynamic positions."""
    return {atom.number for atom in index.atoms() if isinstance(atom, Var)}


def _is_fixed(atom: object) -> bool:
    """True if an atom is the same for all iterations of a task."""
    if isinstance(atom, Product):
        return all(map(_is_fixed, atom.factors))
    return isinstance(atom, Reg | Symbol)


# ---- The buffers in the cache that all units share.


class Residency:
    """Whole buffers in the cache, with replacement of the least recently used.

    A program that fits into the cache finds all of its buffers there, as in the second of two
    calls; any other begins with an empty cache.
    """

    def __init__(self, capacity: int, costs: CostModel, kernels: Sequence[Kernel]) -> None:
        buffers: set[Buffer] = {r.buffer for kernel in kernels for r in kernel_regions(kernel)}
        self._capacity = capacity
        self._sizes = {b.name: costs.points(b.shape) * b.dtype.itemsize for b in buffers}
        self._fits = sum(self._sizes.values()) <= capacity
        self._held: OrderedDict[str, float] = OrderedDict()

    def touch(self, moved: Sequence[tuple[str, float]], tasks: int) -> frozenset[str]:
        """Record a kernel of `tasks` tasks that move these bytes each; return the buffers that
        were not in the cache."""
        if self._fits:
            return frozenset()
        missing = frozenset(name for name, _ in moved if name not in self._held)
        for name, nbytes in moved:
            most = self._sizes.get(name, nbytes * tasks)
            self._held[name] = max(self._held.get(name, 0.0), min(nbytes * tasks, most))
            self._held.move_to_end(name)
        while sum(self._held.values()) > self._capacity:
            self._held.popitem(last=False)
        return missing


# ---- Bandwidth that units share: each of n current transfers gets the same rate.
#
# The clock of a channel is the number of bytes that a transfer has got since the start. A
# transfer of b bytes ends when the clock has advanced by b, even if other transfers start or end
# meanwhile, so the current transfers are in one heap and nothing is recomputed when their number
# changes.


@dataclass(slots=True)
class Channel:
    """A shared rate. total: bytes per second of all transfers together. each: the most that one of
    them gets.

    Anything shared in this way can be transferred, such as arithmetic. Equal transfers that
    begin together are one entry with their number.
    """

    total: float
    each: float
    now: float = 0.0
    progress: float = 0.0
    under_way: int = 0
    ends: list[tuple[float, int, int]] = field(default_factory=list[tuple[float, int, int]])

    @property
    def rate(self) -> float:
        """Bytes per second of each current transfer."""
        return min(self.each, self.total / max(self.under_way, 1))

    @property
    def next_end(self) -> float:
        """Time when the next transfer ends, if no other one begins; infinite if there is none."""
        if not self.ends:
            return inf
        return max(self.now, self.now + (self.ends[0][0] - self.progress) / self.rate)

    def begin(self, now: float, unit: int, nbytes: float, count: int = 1) -> None:
        """Begin a transfer of a unit, or `count` of them, of `nbytes` each."""
        self._advance(now)
        self.under_way += count
        heappush(self.ends, (self.progress + nbytes, unit, count))

    def end(self, now: float) -> int:
        """End the next transfer, with those that began together with it, at `next_end`; return its
        unit."""
        reached, unit, count = self.ends[0]
        self._advance(now)
        # Rounding must not leave the clock before a transfer that has ended.
        self.progress = max(self.progress, reached)
        heappop(self.ends)
        self.under_way -= count
        return unit

    def _advance(self, now: float) -> None:
        self.progress += (now - self.now) * self.rate if self.ends else 0.0
        self.now = now


# ---- Weights that the units of a GPU keep on chip over a loop, estimated without printing the
# program.
#
# Choices between plans are made before anything is printed. A persistent kernel loads weights
# that a loop reads in every iteration once, and keeps them in registers and shared memory;
# separate launches read them again each time. So a comparison without this estimate favours
# launches.
#
# Assumptions: weights are the constants that a task reads at positions that depend only on its
# number. A unit keeps those of a kernel of which it has one task in every iteration of the
# innermost enclosing loop, the smallest kernels first, as long as they fit into
# `Device.kept_registers` and, after them, `Device.kept_shared`; in a recursive function all
# activations are iterations. Inner loops have priority over outer ones. Products on tensor cores,
# which load their factors step by step, keep nothing. The printer counts by blocks of loads, and
# ptxas may have fewer registers; the actual outcome is known only after the program is compiled.


LEAST_BYTES = 2048
"""Least number of bytes of a kernel's constants that a unit keeps."""


def kept_in_loops(program: DeviceProgram, device: Device, costs: CostModel) -> Kept:
    """Return what units keep of each kernel's constants."""
    if not device.kept_registers:
        return {}
    found = _Estimate(program, device, Works(program.kernels, device, costs), costs)
    recursive = recursive_functions(program.tree)
    for function in program.tree.functions:
        if function.name in recursive:
            found.keep(list(_leaves(function.body, branches=True)), 0)
        found.node(function.body)
    return found.kept


@dataclass(slots=True)
class _Estimate:
    """The estimate of one program. kept: by kernel."""

    program: DeviceProgram
    device: Device
    works: Works
    costs: CostModel
    kept: dict[str, KeptPart] = field(default_factory=dict[str, KeptPart])

    def node(self, node: Node[Schedule]) -> int:
        """Return the bytes that the loops in a node keep; of loops in sequence the maximum."""
        inner = max(map(self.node, children(node)), default=0)
        return self.keep(list(_iteration(node)), inner) if is_loop(node) else inner

    def keep(self, schedules: list[Schedule], taken: int) -> int:
        """Keep the constants that one iteration reads, in addition to `taken` bytes that inner
        loops keep; return the bytes of all."""
        counts = Counter(name for schedule in schedules for name in schedule.kernels)
        wanted: list[tuple[float, str, dict[str, float]]] = []
        for name, count in counts.items():
            constants = self.constants(self.works.kernel(name)) if count == 1 else {}
            if sum(constants.values()) >= LEAST_BYTES:
                wanted.append((sum(constants.values()), name, constants))
        in_registers, most = self.device.kept_registers, self._most
        for nbytes, name, constants in sorted(wanted, key=lambda one: one[:2]):
            part = min(max(most - taken, 0) / nbytes, 1.0)
            shared = max(taken + part * nbytes - max(in_registers, taken), 0.0)
            if part and name not in self.kept:
                self.kept[name] = KeptPart(dict.fromkeys(constants, part), round(shared))
                taken += round(part * nbytes)
        return taken

    @property
    def _most(self) -> int:
        return self.device.kept_registers + self.device.kept_shared

    def constants(self, kernel: Kernel) -> dict[str, float]:
        """Return the bytes of each constant that a kernel's task reads, if each unit has at most
        one task; else none."""
        registers = KnownRegisters({}, self.costs.unknown_trips)
        if kernel.call is not None or task_count(kernel, registers) > self.program.units:
            return {}
        if any(stage.template.name == TENSOR_TEMPLATE for stage in kernel.stages):
            return {}
        found = [load.access for stage in kernel.stages for load in stage.operator.reads()]
        moving = {access.buffer.name for access in found if not _is_constant_read(access)}
        fixed = {access.buffer.name for access in found if _is_constant_read(access)} - moving
        work = self.works.task(kernel, 0, registers)
        return {name: nbytes for name, nbytes in work.moved if name in fixed}


def _is_constant_read(access: Access) -> bool:
    """True if it accesses a constant, at positions that depend only on iteration variables."""
    atoms = (atom for index in access.index for atom in index.atoms())
    return access.buffer.kind == "constant" and all(isinstance(atom, Var) for atom in atoms)


def _iteration(loop: Node[Schedule]) -> Iterator[Schedule]:
    """Yield the leaves that run in every iteration of a loop, and in no inner loop."""
    for child in children(loop):
        yield from _leaves(child)


def _leaves(node: Node[Schedule], *, branches: bool = False) -> Iterator[Schedule]:
    if isinstance(node, Leaf):
        yield node.body
    elif not is_loop(node) and (branches or not isinstance(node, If)):
        for child in children(node):
            yield from _leaves(child, branches=branches)
