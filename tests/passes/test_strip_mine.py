"""Strip-mining: blocks of iterations, that results are the same, and when it applies and pays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from stretto.frontends.python import capture
from stretto.ir.core import Program
from stretto.machines.cpu.costs import CPU_COSTS
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.options import Debug, Options
from stretto.passes.dce import EliminateDeadCode
from stretto.passes.manager import Target, run_passes
from stretto.passes.pipeline import pipeline
from stretto.passes.strip_mine import StripMine
from tests import backends
from tests.passes.loops import apply, check, loops_of
from tests.sampling import every

ONE_PRODUCT = """
func @main(%x: f32[7, 3], %w: f32[3, 3], %h0: f32[3]) -> (f32[3]) {
  %b = aten.linear.default(%x, %w) : f32[7, 3]
  %c = aten.tanh.default(%b) : f32[7, 3]
  %h = for %t in (0, 7, 1) carry (%p = %h0) {
    %c_t = aten.select.int(%c, 0, %t) : f32[3]
    %y = aten.add.Tensor(%c_t, %p) : f32[3]
    yield %y
  } : f32[3]
  return %h
}
"""


def captured(function: Callable[..., object], *inputs: Tensor) -> Program:
    """The program with its loops batched."""
    with torch.no_grad():
        program = capture(function, inputs, {}, Options(debug=Debug(unroll=0))).program
    return run_passes(program, pipeline())


def mined(program: Program, rows: int, *inputs: Tensor) -> Program:
    """After the pass, compared with the program before it by the interpreter."""
    return apply(program, StripMine(rows=rows), EliminateDeadCode(), inputs=inputs or None)


def trips(program: Program) -> list[object]:
    return [loop.trips() for loop in loops_of(program.main.body)]


def reasons(program: Program) -> str:
    return "\n".join(one.reason for one, _ in program.remarks if one.stage == StripMine.name)


def test_rows_of_a_block_are_computed_before_its_iterations() -> None:
    check(
        ONE_PRODUCT,
        StripMine(rows=3),
        """
        func @main(%x: f32[7, 3], %w: f32[3, 3], %h0: f32[3]) -> (f32[3]) {
          %g = for %s in (0, 2, 1) carry (%p = %h0) {
            %first = aten.mul.Tensor(%s, 3) : i64[]
            %r = stretto.narrow.default(%x, 0, %first, 3) : f32[3, 3]
            %b = aten.linear.default(%r, %w) : f32[3, 3]
            %c = aten.tanh.default(%b) : f32[3, 3]
            %h = for %j in (0, 3, 1) carry (%q = %p) {
              %t = aten.add.Tensor(%j, %first) : i64[]
              %c_j = aten.select.int(%c, 0, %j) : f32[3]
              %y = aten.add.Tensor(%c_j, %q) : f32[3]
              yield %y
            } : f32[3]
            yield %h
          } : f32[3]
          %r2 = aten.slice.Tensor(%x, 0, 6, 7) : f32[1, 3]
          %b2 = aten.linear.default(%r2, %w) : f32[1, 3]
          %c2 = aten.tanh.default(%b2) : f32[1, 3]
          %h2 = for %j2 in (0, 1, 1) carry (%q2 = %g) {
            %t2 = aten.add.Tensor(%j2, 6) : i64[]
            %c_j2 = aten.select.int(%c2, 0, %j2) : f32[3]
            %y2 = aten.add.Tensor(%c_j2, %q2) : f32[3]
            yield %y2
          } : f32[3]
          return %h2
        }
        """,
    )


class Recurrent(nn.Module):
    """Layers in a loop over steps: all outputs of the last one, and a state. around: times that
    all is done; backwards: a direction of its own."""

    def __init__(self, layers: int, *, around: int = 1, backwards: bool = False) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.GRUCell(3, 3) for _ in range(layers))
        self.back = nn.GRUCell(3, 3)
        self.around, self.backwards = around, backwards

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        state = [torch.zeros_like(x[0]) for _ in self.cells]
        other = torch.ones_like(x[0])
        out: list[Tensor] = []
        for _ in range(self.around):
            for t in range(x.shape[0]):
                y = x[t]
                for layer, cell in enumerate(self.cells):
                    y = state[layer] = cell(y, state[layer])
                out.append(y)
            if self.backwards:
                for t in range(x.shape[0]):
                    other = self.back(x[x.shape[0] - 1 - t], other)
        return torch.stack(out), other, *state


@pytest.mark.whole
@pytest.mark.parametrize(
    ("length", "rows", "batch", "options"),
    every(
        2,
        [
            (7, 3, 2, {"layers": 1}),
            (6, 3, 2, {"layers": 2}),
            (5, 4, 1, {"layers": 2, "backwards": True}),
            (4, 1, 3, {"layers": 1, "around": 3}),
            (9, 2, 0, {"layers": 1, "backwards": True}),
            (3, 2, 3, {"layers": 3, "around": 2, "backwards": True}),
        ],
    ),
)
def test_layers_and_directions(length: int, rows: int, batch: int, options: dict[str, Any]) -> None:
    torch.manual_seed(length)
    x = torch.randn(length, batch, 3)
    model = Recurrent(**options).eval()
    program = captured(model, x)
    before = len(loops_of(program.main.body))
    after = mined(program, rows, x)
    assert len(loops_of(after.main.body)) > before
    backends.check(after, [x], units=(1, 2, 7), fuse=(True,), native=(2,))


def test_steps_as_many_as_a_matrix_has_rows() -> None:
    """The matrix of a product, and what is added to all rows, are no rows of the steps."""

    def function(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
        h = torch.zeros(4)
        for t in range(4):
            h = torch.tanh((x[t] @ w + scale) * scale + h)
        return h

    inputs = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4)
    after = mined(captured(function, *inputs), 3, *inputs)
    assert trips(after) == [1, 3, 1]
    backends.check(after, list(inputs), units=(1, 2), fuse=(True,), native=())


def test_a_product_of_a_matrix_with_itself_has_no_rows() -> None:
    def function(x: Tensor) -> Tensor:
        h, y = torch.zeros(4), x @ x
        for t in range(4):
            h = torch.tanh(y[t] + h)
        return h

    x = torch.randn(4, 4)
    mined(captured(function, x), 3, x)


def test_what_others_read_stays() -> None:
    """A result that is returned, one that a step reads another row of, and one that two loops
    read."""

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, g = torch.zeros(3), torch.zeros(3)
        a, b, c = x @ w, (x * 2) @ w, (x * 3) @ w
        for t in range(5):
            h = torch.tanh(a[t] + b[4 - t] + c[t] + h)
        for t in range(5):
            g = torch.tanh(c[t] + g)
        return a, h, g

    inputs = torch.randn(5, 3), torch.randn(3, 3)
    program = captured(function, *inputs)
    assert not StripMine(rows=2).apply(program)
    assert "it reads no product row by row, alone" in reasons(program)


def test_a_part_of_what_is_read_may_stay() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h, middle = torch.zeros(3), x @ w
        last = torch.relu(middle) @ w
        for t in range(5):
            h = torch.tanh(last[t] * middle[t] + h)
        return middle, h

    inputs = torch.randn(5, 3), torch.randn(3, 3)
    after = mined(captured(function, *inputs), 2, *inputs)
    assert trips(after) == [2, 2, 1]
    backends.check(after, list(inputs), units=(1, 3), fuse=(True,), native=())


def test_branches_loops_and_lists_inside_the_steps() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h, rows = torch.zeros(3), []
        y = x @ w
        for t in range(7):
            if h.sum() > 0:
                h = torch.tanh(y[t] + h)
            else:
                for _ in range(3):
                    h = h @ w + 0.25
            rows.append(h * y[t])
        return torch.stack(rows), h

    inputs = torch.randn(7, 3), torch.rand(3, 3)
    program = captured(function, *inputs)
    StripMine(rows=3).apply(program)
    backends.check(program, list(inputs), units=(1, 2), fuse=(True,), native=())


@pytest.mark.parametrize("seed", every(4, range(40)))
def test_random_lengths(seed: int) -> None:
    torch.manual_seed(seed)
    length, rows = 2 + seed % 9, 1 + seed % 4
    x = torch.randn(length, 2, 3)
    program = captured(Recurrent(1 + seed % 2, backwards=seed % 3 == 0).eval(), x)
    after = mined(program, rows, x)
    backends.check(after, [x], units=(1 + seed % 5,), fuse=(True,), native=())


# ---- when ------------------------------------------------------------------------------------
class Cell(nn.Module):
    """One product of the input in a step, and one of the state."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.inputs, self.state = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[1])
        for t in range(x.shape[0]):
            h = torch.tanh(self.inputs(x[t]) + self.state(h))
        return h


