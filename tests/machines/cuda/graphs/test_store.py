"""The store of captured graphs: what they take, which of them go, memory of library calls."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.errors import RunError
from stretto.machines.cuda.graphs import store as stores
from stretto.machines.cuda.graphs.store import GraphMemory
from stretto.options import Debug, Options
from tests.machines.cuda.cuda_fakes import FakeCuda
from tests.machines.cuda.graphs.programs import (
    OnFakeGpu,
    arguments,
    on_fake_gpu,
    side_by_side,
    until_large,
    with_library,
)
from tests.machines.cuda.graphs.test_on_driver import same

# pyright: reportPrivateUsage=false


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """No graphs of other tests."""
    monkeypatch.setattr(stores, "_PROCESS", stores._Process())
    yield


def library_of_inputs(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Its calls use addresses of inputs, so other inputs take another graph."""
    return torch.cummax(x, 1)[0] @ w, torch.cummax(w, 0)[0] * 2


def program(cuda: FakeCuda, function: Callable[..., Any]) -> OnFakeGpu:
    """On the stand-in; what it was made of on the emulated GPU is gone."""
    made = on_fake_gpu(cuda, function, arguments(0))
    gc.collect()
    return made


def together(cuda: FakeCuda, *programs: OnFakeGpu) -> None:
    """Programs on one GPU."""
    first = programs[0].machine
    for program in programs[1:]:
        program.machine.fake.calls = first.fake.calls
        program.machine.fake.lanes = first.fake.lanes
        first.fake.made |= program.machine.fake.made
        program.machine.fake.made = first.fake.made

    def launched(kernel: int, *rest: Any) -> int:
        machine = next(p.machine for p in programs if kernel in p.machine.sources)
        return machine._launched(kernel, *rest)

    cuda.on_launch(launched)
    cuda.on_call(first._called)


def memory() -> GraphMemory:
    (found,) = stretto.graph_memory()
    return found


def test_what_graphs_take_is_known(cuda: FakeCuda) -> None:
    cuda.library.fake_node_bytes(0)
    gpu = program(cuda, side_by_side)
    assert memory().graphs == memory().nbytes == 0
    kept, others = [arguments(0), arguments(1)], cuda.library.fake_live_nodes()
    gpu(*kept[0])
    found = memory()
    # Of the graph, and of the executable one.
    nodes = (cuda.library.fake_live_nodes() - others) // 2
    assert found.graphs == 1 and found.pool_bytes == 0
    # A node has parameters, and a word for each argument, of which there are some.
    assert 80 * nodes < found.graph_bytes == gpu.run.graph_bytes < 500 * nodes
    gpu(*kept[1])  # the graph that is there is patched
    assert memory() == found and gpu.run.counts.patched > 0


def test_what_the_driver_takes_counts(cuda: FakeCuda) -> None:
    gpu = program(cuda, side_by_side)
    others = cuda.library.fake_live_nodes()
    cuda.library.fake_node_bytes(40_000)
    try:
        gpu(*arguments(0))
    finally:
        cuda.library.fake_node_bytes(0)
    nodes = (cuda.library.fake_live_nodes() - others) // 2
    assert 40_000 * nodes <= memory().graph_bytes < 40_000 * nodes + 2_000


@pytest.mark.whole
def test_the_bound_is_for_all_programs(cuda: FakeCuda) -> None:
    """The graph that goes is the one that was not used for longest, of whatever program."""
    one = program(cuda, side_by_side)
    two = program(cuda, until_large)
    three = program(cuda, with_library)
    together(cuda, one, two, three)
    inputs = arguments(0)
    same(one(*inputs), side_by_side(*inputs))
    same(two(*inputs), until_large(*inputs))
    both = memory().nbytes
    same(one(*inputs), side_by_side(*inputs))  # so that the other one is older
    stretto.limit_graph_memory(both)
    same(three(*inputs), with_library(*inputs))
    assert memory().evicted == 1 and memory().nbytes <= both
    assert [p.run.graph_count for p in (one, two, three)] == [1, 0, 1]
    same(two(*inputs), until_large(*inputs))  # made again
    assert two.run.counts.made == 2 and memory().nbytes <= both


@pytest.mark.whole
def test_a_bound_of_nothing_keeps_the_graph_of_the_last_call(cuda: FakeCuda) -> None:
    stretto.limit_graph_memory(0)
    one = program(cuda, side_by_side)
    two = program(cuda, with_library)
    together(cuda, one, two)
    kept = [arguments(seed) for seed in range(3)]
    for inputs in kept:
        same(one(*inputs), side_by_side(*inputs))
        same(two(*inputs), with_library(*inputs))
        assert memory().graphs == 1
    assert memory().evicted == 5


