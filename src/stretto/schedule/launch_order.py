"""In which order the nodes of a graph of launches are enqueued.

`OPARA` is algorithm 2 of Opara (section 3.3): of the nodes that nothing is before any more, memory-
and compute-bound ones are taken in turns, of either kind the one first that needs least of a
multiprocessor. "Needs" are threads, registers and shared memory, the largest of the three shares;
the paper's own implementation looks at shared memory only. Each part can be switched off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from stretto.device.launch_graph import Arrangement, needed
from stretto.simulator.devices import Device
from stretto.simulator.graph_run import Profile
from stretto.simulator.occupancy import limits_of

# ---- Which stream each node of a graph of launches is enqueued on, and which events that takes.
#
# `opara_streams` is algorithm 1 of Opara (Chen et al., "Opara: Exploiting Operator Parallelism
# for Expediting DNN Inference on GPUs", section 3.1): a node goes behind the first of the nodes
# before it that no other node has gone behind, or else on a new stream. `fewest_events` leaves
# out what streams and other events imply; `events_between` does not.


Before = Sequence[Sequence[int]]
"""For each node those before it. Numbers are in an order that the edges allow."""
Events = tuple[tuple[int, int], ...]


def one_stream(before: Before) -> tuple[int, ...]:
    return (0,) * len(before)


def opara_streams(before: Before) -> tuple[int, ...]:
    """Only what no other edge implies counts as before a node, so that no two streams are used
    where one has the order already."""
    streams: list[int] = []
    followed: set[int] = set()
    count = 0
    for earlier in needed(before, range(len(before))):
        free = next((one for one in earlier if one not in followed), None)
        if free is None:
            streams.append(count)
            count += 1
        else:
            followed.add(free)
            streams.append(streams[free])
    return tuple(streams)


def fewest_events(before: Before, order: Sequence[int], streams: Sequence[int]) -> Events:
    """The events without which the streams would not keep the order.

    Streams and events together must have a node wait for all that is before it, and for no more
    than the streams themselves add. That order has one smallest set of pairs that it follows from;
    those of them that are on two streams are the events, so there cannot be fewer.
    """
    both = [list(earlier) for earlier in before]
    for number, earlier in enumerate(Arrangement(tuple(order), tuple(streams)).waits):
        both[number] += earlier
    kept = needed(both, order)
    return events_between(kept, order, streams)


def events_between(before: Before, order: Sequence[int], streams: Sequence[int]) -> Events:
    """An event for each edge between two streams."""
    return tuple(
        (earlier, number)
        for number in order
        for earlier in sorted(before[number])
        if streams[earlier] != streams[number]
    )


def arranged(before: Before, order: Sequence[int], streams: Sequence[int]) -> Arrangement:
    """An order with its streams, and the fewest events that keep the order."""
    return Arrangement(tuple(order), tuple(streams), fewest_events(before, order, streams))


Order = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Opara:
    """in_turns: memory- and compute-bound nodes are taken in turns. by_needs: the least needs come
    first, else what was ready first. only_shared: needs are shared memory alone."""

    in_turns: bool = True
    by_needs: bool = True
    only_shared: bool = False

    def order(self, before: Before, profiles: Sequence[Profile], device: Device) -> Order:
        limits = limits_of(device)
        queues: tuple[list[tuple[float, int, int]], ...] = ([], [])
        entered = 0

        def enter(number: int) -> None:
            nonlocal entered
            profile = profiles[number]
            kind = int(self.in_turns and not profile.is_memory_bound(device))
            needs = profile.needs.share(limits)
            if self.only_shared:
                needs = profile.needs.shared_bytes / limits.shared_bytes
            heappush(queues[kind], (needs if self.by_needs else 0.0, entered, number))
            entered += 1

        def take(turn: int) -> int:
            queue = queues[turn % 2] or queues[1 - turn % 2]
            return heappop(queue)[2]

        return taken_one_by_one(before, enter, take)


def program_order(before: Before) -> Order:
    return tuple(range(len(before)))


def taken_one_by_one(
    before: Before, enter: Callable[[int], None], take: Callable[[int], int]
) -> Order:
    """The order in which nodes are taken. enter: is called with each node that waits for nothing
    any more. take: returns the next node, given the number of nodes that were taken before."""
    left = [len(set(earlier)) for earlier in before]
    followers: list[list[int]] = [[] for _ in before]
    for number, earlier in enumerate(before):
        for other in set(earlier):
            followers[other].append(number)
    for number, count in enumerate(left):
        if not count:
            enter(number)
    order: list[int] = []
    while len(order) < len(before):
        number = take(len(order))
        order.append(number)
        for follower in followers[number]:
            left[follower] -= 1
            if not left[follower]:
                enter(follower)
    return tuple(order)
