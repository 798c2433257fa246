"""Profiles of the nodes of a graph of launches: what each needs of a device, and does on it.

A launch of one kernel is as many blocks as units have tasks of it, and does what its tasks do.
Other launches, whose units wait for each other, and control nodes of the host are simulated by
themselves: they hold the whole device for so long. Library calls are estimated from their operands.
A launch that was compiled says what a block of it needs; everything else has the needs in
`ASSUMED`, which are assumptions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stretto.device.costs import CostModel
from stretto.device.evaluate import task_count
from stretto.device.expr import Buffer
from stretto.device.operator import Kernel
from stretto.device.plan import Launch, Library
from stretto.device.program import DeviceProgram, Run
from stretto.device.regions import call_buffers
from stretto.device.tree import Leaf
from stretto.ir.types import DType
from stretto.simulator.control import Assumed
from stretto.simulator.devices import Device
from stretto.simulator.graph_run import Profile
from stretto.simulator.library_work import LibraryWork, library_work
from stretto.simulator.occupancy import BlockNeeds, limits_of
from stretto.simulator.on_chip import kept_in_loops
from stretto.simulator.residency import Residency
from stretto.simulator.simulate import simulate
from stretto.simulator.work import TENSOR_TEMPLATE, Known, Works


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What is assumed of kernels that nobody has compiled here.

    product, other: what a block needs of a kernel that multiplies matrices, and of any other one.
    tile: results of a block of a product of a library. elements: results of a block of another of
    its kernels. least_depth: products whose sums are as long are cut along them, too.
    """

    product: BlockNeeds
    other: BlockNeeds
    tile: int
    elements: int
    least_depth: int


ASSUMED = Assumptions(
    product=BlockNeeds(128, 168, 48 << 10),
    other=BlockNeeds(128, 64, 2 << 10),
    tile=64 * 64,
    elements=1024,
    least_depth=256,
)


class Profiler:
    """Makes the profiles of a plan's actions in the plan's order, in which buffers come into the
    cache. compiled: what a block of a launch needs, by the `id` of the launch."""

    def __init__(
        self,
        program: DeviceProgram,
        device: Device,
        costs: CostModel,
        compiled: Mapping[int, BlockNeeds] | None = None,
    ) -> None:
        self._device, self._costs = device, costs
        self._works = Works(program.kernels, device, costs)
        self._residency = Residency(device.cache_bytes, costs, program.kernels)
        self._registers = Known({}, costs.unknown_trips)
        self._compiled = compiled or {}

    def launch(self, launch: Launch) -> Profile:
        body = launch.program.tree.main.body
        runs = body.body.units if isinstance(body, Leaf) else ()
        items = [item for unit in runs for item in unit if isinstance(item, Run)]
        if len({item.kernel for item in items}) != 1:
            return self.whole(self._alone(launch))
        kernel = self._works.kernel(items[0].kernel)
        return self._kernel(kernel, len(items), self._compiled.get(id(launch)))

    def library(self, library: Library) -> Profile:
        call, device = library.call, self._device
        work = library_work(call, self._costs)
        dtype = call.outs[0].dtype if call.outs else DType.F32
        rate = device.peak(dtype, True) if work.depth else device.functions
        needs = ASSUMED.product if work.depth else ASSUMED.other
        moved = [(b.name, float(self._nbytes(b))) for b in {*call_buffers(call), *call.outs}]
        moved.sort()
        overhead = device.start_seconds + device.latency_seconds
        compute = work.operations / (rate * device.efficiency / device.units)
        made = Profile(_blocks(work, device.units), needs, overhead, compute,
                       operations=work.operations)  # fmt: skip
        return self._moving(made, moved, 1)

    def whole(self, seconds: float) -> Profile:
        """What holds the whole device for so long."""
        limits = limits_of(self._device)
        needs = BlockNeeds(limits.threads, limits.registers // limits.threads)
        return Profile(self._device.units, needs, seconds)

    def _alone(self, launch: Launch) -> float:
        """Seconds of a launch by itself, without the beginning."""
        trips = Assumed(self._costs.unknown_trips)
        kept = kept_in_loops(launch.program, self._device, self._costs)
        run = simulate(launch.program, self._device, trips, self._costs, kept)
        return max(run.seconds - self._device.launch_seconds, 0.0)

    def _kernel(self, kernel: Kernel, units: int, needs: BlockNeeds | None) -> Profile:
        tasks = max(task_count(kernel, self._registers), 1)
        work = self._works.task(kernel, 0, self._registers)
        blocks = min(units, tasks)
        products = any(stage.template.name == TENSOR_TEMPLATE for stage in kernel.stages)
        default = ASSUMED.product if products else ASSUMED.other
        # Of all tasks a unit has at most so many, one after the other.
        overhead = work.overhead * -(-tasks // blocks)
        operations = sum(self._costs.work(stage.operator) for stage in kernel.stages)
        made = Profile(blocks, needs or default, overhead, work.compute * tasks,
                       operations=float(operations))  # fmt: skip
        return self._moving(made, work.moved, tasks)

    def _moving(self, profile: Profile, moved: Sequence[tuple[str, float]], tasks: int) -> Profile:
        """The profile with the bytes that tasks move, by where they lie just then."""
        missing = self._residency.touch(moved, tasks)
        far = sum(nbytes for name, nbytes in moved if name in missing) * tasks
        near = sum(nbytes for name, nbytes in moved if name not in missing) * tasks
        return replace(profile, memory_bytes=far, cache_bytes=near)

    def _nbytes(self, buffer: Buffer) -> int:
        return self._costs.points(buffer.shape) * buffer.dtype.itemsize


def guarded(profile: Profile, taken: float, device: Device) -> Profile:
    """A launch that returns at once where its guards do not hold, as it is on average. taken: how
    often they hold, from 0 to 1. What each block takes to look at them is **an estimate**: as long
    as the first load of a task."""
    return replace(
        profile,
        overhead=device.latency_seconds + taken * profile.overhead,
        compute=taken * profile.compute,
        memory_bytes=taken * profile.memory_bytes,
        cache_bytes=taken * profile.cache_bytes,
        operations=taken * profile.operations,
    )


def _blocks(work: LibraryWork, units: int) -> int:
    """The blocks of a library's kernel: a tile each, of products cut along their sums where there
    are fewer tiles than units."""
    if not work.depth:
        return max(-(-work.results // ASSUMED.elements), 1)
    tiles = max(-(-work.results // ASSUMED.tile), 1)
    return tiles * max(min(units // tiles, work.depth // ASSUMED.least_depth), 1)
