"""Simulated run of a graph of launches: kernels side by side, event by event.

A node is ready some time after all nodes that it waits for have ended. The device takes
ready nodes in the order in which they were enqueued, one after the other, and places their
blocks where there is room: threads, registers, shared memory. Blocks of a later node wait
until all of the previous one are placed, as on a GPU whose kernels are of one priority. All
running blocks share the arithmetic of the device, the bandwidth of its memory and that of
its cache, equally, each up to what one multiprocessor has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from math import inf

from stretto.device.costs import CostModel
from stretto.device.evaluate import task_count
from stretto.device.launch_graph import Arrangement
from stretto.device.operator import Kernel
from stretto.device.plan import Launch, Library
from stretto.device.program import DeviceProgram, Run
from stretto.device.tree import Leaf
from stretto.simulator.devices import BlockNeeds, Device, Room, limits_of
from stretto.simulator.library_kernels import library_estimate
from stretto.simulator.run_path import DefaultChoices
from stretto.simulator.simulate import simulate
from stretto.simulator.work import (
    TENSOR_TEMPLATE,
    Channel,
    KnownRegisters,
    Residency,
    Works,
    kept_in_loops,
)


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """Resources and work of a node: `blocks` thread blocks, each with `needs`.

    overhead: seconds of a block in which it neither computes nor moves bytes. compute: seconds
    of arithmetic of all blocks on one multiprocessor. operations: their number, 0 if not known.
    memory_bytes, cache_bytes: moved by all blocks.
    """

    blocks: int
    needs: BlockNeeds
    overhead: float
    compute: float = 0.0
    memory_bytes: float = 0.0
    cache_bytes: float = 0.0
    operations: float = 0.0

    def is_memory_bound(self, device: Device) -> bool:
        """True if its bytes take longer than its arithmetic, on the whole device."""
        moving = self.memory_bytes / device.memory_bandwidth
        moving += self.cache_bytes / device.cache_bandwidth
        return moving > self.compute / device.units


@dataclass(frozen=True, slots=True)
class GraphCosts:
    """Overheads of a graph, in seconds. gap: from the end of a node until one that waits for it
    begins. join: added to the gap if that waits for a node of another stream. enqueue: from the
    start of a node until the device takes the next ready one. begin: until the first node
    begins."""

    gap: float
    join: float
    enqueue: float
    begin: float


def captured_costs(device: Device) -> GraphCosts:
    """Return the costs of a captured graph. All of them are estimates, like the figures they are
    derived from: half of those of launches on a stream, since the host has no part in it."""
    later = device.next_launch_seconds
    return GraphCosts(later / 2, later / 4, later / 8, device.launch_seconds)


def launched_costs(device: Device) -> GraphCosts:
    """Return the costs of launches that the host enqueues on streams one by one."""
    later = device.next_launch_seconds
    return GraphCosts(later, later / 4, later, device.launch_seconds)


@dataclass(frozen=True, slots=True)
class GraphRun:
    """A simulated run; times in seconds. seconds: of the run. starts, ends: of each node."""

    seconds: float
    starts: tuple[float, ...]
    ends: tuple[float, ...]


def run_graph(
    profiles: Sequence[NodeProfile], arrangement: Arrangement, device: Device, costs: GraphCosts
) -> GraphRun:
    """Simulate a run of the nodes with these profiles, in the given arrangement."""
    return _GraphSimulator(profiles, arrangement, device, costs).run()


@dataclass(slots=True)
class _Blocks:
    """Blocks of a node that began together. parts: number of their resources whose work has not
    ended."""

    node: int
    count: int
    parts: int = 0


@dataclass(slots=True)
class _Node:
    waits: int
    unplaced: int
    running: int = 0
    followers: list[int] = field(default_factory=list[int])


class _GraphSimulator:
    def __init__(
        self,
        profiles: Sequence[NodeProfile],
        arrangement: Arrangement,
        device: Device,
        costs: GraphCosts,
    ) -> None:
        self.profiles, self.costs = profiles, costs
        self.place = {number: n for n, number in enumerate(arrangement.order)}
        waits = arrangement.waits
        streams = arrangement.streams
        self.joins = [
            any(streams[other] != streams[n] for other in found) for n, found in enumerate(waits)
        ]
        self.nodes = [_Node(len(found), profiles[n].blocks) for n, found in enumerate(waits)]
        for number, found in enumerate(waits):
            for other in found:
                self.nodes[other].followers.append(number)
        self.room = Room(device)
        self.channels = (
            Channel(float(device.units), 1.0),
            Channel(device.memory_bandwidth, device.unit_bandwidth),
            Channel(device.cache_bandwidth, device.unit_bandwidth * 2),
        )
        self.events: list[tuple[float, int, int, int]] = []
        self.counter = count()
        self.ready: list[tuple[int, int]] = []
        self.queue: deque[int] = deque()
        self.free_at = 0.0
        self.groups: list[_Blocks] = []
        self.starts = [inf] * len(profiles)
        self.ends = [inf] * len(profiles)

    # ---- events: a node is ready, the device takes the next one, blocks begin to work ----------
    READY, TAKE, WORK = range(3)

    def at(self, time: float, kind: int, number: int) -> None:
        heappush(self.events, (time, next(self.counter), kind, number))

    def run(self) -> GraphRun:
        for number, node in enumerate(self.nodes):
            if not node.waits:
                self.at(self.costs.begin, self.READY, number)
        while True:
            first = self.events[0][0] if self.events else inf
            channel = min(self.channels, key=lambda one: one.next_end)
            now = min(first, channel.next_end)
            if now == inf:
                break
            if channel.next_end <= first:
                self.part_ends(channel.end(now), now)
            else:
                self.handle(now)
        assert inf not in self.ends, "nodes that wait for each other"
        return GraphRun(max(self.ends, default=0.0), tuple(self.starts), tuple(self.ends))

    def handle(self, now: float) -> None:
        _, _, kind, number = heappop(self.events)
        if kind == self.READY:
            heappush(self.ready, (self.place[number], number))
            self.at(max(now, self.free_at), self.TAKE, number)
        elif kind == self.TAKE:
            self.take(now)
        else:
            self.work(number, now)

    def take(self, now: float) -> None:
        """Take the first of the ready nodes, if the device may take one now."""
        if not self.ready:
            return
        if now < self.free_at:
            self.at(self.free_at, self.TAKE, 0)
            return
        _, number = heappop(self.ready)
        self.free_at = now + self.costs.enqueue
        self.queue.append(number)
        self.place_blocks(now)

    def place_blocks(self, now: float) -> None:
        while self.queue:
            number = self.queue[0]
            node, profile = self.nodes[number], self.profiles[number]
            found = min(self.room.fits(profile.needs, node.running), node.unplaced)
            if found:
                self.room.take(profile.needs, found)
                node.unplaced -= found
                node.running += found
                self.starts[number] = min(self.starts[number], now)
                self.groups.append(_Blocks(number, found))
                self.at(now + profile.overhead, self.WORK, len(self.groups) - 1)
            if node.unplaced:
                return
            self.queue.popleft()

    def work(self, group: int, now: float) -> None:
        blocks = self.groups[group]
        profile = self.profiles[blocks.node]
        amounts = (profile.compute, profile.memory_bytes, profile.cache_bytes)
        for channel, amount in zip(self.channels, amounts, strict=True):
            if amount > 0:
                blocks.parts += 1
                channel.begin(now, group, amount / profile.blocks, blocks.count)
        if not blocks.parts:
            self.blocks_end(blocks, now)

    def part_ends(self, group: int, now: float) -> None:
        self.groups[group].parts -= 1
        if not self.groups[group].parts:
            self.blocks_end(self.groups[group], now)

    def blocks_end(self, blocks: _Blocks, now: float) -> None:
        node = self.nodes[blocks.node]
        self.room.take(self.profiles[blocks.node].needs, -blocks.count)
        node.running -= blocks.count
        if not node.running and not node.unplaced:
            self.node_ends(blocks.node, now)
        self.place_blocks(now)

    def node_ends(self, number: int, now: float) -> None:
        self.ends[number] = now
        for follower in self.nodes[number].followers:
            node = self.nodes[follower]
            node.waits -= 1
            if not node.waits:
                later = self.costs.gap + (self.costs.join if self.joins[follower] else 0.0)
                self.at(now + later, self.READY, follower)


# ---- Profiles of the nodes of a graph of launches: the resources that each needs, and its work.
#
# A launch of one kernel has as many blocks as units have tasks of it, and does the work of its
# tasks. Other launches, whose units wait for each other, and control nodes of the host are
# simulated separately: they occupy the whole device for that time. Library calls are estimated from
# their operands by the table of `library_kernels.py`. A compiled launch reports the needs of its
# blocks; everything else has the needs in `ASSUMED`, which are assumptions.


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Assumed needs of kernels that have not been compiled.

    product, other: the needs of a block of a kernel that multiplies matrices, and of any other one.
    """

    product: BlockNeeds
    other: BlockNeeds


