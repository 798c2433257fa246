"""Loop distribution: where loops are cut, what they hand over, and that results are the same."""

import pytest
import torch

from stretto.ir.core import Program
from stretto.ir.ops import ConstantOp, ForOp
from stretto.ir.rewrite import all_blocks
from stretto.passes.batch_loops import BatchLoops
from stretto.passes.dce import EliminateDeadCode
from stretto.passes.distribute import Distribute, plan_distribution
from stretto.passes.pipeline import loop_passes
from tests.passes.loops import apply, check, contractions, loops_of, targets
from tests.support import check_unchanged, program_of

TWO_LAYERS = """
func @main(%x: f32[6, 3], %h0: f32[3], %g0: f32[3]) -> (f32[3], f32[3]) {{
  %w = constant "w" : f32[3, 3]
  %h, %g = for %t in ({bounds}) carry (%p = %h0, %q = %g0) {{
    %x_t = aten.select.int(%x, 0, %t) : f32[3]
    %s = aten.add.Tensor(%x_t, %p) : f32[3]
    %y = aten.tanh.default(%s) : f32[3]
    %a = aten.linear.default({fed}, %w) : f32[3]
    %r = aten.mul.Tensor(%a, %x_t) : f32[3]
    %z = aten.add.Tensor(%r, %q) : f32[3]
    yield %y, %z
  }} : f32[3], f32[3]
  return %h, %g
}}
"""


def two_layers(bounds: str = "0, 6, 1", fed: str = "%y") -> str:
    return TWO_LAYERS.format(bounds=bounds, fed=fed)


def test_two_recurrences_become_two_loops() -> None:
    check(
        two_layers(),
        Distribute(),
        """
        func @main(%x: f32[6, 3], %h0: f32[3], %g0: f32[3]) -> (f32[3], f32[3]) {
          %w = constant "w" : f32[3, 3]
          %none = list.new() : list<f32[3]>
          %h, %ys = for %t in (0, 6, 1) carry (%p = %h0, %l = %none) {
            %x_t = aten.select.int(%x, 0, %t) : f32[3]
            %s = aten.add.Tensor(%x_t, %p) : f32[3]
            %y = aten.tanh.default(%s) : f32[3]
            %m = list.push(%l, %y) : list<f32[3]>
            yield %y, %m
          } : f32[3], list<f32[3]>
          %g = for %u in (0, 6, 1) carry (%q = %g0) {
            %y_u = list.get(%ys, %u) : f32[3]
            %x_u = aten.select.int(%x, 0, %u) : f32[3]
            %a = aten.linear.default(%y_u, %w) : f32[3]
            %r = aten.mul.Tensor(%a, %x_u) : f32[3]
            %z = aten.add.Tensor(%r, %q) : f32[3]
            yield %z
          } : f32[3]
          return %h, %g
        }
        """,
    )


@pytest.mark.parametrize("bounds", ["0, 6, 1", "5, -1, -1", "1, 6, 2"])
@pytest.mark.parametrize("fed", ["%y", "%p"])
def test_values_before_and_after_an_iteration(bounds: str, fed: str) -> None:
    after = apply(program_of(two_layers(bounds, fed)), Distribute(), BatchLoops())
    first, second = loops_of(after.main.body)
    assert not contractions(first.body)
    assert not contractions(second.body)
    assert contractions(after.main.body)


@pytest.mark.parametrize("bounds", ["0, 0, 1", "0, 1, 1", "6, 0, 1"])
def test_loops_that_run_less_than_twice_stay(bounds: str) -> None:
    check_unchanged(two_layers(bounds), Distribute())


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_trip_count_known_at_run_time(trips: int) -> None:
    text = two_layers("0, %n, 1").replace("%g0: f32[3])", "%g0: f32[3], %n: i64[])")
    inputs = (torch.randn(6, 3), torch.randn(3), torch.randn(3), torch.tensor(trips))
    after = apply(program_of(text), Distribute(), BatchLoops(), inputs=inputs)
    assert not any(contractions(loop.body) for loop in loops_of(after.main.body))


