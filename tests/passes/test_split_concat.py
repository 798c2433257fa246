"""Splitting products of concatenated inputs: where it frees a part; results are the same."""

import pytest
import torch

from stretto.ir.core import Program
from stretto.ir.ops import TensorOp, WhileOp
from stretto.passes.pipeline import loop_passes
from stretto.passes.split_concat import SplitConcat
from tests.passes.loops import apply, check, contractions, loops_of
from tests.support import check_unchanged, program_of


def rnn(parts: str = "(%x_t, %p)", width: int = 7) -> str:
    return f"""
        func @main(%x: f32[5, 3], %h0: f32[4], %e: f32[3]) -> (f32[4]) {{
          %w = constant "w" : f32[4, {width}]
          %b = constant "b" : f32[4]
          %h = for %t in (0, 5, 1) carry (%p = %h0) {{
            %x_t = aten.select.int(%x, 0, %t) : f32[3]
            %c = aten.cat.default({parts}, -1) : f32[{width}]
            %y = aten.linear.default(%c, %w, %b) : f32[4]
            %n = aten.tanh.default(%y) : f32[4]
            yield %n
          }} : f32[4]
          return %h
        }}
        """


def test_input_and_state_are_split() -> None:
    check(
        rnn(),
        SplitConcat(),
        """
        func @main(%x: f32[5, 3], %h0: f32[4], %e: f32[3]) -> (f32[4]) {
          %w = constant "w" : f32[4, 7]
          %b = constant "b" : f32[4]
          %h = for %t in (0, 5, 1) carry (%p = %h0) {
            %x_t = aten.select.int(%x, 0, %t) : f32[3]
            %c = aten.cat.default((%x_t, %p), -1) : f32[7]
            %wx = constant "weight_columns.0" : f32[4, 3]
            %bx = constant "bias.0" : f32[4]
            %u = aten.linear.default(%x_t, %wx, %bx) : f32[4]
            %wp = constant "weight_columns.1" : f32[4, 4]
            %v = aten.linear.default(%p, %wp) : f32[4]
            %y = aten.add.Tensor(%u, %v) : f32[4]
            %n = aten.tanh.default(%y) : f32[4]
            yield %n
          } : f32[4]
          return %h
        }
        """,
    )


@pytest.mark.parametrize(
    ("parts", "width"),
    [("(%p, %x_t)", 7), ("(%x_t, %p, %e)", 10), ("(%p, %e, %x_t, %p)", 14), ("(%e, %e, %p)", 10)],
)
def test_order_and_repeats(parts: str, width: int) -> None:
    after = apply(program_of(rnn(parts, width)), *loop_passes())
    (loop,) = loops_of(after.main.body)
    (inside,) = contractions(loop.body)
    state = parts.count("%p") * 4
    weight = inside.operands[1]
    assert weight.tensor.shape == (4, state)


@pytest.mark.parametrize("parts", ["(%x_t, %x_t)", "(%e, %e)"])
def test_parts_that_wait_for_the_same_stay(parts: str) -> None:
    text = rnn(parts, 6).replace("aten.tanh.default(%y)", "aten.add.Tensor(%y, %p)")
    check_unchanged(text, SplitConcat())


def test_one_recurrence_stays_whole() -> None:
    check_unchanged(
        """
        func @main(%h0: f32[4], %c0: f32[4]) -> (f32[4], f32[4]) {
          %w = constant "w" : f32[4, 8]
          %h, %c = for %t in (0, 5, 1) carry (%p = %h0, %q = %c0) {
            %both = aten.cat.default((%p, %q), -1) : f32[8]
            %y = aten.linear.default(%both, %w) : f32[4]
            %n = aten.tanh.default(%y) : f32[4]
            yield %n, %p
          } : f32[4], f32[4]
          return %h, %c
        }
        """,
        SplitConcat(),
    )