ASSUMED = Assumptions(
    product=BlockNeeds(128, 168, 48 << 10),
    other=BlockNeeds(128, 64, 2 << 10),
)


class NodeProfiler:
    """Makes the profiles of a plan's actions; call it in the plan's order, in which buffers enter
    the cache. compiled: the needs of a block of a launch, by the `id` of the launch."""

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
        self._registers = KnownRegisters({}, costs.unknown_trips)
        self._compiled = compiled or {}

    def launch(self, launch: Launch) -> NodeProfile:
        body = launch.program.tree.main.body
        runs = body.body.units if isinstance(body, Leaf) else ()
        items = [item for unit in runs for item in unit if isinstance(item, Run)]
        if len({item.kernel for item in items}) != 1:
            return self.whole(self._alone(launch))
        kernel = self._works.kernel(items[0].kernel)
        return self._kernel(kernel, len(items), self._compiled.get(id(launch)))

    def kernel(self, kernel: Kernel, units: int) -> NodeProfile:
        """Return the profile of a kernel as a separate launch, whose tasks are shared among
        `units` units."""
        return self._kernel(self._works.kernel(kernel.name), units, None)

    def library(self, library: Library) -> NodeProfile:
        found = library_estimate(library.call, self._device, self._costs)
        made = NodeProfile(found.blocks, found.needs, found.overhead, found.compute,
                       operations=found.operations)  # fmt: skip
        made = self._moving(made, found.moved, 1)
        return replace(made, cache_bytes=made.cache_bytes + found.near)

    def whole(self, seconds: float) -> NodeProfile:
        """Return the profile of something that occupies the whole device for some seconds."""
        limits = limits_of(self._device)
        needs = BlockNeeds(limits.threads, limits.registers // limits.threads)
        return NodeProfile(self._device.units, needs, seconds)

    def _alone(self, launch: Launch) -> float:
        """Return the seconds of a launch by itself, without the launch overhead."""
        trips = DefaultChoices(self._costs.unknown_trips)
        kept = kept_in_loops(launch.program, self._device, self._costs)
        run = simulate(launch.program, self._device, trips, self._costs, kept)
        return max(run.seconds - self._device.launch_seconds, 0.0)

    def _kernel(self, kernel: Kernel, units: int, needs: BlockNeeds | None) -> NodeProfile:
        tasks = max(task_count(kernel, self._registers), 1)
        work = self._works.task(kernel, 0, self._registers)
        blocks = min(units, tasks)
        products = any(stage.template.name == TENSOR_TEMPLATE for stage in kernel.stages)
        default = ASSUMED.product if products else ASSUMED.other
        # A unit runs at most ceil(tasks / blocks) tasks, one after the other.
        overhead = work.overhead * -(-tasks // blocks)
        operations = sum(self._costs.work(stage.operator) for stage in kernel.stages)
        made = NodeProfile(blocks, needs or default, overhead, work.compute * tasks,
                       operations=float(operations))  # fmt: skip
        return self._moving(made, work.moved, tasks)

    def _moving(
        self, profile: NodeProfile, moved: Sequence[tuple[str, float]], tasks: int
    ) -> NodeProfile:
        """Return the profile with the bytes that tasks move, from memory or from the cache at this
        point."""
        missing = self._residency.touch(moved, tasks)
        far = sum(nbytes for name, nbytes in moved if name in missing) * tasks
        near = sum(nbytes for name, nbytes in moved if name not in missing) * tasks
        return replace(profile, memory_bytes=far, cache_bytes=near)


def guarded(profile: NodeProfile, taken: float, device: Device) -> NodeProfile:
    """Return the average profile of a launch that returns at once if its guards do not hold.
    taken: fraction of runs in which they hold, from 0 to 1. The time of each block to read them
    is **an estimate**: that of the first load of a task."""
    return replace(
        profile,
        overhead=device.latency_seconds + taken * profile.overhead,
        compute=taken * profile.compute,
        memory_bytes=taken * profile.memory_bytes,
        cache_bytes=taken * profile.cache_bytes,
        operations=taken * profile.operations,
    )
