"""Plans for captured graphs: which launches wait, what is read by address, what is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.device.plan import address_name, busy_units
from stretto.device.tree import Leaf, Seq, walk
from stretto.device.verifier import verify_plan
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.machines.cuda.machine import gpu_program
from stretto.options import Options
from stretto.schedule.launch_graph import with_own_memory
from stretto.schedule.plan import make_plan
from stretto.schedule.plan_cost import plan_seconds
from stretto.schedule.plan_search import choose_plan, search_plan
from stretto.simulator.devices import H200
from tests.e2e.machines import CUDA, spread

W = torch.randn(8, 8, generator=torch.Generator().manual_seed(1)) / 3


def two_ways(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x @ w).cumsum(0) + torch.relu(x.flip(1) @ w).amax(1, keepdim=True)


def looped(x: Tensor, w: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    while (x * x).sum() < 100:
        x = x * 1.5 + 0.1
        y = y + torch.tanh(x @ w)
    return y


def program_of(function: Callable[..., Any], **options: Any) -> Any:
    fast = stretto.compile(
        function,
        backend=CUDA,
        options=Options.of({"units": 4, "fuse": False, "unroll": 0, **options}),
    )
    with spread(), torch.no_grad():
        fast(torch.randn(6, 8), W)
    (entry,) = fast.signatures
    return entry


def test_launches_of_one_kernel_do_not_wait_and_have_only_the_blocks_they_need() -> None:
    entry = program_of(two_ways, enqueue="graph", launches="per_kernel")
    made = gpu_program(entry.stages)
    assert len(made.sources) > 3
    for (_, launch), source in zip(made.plan.launches, made.sources, strict=True):
        assert not launch.units_wait and not source.joint
        assert source.blocks == busy_units(launch.program) <= 4
        entered = source.text[source.text.index("def stretto_run") :]
        assert "signal(" not in entered and "wait(" not in entered
    assert min(source.blocks for source in made.sources) < 4


def test_a_whole_program_waits() -> None:
    entry = program_of(two_ways)
    made = gpu_program(entry.stages)
    (source,) = made.sources
    assert source.joint and source.blocks == source.units == 4
    assert made.plan.launches[0][1].units_wait


def test_what_loops_of_the_host_use_is_read_by_address() -> None:
    program = program_of(looped).stages.runnable()[0]
    apart = with_own_memory(program)
    cuts = search_plan(apart, CUDA_COSTS, "per_kernel", "host", captured=True).cuts
    found = {
        by_address: make_plan(apart, cuts=cuts, by_address=by_address).words["main"]
        for by_address in (False, True)
    }
    inputs = {address_name(b) for b in program.tree.externals if b.kind == "input"}
    assert not inputs & set(found[False])
    assert len(inputs & set(found[True])) == 1  # the loop reads w, and a copy of x
    verify_plan(make_plan(apart, cuts=cuts, by_address=True))


def test_a_plan_for_a_graph_is_no_slower_than_either_of_its_parts() -> None:
    program = with_own_memory(program_of(two_ways).stages.runnable()[0])
    seconds = {}
    for launches in ("one", "per_kernel", "auto"):
        chosen = search_plan(program, CUDA_COSTS, launches, "units", device=H200, captured=True)
        plan = make_plan(program, cuts=chosen.cuts, by_address=True)
        seconds[launches] = plan_seconds(plan, H200, CUDA_COSTS, captured=True)
    assert seconds["auto"] <= min(seconds["one"], seconds["per_kernel"])


@pytest.mark.parametrize("function", [two_ways, looped])
def test_auto_takes_the_faster_one(function: Callable[..., Any]) -> None:
    program = program_of(function).stages.runnable()[0]
    chosen = choose_plan(program, CUDA_COSTS, Options(enqueue="auto"))
    plan = chosen.plan
    verify_plan(plan)
    assert chosen.captured == (not plan.is_whole and plan.program.frames != program.frames)
    stream, graph = (
        choose_plan(program, CUDA_COSTS, Options(enqueue=way)).plan for way in ("stream", "graph")
    )
    assert plan in (stream, graph)


def test_a_loop_is_a_sequence_of_one_for_the_graph() -> None:
    entry = program_of(looped, enqueue="graph", control="host", launches="per_kernel")
    executable = entry.executable
    assert isinstance(executable.plan.tree.main.body, Seq)
    nodes = list(walk(executable.plan.tree.main.body))
    assert any(not isinstance(node, Leaf | Seq) for node in nodes)
    assert executable.counts.replayed == 1 and executable.reads == 0