def test_no_contraction_between_recurrences() -> None:
    text = two_layers().replace("aten.linear.default(%y, %w)", "aten.mul.Tensor(%y, %x_t)")
    check_unchanged(text, Distribute())
    (loop,) = loops_of(program_of(text).main.body)
    assert plan_distribution(loop, 1 << 20) == "no contraction would depend on earlier loops alone"


def test_too_much_to_hand_over() -> None:
    check_unchanged(two_layers(), Distribute(limit_bytes=6 * 3 * 4 - 1))
    (loop,) = loops_of(program_of(two_layers()).main.body)
    assert plan_distribution(loop, 71) == "the loops would hand over 72 bytes"


def test_swapped_values_are_one_recurrence() -> None:
    check_unchanged(
        two_layers().replace("yield %y, %z", "yield %z, %y"),
        Distribute(),
    )


def test_swap_beside_another_recurrence() -> None:
    after = apply(
        program_of("""
        func @main(%a0: f32[3], %b0: f32[3], %c0: f32[3]) -> (f32[3], f32[3], f32[3]) {
          %w = constant "w" : f32[3, 3]
          %a, %b, %c = for %t in (0, 5, 1) carry (%p = %a0, %q = %b0, %r = %c0) {
            %y = aten.linear.default(%q, %w) : f32[3]
            %z = aten.add.Tensor(%y, %r) : f32[3]
            yield %q, %p, %z
          } : f32[3], f32[3], f32[3]
          return %a, %b, %c
        }
        """),
        Distribute(),
        BatchLoops(),
    )
    swap, other = loops_of(after.main.body)
    assert len(swap.carried) == 3
    assert targets(other.body) == ["aten.select.int", "aten.add.Tensor"]


def test_value_of_the_iteration_before() -> None:
    after = apply(
        program_of("""
        func @main(%x: f32[5, 3], %h0: f32[3], %d0: f32[3]) -> (f32[3], f32[3]) {
          %w = constant "w" : f32[3, 3]
          %h, %d = for %t in (0, 5, 1) carry (%p = %h0, %late = %d0) {
            %x_t = aten.select.int(%x, 0, %t) : f32[3]
            %y = aten.linear.default(%late, %w) : f32[3]
            %z = aten.add.Tensor(%y, %p) : f32[3]
            yield %z, %x_t
          } : f32[3], f32[3]
          return %h, %d
        }
        """),
        Distribute(),
        BatchLoops(),
    )
    assert not any(contractions(loop.body) for loop in loops_of(after.main.body))


def test_outputs_of_a_recurrence_are_computed_after_it() -> None:
    after = apply(
        program_of("""
        func @main(%h0: f32[3]) -> (f32[4, 7]) {
          %u = constant "u" : f32[3, 3]
          %v = constant "v" : f32[7, 3]
          %none = list.new() : list<f32[7]>
          %h, %out = for %t in (0, 4, 1) carry (%p = %h0, %l = %none) {
            %n = aten.linear.default(%p, %u) : f32[3]
            %y = aten.linear.default(%n, %v) : f32[7]
            %m = list.push(%l, %y) : list<f32[7]>
            yield %n, %m
          } : f32[3], list<f32[7]>
          %all = list.stack(%out) : f32[4, 7]
          return %all
        }
        """),
        *loop_passes(),
    )
    (loop,) = loops_of(after.main.body)
    assert len(contractions(loop.body)) == 1
    assert len(contractions(after.main.body)) == 1


def test_outputs_without_a_contraction_stay_with_their_recurrence() -> None:
    check_unchanged(
        """
        func @main(%h0: f32[3]) -> (list<f32[3]>) {
          %u = constant "u" : f32[3, 3]
          %none = list.new() : list<f32[3]>
          %h, %out = for %t in (0, 4, 1) carry (%p = %h0, %l = %none) {
            %n = aten.linear.default(%p, %u) : f32[3]
            %m = list.push(%l, %n) : list<f32[3]>
            yield %n, %m
          } : f32[3], list<f32[3]>
          return %out
        }
        """,
        Distribute(),
    )


