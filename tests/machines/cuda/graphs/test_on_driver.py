"""Graphs as the driver gets them: nodes, edges, handles, patches; and what they compute."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from stretto.device.operator import LibraryCall
from stretto.errors import RunError, StrettoWarning
from stretto.machines.cuda.describe import driver_text, graph_text, refusal_rows
from stretto.machines.cuda.graphs import rehearsal
from stretto.machines.cuda.graphs.graph_executable import MOST_GRAPHS
from stretto.runtime.library import run_call
from tests.machines.cuda.cuda_fakes import SIDE_STREAM, FakeCuda
from tests.machines.cuda.graphs.programs import (
    APART,
    PROGRAMS,
    arguments,
    library_in_a_loop,
    on_fake_gpu,
    side_by_side,
    until_large,
    with_library,
)

Function = Callable[..., Any]


def same(found: list[torch.Tensor], wanted: Any) -> None:
    expected = wanted if isinstance(wanted, tuple) else (wanted,)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_a_replay_gives_what_eager_gives(cuda: FakeCuda, function: Function) -> None:
    gpu = on_fake_gpu(cuda, function, arguments(0))
    for seed in range(4):
        cuda.library.fake_seed(seed)
        inputs = arguments(seed)
        same(gpu(*inputs), function(*inputs))
    launched = cuda.log("cuGraphLaunch")
    assert len(launched) == 4 and not cuda.log("cuLaunchKernelEx")
    assert gpu.run.reads == 0


def test_one_graph_for_all_calls_is_patched(cuda: FakeCuda) -> None:
    gpu = on_fake_gpu(cuda, side_by_side, arguments(0))
    kept = [arguments(seed) for seed in range(5)]
    for inputs in kept:
        same(gpu(*inputs), side_by_side(*inputs))
    assert len(cuda.log("cuGraphInstantiateWithFlags")) == 1
    counts = gpu.run.counts
    assert counts.made == 1 and counts.replayed == 5
    assert counts.patched == len(cuda.log("cuGraphExecKernelNodeSetParams")) > 0
    before = counts.patched
    gpu(*kept[-1])
    outputs = sum("cuGraphExecKernelNodeSetParams" in line for line in cuda.log())
    assert counts.patched - before <= outputs  # the inputs lie where they lay


@pytest.mark.whole
def test_the_arms_of_a_branch_and_a_loop_are_bodies(cuda: FakeCuda) -> None:
    gpu = on_fake_gpu(cuda, until_large, arguments(0))
    inputs = arguments(0)
    same(gpu(*inputs), until_large(*inputs))
    assert len(cuda.log("cuGraphAddNode")) == 4  # two loops, and two arms
    assert any(line.endswith("inner=1") for line in cuda.log("cuGraphAddNode"))
    for seed in range(1, 4):  # launches in bodies read addresses, so that nothing is made again
        inputs = arguments(seed)
        same(gpu(*inputs), until_large(*inputs))
    assert gpu.run.counts.made == 1


def test_library_calls_are_graphs_inside_of_the_graph(cuda: FakeCuda) -> None:
    gpu = on_fake_gpu(cuda, with_library, arguments(0))
    inputs = arguments(0)
    same(gpu(*inputs), with_library(*inputs))
    assert len(cuda.log("cuGraphAddChildGraphNode")) == 2
    assert len(gpu.machine.fake.calls) == 2


def test_a_library_call_runs_once_before_its_first_capture(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each thread that captures it, and on zeros; the stand-in refuses to capture it else."""
    gpu = on_fake_gpu(cuda, with_library, arguments(0))
    rehearsed: list[tuple[int, list[float]]] = []

    def counted(call: LibraryCall, operands: Sequence[Tensor]) -> None:
        rehearsed.append((gpu.machine.fake.stream(), [float(x.abs().sum()) for x in operands]))
        run_call(call, operands)

    def call(seed: int) -> None:
        """A call for which the graph is made anew."""
        for state in gpu.run.states.values():
            graphs = gpu.run.graphs_of(state)
            for key in list(graphs.made):
                graphs.drop(key)
        inputs = arguments(seed)
        same(gpu(*inputs), with_library(*inputs))

    monkeypatch.setattr(rehearsal, "run_call", counted)
    for seed in range(3):
        call(seed)
    assert gpu.run.counts.made == 3
    assert [stream for stream, _ in rehearsed] == [SIDE_STREAM] * 2
    assert not any(sum(sums) for _, sums in rehearsed)
    thread = threading.Thread(target=call, args=(3,))
    thread.start()
    thread.join()
    assert gpu.run.counts.made == 4 and len(rehearsed) == 4 and not gpu.run.refusals


