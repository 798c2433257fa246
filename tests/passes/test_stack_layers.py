"""Layers that a loop computes side by side become rows of one tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import stretto
from stretto.frontends.python import capture
from stretto.ir.core import Program
from stretto.ir.ops import ForOp
from stretto.machines.cpu.costs import CPU_COSTS
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.options import Debug, Options
from stretto.passes.dce import EliminateDeadCode
from stretto.passes.manager import Target
from stretto.passes.pipeline import pipeline
from stretto.passes.skew import Skew
from stretto.passes.stack_layers import StackLayers
from tests import backends
from tests.passes.loops import apply, check, loops_of, targets
from tests.sampling import every
from tests.support import program_of

STACK = StackLayers(least=2)
SKEWED = (*pipeline(), Skew(always=True), EliminateDeadCode())


def skewed(function: Callable[..., object], *inputs: Tensor) -> Program:
    with torch.no_grad():
        program = capture(function, inputs, {}, Options(debug=Debug(unroll=0))).program
    return apply(program, *SKEWED, inputs=inputs)


def stacked(program: Program, *inputs: Tensor, step: StackLayers = STACK) -> ForOp:
    """The loop after the pass; all machines give what the interpreter does."""
    after = apply(program, step, EliminateDeadCode(), inputs=inputs)
    backends.check(after, list(inputs), units=(1, 3, 7), native=(2,))
    (loop,) = loops_of(after.main.body)
    return loop


class Cell(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.input_map, self.hidden_map = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        a, b = (self.input_map(x) + self.hidden_map(h)).chunk(2, -1)
        return torch.tanh(a) * torch.sigmoid(b) + h


class Stack(nn.Module):
    """Layers over a sequence; the last state of each, and the sequence of the last."""

    def __init__(self, layers: int, width: int = 8, odd: int | None = None) -> None:
        super().__init__()
        widths = [width] * layers
        self.cells = nn.ModuleList(map(Cell, widths))
        self.odd = odd

    def forward(self, xs: Tensor) -> tuple[Tensor, ...]:
        last: list[Tensor] = []
        for number, cell in enumerate(self.cells):
            h, out = torch.zeros_like(xs[0]), []
            for x in xs:
                h = cell(x, h)
                out.append(h * 2.0 if number == self.odd else h)
            xs = torch.stack(out)
            last.append(h)
        return (*last, xs)


def test_three_layers_take_what_the_ones_before_made() -> None:
    """The values begin as constants, the last state of the second one is a result."""
    constants = "\n".join(f'%{c} = constant "{c}" : f32[4, 4]' for c in "uvw")
    check(
        f"""
        func @main(%p: f32[4], %a: f32[4], %b: f32[4], %c: f32[4]) -> (f32[4], f32[4]) {{
          {constants}
          %s, %t, %y, %z = for %i in (0, 5, 1) carry (%k = %p, %d = %a, %e = %b, %f = %c) {{
            %l = aten.mul.Tensor(%k, %i) : f32[4]
            %m = aten.linear.default(%k, %u) : f32[4]
            %n = aten.add.Tensor(%m, %d) : f32[4]
            %o = aten.tanh.default(%n) : f32[4]
            %q = aten.linear.default(%d, %v) : f32[4]
            %r = aten.add.Tensor(%q, %e) : f32[4]
            %x = aten.tanh.default(%r) : f32[4]
            %g = aten.linear.default(%e, %w) : f32[4]
            %h = aten.add.Tensor(%g, %f) : f32[4]
            %j = aten.tanh.default(%h) : f32[4]
            yield %l, %o, %x, %j
          }} : f32[4], f32[4], f32[4], f32[4]
          return %y, %s
        }}
        """,
        STACK,
        f"""
        func @main(%p: f32[4], %a: f32[4], %b: f32[4], %c: f32[4]) -> (f32[4], f32[4]) {{
          {constants}
          %uvw = aten.stack.default((%u, %v, %w), 0) : f32[3, 4, 4]
          %pabc = aten.stack.default((%p, %a, %b, %c), 0) : f32[4, 4]
          %s, %t = for %i in (0, 5, 1) carry (%k = %p, %d = %pabc) {{
            %l = aten.mul.Tensor(%k, %i) : f32[4]
            %e = aten.slice.Tensor(%d, 0, 0, 3) : f32[3, 4]
            %f = aten.slice.Tensor(%d, 0, 1, 4) : f32[3, 4]
            %g = aten.view.default(%e, (3, 4, 1)) : f32[3, 4, 1]
            %m = aten.bmm.default(%uvw, %g) : f32[3, 4, 1]
            %o = aten.view.default(%m, (3, 4)) : f32[3, 4]
            %n = aten.add.Tensor(%o, %f) : f32[3, 4]
            %h = aten.tanh.default(%n) : f32[3, 4]
            %j = aten.unsqueeze.default(%l, 0) : f32[1, 4]
            %q = aten.cat.default((%j, %h), 0) : f32[4, 4]
            yield %l, %q
          }} : f32[4], f32[4, 4]
          %y = aten.select.int(%t, 0, 2) : f32[4]
          return %y, %s
        }}
        """,
    )


@pytest.mark.whole
@pytest.mark.parametrize(("layers", "steps"), every(4, (4, 5, 7), (2, 5, 7)))
def test_a_stack_over_a_sequence(layers: int, steps: int) -> None:
    x = torch.randn(steps, 8)
    loop = stacked(skewed(Stack(layers), x), x)
    assert targets(loop.body).count("aten.bmm.default") == 2
    assert targets(loop.body).count("aten.linear.default") == 3  # of the first and the last one


@pytest.mark.whole
def test_a_layer_that_differs_is_no_part_of_it() -> None:
    x = torch.randn(6, 8)
    program = skewed(Stack(6, odd=3), x)
    before = targets(loops_of(program.main.body)[0].body).count("aten.sigmoid.default")
    loop = stacked(program, x)
    assert before == 6
    assert targets(loop.body).count("aten.sigmoid.default") == 5


@pytest.mark.whole
def test_batches_of_rows() -> None:
    x = torch.randn(5, 3, 8)
    loop = stacked(skewed(Stack(4), x), x)
    assert "aten.bmm.default" in targets(loop.body)


def test_layers_without_elements() -> None:
    x = torch.randn(5, 0, 8)
    stacked(skewed(Stack(4), x), x)


def test_layers_that_draw_or_may_stop_the_run_stay() -> None:
    def function(x: Tensor, ids: Tensor) -> Tensor:
        a, b, c = x[0], x[1], x[2]
        for t in range(4):
            a, b, c = a + torch.rand(4), b + torch.rand(4), c + torch.rand(4)
            a, b, c = a + x[ids[t]], b + x[ids[t]], c + x[ids[t]]
        return a + b + c

    x, ids = torch.randn(3, 4), torch.tensor([0, 2, 1, 1])
    with torch.no_grad():
        program = capture(function, (x, ids), {}, Options(debug=Debug(unroll=0))).program
    assert not STACK.apply(program)


def test_the_machine_says_how_many() -> None:
    x = torch.randn(5, 8)
    program = skewed(Stack(5), x)
    assert not StackLayers(Target(CPU_COSTS, 2)).apply(program)
    assert not StackLayers().apply(program)
    assert StackLayers(Target(CUDA_COSTS, 5)).apply(program)
    few = skewed(Stack(4), x)
    assert not StackLayers(Target(CUDA_COSTS, 5)).apply(few)


def test_why_layers_stay_is_said() -> None:
    """The comparisons with the index grow unevenly."""
    text = "\n".join(
        f"%c{n} = aten.ge.Scalar(%i, {k}) : bool[]\n"
        f"%t{n} = aten.tanh.default(%x{n}) : f32[4]\n"
        f"%y{n} = aten.where.self(%c{n}, %t{n}, %x{n}) : f32[4]"
        for n, k in enumerate((0, 1, 3))
    )
    program = program_of(f"""
        func @main(%a: f32[4]) -> (f32[4]) {{
          %p, %q, %r = for %i in (0, 4, 1) carry (%x0 = %a, %x1 = %a, %x2 = %a) {{
            {text}
            yield %y0, %y1, %y2
          }} : f32[4], f32[4], f32[4]
          %s = aten.add.Tensor(%p, %q) : f32[4]
          %t = aten.add.Tensor(%s, %r) : f32[4]
          return %t
        }}
        """)
    assert not StackLayers(least=3).apply(program)
    ((remark, _),) = program.remarks
    assert remark.reason == "layers do other things with the loop's index"


def test_what_a_branch_reads_stays() -> None:
    """An arm uses a value of a layer; constants of layers differ by their sign."""
    layers = "".join(
        f"%t{n} = aten.tanh.default(%x{n}) : f32[4]\n"
        f"%y{n} = aten.add.Scalar(%t{n}, {zero}) : f32[4]\n"
        for n, zero in enumerate((0.0, -0.0, 0.0))
    )
    program = program_of(f"""
        func @main(%a: f32[4], %c: bool[]) -> (f32[4]) {{
          %p, %q, %r = for %i in (0, 4, 1) carry (%x0 = %a, %x1 = %a, %x2 = %a) {{
            {layers}
            %z = if %c {{
              yield %y0
            }} else {{
              yield %x1
            }} : f32[4]
            yield %z, %y1, %y2
          }} : f32[4], f32[4], f32[4]
          %s = aten.add.Tensor(%p, %q) : f32[4]
          %t = aten.add.Tensor(%s, %r) : f32[4]
          return %t
        }}
        """)
    assert not STACK.apply(program)


def test_a_user_s_lstm_on_the_emulated_gpu() -> None:
    torch.manual_seed(0)
    lstm, x = nn.LSTM(16, 16, 5), torch.randn(6, 1, 16)
    fast = stretto.compile(lstm, backend="cuda-emulated", options=Options(units=5))
    with torch.no_grad():
        torch.testing.assert_close(fast(x), lstm(x), rtol=1e-4, atol=1e-5)
        stages = fast.signatures[0].stages
    assert any("bmm" in kernel.name for kernel in stages.product.plan.program.kernels)
