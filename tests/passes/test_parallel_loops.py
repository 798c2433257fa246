"""Iterations that run on units of their own: what is taken apart, what is not, and the results."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import stretto
from stretto.frontends.python import capture
from stretto.ir.core import Program
from stretto.ir.ops import ForOp
from stretto.machines.cpu.costs import CPU_COSTS
from stretto.options import Debug, Options
from stretto.passes.dce import EliminateDeadCode
from stretto.passes.forward_lists import ForwardLists
from stretto.passes.manager import Target, run_passes
from stretto.passes.parallel_loops import ParallelLoops
from stretto.passes.pipeline import pipeline
from tests import backends
from tests.passes.loops import apply, check, loops_of
from tests.sampling import every
from tests.support import program_of

NAMES = [step.name for step in pipeline()]
TIDY = pipeline()[: NAMES.index("fold_tables")]
"""The passes before those on loops."""


def captured(function: Callable[..., object], *inputs: Tensor) -> Program:
    with torch.no_grad():
        program = capture(function, inputs, {}, Options(debug=Debug(unroll=0))).program
    return run_passes(program, TIDY)


def parallel(program: Program) -> list[ForOp]:
    return [loop for loop in loops_of(program.main.body) if loop.parallel]


def declined(program: Program) -> list[str]:
    """Why loops stay as they are, as the pass says."""
    assert not ParallelLoops(always=True).apply(program)
    return [r.reason for r, _ in program.remarks if r.stage == "parallel_loops"]


def settled(x: Tensor, w: Tensor) -> Tensor:
    """A fixed point, after as many steps as the row takes."""
    while x.norm() > 0.5:
        x = torch.tanh(x @ w) * 0.8
    return x


def each(x: Tensor, w: Tensor) -> Tensor:
    """The fixed points of all rows."""
    out = []
    for t in range(x.shape[0]):
        out.append(settled(x[t], w))
    return torch.stack(out)


def tried(function: Callable[..., object], *inputs: Tensor, loops: int = 1) -> Program:
    """The loops are taken apart, and all machines give what the interpreter does."""
    after = apply(
        captured(function, *inputs),
        *(ParallelLoops(always=True), ForwardLists(), EliminateDeadCode()),
        inputs=inputs,
    )
    assert len(parallel(after)) == loops
    backends.check(after, list(inputs), units=(1, 2, 7), native=(2,))
    return after


X, W = torch.randn(5, 6) * 2, torch.randn(6, 6) / 4


def test_a_loop_becomes_two() -> None:
    check(
        """
        func @main(%x: f32[3, 4], %h: f32[4]) -> (f32[4]) {
          %g = for %t in (0, 3, 1) carry (%s = %h) {
            %r = aten.select.int(%x, 0, %t) : f32[4]
            %e = aten.exp.default(%r) : f32[4]
            %n = aten.mul.Tensor(%s, %e) : f32[4]
            yield %n
          } : f32[4]
          return %g
        }
        """,
        ParallelLoops(always=True),
        """
        func @main(%x: f32[3, 4], %h: f32[4]) -> (f32[4]) {
          %z = aten.zeros.default((3, 4), dtype=torch.float32) : f32[3, 4]
          %rows = for %t in (0, 3, 1) parallel carry (%a = %z) {
            %r = aten.select.int(%x, 0, %t) : f32[4]
            %e = aten.exp.default(%r) : f32[4]
            %row = aten.unsqueeze.default(%e, 0) : f32[1, 4]
            %u = stretto.narrow_scatter.default(%a, %row, 0, %t) : f32[3, 4]
            yield %u
          } : f32[3, 4]
          %g = for %v in (0, 3, 1) carry (%s = %h) {
            %e2 = aten.select.int(%rows, 0, %v) : f32[4]
            %n = aten.mul.Tensor(%s, %e2) : f32[4]
            yield %n
          } : f32[4]
          return %g
        }
        """,
    )


def test_results_in_a_list() -> None:
    after = tried(each, X, W)
    assert len(loops_of(after.main.body)) == 1  # the list is gone


def test_a_running_sum_stays_in_its_order() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        total, last = torch.zeros(6), x[0]
        for t in range(x.shape[0]):
            last = settled(x[t], w)
            total = torch.tanh(total * 0.5 + last)
        return total, last

    tried(function, X, W)


def test_rows_that_are_written_where_they_lie() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        out = torch.ones(7, 6)
        for t in range(x.shape[0]):
            out[t] = settled(x[t], w)
        return out

    after = tried(function, X, W)
    assert len(loops_of(after.main.body)) == 1


def test_rows_of_an_input() -> None:
    """The loop reads what it then overwrites: its own row alone."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        x = x.clone()
        for t in range(x.shape[0] - 1, -1, -2):
            x[t] = settled(x[t] + 1.0, w)
        return x

    program = captured(function, X, W)
    after = apply(program, ParallelLoops(always=True), inputs=[X, W])
    backends.check(after, [X, W], units=(2, 3), native=(2,))


@pytest.mark.whole
def test_branches_loops_and_lists_inside() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        ends, sums = [], []
        for t in range(x.shape[0]):
            h, seen = x[t], []
            for _ in range(3):
                if h.sum() > 0:
                    h = torch.tanh(h @ w)
                else:
                    h = h * 0.5 + 0.1
                seen.append(h)
            all_of_it = torch.stack(seen)
            ends.append(all_of_it.softmax(0))
            sums.append(h.sum())
        return torch.stack(ends), torch.stack(sums)

    tried(function, X, W)


