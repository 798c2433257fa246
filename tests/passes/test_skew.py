"""Skewing: which loops run at the same time, that results are the same, and when it pays."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

import stretto
from benchmarks.models import lstm
from stretto.frontends.python import capture
from stretto.interp.interpreter import run
from stretto.ir.core import Program
from stretto.machines.cpu.costs import CPU_COSTS
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.options import Debug, Options
from stretto.passes.dce import EliminateDeadCode
from stretto.passes.manager import Target, run_passes
from stretto.passes.pipeline import pipeline
from stretto.passes.skew import Skew
from stretto.simulator.devices import V100, costs_on
from tests import backends
from tests.passes.loops import apply, check, loops_of
from tests.sampling import every
from tests.support import program_of

TWO_LAYERS = """
func @main(%x: f32[6, 3], %w: f32[3, 3], %h0: f32[3], %g0: f32[3]) -> (f32[3], f32[3]) {
  %none = list.new() : list<f32[3]>
  %h, %ys = for %t in (0, 6, 1) carry (%p = %h0, %l = %none) {
    %x_t = aten.select.int(%x, 0, %t) : f32[3]
    %y = aten.add.Tensor(%x_t, %p) : f32[3]
    %m = list.push(%l, %y) : list<f32[3]>
    yield %y, %m
  } : f32[3], list<f32[3]>
  %all = list.stack(%ys) : f32[6, 3]
  %b = aten.linear.default(%all, %w) : f32[6, 3]
  %g = for %u in (0, 6, 1) carry (%q = %g0) {
    %b_t = aten.select.int(%b, 0, %u) : f32[3]
    %z = aten.mul.Tensor(%b_t, %q) : f32[3]
    yield %z
  } : f32[3]
  return %h, %g
}
"""
ALWAYS = (Skew(always=True), EliminateDeadCode())


def skewed(program: Program) -> Program:
    """The optimised program, with all loops skewed that can be."""
    return run_passes(program, (*pipeline(), *ALWAYS))


def captured(function: Callable[..., object], *inputs: Tensor) -> Program:
    with torch.no_grad():
        return capture(function, inputs, {}, Options(debug=Debug(unroll=0))).program


def trips(program: Program) -> list[int | None]:
    return [loop.trip_count() for loop in loops_of(program.main.body)]


def test_a_second_layer_runs_one_step_behind() -> None:
    check(
        TWO_LAYERS,
        Skew(always=True),
        """
        func @main(%x: f32[6, 3], %w: f32[3, 3], %h0: f32[3], %g0: f32[3]) -> (f32[3], f32[3]) {
          %none = list.new() : list<f32[3]>
          %0 = aten.zeros.default((3,), dtype=torch.float32) : f32[3]
          %h, %ys, %g, %y = for %d in (0, 7, 1) carry (%p = %h0, %l = %none, %q = %g0, %r = %0) {
            %t = aten.clamp.default(%d, 0, 5) : i64[]
            %x_t = aten.select.int(%x, 0, %t) : f32[3]
            %y_t = aten.add.Tensor(%x_t, %p) : f32[3]
            %m = list.push(%l, %y_t) : list<f32[3]>
            %runs = aten.lt.Scalar(%d, 6) : bool[]
            %next_h = aten.where.self(%runs, %y_t, %p) : f32[3]
            %before = aten.sub.Tensor(%d, 1) : i64[]
            %u = aten.clamp.default(%before, 0, 5) : i64[]
            %b_t = aten.linear.default(%r, %w) : f32[3]
            %z = aten.mul.Tensor(%b_t, %q) : f32[3]
            %has_begun = aten.ge.Scalar(%d, 1) : bool[]
            %next_g = aten.where.self(%has_begun, %z, %q) : f32[3]
            yield %next_h, %m, %next_g, %y_t
          } : f32[3], list<f32[3]>, f32[3], f32[3]
          %longer = list.stack(%ys) : f32[7, 3]
          %all = aten.slice.Tensor(%longer, 0, 0, 6) : f32[6, 3]
          %c = aten.linear.default(%all, %w) : f32[6, 3]
          return %h, %g
        }
        """,
    )


class Layers(nn.Module):
    """x [T, B, H] -> all outputs of the last layer, and the last state of each.

    steps_outside: the loop over the steps is around that over the layers.
    """

    def __init__(self, layers: int, hidden: int, *, steps_outside: bool) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.GRUCell(hidden, hidden) for _ in range(layers))
        self.steps_outside = steps_outside

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        state = [torch.zeros_like(x[0]) for _ in self.cells]
        if self.steps_outside:
            out = []
            for t in range(x.shape[0]):
                y = x[t]
                for layer, cell in enumerate(self.cells):
                    y = state[layer] = cell(y, state[layer])
                out.append(y)
            return torch.stack(out), *state
        for layer, cell in enumerate(self.cells):
            out = []
            for t in range(x.shape[0]):
                state[layer] = cell(x[t], state[layer])
                out.append(state[layer])
            x = torch.stack(out)
        return x, *state


@pytest.mark.parametrize("steps_outside", [True, False])
@pytest.mark.parametrize(("layers", "steps"), [(2, 2), (3, 7), (5, 3)])
def test_layers_become_a_wavefront_whichever_loop_is_outside(
    layers: int, steps: int, steps_outside: bool
) -> None:
    x = torch.randn(steps, 2, 4)
    program = captured(Layers(layers, 4, steps_outside=steps_outside), x)
    after = apply(program, *pipeline(), *ALWAYS, inputs=[x])
    assert trips(after) == [steps + layers - 1]


@pytest.mark.parametrize(
    ("kind", "batch_first"), every(4, [nn.LSTM, nn.GRU, nn.RNN], [False, True])
)
def test_layers_of_torch_become_a_wavefront(
    kind: type[nn.LSTM | nn.GRU | nn.RNN], batch_first: bool
) -> None:
    module = kind(3, 4, num_layers=3, batch_first=batch_first).eval()
    x = torch.randn(5, 5, 3)
    after = apply(captured(module, x), *pipeline(), *ALWAYS, inputs=[x])
    assert trips(after) == [7]


def test_two_directions_run_in_the_same_step() -> None:
    x = torch.randn(5, 2, 3)
    module = nn.LSTM(3, 4, num_layers=2, bidirectional=True).eval()
    after = apply(captured(module, x), *pipeline(), *ALWAYS, inputs=[x])
    assert trips(after) == [5, 5]  # the second layer needs the whole first one


class Residual(nn.Module):
    """A third layer that reads the first one, two steps later, and outputs of all layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.maps = nn.LayerNorm(4), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, b, c = (torch.zeros_like(x[0]) for _ in range(3))
        first, second, third = [], [], []
        for t in range(x.shape[0]):
            a = torch.tanh(x[t] + a)
            first.append(a)
        for t in range(x.shape[0]):
            b = torch.tanh(self.maps[0](first[t]) + b)
            second.append(b)
        joined = self.norm(self.maps[1](torch.stack(second))) + torch.stack(first) * 0.5
        for t in range(x.shape[0]):
            c = torch.tanh(self.maps[2](joined[t]) * c + 1)
            third.append(c)
        return torch.stack(first), torch.stack(second), torch.stack(third)