@pytest.mark.parametrize("function", [with_library, library_in_a_loop])
def test_what_cannot_be_captured_is_executed_by_the_host(
    cuda: FakeCuda, function: Function
) -> None:
    gpu = on_fake_gpu(cuda, function, arguments(0))
    gpu.machine.fake.refused = "operation not permitted when stream is capturing"
    gpu.may_refuse = True
    calls = 2 if function is with_library else 1
    with pytest.warns(StrettoWarning, match=r"cummax.* cannot be captured \(operation not perm"):
        same(gpu(*arguments(0)), function(*arguments(0)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # each call is refused once
        for seed in range(3):
            inputs = arguments(seed)
            same(gpu(*inputs), function(*inputs))
    assert not cuda.log("cuGraphAddChildGraphNode") and gpu.run.library_runs > 0
    assert [refusal.call.name for refusal in gpu.run.refusals] == ["aten.cummax.default"] * calls
    assert f"{calls} library call" in graph_text(gpu.run)
    assert {row[-1] for row in refusal_rows(gpu.run)} == {gpu.machine.fake.refused}


@pytest.mark.parametrize("function", [until_large, library_in_a_loop])
@pytest.mark.parametrize("version", [(12, 5), (12, 6)])
def test_bodies_that_wait_need_a_driver_that_has_them(
    cuda: FakeCuda, function: Function, version: tuple[int, int]
) -> None:
    cuda.library.fake_version(1000 * version[0] + 10 * version[1])
    gpu = on_fake_gpu(cuda, function, arguments(0))
    for seed in range(3):
        same(gpu(*arguments(seed)), function(*arguments(seed)))
    said = driver_text(gpu.run)
    if version == (12, 6):
        assert not said and gpu.run.reads == 0 and not cuda.log("cuLaunchKernelEx")
        return
    assert "CUDA 12.6 on; the driver is of CUDA 12.5" in said
    if function is until_large:
        # The loop that decides by a sum over units; the branch in it and the other loop are graphs.
        assert said.startswith("`while") and said.count("`") == 2 and gpu.run.reads > 0
        assert cuda.log("cuGraphAddNode") and gpu.run.waits
    else:
        assert said.startswith("`for")


def test_no_body_behind_an_exit_that_waits_with_an_old_driver(cuda: FakeCuda) -> None:
    """What comes behind a branch that may leave the graph is in a body, if the driver allows it."""

    def leaves(x: Tensor, w: Tensor) -> Tensor:
        total = x @ w
        if x.mean() > 100:
            total = total.cumsum(0) @ w
        return (total * total).sum() + total

    for number in (12060, 12050):
        cuda.library.fake_version(number)
        options = replace(APART, debug=replace(APART.debug, branches="unlikely", launches="auto"))
        gpu = on_fake_gpu(cuda, leaves, arguments(0), options)
        for inputs in (arguments(1), (arguments(2)[0] + 200, arguments(2)[1])):
            same(gpu(*inputs), leaves(*inputs))
        assert gpu.run.any_waits and bool(driver_text(gpu.run)) == (number == 12050)


def test_graphs_are_given_back(cuda: FakeCuda) -> None:
    gpu = on_fake_gpu(cuda, until_large, arguments(0))
    gpu(*arguments(0))
    assert cuda.library.fake_live_graphs() > 0 and cuda.library.fake_live_nodes() > 0
    del gpu
    cuda.on_launch(lambda *_: 0)  # the last to know the machine
    cuda.on_call(lambda *_: 0)
    cuda.forget()
    gc.collect()
    assert cuda.library.fake_live_graphs() == cuda.library.fake_live_nodes() == 0


@pytest.mark.whole
def test_no_more_graphs_than_a_state_may_have(cuda: FakeCuda) -> None:
    """Library calls use addresses, so other memory takes another graph."""
    gpu = on_fake_gpu(cuda, with_library, arguments(0))
    kept = [arguments(seed) for seed in range(MOST_GRAPHS + 4)]
    for inputs in [*kept, *kept]:
        same(gpu(*inputs), with_library(*inputs))
    assert gpu.run.graph_count <= MOST_GRAPHS
    assert gpu.run.counts.made <= 2 * len(kept)


@pytest.mark.whole
def test_further_shapes_take_no_further_memory(cuda: FakeCuda) -> None:
    """Of 64 shapes, the largest first: the graph is patched, and only results are allocated."""
    gpu = on_fake_gpu(cuda, side_by_side, arguments(0, rows=65), dynamic=True)
    first = arguments(0, rows=65)
    same(gpu(*first), side_by_side(*first))
    before = cuda.library.fake_live_graphs(), cuda.library.fake_live_nodes()
    held = [tensor for state in gpu.run.states.values() for tensor in (state.arena, state.control)]
    gpu.machine.fake.allocated.clear()
    for rows in range(64, 0, -7):
        inputs = arguments(rows, rows)
        found = gpu(*inputs)
        same(found, side_by_side(*inputs))
        assert [nbytes for _, nbytes in gpu.machine.fake.allocated] == [x.nbytes for x in found]
        gpu.machine.fake.allocated.clear()
    assert (cuda.library.fake_live_graphs(), cuda.library.fake_live_nodes()) == before
    now = [tensor for state in gpu.run.states.values() for tensor in (state.arena, state.control)]
    assert all(one is other for one, other in zip(held, now, strict=True))
    assert gpu.run.counts.made == 1


@pytest.mark.parametrize(
    "name",
    [
        "cuGraphCreate",
        "cuGraphAddKernelNode",
        "cuGraphInstantiateWithFlags",
        "cuGraphLaunch",
        "cuGraphConditionalHandleCreate",
    ],
)
def test_what_the_driver_refuses_is_an_error_and_the_next_call_works(
    cuda: FakeCuda, name: str
) -> None:
    gpu = on_fake_gpu(cuda, until_large, arguments(0))
    inputs = arguments(0)
    cuda.fail(name, 2)
    with pytest.raises(RunError, match="free memory of the GPU"):
        gpu(*inputs)
    cuda.fail(name, 0)
    same(gpu(*inputs), until_large(*inputs))


def test_a_patch_that_is_refused_is_an_error(cuda: FakeCuda) -> None:
    gpu = on_fake_gpu(cuda, side_by_side, arguments(0))
    first, second = arguments(0), arguments(1)
    same(gpu(*first), side_by_side(*first))
    cuda.fail("cuGraphExecKernelNodeSetParams", 400)
    with pytest.raises(RunError, match="no longer where it was"):
        gpu(*second)
    cuda.fail("cuGraphExecKernelNodeSetParams", 0)
    same(gpu(*second), side_by_side(*second))


@pytest.mark.parametrize("code", [4, 201, 709])
def test_a_replay_after_the_device_changed(cuda: FakeCuda, code: int) -> None:
    gpu = on_fake_gpu(cuda, side_by_side, arguments(0))
    inputs = arguments(0)
    same(gpu(*inputs), side_by_side(*inputs))
    cuda.fail("cuGraphLaunch", code)
    with pytest.raises(RunError, match="compile again, in a process that was started, not forked"):
        gpu(*inputs)


def test_a_caller_who_captures_gets_the_launches(cuda: FakeCuda) -> None:
    """A graph is not launched into a capture; so its launches are the nodes of the caller's."""
    gpu = on_fake_gpu(cuda, side_by_side, arguments(0))
    gpu.run.can_be_captured = True
    inputs = arguments(0)
    gpu.machine.fake.know(*inputs)
    cuda.capture(3, 11)
    with gpu.machine.fake.on(3):
        gpu.run(list(inputs))
    assert len(gpu.machine.replays) == len(gpu.run.plan.launches)
    assert not cuda.log("cuGraphLaunch")


def test_calls_that_may_run_beside_each_other_share_no_memory(cuda: FakeCuda) -> None:
    """Not two calls of one graph that are in no order, and not those of graphs on two streams."""
    gpu = on_fake_gpu(cuda, with_library, arguments(0))
    inputs = arguments(0)
    for stream in (0, 7):
        with gpu.machine.fake.on(stream):
            same(gpu(*inputs), with_library(*inputs))
    lanes = gpu.machine.fake.lanes
    assert len(lanes) == len(set(lanes)) == 4


def test_two_streams_have_graphs_of_their_own(cuda: FakeCuda) -> None:
    gpu = on_fake_gpu(cuda, side_by_side, arguments(0))
    inputs = arguments(0)
    same(gpu(*inputs), side_by_side(*inputs))
    with gpu.machine.fake.on(7):
        same(gpu(*inputs), side_by_side(*inputs))
    assert [line.split()[1] for line in cuda.log("cuGraphLaunch")] == ["0", "7"]
    assert gpu.run.counts.made == 2
