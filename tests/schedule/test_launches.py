"""Launches that are chosen: the outputs with each option, cuts by cost, host control by option."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import stretto
from stretto.device.tree import For, If, Leaf, Seq, While, walk
from stretto.device.verifier import verify_plan
from stretto.errors import StrettoError, VerifyError
from stretto.options import Debug, Options
from stretto.schedule.plan import make_plan
from stretto.schedule.plan_cost import plan_seconds
from stretto.schedule.plan_search import search_plan
from stretto.schedule.scheduler import schedule
from stretto.simulator.devices import H200
from tests.schedule.programs import chain, loop
from tests.schedule.random_trees import random_tree
from tests.schedule.trees import EAGER


def straight(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ x, -1).sum(0) + x.relu()


def nested(x: torch.Tensor) -> torch.Tensor:
    h = x
    for t in range(3):
        h = torch.tanh(h @ x)
        if h.sum() > 1:
            h = h + x[t]
        while h.sum() < 4:
            h = torch.softmax(h @ x, -1) + h + 1
    return h.sum(0)


def zero_trips(x: torch.Tensor) -> torch.Tensor:
    while x.sum() < -1e6:
        x = x @ x
    return torch.softmax(x, -1)


def turns(x: torch.Tensor) -> torch.Tensor:
    a, b = x, x + 1
    for _ in range(3):
        a, b = b @ a, a.tanh()
    return a - b


def tree(x: torch.Tensor, depth: int) -> torch.Tensor:
    if depth == 0:
        return x.tanh()
    return tree(x @ x, depth - 1) + tree(x + 1, depth - 1)


def recursive(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        if x.sum() > 0:
            x = tree(x, 2)
    return x


def library(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = torch.cummax(torch.tanh(x @ x), 0)[0]
    return x


FUNCTIONS = (straight, nested, zero_trips, turns, recursive, library)
KINDS = [("auto", "auto"), ("one", "units"), ("per_kernel", "units"), ("one", "host"),
         ("per_kernel", "host")]  # fmt: skip


@pytest.mark.parametrize("units", [1, 3])
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_outputs_with_each_option(function, kinds, units) -> None:  # pyright: ignore
    torch.manual_seed(0)
    x = torch.rand(7, 7) / 3
    launches, control = kinds
    options = Options(units=units, debug=Debug(unroll=0, launches=launches, control=control))
    compiled = stretto.compile(function, (x,), backend="cuda-emulated", options=options)
    torch.testing.assert_close(compiled(x), function(x))
    torch.testing.assert_close(compiled(x), function(x))
    plan = compiled.signatures[0].stages.product.plan
    if function is library:
        return
    hosted = [n for n in walk(plan.tree.main.body) if isinstance(n, For | While | If)]
    inner = [n for n in walk(plan.program.tree.main.body) if isinstance(n, For | While | If)]
    assert len(hosted) == (len(inner) if control == "host" else 0)
    if launches == "one" and control == "units":
        assert len(plan.launches) == 1
    if function is straight and launches == "per_kernel":
        assert len(plan.launches) == len(plan.program.kernels)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("control", ["units", "host"])
def test_random_programs_stay_correct(seed: int, control: str) -> None:
    source = random_tree(seed)
    program = schedule(source, 3, EAGER)
    chosen = search_plan(program, EAGER, "per_kernel", control)
    verify_plan(make_plan(program, cuts=chosen.cuts), source)


def test_waits_that_cost_more_than_launches_cut() -> None:
    program = chain()
    late = replace(H200, units=program.units, wait_seconds=5e-5, next_launch_seconds=1e-7)
    chosen = search_plan(program, EAGER, device=late)
    assert chosen.cuts
    plan = make_plan(program, cuts=chosen.cuts)
    verify_plan(plan)
    assert len(plan.launches) > 1
    assert plan_seconds(plan, late, EAGER) < plan_seconds(make_plan(program), late, EAGER)


def test_launches_that_cost_more_than_waits_do_not() -> None:
    program = chain()
    slow = replace(H200, wait_seconds=1e-7, next_launch_seconds=5e-5)
    assert not search_plan(program, EAGER, device=slow).cuts
    assert not search_plan(program, EAGER, "one", "units").cuts
    assert isinstance(make_plan(program).tree.main.body, Leaf)


@pytest.mark.parametrize("given", [{"launches": "per_kernel"}, {"control": "host"}])
def test_the_cpu_has_one_launch(given: dict[str, str]) -> None:
    with pytest.raises(StrettoError, match="the CPU machine runs a program in one launch"):
        stretto.compile(straight, (torch.rand(4, 4),), backend="cpu", options=Options.of(given))  # pyright: ignore


def test_a_plan_that_leaves_out_a_launch_is_refused() -> None:
    program = chain()
    chosen = search_plan(program, EAGER, "per_kernel", "units")
    plan = make_plan(program, cuts=chosen.cuts)
    body = plan.tree.main.body
    assert isinstance(body, Seq) and len(body.children) > 1
    for parts in (body.children[1:], body.children[::-1]):
        main = plan.tree.main.with_body(Seq(parts))
        with pytest.raises(VerifyError):
            verify_plan(replace(plan, tree=replace(plan.tree, functions=(main,))))


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_without_one_of_its_launches_is_another_program(seed: int) -> None:
    source = random_tree(seed)
    program = schedule(source, 3, EAGER)
    plan = make_plan(program, cuts=search_plan(program, EAGER, "per_kernel", "host").cuts)
    body = plan.tree.main.body
    if not isinstance(body, Seq):
        pytest.skip("one launch")
    for left_out in range(len(body.children)):
        parts = (*body.children[:left_out], *body.children[left_out + 1 :])
        main = plan.tree.main.with_body(Seq(parts))
        with pytest.raises(VerifyError):
            verify_plan(replace(plan, tree=replace(plan.tree, functions=(main,))), source)


def test_explain_says_where_control_is_executed() -> None:
    for control, place in (("units", "all units"), ("host", "the host")):
        options = Options(units=3, debug=Debug(unroll=0, control=control))
        x = torch.rand(5, 5)
        compiled = stretto.compile(nested, (x,), backend="cuda-emulated", options=options)
        text = str(compiled.explain())
        assert "where control is executed" in text and place in text


def test_control_is_the_hosts_where_that_is_faster() -> None:
    program = loop()
    late = replace(H200, units=program.units, wait_seconds=5e-5, next_launch_seconds=1e-7)
    chosen = search_plan(program, EAGER, device=late)
    plan = make_plan(program, cuts=chosen.cuts)
    verify_plan(plan)
    assert any(isinstance(node, For) for node in walk(plan.tree.main.body))
    assert chosen.seconds == pytest.approx(plan_seconds(plan, late, EAGER))
    assert not search_plan(program, EAGER, "one", "auto", device=late).cuts
    assert not search_plan(program, EAGER).cuts


def test_a_launch_in_each_iteration_is_counted() -> None:
    program = loop()
    chosen = search_plan(program, EAGER, "per_kernel", "host")
    plan = make_plan(program, cuts=chosen.cuts)
    one, late = (replace(H200, next_launch_seconds=seconds) for seconds in (2e-6, 5e-6))
    more = plan_seconds(plan, late, EAGER) - plan_seconds(plan, one, EAGER)
    assert more == pytest.approx(4 * 3e-6)  # three iterations, and the end