@pytest.mark.whole
def test_values_are_kept_for_several_steps() -> None:
    x = torch.randn(6, 4)
    program = captured(Residual().eval(), x)
    after = apply(program, *pipeline(), *ALWAYS, inputs=[x])
    assert trips(after) == [8]
    backends.check(after, [x], units=(1, 2, 3, 7), native=(3,))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("for %u in (0, 6, 1) carry (%q", "for %u in (0, 5, 1) carry (%q"),
        ("for %u in (0, 6, 1) carry (%q", "for %u in (5, -1, -1) carry (%q"),
        ("aten.select.int(%b, 0, %u)", "aten.select.int(%b, 0, 0)"),
        ("carry (%q = %g0)", "carry (%q = %h)"),
        ("%z = aten.mul.Tensor(%b_t, %q)", "%z = aten.mul.Tensor(%b_t, %h)"),
        ("aten.linear.default(%all, %w)", "aten.cumsum.default(%all, 0)"),
        ("aten.linear.default(%all, %w)", "aten.flip.default(%all, (0))"),
        ("aten.linear.default(%all, %w)", "aten.softmax.int(%all, 0)"),
        ("aten.linear.default(%all, %w)", "aten.mul.Tensor(%all, %h)"),
        (
            "yield %z\n",
            '%o = aten.lt.Scalar(%u, 9) : bool[]\n    check %o, "ValueError", ""\n    yield %z\n',
        ),
    ],
)
def test_loops_that_need_more_than_a_step_stay(old: str, new: str) -> None:
    assert old in TWO_LAYERS
    assert not Skew(always=True).apply(program_of(TWO_LAYERS.replace(old, new, 1)))


