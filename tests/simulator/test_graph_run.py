"""Simulated runs of graphs against times computed by hand, on a device of round figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stretto.device.expr import Buffer
from stretto.device.launch_graph import Arrangement
from stretto.device.operator import LibraryCall
from stretto.ir.types import DType
from stretto.simulator.devices import H200, LIMITS, BlockNeeds, Room
from stretto.simulator.graph_run import GraphCosts, GraphRun, NodeProfile, captured_costs, run_graph
from stretto.simulator.library_kernels import library_work
from tests.schedule.trees import EAGER

DEVICE = replace(H200, units=4, memory_bandwidth=8.0, unit_bandwidth=8.0, cache_bandwidth=16.0)
"""Four multiprocessors; of memory 8 bytes a second, which one of them may draw alone."""
NOTHING = GraphCosts(0.0, 0.0, 0.0, 0.0)
SMALL = BlockNeeds(128, 32)
WHOLE = BlockNeeds(2048, 32)
"""All threads of a multiprocessor."""


def run(
    profiles: list[NodeProfile],
    streams: tuple[int, ...],
    events: tuple[tuple[int, int], ...] = (),
    costs: GraphCosts = NOTHING,
) -> GraphRun:
    order = tuple(range(len(profiles)))
    return run_graph(profiles, Arrangement(order, streams, events), DEVICE, costs)


def computing(seconds: float, blocks: int = 4, needs: BlockNeeds = SMALL) -> NodeProfile:
    """Takes so long on the whole device."""
    return NodeProfile(blocks, needs, 0.0, seconds * min(blocks, DEVICE.units))


def moving(seconds: float, blocks: int = 4) -> NodeProfile:
    return NodeProfile(blocks, SMALL, 0.0, 0.0, seconds * DEVICE.memory_bandwidth)


def test_a_chain_adds_up() -> None:
    costs = GraphCosts(gap=0.5, join=0.25, enqueue=0.0, begin=1.0)
    found = run([computing(2.0), moving(3.0), computing(1.0)], (0, 0, 0), costs=costs)
    assert found.starts == pytest.approx([1.0, 3.5, 7.0])
    assert found.seconds == pytest.approx(8.0)


def test_an_event_of_another_stream_takes_longer() -> None:
    costs = GraphCosts(gap=0.5, join=0.25, enqueue=0.0, begin=0.0)
    assert run([computing(1.0), computing(1.0)], (0, 1), ((0, 1),), costs).seconds == 2.75


def test_two_that_move_bytes_gain_nothing_side_by_side() -> None:
    assert run([moving(2.0), moving(2.0)], (0, 1)).seconds == pytest.approx(4.0)


def test_one_that_computes_and_one_that_moves_bytes_overlap() -> None:
    assert run([computing(3.0), moving(2.0)], (0, 1)).seconds == pytest.approx(3.0)
    assert run([computing(3.0), moving(2.0)], (0, 0)).seconds == pytest.approx(5.0)


def test_two_that_use_a_part_of_the_device_overlap() -> None:
    two = [computing(3.0, blocks=2), computing(3.0, blocks=2)]
    assert run(two, (0, 1)).seconds == pytest.approx(3.0)


def test_two_that_compute_everywhere_gain_nothing() -> None:
    assert run([computing(3.0), computing(3.0)], (0, 1)).seconds == pytest.approx(6.0)


def test_what_fills_the_device_blocks_the_next() -> None:
    found = run([computing(2.0, needs=WHOLE), computing(1.0)], (0, 1))
    assert found.starts == pytest.approx([0.0, 2.0])
    assert found.seconds == pytest.approx(3.0)


def test_blocks_that_do_not_fit_wait_and_so_does_what_comes_behind() -> None:
    # Four of six blocks fit; the others begin when these end, and only then the next node.
    found = run([computing(6.0, 6, WHOLE), computing(1.0, 1)], (0, 1))
    assert found.starts == pytest.approx([0.0, 4.0])
    # Each block has 24 / 6 = 4 seconds of work.
    assert found.ends == pytest.approx([8.0, 5.0])


def test_the_device_takes_nodes_one_after_the_other() -> None:
    costs = GraphCosts(gap=0.0, join=0.0, enqueue=0.5, begin=0.0)
    found = run([computing(1.0, 1) for _ in range(3)], (0, 1, 2), costs=costs)
    assert found.starts == pytest.approx([0.0, 0.5, 1.0])


def test_overhead_holds_room_but_shares_nothing() -> None:
    idle = NodeProfile(4, SMALL, 5.0)
    assert run([idle, computing(3.0)], (0, 1)).seconds == pytest.approx(5.0)


def test_a_captured_graph_costs_less_than_launches() -> None:
    costs = captured_costs(H200)
    assert costs.gap < H200.next_launch_seconds and costs.begin == H200.launch_seconds


@pytest.mark.parametrize(
    ("needs", "blocks"),
    [
        (BlockNeeds(128, 32), 16),  # threads
        (BlockNeeds(128, 128), 4),  # registers
        (BlockNeeds(32, 16, 57 << 10), 4),  # shared memory
        (BlockNeeds(32, 16), 32),  # blocks
        (BlockNeeds(1024, 255), 1),  # not even one; it runs nevertheless
    ],
)
def test_blocks_of_a_multiprocessor(needs: BlockNeeds, blocks: int) -> None:
    assert needs.per_unit(LIMITS["h200"]) == blocks
    room = Room(DEVICE)
    assert room.fits(needs, 0) == 4 * blocks
    room.take(needs, 4 * blocks)
    assert room.fits(needs, 4 * blocks) == 0
    room.take(needs, -1)
    assert room.fits(needs, 4 * blocks - 1) == 1


def buffer(name: str, *shape: int) -> Buffer:
    return Buffer(name, DType.F32, shape)


def test_the_work_of_library_calls() -> None:
    a, b = buffer("a", 8, 16), buffer("b", 16, 4)
    product = LibraryCall("", "aten.mm.default", (a, b), (), (buffer("c", 8, 4),), "")
    assert library_work(product, EAGER).operations == 2 * 8 * 4 * 16
    image, weights = buffer("x", 1, 3, 9, 9), buffer("w", 5, 3, 3, 3)
    out = buffer("y", 1, 5, 7, 7)
    convolution = LibraryCall(
        "", "aten.convolution.default", (image, weights, None), (), (out,), ""
    )
    assert library_work(convolution, EAGER).operations == 2 * 5 * 49 * 27
    tanh = LibraryCall("", "aten.tanh.default", (a,), (), (buffer("d", 8, 16),), "")
    assert library_work(tanh, EAGER).operations == 8 * 16
    assert library_work(tanh, EAGER).depth == 0