def test_a_list_cannot_flow_between_loops() -> None:
    text = """
        func @main(%h0: f32[3], %g0: f32[3]) -> (f32[3]) {
          %w = constant "w" : f32[3, 3]
          %none = list.new(%h0) : list<f32[3]>
          %last = literal -1 : i64[]
          %l, %g = for %t in (0, 4, 1) carry (%p = %none, %q = %g0) {
            %x = list.get(%p, %last) : f32[3]
            %n = aten.sin.default(%x) : f32[3]
            %y = aten.linear.default(%n, %w) : f32[3]
            %first = list.get(%p, %t) : f32[3]
            %s = aten.add.Tensor(%y, %first) : f32[3]
            %z = aten.mul.Tensor(%s, %q) : f32[3]
            %m = list.push(%p, %n) : list<f32[3]>
            yield %m, %z
          } : list<f32[3]>, f32[3]
          return %g
        }
        """
    check_unchanged(text, Distribute())
    (loop,) = loops_of(program_of(text).main.body)
    reason = "a list would have to flow from one loop to the other in each iteration"
    assert plan_distribution(loop, 1 << 20) == reason


BRANCH = """
func @main(%x: f32[5, 3], %flags: bool[5], %h0: f32[3], %g0: f32[3]) -> (f32[3], f32[3]) {
  %w = constant "w" : f32[3, 3]
  %h, %g = for %t in (0, 5, 1) carry (%p = %h0, %q = %g0) {
    %x_t = aten.select.int(%x, 0, %t) : f32[3]
    %flag = aten.select.int(%flags, 0, %t) : bool[]
    %y = if %flag {
      %s = aten.add.Tensor(%p, %x_t) : f32[3]
      yield %s
    } else {
      %j = for %k in (0, 2, 1) carry (%o = %p) {
        %e = aten.sin.default(%o) : f32[3]
        yield %e
      } : f32[3]
      yield %j
    } : f32[3]
    %a = aten.linear.default(%y, %w) : f32[3]
    %z = if %flag {
      %b = aten.add.Tensor(%a, %q) : f32[3]
      yield %b
    } else {
      yield %q
    } : f32[3]
    yield %y, %z
  } : f32[3], f32[3]
  return %h, %g
}
"""


def test_nested_control_moves_as_a_whole() -> None:
    program = program_of(BRANCH)
    flags = torch.tensor([True, False, False, True, True])
    inputs = (torch.randn(5, 3), flags, torch.randn(3), torch.randn(3))
    after = apply(program, Distribute(), BatchLoops(), EliminateDeadCode(), inputs=inputs)
    loops = [op for op in after.main.body.ops if isinstance(op, ForOp)]
    assert [[op.name for op in loop.body.ops if op.blocks] for loop in loops] == [["if"], ["if"]]
    assert len(contractions(after.main.body)) == 1


def test_inside_a_loop_and_an_arm() -> None:
    inner = two_layers().split("{\n", 1)[1].rsplit("return", 1)[0]
    text = f"""
        func @main(%x: f32[6, 3], %s0: f32[3], %flag: bool[]) -> (f32[3]) {{
          %end = for %n in (0, 3, 1) carry (%h0 = %s0) {{
            %v = if %flag {{
              %g0 = aten.cos.default(%h0) : f32[3]
              {inner}
              %hg = aten.add.Tensor(%h, %g) : f32[3]
              yield %hg
            }} else {{
              yield %h0
            }} : f32[3]
            yield %v
          }} : f32[3]
          return %end
        }}
        """
    inputs = (torch.randn(6, 3), torch.randn(3), torch.tensor(True))
    after = apply(program_of(text), Distribute(), BatchLoops(), inputs=inputs)
    assert len(loops_of(after.main.body)) == 3