def test_positions_that_another_loop_makes_are_not_looked_up() -> None:
    """Before its first step a loop would look up positions that are none."""

    def function(table: Tensor, ids: Tensor, x: Tensor) -> Tensor:
        position, state, out = ids[0], x, []
        for t in range(ids.shape[0]):
            position = (position + ids[t]) % 3 + 1
            out.append(position)
        for t in range(ids.shape[0]):
            state = torch.tanh(state + table[out[t]])
        return state

    table, ids, x = torch.randn(4, 3), torch.arange(5), torch.randn(3)
    after = apply(captured(function, table, ids, x), *pipeline(), *ALWAYS, inputs=[table, ids, x])
    assert trips(after) == [5, 5]


# ---- random programs ------------------------------------------------------------------------
class Stack(nn.Module):
    """Recurrent layers of several kinds over a sequence, with what stands between layers."""

    def __init__(self, choices: random.Random) -> None:
        super().__init__()
        self.hidden = choices.choice([3, 4, 8])
        self.layers = choices.randint(2, 4)
        self.kinds = [choices.randrange(4) for _ in range(self.layers)]
        self.between = [choices.randrange(6) for _ in range(self.layers)]
        self.skips = [choices.randrange(layer + 1) for layer in range(self.layers)]
        self.outputs = [choices.random() < 0.4 for _ in range(self.layers)]
        self.maps = nn.ModuleList(
            nn.Linear(self.hidden, self.hidden) for _ in range(3 * self.layers)
        )
        self.norm = nn.LayerNorm(self.hidden)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        made, kept = [x], []
        for layer in range(self.layers):
            read = self.read(made, layer)
            state, fast, out = torch.zeros_like(x[0]), torch.ones_like(x[0]), []
            for t in range(x.shape[0]):
                state, fast = self.step(layer, read[t], state, fast)
                out.append(state)
            made.append(torch.stack(out))
            kept.append(state)
            if self.outputs[layer]:
                kept.append(made[-1])
        return (*kept, made[-1])

    def read(self, made: Sequence[Tensor], layer: int) -> Tensor:
        first, second = made[-1], made[self.skips[layer]]
        match self.between[layer]:
            case 0:
                return self.maps[3 * layer](first)
            case 1:
                return self.norm(first) * second
            case 2:
                return torch.relu(first + second.sum(-1, keepdim=True))
            case 3:
                return torch.where(first > 0, self.maps[3 * layer](second), first)
            case 4:
                return first.softmax(-1)
            case _:
                return first

    def step(self, layer: int, x: Tensor, state: Tensor, fast: Tensor) -> tuple[Tensor, Tensor]:
        one, two, three = self.maps[3 * layer : 3 * layer + 3]
        match self.kinds[layer]:
            case 0:
                return torch.tanh(two(state) + x), fast
            case 1:
                fast = torch.sigmoid(one(x) + fast)
                return fast * state + x, fast
            case 2:
                new = torch.tanh(three(torch.relu(two(state))) + x)
                return new, state
            case _:
                return torch.where(x.sum() > 0, state + x, torch.tanh(state)), fast