def test_context_leaves_a_while() -> None:
    after = apply(
        program_of("""
        func @main(%h0: f32[1, 4], %e: f32[1, 3], %n: i64[]) -> (f32[1, 4]) {
          %w = constant "w" : f32[7, 4]
          %zero = literal 0 : i64[]
          %h, %k = while (%p = %h0, %i = %zero) {
            %more = aten.lt.Tensor(%i, %n) : bool[]
            yield %more
          } do (%q, %j) {
            %c = aten.cat.default((%e, %q), 1) : f32[1, 7]
            %y = aten.mm.default(%c, %w) : f32[1, 4]
            %s = aten.sin.default(%y) : f32[1, 4]
            %next = aten.add.Tensor(%j, 1) : i64[]
            yield %s, %next
          } : f32[1, 4], i64[]
          return %h
        }
        """),
        *loop_passes(),
        inputs=(torch.randn(1, 4), torch.randn(1, 3), torch.tensor(3)),
    )
    (loop,) = [op for op in after.main.body.ops if isinstance(op, WhileOp)]
    assert len(contractions(loop.body)) == 1
    assert len(contractions(after.main.body)) == 1


TREE = """
func @main(%x: f32[9, 4], %n: i64[]) -> (f32[4]) {
  %r = call @encode(%x, %n) : f32[4]
  return %r
}
func @encode(%x: f32[9, 4], %n: i64[]) -> (f32[4]) {
  %w = constant "w" : f32[4, 8]
  %b = constant "b" : f32[4]
  %leaf = aten.le.Scalar(%n, 0) : bool[]
  %h = if %leaf {
    %row = aten.select.int(%x, 0, %n) : f32[4]
    yield %row
  } else {
    %m = aten.sub.Tensor(%n, 1) : i64[]
    %o = aten.sub.Tensor(%n, 2) : i64[]
    %l = call @encode(%x, %m) : f32[4]
    %r = call @encode(%x, %o) : f32[4]
    %c = aten.cat.default((%l, %r), -1) : f32[8]
    %y = aten.linear.default(%c, %w, %b) : f32[4]
    %t = aten.tanh.default(%y) : f32[4]
    yield %t
  } : f32[4]
  return %h
}
"""


def tree_products(program: Program) -> int:
    ops = program.functions["encode"].body.walk()
    return sum(isinstance(op, TensorOp) and op.target == "aten.linear.default" for op in ops)


def test_results_of_two_calls_are_split_when_asked_for() -> None:
    inputs = (torch.randn(9, 4), torch.tensor(4))
    check_unchanged(TREE, SplitConcat())
    assert tree_products(apply(program_of(TREE), SplitConcat(calls=True), inputs=inputs)) == 2


def test_one_weight_for_inputs_of_other_widths() -> None:
    program = program_of("""
        func @main(%x: f32[5, 3], %z: f32[5, 2], %h0: f32[4], %g0: f32[5]) -> (f32[4], f32[5]) {
          %w = constant "w" : f32[4, 7]
          %h, %g = for %t in (0, 5, 1) carry (%p = %h0, %q = %g0) {
            %x_t = aten.select.int(%x, 0, %t) : f32[3]
            %c = aten.cat.default((%x_t, %p), -1) : f32[7]
            %y = aten.linear.default(%c, %w) : f32[4]
            %n = aten.tanh.default(%y) : f32[4]
            %z_t = aten.select.int(%z, 0, %t) : f32[2]
            %d = aten.cat.default((%z_t, %q), -1) : f32[7]
            %v = aten.linear.default(%d, %w) : f32[4]
            %s = aten.slice.Tensor(%q, 0, 0, 1) : f32[1]
            %m = aten.cat.default((%v, %s), 0) : f32[5]
            yield %n, %m
          } : f32[4], f32[5]
          return %h, %g
        }
        """)
    widths = [constant.shape[1] for constant in apply(program, SplitConcat()).constants.values()]
    assert sorted(widths[1:]) == [2, 3, 4, 5]