@pytest.mark.whole
def test_a_program_in_a_call_keeps_its_graphs(cuda: FakeCuda) -> None:
    one = program(cuda, side_by_side)
    two = program(cuda, until_large)
    together(cuda, one, two)
    inputs = arguments(0)
    same(one(*inputs), side_by_side(*inputs))
    stretto.limit_graph_memory(0)
    (state,) = one.run.states.values()
    with state.lock:
        same(two(*inputs), until_large(*inputs))
    assert one.run.graph_count == 1 and memory().evicted == 0
    same(one(*inputs), side_by_side(*inputs))
    assert one.run.counts.made == 1


@pytest.mark.whole
def test_graphs_of_a_program_that_is_gone_do_not_count(cuda: FakeCuda) -> None:
    gpu = program(cuda, until_large)
    gpu(*arguments(0))
    assert memory().graphs == 1
    del gpu
    cuda.on_launch(lambda *_: 0)  # the last to know the machine
    cuda.on_call(lambda *_: 0)
    cuda.forget()
    gc.collect()
    assert memory().graphs == memory().nbytes == 0


def test_library_calls_of_one_stream_share_memory(cuda: FakeCuda) -> None:
    """Those of all programs, lane by lane; another stream has memory of its own."""
    one = program(cuda, library_of_inputs)
    two = program(cuda, library_of_inputs)
    together(cuda, one, two)
    for each in (one, two):
        each.machine.fake.pool_bytes = 1000
    inputs = arguments(0)
    same(one(*inputs), library_of_inputs(*inputs))
    lanes = list(one.machine.fake.lanes)
    assert len(set(lanes)) == 2 and memory().pool_bytes == 2000
    same(two(*inputs), library_of_inputs(*inputs))
    assert one.machine.fake.lanes[2:] == lanes and memory().pool_bytes == 2000
    one.machine.fake.lanes.clear()
    with one.machine.fake.on(7):
        same(one(*inputs), library_of_inputs(*inputs))
    assert not set(one.machine.fake.lanes) & set(lanes) and memory().pool_bytes == 4000
    stretto.limit_graph_memory(0)
    other = arguments(1)
    same(two(*other), library_of_inputs(*other))
    assert memory().pool_bytes == 2000  # of the one graph that is left


@pytest.mark.whole
def test_graphs_go_where_no_memory_is_left(cuda: FakeCuda) -> None:
    one = program(cuda, side_by_side)
    two = program(cuda, library_of_inputs)
    together(cuda, one, two)
    inputs = arguments(0)
    same(one(*inputs), side_by_side(*inputs))
    two.machine.fake.lacking = 1
    same(two(*inputs), library_of_inputs(*inputs))
    assert memory().evicted == 1 and memory().graphs == 1
    assert not two.run.refusals  # the calls are in the graph


def test_an_error_where_there_is_nothing_to_let_go_of(cuda: FakeCuda) -> None:
    gpu = program(cuda, library_of_inputs)
    inputs = arguments(0)
    gpu.machine.fake.lacking = 1
    with pytest.raises(RunError, match="no memory for a captured graph of the program: CUDA out"):
        gpu(*inputs)
    same(gpu(*inputs), library_of_inputs(*inputs))
    other = arguments(1)
    gpu.machine.fake.lacking = 2  # the graph that is there goes, and that is not enough
    with pytest.raises(RunError, match="0 graphs on cpu"):
        gpu(*other)
    same(gpu(*other), library_of_inputs(*other))


def test_the_bound_can_be_set_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRETTO_GRAPH_BYTES", "12345")
    assert stores.store_of(torch.device("cpu"), 1 << 40).limit == 12345
    monkeypatch.setenv("STRETTO_GRAPH_BYTES", "1 GiB")
    with pytest.raises(ValueError, match="STRETTO_GRAPH_BYTES must be a number of bytes"):
        stores.store_of(torch.device("meta"), 1 << 40)
    for wrong in (-1, 1.5, True):
        with pytest.raises(ValueError, match="the limit must be a number of bytes"):
            stretto.limit_graph_memory(wrong)  # pyright: ignore[reportArgumentType]


def test_explain_says_what_graphs_take() -> None:
    options = Options(units=3, enqueue="graph", debug=Debug(launches="per_kernel", fuse=False))
    fast = stretto.compile(side_by_side, backend="cuda-emulated", options=options)
    with torch.no_grad():
        fast(*arguments(0))
    (found,) = stretto.graph_memory()
    assert found.graphs == 1 and f"all programs: {found}" in fast.explain()
