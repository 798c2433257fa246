"""Policies: what it takes to add one, and which of several is taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch

from benchmarks.scheduling.search import SearchPolicy
from stretto.device.costs import CostModel
from stretto.device.expr import Reg, Var
from stretto.device.operator import Kernel
from stretto.device.program import Run
from stretto.device.regions import Body, Statement
from stretto.device.text import print_program
from stretto.device.tree import For, Leaf, Rotation, Seq, Tree, leaves
from stretto.device.verifier import verify
from stretto.machines.emulator.run import Emulator
from stretto.options import POLICIES as OPTIONS
from stretto.remarks import Remark, Remarks
from stretto.schedule.choice import RegionTime
from stretto.schedule.footprint import Footprints, UnitTasks
from stretto.schedule.policies import POLICIES
from stretto.schedule.policy import LeafPlan, Placed, register
from stretto.schedule.scheduler import schedule, schedule_with_report
from tests.schedule.programs import OUT, A, B, X, kernel, mixing
from tests.schedule.trees import EAGER, buffer, load, map_kernel, number, program


@dataclass(frozen=True, slots=True)
class InTurns:
    """One kernel after the other, each as a whole on the next unit. (A whole policy.)"""

    seconds: float = 0.0
    price: float = 0.0
    name: str = "turns"
    ranges: bool = False

    def fits(self, units: int, costs: CostModel) -> bool:
        return units > 1

    def planning_work(self, units: int) -> float:
        return self.price

    def planner(self, units: int, costs: CostModel, footprints: Footprints) -> InTurns.Planner:
        return InTurns.Planner(units, self.seconds)

    @dataclass(slots=True)
    class Planner:
        units: int
        seconds: float
        turn: int = -1

        def plan(self, body: Body) -> LeafPlan:
            return LeafPlan(tuple((self.placed(item),) for item in body), self.seconds)

        def placed(self, item: Kernel) -> Placed:  # pyright: ignore
            self.turn = (self.turn + 1) % self.units
            return Placed(item, (UnitTasks(self.turn, 0, item.tasks),))

        def rotate(self, pairs: Rotation) -> None:
            pass


TREE = program(
    Seq(
        (
            Leaf((kernel("a", A, X), mixing("b", B, A))),
            For(Reg("i"), number(0), number(2), 1, Leaf((mixing("c", A, B), kernel("d", B, A)))),
            Leaf((kernel("end", OUT, B),)),
        )
    ),
    (A, B),
    (X, OUT),
)


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = dict(POLICIES)
    yield
    POLICIES.clear()
    POLICIES.update(before)


def test_a_policy_is_one_class() -> None:
    """Waits, memory and steps are none of its business."""
    register(InTurns())
    made, report = schedule_with_report(TREE, 3, EAGER)
    assert (report.policy, report.units) == ("turns", 3)
    verify(made)
    runs = {
        item.kernel: unit
        for leaf in leaves(made.tree.main.body)
        for unit, items in enumerate(leaf.units)
        for item in items
        if isinstance(item, Run)
    }
    assert runs == {"a": 0, "b": 1, "c": 2, "d": 0, "end": 1}
    assert report.waits > 0
    outs = [torch.zeros(8), torch.zeros(8)]
    x = torch.rand(8)
    for out, one in zip(outs, (made, schedule(TREE, 1)), strict=True):
        Emulator(one, 1).run({0: x, 1: out})
    torch.testing.assert_close(*outs)


def test_options_name_every_policy() -> None:
    assert set(OPTIONS) == {"auto", *POLICIES}


def test_a_policy_that_is_named_is_taken() -> None:
    for policy in POLICIES.values():
        _, report = schedule_with_report(TREE, 2, EAGER, policy=policy)
        assert (report.policy, report.units) == (policy.name, 2)


def branches() -> Tree[Body]:
    """A chain of long kernels, and beside its begin many short ones, each of one task."""
    chain = [buffer(f"c{n}", 8) for n in range(4)]
    short = [buffer(f"s{n}", 8) for n in range(6)]
    body: list[Statement] = [map_kernel(b.name, b, load(X, Var(0)), 8, seconds=1e-5) for b in short]
    for source, out in pairwise([X, *chain]):
        body.append(map_kernel(out.name, out, load(source, Var(0)), 8, seconds=4e-5))
    last = kernel("end", OUT, chain[-1], *short)
    return program(Leaf((*body, last)), (*chain, *short), (X, OUT))


def test_the_list_policy_begins_with_what_the_end_waits_for_longest() -> None:
    """The chain takes 160 us; what is beside it fits on the other unit meanwhile."""
    costs = replace(EAGER, wait_seconds=1e-6)
    _, report = schedule_with_report(branches(), 2, costs, policy=POLICIES["list"])
    assert 1.6e-4 < report.seconds < 1.75e-4


def test_a_search_finds_no_slower_plan_and_the_same_one_for_a_seed() -> None:
    """The chain takes 160 us, and two units 110 us in all; level by level it takes longer."""
    costs, units = replace(EAGER, wait_seconds=1e-6), 2
    (body,) = leaves(branches().main.body)
    time = RegionTime(units, costs, Footprints(units))
    begins = [time.planned(body, POLICIES[name]) for name in ("wavefront", "team", "list")]
    search = SearchPolicy(steps=60, seed=3)
    found = time.planned(body, search)
    assert found <= min(begins) * (1 + 1e-9)
    programs = {print_program(schedule(branches(), units, costs, search)) for _ in range(2)}
    assert len(programs) == 1


def test_a_search_of_no_time_is_the_best_of_the_others() -> None:
    costs = replace(EAGER, wait_seconds=1e-6)
    late = SearchPolicy(steps=10**9, seconds=1e-9)
    _, report = schedule_with_report(branches(), 2, costs, policy=late)
    assert report.policy == "search"


def test_the_least_estimate_is_taken() -> None:
    register(InTurns(seconds=1.0))
    remarks = Remarks()
    _, report = schedule_with_report(TREE, 2, replace(EAGER, planning_share=1e-9), remarks)
    assert report.policy == "wavefront"
    assert Remark("schedule", "policy turns", "estimated at 4 s", "") in dict(remarks)


def test_planning_is_a_cost() -> None:
    """A policy that takes longer than it could gain is not asked."""
    register(InTurns(price=1e9))
    remarks = Remarks()
    _, report = schedule_with_report(TREE, 2, EAGER, remarks)
    assert report.policy == "wavefront"
    reasons = {remark.subject: remark.reason for remark, _ in remarks}
    assert reasons["policy turns"] == "it could not gain what planning with it takes"


def test_where_no_plan_can_gain_none_is_made() -> None:
    """Waking the workers takes longer than the whole program."""
    register(InTurns())
    remarks = Remarks()
    _, report = schedule_with_report(TREE, 2, CostModel(wake_seconds=1.0), remarks)
    assert (report.units, report.policy) == (1, "wavefront")
    assert [remark.subject for remark, _ in remarks] == ["several units"]
