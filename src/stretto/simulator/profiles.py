"""Profiles of the nodes of a graph of launches: what each needs of a device, and does on it.

A launch of one kernel is as many blocks as units have tasks of it, and does what its tasks do.
Other launches, whose units wait for each other, and control nodes of the host are simulated by
themselves: they hold the whole device for so long. Library calls are estimated from their operands
by the table of `library_kernels.py`.
A launch that was compiled says what a block of it needs; everything else has the needs in
`ASSUMED`, which are assumptions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stretto.device.costs import CostModel
from stretto.device.evaluate import task_count
from stretto.device.operator import Kernel
from stretto.device.plan import Launch, Library
from stretto.device.program import DeviceProgram, Run
from stretto.device.tree import Leaf
from stretto.simulator.control import Assumed
from stretto.simulator.devices import Device
from stretto.simulator.graph_run import Profile
from stretto.simulator.library_kernels import library_estimate
from stretto.simulator.occupancy import BlockNeeds, limits_of
from stretto.simulator.on_chip import kept_in_loops
from stretto.simulator.residency import Residency
from stretto.simulator.simulate import simulate
from stretto.simulator.work import TENSOR_TEMPLATE, Known, Works


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What is assumed of kernels that nobody has compiled here.

    product, other: what a block needs of a kernel that multiplies matrices, and of any other one.
    """

    product: BlockNeeds
    other: BlockNeeds


ASSUMED = Assumptions(
    product=BlockNeeds(128, 168, 48 << 10),
    other=BlockNeeds(128, 64, 2 << 10),
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

    def kernel(self, kernel: Kernel, units: int) -> Profile:
        """A kernel as a launch of its own, whose tasks are dealt over so many units."""
        return self._kernel(self._works.kernel(kernel.name), units, None)

    def library(self, library: Library) -> Profile:
        found = library_estimate(library.call, self._device, self._costs)
        made = Profile(found.blocks, found.needs, found.overhead, found.compute,
                       operations=found.operations)  # fmt: skip
        made = self._moving(made, found.moved, 1)
        return replace(made, cache_bytes=made.cache_bytes + found.near)

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