@pytest.mark.parametrize("length", [0, 1, 2, 16, 17])
def test_few_steps_stay(length: int) -> None:
    program = captured(Cell(3), torch.randn(length, 3))
    assert StripMine(Target(CPU_COSTS, 2), least_bytes=0, most_share=9.0).apply(program) == (
        length == 17
    )


def test_small_products_stay() -> None:
    program = captured(Cell(3), torch.randn(40, 3))
    assert not StripMine(Target(CPU_COSTS, 2)).apply(program)
    assert "it would save 336 bytes" in reasons(program)
    assert not StripMine().apply(program)
    assert "no machine is known" in reasons(program)


def test_many_steps_are_cut_where_blocks_cost_little() -> None:
    x = torch.randn(2008, 256)
    program = captured(Cell(256), x)
    assert StripMine(Target(CPU_COSTS, 2)).apply(program)
    assert trips(program) == [167, 12, 4]
    program = captured(Cell(256), x)
    assert not StripMine(Target(CUDA_COSTS, 132)).apply(program)
    assert "more time, as estimated" in reasons(program)


@pytest.mark.whole
def test_sizes_of_the_call() -> None:
    """Blocks of a symbolic number of steps: none are left over, one is, and there is just one."""
    model = Recurrent(1, backwards=True).eval()
    fast = stretto.compile(model, dynamic=True)
    for length in (5, 2, 3, 17, 33, 1):
        x = torch.randn(length, 2, 3)
        with torch.no_grad():
            for got, want in zip(fast(x), model(x), strict=True):
                torch.testing.assert_close(got, want)
