"""Loops over sizes that the call decides: one program for every trip count, no trips included."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stretto.call.compiler import build
from stretto.interp.interpreter import run
from stretto.ir.core import Program
from stretto.machines.emulator.machine import MACHINES
from stretto.options import Options
from stretto.passes.manager import run_passes
from stretto.passes.pipeline import pipeline
from tests.backends import assert_close
from tests.passes.loops import contractions, loops_of
from tests.support import program_of

TAGGER = """
    func @main[{low} <= n](%x: f32[n, 4]) -> (f32[n, 3]) {{
      %w = constant "w" : f32[3, 4]
      %u = constant "u" : f32[3, 3]
      %h0 = aten.full.default((3,), 0.0) : f32[3]
      %l0 = list.new() : list<f32[3]>
      %h, %l = for %t in ({bounds}) carry (%g = %h0, %k = %l0) {{
        {position}
        %x_t = aten.select.int(%x, 0, {index}) : f32[4]
        %a = aten.linear.default(%x_t, %w) : f32[3]
        %b = aten.linear.default(%g, %u) : f32[3]
        %s = aten.add.Tensor(%a, %b) : f32[3]
        %y = aten.tanh.default(%s) : f32[3]
        %m = list.push(%k, %y) : list<f32[3]>
        yield %y, %m
      }} : f32[3], list<f32[3]>
      %r = list.stack(%l) : f32[n, 3]
      return %r
    }}
    """


def tagger(bounds: str = "0, n, 1", index: str = "%t", position: str = "", low: int = 0) -> Program:
    return program_of(TAGGER.format(bounds=bounds, index=index, position=position, low=low))


def eager(program: Program, order: Callable[[int], range]) -> Callable[..., torch.Tensor]:
    w, u = program.constants["w"], program.constants["u"]

    def function(x: torch.Tensor) -> torch.Tensor:
        h, rows = torch.zeros(3), [torch.zeros(3)]
        for t in order(len(x)):
            h = torch.tanh(x[t] @ w.T + h @ u.T)
            rows.append(h)
        return torch.stack(rows)[1:]

    return function


def check(program: Program, expected: Callable[..., torch.Tensor], width: int, low: int) -> None:
    stages = build(program, MACHINES[0], Options(threads=2))
    assert stages.executable is not None
    for n in (0, 1, 2, 5, 17):
        if n >= low:
            x = torch.randn(n, width, generator=torch.Generator().manual_seed(n))
            wanted = expected(x)
            assert_close(run(program, [x]), [wanted])
            assert_close(stages.executable([x]), [wanted])


@pytest.mark.parametrize(
    ("bounds", "index", "position", "order"),
    [
        ("0, n, 1", "%t", "", range),
        ("`n - 1`, -1, -1", "%t", "", lambda n: range(n)[::-1]),
        ("0, n, 1", "%p", "%p = aten.rsub.Scalar(%t, `n - 1`) : i64[]", lambda n: range(n)[::-1]),
        ("-1, `n - 1`, 1", "%p", "%p = aten.add.Scalar(%t, 1) : i64[]", range),
    ],
)
def test_the_input_projection_is_one_product(
    bounds: str, index: str, position: str, order: Callable[[int], range]
) -> None:
    program = tagger(bounds, index, position)
    after = run_passes(program, pipeline())
    (loop,) = loops_of(after.main.body)
    assert [op.result.type.shape[0] for op in contractions(after.main.body)] == [
        program.main.params[0].tensor.shape[0]
    ]
    assert len(contractions(loop.body)) == 1
    check(program, eager(program, order), 4, 0)


def results(text: str, *shapes: tuple[int | str, ...], low: int = 0) -> Program:
    """The program, after it gave on the emulator what the interpreter gives, for many sizes."""
    program = program_of(text)
    stages = build(program, MACHINES[0], Options(threads=2))
    assert stages.executable is not None
    for n in (0, 1, 2, 7):
        if n < low:
            continue
        generator = torch.Generator().manual_seed(n)
        inputs = [
            torch.randn([n if dim == "n" else int(dim) for dim in shape], generator=generator)
            for shape in shapes
        ]
        assert_close(stages.executable(inputs), run(program, inputs))
    return run_passes(program, pipeline())


def test_two_layers_become_two_loops() -> None:
    after = results(
        """
        func @main[0 <= n](%x: f32[n, 4], %h0: f32[4], %g0: f32[4]) -> (f32[4], f32[4]) {
          %w = constant "w" : f32[4, 4]
          %u = constant "u" : f32[4, 4]
          %v = constant "v" : f32[4, 4]
          %h, %g = for %t in (0, n, 1) carry (%a = %h0, %b = %g0) {
            %x_t = aten.select.int(%x, 0, %t) : f32[4]
            %p = aten.linear.default(%a, %w) : f32[4]
            %q = aten.add.Tensor(%x_t, %p) : f32[4]
            %y = aten.tanh.default(%q) : f32[4]
            %r = aten.linear.default(%y, %u) : f32[4]
            %s = aten.linear.default(%b, %v) : f32[4]
            %c = aten.add.Tensor(%r, %s) : f32[4]
            %z = aten.tanh.default(%c) : f32[4]
            yield %y, %z
          } : f32[4], f32[4]
          return %h, %g
        }
        """,
        ("n", 4),
        (4,),
        (4,),
    )
    assert len(loops_of(after.main.body)) == 2
    (product,) = contractions(after.main.body)
    assert str(product.result.type) == "f32[n, 4]"


def test_work_leaves_both_of_two_nested_loops() -> None:
    after = results(
        """
        func @main[0 <= n](%x: f32[n, 3, 4], %h0: f32[2]) -> (f32[2]) {
          %w = constant "w" : f32[2, 4]
          %h = for %i in (0, n, 1) carry (%p = %h0) {
            %x_i = aten.select.int(%x, 0, %i) : f32[3, 4]
            %q = for %j in (0, 3, 1) carry (%r = %p) {
              %y = aten.select.int(%x_i, 0, %j) : f32[4]
              %a = aten.linear.default(%y, %w) : f32[2]
              %s = aten.add.Tensor(%r, %a) : f32[2]
              %t = aten.tanh.default(%s) : f32[2]
              yield %t
            } : f32[2]
            yield %q
          } : f32[2]
          return %h
        }
        """,
        ("n", 3, 4),
        (2,),
    )
    (product,) = contractions(after.main.body)
    assert str(product.result.type) == "f32[n, 3, 2]"


def test_a_loop_over_the_other_size_inside() -> None:
    text = """
        func @main[0 <= m, 0 <= n](%x: f32[n, m, 4], %h0: f32[2]) -> (f32[2]) {
          %w = constant "w" : f32[2, 4]
          %h = for %i in (0, m, 1) carry (%p = %h0) {
            %q = for %j in (0, n, 1) carry (%r = %p) {
              %x_j = aten.select.int(%x, 0, %j) : f32[m, 4]
              %y = aten.select.int(%x_j, 0, %i) : f32[4]
              %a = aten.linear.default(%y, %w) : f32[2]
              %s = aten.add.Tensor(%r, %a) : f32[2]
              %t = aten.tanh.default(%s) : f32[2]
              yield %t
            } : f32[2]
            yield %q
          } : f32[2]
          return %h
        }
        """
    program = program_of(text)
    stages = build(program, MACHINES[0], Options(threads=2))
    assert stages.executable is not None
    for sizes in ((0, 3), (3, 0), (1, 1), (2, 5)):
        inputs = [torch.randn(*sizes, 4), torch.randn(2)]
        assert_close(stages.executable(inputs), run(program, inputs))
    after = run_passes(program, pipeline())
    assert str(contractions(after.main.body)[0].result.type) in ("f32[m, n, 2]", "f32[n, m, 2]")


@pytest.mark.parametrize(
    ("bounds", "index"), [("0, n, 3", "%t"), ("1, n, 2", "%t"), ("`n - 1`, 0, -2", "%t")]
)
def test_steps(bounds: str, index: str) -> None:
    """Every so many rows: the loop stays, and is right."""
    after = results(
        f"""
        func @main[0 <= n](%x: f32[n, 4], %h0: f32[3]) -> (f32[3], i64[]) {{
          %w = constant "w" : f32[3, 4]
          %zero = literal 0 : i64[]
          %h, %c = for %t in ({bounds}) carry (%g = %h0, %k = %zero) {{
            %x_t = aten.select.int(%x, 0, {index}) : f32[4]
            %a = aten.linear.default(%x_t, %w) : f32[3]
            %s = aten.add.Tensor(%a, %g) : f32[3]
            %y = aten.tanh.default(%s) : f32[3]
            %d = aten.add.Tensor(%k, %t) : i64[]
            yield %y, %d
          }} : f32[3], i64[]
          return %h, %c
        }}
        """,
        ("n", 4),
        (3,),
    )
    assert len(loops_of(after.main.body)) == 1


def test_an_invariant_that_may_stop_the_run_stays_in_a_loop_that_may_not_run() -> None:
    program = program_of("""
        func @main[0 <= n](%x: f32[n, 4], %h0: f32[3], %p: i64[]) -> (f32[3]) {
          %w = constant "w" : f32[3, 4]
          %h = for %t in (0, n, 1) carry (%g = %h0) {
            %row = aten.select.int(%x, 0, %p) : f32[4]
            %x_t = aten.select.int(%x, 0, %t) : f32[4]
            %a = aten.add.Tensor(%x_t, %row) : f32[4]
            %b = aten.linear.default(%a, %w) : f32[3]
            %s = aten.add.Tensor(%b, %g) : f32[3]
            yield %s
          } : f32[3]
          return %h
        }
        """)
    stages = build(program, MACHINES[0], Options(threads=2))
    assert stages.executable is not None
    h0 = torch.randn(3)
    assert_close(stages.executable([torch.randn(0, 4), h0, torch.tensor(7)]), [h0])
    inputs = [torch.randn(5, 4), h0, torch.tensor(3)]
    assert_close(stages.executable(inputs), run(program, inputs))
    with pytest.raises(IndexError):
        stages.executable([torch.randn(5, 4), h0, torch.tensor(5)])


def test_a_list_of_as_many_items_is_read_as_its_tensor() -> None:
    """The rows of the second loop are those of the first one; only products are left."""
    after = results(
        """
        func @main[0 <= n](%x: f32[n, 4]) -> (f32[n, 3], i64[]) {
          %w = constant "w" : f32[4, 4]
          %u = constant "u" : f32[3, 4]
          %l0 = list.new() : list<f32[4]>
          %l = for %t in (0, n, 1) carry (%k = %l0) {
            %x_t = aten.select.int(%x, 0, %t) : f32[4]
            %a = aten.linear.default(%x_t, %w) : f32[4]
            %m = list.push(%k, %a) : list<f32[4]>
            yield %m
          } : list<f32[4]>
          %c = list.length(%l) : i64[]
          %e0 = list.new() : list<f32[3]>
          %e = for %t2 in (0, %c, 1) carry (%k2 = %e0) {
            %x_t2 = list.get(%l, %t2) : f32[4]
            %a2 = aten.linear.default(%x_t2, %u) : f32[3]
            %m2 = list.push(%k2, %a2) : list<f32[3]>
            yield %m2
          } : list<f32[3]>
          %r = list.stack(%e) : f32[n, 3]
          return %r, %c
        }
        """,
        ("n", 4),
    )
    assert not loops_of(after.main.body)
    assert len(contractions(after.main.body)) == 2


def test_rows_of_a_symbolic_size() -> None:
    """Lists of tensors whose own dims are sizes of the call."""
    results(
        """
        func @main[0 <= n](%x: f32[5, n], %y: f32[n, n]) -> (f32[5, n], f32[n, n], f32[n]) {
          %l0 = list.new() : list<f32[n]>
          %l = for %t in (0, 5, 1) carry (%k = %l0) {
            %a = aten.select.int(%x, 0, %t) : f32[n]
            %b = aten.cumsum.default(%a, 0) : f32[n]
            %m = list.push(%k, %b) : list<f32[n]>
            yield %m
          } : list<f32[n]>
          %r = list.stack(%l) : f32[5, n]
          %h0 = aten.full.default((n,), 0.0) : f32[n]
          %e0 = list.new() : list<f32[n]>
          %h, %e = for %t2 in (0, n, 1) carry (%g = %h0, %k2 = %e0) {
            %a2 = aten.select.int(%y, 0, %t2) : f32[n]
            %b2 = aten.add.Tensor(%a2, %g) : f32[n]
            %c = aten.tanh.default(%b2) : f32[n]
            %m2 = list.push(%k2, %c) : list<f32[n]>
            yield %c, %m2
          } : f32[n], list<f32[n]>
          %s = list.stack(%e) : f32[n, n]
          return %r, %s, %h
        }
        """,
        (5, "n"),
        ("n", "n"),
    )


GROWING = """
    func @main[0 <= n](%x: f32[n, 4], %k0: f32[2, 4], %t: i64[]) -> (f32[4], f32[r, 4], f32[s, 4]) {
      %e = list.new() : list<f32[4]>
      %l0 = list.extend(%e, %k0) : list<f32[4]>
      %h0 = aten.full.default((4,), 0.0) : f32[4]
      %h, %l = for %i in (0, n, 1) carry (%g = %h0, %k = %l0) {
        %c = list.stack(%k) : f32[m, 4]
        %x_i = aten.select.int(%x, 0, %i) : f32[4]
        %p = aten.mv.default(%c, %x_i) : f32[m]
        %q = aten._softmax.default(%p, 0, False) : f32[m]
        %u = aten.unsqueeze.default(%q, 0) : f32[1, m]
        %v = aten.mm.default(%u, %c) : f32[1, 4]
        %w = aten.add.Tensor(%v, %g) : f32[1, 4]
        %y = aten.tanh.default(%w) : f32[1, 4]
        %z = aten.squeeze.dim(%y, 0) : f32[4]
        %d = list.extend(%k, %y) : list<f32[4]>
        yield %z, %d
      } : f32[4], list<f32[4]>
      %r = list.stack(%l) : f32[r, 4]
      %o = for %j in (0, %t, 1) carry (%a = %l) {
        %b = list.extend(%a, %x) : list<f32[4]>
        yield %b
      } : list<f32[4]>
      %s = list.stack(%o) : f32[s, 4]
      return %h, %r, %s
    }
    """


def test_a_list_is_extended_by_the_rows_of_a_tensor() -> None:
    program = program_of(GROWING)
    stages = build(program, MACHINES[0], Options(threads=2))
    assert stages.executable is not None
    for n, t in ((0, 0), (0, 2), (1, 1), (5, 0), (5, 3)):
        inputs = [torch.randn(n, 4), torch.randn(2, 4), torch.tensor(t)]
        assert_close(stages.executable(inputs), run(program, inputs))


DOUBLING = """
    func @main[0 <= n](%x: f32[n, 2], %k0: f32[1, 2]) -> (f32[r, 2]) {
      %e = list.new() : list<f32[2]>
      %l0 = list.extend(%e, %k0) : list<f32[2]>
      %l = for %i in (0, n, 1) carry (%k = %l0) {
        %c = list.stack(%k) : f32[m, 2]
        %y = aten.neg.default(%c) : f32[m, 2]
        %d = list.extend(%k, %y) : list<f32[2]>
        yield %d
      } : list<f32[2]>
      %r = list.stack(%l) : f32[r, 2]
      return %r
    }
    """


def test_a_list_that_doubles_has_no_bound() -> None:
    program = program_of(DOUBLING)
    stages = build(program, MACHINES[0], Options(threads=2))
    assert stages.executable is not None
    for n in (0, 1, 6):
        inputs = [torch.randn(n, 2), torch.randn(1, 2)]
        assert_close(stages.executable(inputs), run(program, inputs))


@pytest.mark.parametrize("number", [0, 1])
def test_rows_of_one_list_or_none(number: int) -> None:
    """A branch whose arms have another number of rows; a stack that may be empty."""
    program = program_of(
        """
        func @main[0 <= m, 0 <= n](%x: f32[n, 4], %y: f32[m, 4], %t: i64[]) -> (f32[r, 4]) {
          %c = aten.gt.Scalar(%t, 0) : bool[]
          %l = if %c {
            %a = list.new() : list<f32[4]>
            %b = list.extend(%a, %x) : list<f32[4]>
            yield %b
          } else {
            %d = list.new() : list<f32[4]>
            %e = list.extend(%d, %y) : list<f32[4]>
            yield %e
          } : list<f32[4]>
          %r = list.stack(%l) : f32[r, 4]
          return %r
        }
        """.replace("0 <= n]", "0 <= n, 0 <= r]")
    )
    stages = build(program, MACHINES[0], Options(threads=2))
    assert stages.executable is not None
    for n, m in ((0, 3), (2, 0), (0, 0), (4, 3)):
        inputs = [torch.randn(n, 4), torch.randn(m, 4), torch.tensor(number)]
        assert_close(run(program, inputs), [inputs[1 - number]])
        assert_close(stages.executable(inputs), run(program, inputs))
