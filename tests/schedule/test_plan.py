"""Plans: what stays whole, where library calls cut, what the host decides."""

from __future__ import annotations

import torch

import stretto
from stretto.device.plan import Launch, Library, Plan, address_name
from stretto.device.program import Wait
from stretto.device.tree import For, If, Leaf, While, walk
from stretto.options import Options
from stretto.schedule.plan import make_plan


def plan_of(function, *args: torch.Tensor, **options) -> Plan:  # pyright: ignore
    options = Options.of({"units": 3, "unroll": 0, **options})
    compiled = stretto.compile(function, args, backend="cuda-emulated", options=options)
    plan = compiled.signatures[0].stages.product.plan
    assert plan is not None
    return plan


def kinds(plan: Plan) -> list[str]:
    return [type(node).__name__ for node in walk(plan.tree.main.body) if not isinstance(node, Leaf)]


def looping(x: torch.Tensor) -> torch.Tensor:
    h = x
    for _ in range(3):
        h = torch.tanh(h) + x
    while h.sum() < 10:
        h = h + 1
    return h


def test_a_program_without_library_calls_is_one_launch() -> None:
    plan = plan_of(looping, torch.rand(4))
    assert isinstance(plan.tree.main.body, Leaf)
    assert len(plan.launches) == 1
    assert not plan.decides_on_host
    (_, launch) = plan.launches[0]
    assert launch.program.tree.main == plan.program.tree.main


def test_a_library_call_cuts_a_launch_in_two() -> None:
    plan = plan_of(lambda x: torch.cummax(x * 2, 0)[0] + 1, torch.rand(5))
    bodies = [node.body for node in walk(plan.tree.main.body) if isinstance(node, Leaf)]
    assert [type(body) for body in bodies] == [Launch, Library, Launch]
    assert not plan.decides_on_host
    for _, launch in plan.launches:  # what the earlier launch did needs no wait
        for node in walk(launch.program.tree.main.body):
            if isinstance(node, Leaf):
                assert not any(isinstance(i, Wait) for items in node.body.units for i in items)


def test_a_loop_with_a_library_call_is_the_hosts() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.cummax(torch.tanh(x), 0)[0]
        return x

    plan = plan_of(f, torch.rand(5))
    assert "For" in kinds(plan)
    assert not plan.decides_on_host  # the number of iterations is known
    loop = next(n for n in walk(plan.tree.main.body) if isinstance(n, For))
    moving = {buffer for pair in loop.rotate for buffer in pair}
    assert moving
    assert all(address_name(buffer) in plan.words["main"] for buffer in moving)


def test_what_depends_on_values_is_decided_on_the_host() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        while x.sum() < 20:
            x = torch.cummax(x + 1, 0)[0]
        if x[0] > 3:
            x = torch.cummax(-x, 0)[0]
        return x

    plan = plan_of(f, torch.rand(5))
    assert {"While", "If"} <= set(kinds(plan))
    assert plan.decides_on_host
    nodes = list(walk(plan.tree.main.body))
    conditions = [n.condition.name for n in nodes if isinstance(n, While | If)]
    assert all(name in plan.words["main"] for name in conditions)


def test_a_loop_before_the_cut_stays_whole() -> None:
    plan = plan_of(lambda x: torch.cummax(looping(x), 0)[0], torch.rand(4))
    assert len(plan.launches) >= 1
    first = plan.launches[0][1]
    inside = [n for n in walk(first.program.tree.main.body) if isinstance(n, For | While)]
    assert len(inside) == 2
    assert first.rotated  # where its loops leave their buffers is handed on
    assert all(address_name(buffer) in plan.words["main"] for buffer in first.rotated)


def test_a_large_program_is_several_launches() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = torch.softmax(x @ x, -1)
        return x

    plan = plan_of(f, torch.rand(8, 8), unroll=8, fuse=False)
    assert len(plan.launches) == 1
    split = make_plan(plan.program, most_kernels=2)
    assert len(split.launches) >= 3
    names = [k.name for _, launch in split.launches for k in launch.program.kernels]
    assert sorted(names) == sorted({k.name for k in plan.program.kernels})
