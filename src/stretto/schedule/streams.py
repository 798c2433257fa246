"""Which stream each node of a graph of launches is enqueued on, and which events that takes.

`opara_streams` is algorithm 1 of Opara (Chen et al., "Opara: Exploiting Operator Parallelism for
Expediting DNN Inference on GPUs", section 3.1): a node goes behind the first of the nodes before it
that no other node has gone behind, or else on a new stream. `fewest_events` leaves out what streams
and other events imply; `all_events` does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.device.launch_graph import Arrangement, ancestors, needed

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
    return _across(kept, order, streams)


def all_events(before: Before, order: Sequence[int], streams: Sequence[int]) -> Events:
    """An event for each edge between two streams."""
    return _across(before, order, streams)


def _across(before: Before, order: Sequence[int], streams: Sequence[int]) -> Events:
    return tuple(
        (earlier, number)
        for number in order
        for earlier in sorted(before[number])
        if streams[earlier] != streams[number]
    )


def implied(before: Before, edge: tuple[int, int]) -> bool:
    """Whether other edges say what an edge says."""
    earlier, later = edge
    known = ancestors(before, range(len(before)))
    return any(known[other] >> earlier & 1 for other in before[later] if other != earlier)


def arranged(
    before: Before, order: Sequence[int], streams: Sequence[int], fewest: bool = True
) -> Arrangement:
    """An order with its streams, and the events that these take."""
    find = fewest_events if fewest else all_events
    return Arrangement(tuple(order), tuple(streams), find(before, order, streams))
