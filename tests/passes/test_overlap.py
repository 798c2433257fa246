"""Stages of one loop, and several iterations at a time: that results are the same, and when."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from stretto.frontends.python import capture
from stretto.interp.interpreter import run
from stretto.ir.core import Program
from stretto.machines.cpu.costs import CPU_COSTS
from stretto.options import Debug, Options
from stretto.passes.dce import EliminateDeadCode
from stretto.passes.manager import Target, run_passes
from stretto.passes.overlap import Overlap
from stretto.passes.pipeline import pipeline
from stretto.passes.unroll import Unroll
from tests import backends
from tests.passes.loops import apply, contractions, loops_of
from tests.sampling import every

NAMES = [step.name for step in pipeline()]
TIDY = pipeline()[: NAMES.index("fold_tables")]
"""The passes before those on loops."""


def captured(function: Callable[..., object], *inputs: Tensor) -> Program:
    with torch.no_grad():
        program = capture(function, inputs, {}, Options(debug=Debug(unroll=0))).program
    return run_passes(program, TIDY)


def trips(program: Program) -> list[int | None]:
    return [loop.trip_count() for loop in loops_of(program.main.body)]


class Tagger(nn.Module):
    """Something before a recurrence, the recurrence, and something behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.state, self.behind = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, out = torch.zeros_like(x[0]), []
        for t in range(x.shape[0]):
            values, _ = torch.sort(self.before(x[t]))
            h = torch.tanh(self.state(h) + values)
            out.append(torch.sort(self.behind(h))[0])
        return torch.stack(out), h


@pytest.mark.parametrize("length", [2, 3, 7])
def test_a_recurrence_overlaps_with_what_is_around_it(length: int) -> None:
    x = torch.randn(length, 4)
    program = captured(Tagger().eval(), x)
    after = apply(program, Overlap(always=True), EliminateDeadCode(), inputs=[x])
    assert trips(after) == [length + 2]
    backends.check(after, [x], units=(1, 2, 7), native=())


def test_nothing_but_a_recurrence_stays() -> None:
    def function(x: Tensor) -> Tensor:
        for _ in range(6):
            x = torch.tanh(x @ x)
        return x

    assert not Overlap(always=True).apply(captured(function, torch.randn(3, 3)))


def test_a_step_that_may_stop_the_run_stays() -> None:
    def function(x: Tensor, ids: Tensor) -> Tensor:
        h = torch.zeros(3)
        for t in range(5):
            h = torch.tanh(x[ids[t]] + h)
            x = x + h.sum()
        return x

    x, ids = torch.randn(4, 3), torch.arange(5) % 4
    assert not Overlap(always=True).apply(captured(function, x, ids))


class Steps(nn.Module):
    """One loop of random operators over several carried values."""

    def __init__(self, choices: random.Random) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.plan = [(choices.randrange(5), *choices.sample(range(6), 2)) for _ in range(6)]
        self.carried = [choices.randrange(3, 9) for _ in range(2)]
        self.pushed = [choices.randrange(3, 9) for _ in range(2)]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        a, b = x[0] * 0.5, torch.ones_like(x[0])
        out: tuple[list[Tensor], list[Tensor]] = ([], [])
        for t in range(x.shape[0]):
            values = [x[t], a, b]
            for number, (kind, first, second) in enumerate(self.plan):
                one, two = values[first % len(values)], values[second % len(values)]
                values.append(self.step(kind, number, one, two))
            a, b = (values[place] for place in self.carried)
            for items, place in zip(out, self.pushed, strict=True):
                items.append(values[place])
        return torch.stack(out[0]), torch.stack(out[1]), a, b

    def step(self, kind: int, number: int, one: Tensor, two: Tensor) -> Tensor:
        match kind:
            case 0:
                return torch.tanh(self.maps[number % 3](one))
            case 1:
                return torch.sigmoid(one) * two
            case 2:
                return torch.sort(one)[0] - two * 0.5
            case 3:
                return torch.where(one > two, one, two * 0.5)
            case _:
                return torch.tanh(one + two)


@pytest.mark.parametrize("seed", every(12, range(60)))
def test_random_steps(seed: int) -> None:
    torch.manual_seed(seed)
    choices = random.Random(seed)
    module = Steps(choices).eval()
    x = torch.randn(choices.randint(2, 6), 3)
    program = captured(module, x)
    after = apply(program, Overlap(always=True), EliminateDeadCode(), inputs=[x])
    backends.check(after, [x], units=(choices.choice([1, 2, 3, 7]),), fuse=(True,), native=())


def test_random_steps_overlap() -> None:
    """That the random programs test what they are for."""
    x = torch.randn(5, 3)
    found = [captured(Steps(random.Random(seed)).eval(), x) for seed in range(20)]
    assert sum(Overlap(always=True).apply(program) for program in found) >= 8


# ---- unrolling ------------------------------------------------------------------------------
def sorts(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = [], []
    for t in range(x.shape[0]):
        values, places = torch.sort(x[t] * 2)
        first.append(values)
        second.append(places)
    return torch.stack(first), torch.stack(second)


@pytest.mark.parametrize(("length", "factor"), [(2, 2), (7, 3), (6, 3), (5, 9), (4, 1)])
def test_iterations_that_need_nothing_of_each_other(length: int, factor: int) -> None:
    x = torch.randn(length, 5)
    after = apply(captured(sorts, x), Unroll(factor=factor), inputs=[x])
    assert trips(after) == [length // min(factor, length)]
    backends.check(after, [x], units=(1, 2), fuse=(True,), native=())


def test_a_loop_that_carries_a_tensor_is_not_unrolled() -> None:
    def function(x: Tensor) -> Tensor:
        y = x[0]
        for t in range(5):
            y = torch.sort(x[t] + y)[0]
        return y

    assert not Unroll(factor=2).apply(captured(function, torch.randn(5, 3)))


def test_checks_come_in_the_order_of_iterations() -> None:
    def rows(table: Tensor, ids: Tensor) -> Tensor:
        return torch.stack([torch.sort(table[ids[t]])[0] for t in range(7)])

    table, ids = torch.randn(4, 3), torch.tensor([0, 1, 2, 3, 9, 8, 0])
    program = captured(rows, table, ids)
    after = run_passes(program, [Unroll(factor=3)])
    messages: list[str] = []
    for one in (program, after):
        with pytest.raises(Exception, match="index 9 out of range") as raised:
            run(one, [table, ids])
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


def test_a_cpu_of_two_cores_unrolls_short_iterations() -> None:
    x = torch.randn(24, 8)
    assert not Unroll(Target(CPU_COSTS, 1)).apply(captured(sorts, x))
    after = run_passes(captured(sorts, x), [Unroll(Target(CPU_COSTS, 2))])
    assert trips(after) == [6]


def test_a_recurrence_is_not_worth_stages_without_products_around_it() -> None:
    x = torch.randn(9, 4)
    program = captured(Tagger().eval(), x)
    after = run_passes(program, pipeline(Target(CPU_COSTS, 2)))
    assert all(len(contractions(loop.body)) <= 1 for loop in loops_of(after.main.body))