def test_integers_and_flags_are_handed_over() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        steps, big = [], []
        for t in range(x.shape[0]):
            h, count = x[t], torch.zeros((), dtype=torch.int64)
            while h.norm() > 0.5:
                h = torch.tanh(h @ w) * 0.8
                count = count + 1
            steps.append(count)
            big.append(h.max() > 0)
        return torch.stack(steps), torch.stack(big)

    tried(function, X, W)


def test_a_parallel_loop_in_a_loop() -> None:
    """Its private memory is used again by each iteration of the outer one."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(3):
            x = each(x + 0.7, w) + x.sum()
        return x

    tried(function, X, W)


def test_more_units_than_iterations() -> None:
    tried(each, X[:2], W)


# ---- what stays --------------------------------------------------------------------------------
def test_a_recurrence_stays() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        h = x[0]
        for _ in range(4):
            h = settled(h + 1.0, w)
        return h

    reasons = declined(captured(function, X, W))
    assert "its iterations need each other for all that they compute" in reasons


def test_draws_of_random_numbers_stay() -> None:
    def function(x: Tensor) -> Tensor:
        out = []
        for t in range(x.shape[0]):
            out.append(torch.tanh(x[t] * torch.rand(6)))
        return torch.stack(out)

    assert "draw" in declined(captured(function, X))[0]


def test_a_loop_that_only_calls_a_function_that_may_not_end_stays() -> None:
    program = program_of(
        """
        func @main(%n: i64[]) -> () {
          for %t in (0, 2, 1) carry () {
            %m = call @f(%n) : i64[]
            yield
          }
          return
        }
        func @f(%n: i64[]) -> (i64[]) {
          %flag = aten.gt.Scalar(%n, 0) : bool[]
          %r = if %flag {
            %less = aten.sub.Tensor(%n, 1) : i64[]
            %m = call @f(%less) : i64[]
            yield %m
          } else {
            yield %n
          } : i64[]
          return %r
        }
        """
    )
    run_passes(program, (ParallelLoops(always=True),))
    assert not parallel(program)


def test_one_unit_has_no_use_for_it() -> None:
    program = captured(each, X, W)
    assert not ParallelLoops(Target(CPU_COSTS, 1)).apply(program)
    assert any("one unit runs all" in r.reason for r, _ in program.remarks)


def test_the_cost_model_decides() -> None:
    """Weights that fit one unit's cache are read by each; larger ones are better shared out."""

    for size, expected in ((64, True), (2048, False)):
        x, w = torch.randn(16, size), torch.randn(size, size)
        program = captured(each, x, w)
        assert ParallelLoops(Target(CPU_COSTS, 2)).apply(program) is expected


# ---- as a user sees it -------------------------------------------------------------------------
class Experts(nn.Module):
    """Each sample has its own number of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.sure = nn.Linear(48, 48), nn.Linear(48, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = []
        for t in range(x.shape[0]):
            h, k = x[t], 0
            while torch.sigmoid(self.sure(h)).squeeze() < 0.6 and k < 9:
                h, k = torch.tanh(self.step(h)) + 0.1, k + 1
            out.append(h)
        return torch.stack(out)


@pytest.mark.parametrize("backend", ["cpu", "emulator"])
def test_a_module_with_a_loop_per_sample(backend: str) -> None:
    torch.manual_seed(0)
    model = Experts().eval()
    fast = stretto.compile(model, backend=backend, options=Options(threads=2))
    with torch.no_grad():
        for length in (16, 3, 1, 2, 16):
            x = torch.randn(length, 48)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    if backend == "cpu":
        assert "dealt to 2 units" in fast.explain()
        assert "by one unit, for its own iterations" in fast.explain()


# ---- random programs ---------------------------------------------------------------------------
class Samples(nn.Module):
    """A loop over samples, of random steps with random control flow, and a random rest."""

    def __init__(self, choices: random.Random) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
        self.plan = [choices.randrange(6) for _ in range(choices.randint(1, 4))]
        self.rest = choices.randrange(3)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        kept, state = [], torch.ones(3)
        for t in range(x.shape[0]):
            h = x[t]
            for number, kind in enumerate(self.plan):
                h = self.step(kind, self.maps[number % 2], h)
            if self.rest == 1:
                state = torch.tanh(state + h)
            elif self.rest == 2:
                state = torch.where(h > state, h, state * 0.5)
            kept.append(h * 2)
        return torch.stack(kept), state

    def step(self, kind: int, layer: nn.Module, h: Tensor) -> Tensor:
        match kind:
            case 0:
                while h.norm() > 0.4:
                    h = torch.tanh(layer(h)) * 0.3
                return h
            case 1:
                if h.sum() > 0:
                    h = layer(h)
                else:
                    h = h - 1.0
                return h
            case 2:
                for k in range(2):
                    h = h + layer(h) * k
                return h
            case 3:
                return torch.sort(h)[0]
            case 4:
                rows = []
                for k in range(3):
                    rows.append(torch.sin(h + k))
                return torch.stack(rows).amax(0)
            case _:
                return torch.softmax(layer(h), 0)


@pytest.mark.parametrize("seed", every(8, range(60)))
def test_random_samples(seed: int) -> None:
    torch.manual_seed(seed)
    choices = random.Random(seed)
    module = Samples(choices).eval()
    x = torch.randn(choices.randint(2, 6), 3)
    program = captured(module, x)
    after = apply(program, ParallelLoops(always=True), EliminateDeadCode(), inputs=[x])
    assert parallel(after)
    backends.check(after, [x], units=(choices.choice([1, 2, 3, 7]),), fuse=(True,), native=())
