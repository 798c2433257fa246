"""Streams and events of graphs of launches, and the orders in which nodes are enqueued."""

from __future__ import annotations

import random
from itertools import product

import pytest

from benchmarks.scheduling.enqueuing import all_orders, breadth_first, depth_first, random_order
from stretto.device.launch_graph import Arrangement, ancestors
from stretto.schedule.launch_graph import (
    Before,
    Opara,
    arranged,
    events_between,
    fewest_events,
    one_stream,
    opara_streams,
    program_order,
)
from stretto.simulator.devices import H200, BlockNeeds
from stretto.simulator.graph_run import NodeProfile

CHAIN: Before = ((), (0,), (1,), (2,))
DIAMOND: Before = ((), (0,), (0,), (1, 2))
INCEPTION: Before = ((), (0,), (0,), (2,), (0,), (4,), (0,), (1, 3, 5, 6))
"""Four branches of one or two nodes between a node and a sum."""


def random_graph(seed: int, nodes: int = 7) -> Before:
    draw = random.Random(seed)
    return tuple(tuple(m for m in range(n) if draw.random() < 0.35) for n in range(nodes))


def test_a_chain_needs_one_stream() -> None:
    assert opara_streams(CHAIN) == (0, 0, 0, 0)


def test_a_diamond_needs_two_and_two_events() -> None:
    streams = opara_streams(DIAMOND)
    assert streams == (0, 0, 1, 0)
    assert fewest_events(DIAMOND, range(4), streams) == ((0, 2), (2, 3))


def test_each_branch_has_a_stream() -> None:
    streams = opara_streams(INCEPTION)
    assert streams == (0, 0, 1, 1, 2, 2, 3, 0)
    assert fewest_events(INCEPTION, range(8), streams) == (
        (0, 2), (0, 4), (0, 6), (3, 7), (5, 7), (6, 7))  # fmt: skip


def test_one_stream_needs_no_events() -> None:
    assert fewest_events(INCEPTION, range(8), one_stream(INCEPTION)) == ()


def test_an_event_that_another_one_implies_is_left_out() -> None:
    before: Before = ((), (), (0,), (0, 2))
    streams = (0, 1, 1, 1)
    assert events_between(before, range(4), streams) == ((0, 2), (0, 3))
    assert fewest_events(before, range(4), streams) == ((0, 2),)


@pytest.mark.parametrize("seed", range(12))
def test_no_fewer_events_would_do(seed: int) -> None:
    """All sets of fewer events are tried, of pairs that the streams may wait for."""
    before = random_graph(seed, 6)
    order = random_order(before, seed)
    streams = opara_streams(before)
    found = fewest_events(before, order, streams)
    assert keeps(before, order, streams, found)
    reached = ancestors(Arrangement(order, streams, found).waits, order)
    pairs = [
        (a, b) for b in order for a in order if reached[b] >> a & 1 and streams[a] != streams[b]
    ]
    if len(pairs) > 10:
        pairs = list(found)
    for choice in product((False, True), repeat=len(pairs)):
        events = tuple(pair for pair, taken in zip(pairs, choice, strict=True) if taken)
        assert len(events) >= len(found) or not keeps(before, order, streams, events)


def keeps(before: Before, order, streams, events) -> bool:  # pyright: ignore
    known = ancestors(Arrangement(tuple(order), tuple(streams), events).waits, order)
    return all(known[n] >> m & 1 for n, earlier in enumerate(before) for m in earlier)


NEEDS = BlockNeeds(128, 32, 1 << 10)


def profile(compute: float = 0.0, nbytes: float = 0.0, needs: BlockNeeds = NEEDS) -> NodeProfile:
    return NodeProfile(1, needs, 0.0, compute, nbytes)


def test_opara_takes_kinds_in_turns() -> None:
    before: Before = ((), (), (), ())
    profiles = [
        profile(nbytes=1e6),
        profile(nbytes=1e6),
        profile(compute=1.0),
        profile(compute=1.0),
    ]
    assert Opara().order(before, profiles, H200) == (0, 2, 1, 3)
    assert Opara(in_turns=False).order(before, profiles, H200) == (0, 1, 2, 3)


def test_opara_takes_the_least_needs_first() -> None:
    large, many = BlockNeeds(128, 32, 100 << 10), BlockNeeds(1024, 32, 512)
    profiles = [profile(needs=large), profile(needs=many), profile()]
    before: Before = ((), (), ())
    assert Opara().order(before, profiles, H200) == (2, 0, 1)
    assert Opara(only_shared=True).order(before, profiles, H200) == (1, 2, 0)
    assert Opara(by_needs=False).order(before, profiles, H200) == (0, 1, 2)


def test_depth_and_breadth() -> None:
    before: Before = ((), (0,), (0,), (1,), (2,))
    assert breadth_first(before) == (0, 1, 2, 3, 4)
    assert depth_first(before) == (0, 2, 4, 1, 3)
    assert program_order(before) == (0, 1, 2, 3, 4)


def test_all_orders_are_found_once() -> None:
    assert sorted(all_orders(DIAMOND)) == [(0, 1, 2, 3), (0, 2, 1, 3)]
    assert len(set(all_orders(((),) * 4))) == 24


@pytest.mark.parametrize("seed", range(8))
def test_every_way_keeps_the_edges(seed: int) -> None:
    before = random_graph(seed)
    profiles = [profile(nbytes=n % 3 * 1e6, compute=n % 2) for n in range(len(before))]
    orders = [
        breadth_first(before),
        depth_first(before),
        random_order(before, seed),
        Opara().order(before, profiles, H200),
    ]
    for order in orders:
        made = arranged(before, order, opara_streams(before))
        assert sorted(order) == list(range(len(before)))
        assert keeps(before, order, made.streams, made.events)
        assert set(made.events) <= {(a, b) for b in order for a in order if a != b}
