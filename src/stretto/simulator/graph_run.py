"""A simulated run of a graph of launches: kernels side by side, event by event.

A node is ready some time after all that it waits for has ended. The device takes ready nodes in the
order in which they were enqueued, one after the other, and places their blocks where there is room:
threads, registers, shared memory. Blocks of a node that has come later wait until all of the one
before it have their place, as on a GPU whose kernels are of one priority. All blocks that run share
the arithmetic of the device, the bandwidth of its memory and that of its cache, equally, each up to
what one multiprocessor has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf

from stretto.device.launch_graph import Arrangement
from stretto.simulator.channel import Channel
from stretto.simulator.devices import Device
from stretto.simulator.occupancy import BlockNeeds, Room


@dataclass(frozen=True, slots=True)
class Profile:
    """What a node needs and does: `blocks` thread blocks, each with `needs`.

    overhead: seconds of a block in which it neither computes nor moves bytes. compute: seconds of
    arithmetic of all blocks, were they on one multiprocessor. operations: how many these are, where
    that is known. memory_bytes, cache_bytes: that all blocks move.
    """

    blocks: int
    needs: BlockNeeds
    overhead: float
    compute: float = 0.0
    memory_bytes: float = 0.0
    cache_bytes: float = 0.0
    operations: float = 0.0

    def is_memory_bound(self, device: Device) -> bool:
        """Whether its bytes take longer than its arithmetic, on the whole device."""
        moving = self.memory_bytes / device.memory_bandwidth
        moving += self.cache_bytes / device.cache_bandwidth
        return moving > self.compute / device.units


@dataclass(frozen=True, slots=True)
class GraphCosts:
    """gap: from the end of a node until one that waits for it begins. join: so much more where it
    waits for a node of another stream. enqueue: from the start of a node until the device takes the
    next ready one. begin: until the first node begins."""

    gap: float
    join: float
    enqueue: float
    begin: float


def captured_costs(device: Device) -> GraphCosts:
    """Of a graph that was captured. All of it is an estimate, as what it is derived from: half of
    what launches on a stream take, since the host has no part in it."""
    later = device.next_launch_seconds
    return GraphCosts(later / 2, later / 4, later / 8, device.launch_seconds)


def launched_costs(device: Device) -> GraphCosts:
    """Of launches that the host enqueues on streams one by one."""
    later = device.next_launch_seconds
    return GraphCosts(later, later / 4, later, device.launch_seconds)


@dataclass(frozen=True, slots=True)
class GraphRun:
    """seconds: of the run. starts, ends: of each node."""

    seconds: float
    starts: tuple[float, ...]
    ends: tuple[float, ...]


def run_graph(
    profiles: Sequence[Profile], arrangement: Arrangement, device: Device, costs: GraphCosts
) -> GraphRun:
    """A run of the nodes with these profiles, as they are arranged."""
    return _GraphSimulator(profiles, arrangement, device, costs).run()


@dataclass(slots=True)
class _Blocks:
    """Blocks of a node that began together. parts: what of their work has not ended."""

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
        profiles: Sequence[Profile],
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
        """Takes the first of the ready nodes, if the device may take one just now."""
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
