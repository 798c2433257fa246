"""Order, streams and events with which the nodes of a launch graph are enqueued.

`Opara` is algorithm 2 of Opara (section 3.3): among the nodes whose predecessors are all enqueued,
memory-bound and compute-bound ones are taken in turns, and of either kind the one that needs least
of a multiprocessor comes first. Need is the largest of its shares of threads, registers and shared
memory; the paper's own implementation considers shared memory only. Each part can be switched off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from stretto.device.launch_graph import Arrangement, needed
from stretto.simulator.devices import Device, limits_of
from stretto.simulator.graph_run import Profile

# ---- Which stream each node of a graph of launches is enqueued on, and which events that takes.
#
# `opara_streams` is algorithm 1 of Opara (Chen et al., "Opara: Exploiting Operator Parallelism
# for Expediting DNN Inference on GPUs", section 3.1): a node goes behind the first of the nodes
# before it that no other node has gone behind, or else on a new stream. `fewest_events` leaves
# out what streams and other events imply; `events_between` does not.


Before = Sequence[Sequence[int]]
"""Predecessors of each node. The numbering of the nodes is a topological order."""
Events = tuple[tuple[int, int], ...]


def one_stream(before: Before) -> tuple[int, ...]:
    """Return stream 0 for every node."""
    return (0,) * len(before)


def opara_streams(before: Before) -> tuple[int, ...]:
    """Return the stream of each node. Only direct predecessors (those no other edge implies)
    count, so that no second stream is used where one already gives the order."""
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
    """Return the smallest set of events with which the streams keep the order.

    Streams and events together must make a node wait for all its predecessors, and for nothing else
    except what the streams themselves add. That order has a unique smallest set of pairs that
    implies it; the pairs that cross streams are the events, so there cannot be fewer.
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
    """Return the arrangement of an order and its streams, with the events they require."""
    return Arrangement(tuple(order), tuple(streams), fewest_events(before, order, streams))


Order = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Opara:
    """Options of Opara's order.

    in_turns: alternate between memory-bound and compute-bound nodes. by_needs: the node with the
    least need comes first, else the one that became ready first. only_shared: need is shared memory
    alone.
    """

    in_turns: bool = True
    by_needs: bool = True
    only_shared: bool = False

    def order(self, before: Before, profiles: Sequence[Profile], device: Device) -> Order:
        """Return the order of Opara's algorithm 2 on this device."""
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
    """Return the order of the plan."""
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