@pytest.mark.parametrize("seed", every(15, range(60)))
def test_random_layers(seed: int) -> None:
    choices = random.Random(seed)
    torch.manual_seed(seed)
    module = Stack(choices).eval()
    rows = choices.choice([(), (1,), (3,)])
    x = torch.randn(choices.randint(2, 6), *rows, module.hidden)
    program = captured(module, x)
    after = skewed(program)
    with torch.no_grad():
        expected = copy.deepcopy(module).double()(x.double())
    found = apply(program, *pipeline(), *ALWAYS, inputs=[x])
    assert len(trips(found)) <= module.layers
    backends.check(after, [x], units=(1, choices.choice([2, 3, 7])), fuse=(True,), native=())
    (*_, last) = backends.built(after, 2).emulator()([x])
    torch.testing.assert_close(last, expected[-1].float(), rtol=1e-4, atol=1e-5)


def test_random_layers_are_skewed() -> None:
    """That the random programs test what they are for."""
    count = 0
    for seed in range(8):
        choices = random.Random(seed)
        module = Stack(choices).eval()
        x = torch.randn(4, module.hidden)
        count += len(trips(skewed(captured(module, x)))) < module.layers
    assert count >= 5


@pytest.mark.whole
def test_gpus_interpreted() -> None:
    x = torch.randn(5, 2, 4)
    program = skewed(captured(nn.LSTM(4, 4, num_layers=3).eval(), x))
    for units in (1, 5):
        found = backends.built_cuda(program, units).cuda()([x])
        backends.assert_close(found, run(program, [x]))


@pytest.mark.whole
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_any_number_of_steps(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One program for all lengths: it skews also where there is but one step."""
    monkeypatch.setattr("stretto.passes.skew.why_sequential", lambda *_: None)
    module = Layers(3, 4, steps_outside=False).eval()
    compiled = stretto.compile(module, dynamic=True, options=Options(threads=2))
    with torch.no_grad():
        for length in (7, steps):
            x = torch.randn(length, 2, 4)
            torch.testing.assert_close(compiled(x), module(x))
        (entry,) = compiled.signatures
        assert len(loops_of(entry.stages.program.main.body)) == 1


# ---- costs ----------------------------------------------------------------------------------
def decided(config: lstm.LSTMConfig, target: Target) -> list[int | None]:
    model, inputs = lstm.make(config)
    return trips(run_passes(captured(model, *inputs), pipeline(target)))


def test_a_gpu_skews_what_a_cpu_runs_layer_by_layer() -> None:
    config = lstm.LSTMConfig(length=32, layers=4, hidden=256)
    assert decided(config, Target(CUDA_COSTS, 132)) == [35]
    assert decided(config, Target(CPU_COSTS, 2)) == [32] * 4


def test_weights_that_the_cache_does_not_hold_are_read_layer_by_layer() -> None:
    """A layer's weights stay in the cache of this GPU, those of ten layers do not."""
    costs = costs_on(V100, CUDA_COSTS)
    for layers, loops in ((10, [32] * 10), (2, [33])):
        config = lstm.LSTMConfig(length=32, layers=layers, hidden=256)
        assert decided(config, Target(costs, 80)) == loops


def test_one_unit_waits_for_nobody() -> None:
    config = lstm.LSTMConfig(length=8, layers=3, hidden=8)
    assert decided(config, Target(CPU_COSTS, 1)) == [8] * 3


def test_what_one_unit_does_sooner_is_not_skewed() -> None:
    """Small layers: the waits of two units would take longer than all the work."""
    config = lstm.LSTMConfig(length=64, layers=6, hidden=32)
    assert decided(config, Target(CPU_COSTS, 2)) == [64] * 6


def test_without_a_machine_nothing_is_skewed() -> None:
    program = program_of(TWO_LAYERS)
    assert not Skew().apply(program)
    assert {remark.reason for remark, _ in program.remarks} == {"no machine is known"}