def lstm(layers: int, length: int, split: bool = False) -> Program:
    """A stack of LSTM layers over [length, 2, 4] written as one loop over time."""
    lines: list[str] = []
    head = ""
    row = "%x_t"
    for n in range(layers):
        head += f'%w{n} = constant "w{n}" : f32[16, {8 if split else 4}]\n'
        head += f'%u{n} = constant "u{n}" : f32[16, 4]\n%b{n} = constant "b{n}" : f32[16]\n'
        if split:
            lines += [
                f"%both{n} = aten.cat.default(({row}, %h{n}), -1) : f32[2, 8]",
                f"%g{n} = aten.linear.default(%both{n}, %w{n}, %b{n}) : f32[2, 16]",
            ]
        else:
            lines += [
                f"%wx{n} = aten.linear.default({row}, %w{n}, %b{n}) : f32[2, 16]",
                f"%uh{n} = aten.linear.default(%h{n}, %u{n}) : f32[2, 16]",
                f"%g{n} = aten.add.Tensor(%wx{n}, %uh{n}) : f32[2, 16]",
            ]
        part = "f32[2, 4]"
        lines += [
            f"%i{n}, %f{n}, %j{n}, %o{n} = aten.split.Tensor(%g{n}, 4, -1)"
            f" : {part}, {part}, {part}, {part}",
            f"%si{n} = aten.sigmoid.default(%i{n}) : {part}",
            f"%sf{n} = aten.sigmoid.default(%f{n}) : {part}",
            f"%tj{n} = aten.tanh.default(%j{n}) : {part}",
            f"%so{n} = aten.sigmoid.default(%o{n}) : {part}",
            f"%fc{n} = aten.mul.Tensor(%sf{n}, %c{n}) : {part}",
            f"%ij{n} = aten.mul.Tensor(%si{n}, %tj{n}) : {part}",
            f"%nc{n} = aten.add.Tensor(%fc{n}, %ij{n}) : {part}",
            f"%tc{n} = aten.tanh.default(%nc{n}) : {part}",
            f"%nh{n} = aten.mul.Tensor(%so{n}, %tc{n}) : {part}",
        ]
        row = f"%nh{n}"
    carried = ", ".join(f"%h{n} = %z, %c{n} = %z" for n in range(layers))
    results = ", ".join(f"%rh{n}, %rc{n}" for n in range(layers))
    yields = ", ".join(f"%nh{n}, %nc{n}" for n in range(layers))
    body = "\n".join(lines)
    return program_of(f"""
        func @main(%x: f32[{length}, 2, 4], %z: f32[2, 4]) -> (f32[2, 4]) {{
        {head}
        {results} = for %t in (0, {length}, 1) carry ({carried}) {{
        %x_t = aten.select.int(%x, 0, %t) : f32[2, 4]
        {body}
        yield {yields}
        }} : {", ".join(["f32[2, 4]"] * (2 * layers))}
        return %rh{layers - 1}
        }}""")


@pytest.mark.parametrize("split", [False, True])
def test_lstm_becomes_a_loop_for_each_layer(split: bool) -> None:
    after = apply(lstm(3, 5, split), *loop_passes())
    loops = loops_of(after.main.body)
    assert len(loops) == 3
    assert [len(contractions(loop.body)) for loop in loops] == [1, 1, 1]
    assert [op.target for op in contractions(after.main.body)] == ["aten.linear.default"] * 3
    assert len(after.constants) == 9
    nested = [op for block in all_blocks(after.main.body) for op in block.ops]
    assert sum(isinstance(op, ConstantOp) for op in nested) == 9


@pytest.mark.parametrize("length", [0, 1, 2])
def test_short_lstm(length: int) -> None:
    if length == 0:
        program = lstm(2, 1)
        (loop,) = loops_of(program.main.body)
        loop.stop = 0
    else:
        program = lstm(2, length)
    apply(program, *loop_passes())
