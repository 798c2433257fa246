"""Loop batching: what leaves a loop, what stays, and that results are the same."""

import pytest
import torch

from stretto.ir.ops import ForOp, IfOp, ListStackOp
from stretto.passes.batch_loops import BatchLoops
from stretto.passes.dce import EliminateDeadCode
from stretto.passes.forward_lists import ForwardLists
from tests.passes.loops import apply, check, contractions, loops_of, targets
from tests.support import check_unchanged, program_of, random_inputs

RNN = """
func @main(%x: f32[6, 2, 4], %h0: f32[2, 3]) -> (f32[2, 3]) {{
  %w = constant "w" : f32[3, 4]
  %u = constant "u" : f32[3, 3]
  %h = for %t in ({start}, {stop}, {step}) carry (%p = %h0) {{
    {position}
    %x_t = aten.select.int(%x, 0, {index}) : f32[2, 4]
    %a = aten.linear.default(%x_t, %w) : f32[2, 3]
    %b = aten.linear.default(%p, %u) : f32[2, 3]
    %c = aten.add.Tensor(%a, %b) : f32[2, 3]
    %n = aten.tanh.default(%c) : f32[2, 3]
    yield %n
  }} : f32[2, 3]
  return %h
}}
"""


def rnn(start: int, stop: int, step: int, index: str = "%t", position: str = "") -> str:
    return RNN.format(start=start, stop=stop, step=step, index=index, position=position)


def test_input_projection_becomes_one_product() -> None:
    check(
        rnn(0, 6, 1),
        BatchLoops(),
        """
        func @main(%x: f32[6, 2, 4], %h0: f32[2, 3]) -> (f32[2, 3]) {
          %w = constant "w" : f32[3, 4]
          %u = constant "u" : f32[3, 3]
          %all = aten.linear.default(%x, %w) : f32[6, 2, 3]
          %h = for %t in (0, 6, 1) carry (%p = %h0) {
            %a = aten.select.int(%all, 0, %t) : f32[2, 3]
            %b = aten.linear.default(%p, %u) : f32[2, 3]
            %c = aten.add.Tensor(%a, %b) : f32[2, 3]
            %n = aten.tanh.default(%c) : f32[2, 3]
            yield %n
          } : f32[2, 3]
          return %h
        }
        """,
    )


def test_reverse_index_reads_flipped_rows() -> None:
    check(
        rnn(4, 0, -2),
        BatchLoops(),
        """
        func @main(%x: f32[6, 2, 4], %h0: f32[2, 3]) -> (f32[2, 3]) {
          %w = constant "w" : f32[3, 4]
          %u = constant "u" : f32[3, 3]
          %part = aten.slice.Tensor(%x, 0, 2, 5, 2) : f32[2, 2, 4]
          %turned = aten.flip.default(%part, (0,)) : f32[2, 2, 4]
          %all = aten.linear.default(%turned, %w) : f32[2, 2, 3]
          %h = for %k in (0, 2, 1) carry (%p = %h0) {
            %a = aten.select.int(%all, 0, %k) : f32[2, 3]
            %b = aten.linear.default(%p, %u) : f32[2, 3]
            %c = aten.add.Tensor(%a, %b) : f32[2, 3]
            %n = aten.tanh.default(%c) : f32[2, 3]
            yield %n
          } : f32[2, 3]
          return %h
        }
        """,
    )


@pytest.mark.parametrize(
    ("bounds", "index", "position"),
    [
        ((0, 5, 1), "%i", "%i = aten.add.Tensor(%t, 1) : i64[]"),
        ((0, 6, 1), "%i", "%i = aten.rsub.Scalar(%t, 5) : i64[]"),
        ((0, 3, 1), "%i", "%i = aten.mul.Tensor(%t, 2) : i64[]"),
        ((1, 6, 2), "%i", "%i = aten.sub.Tensor(%t, 1) : i64[]"),
        ((-6, 0, 1), "%t", ""),
        ((-1, -7, -1), "%t", ""),
        ((0, 6, 1), "%i", "%one = literal 1 : i64[]\n%j = aten.add.Tensor(%t, %one) : i64[]\n"
         "%i = aten.neg.default(%j) : i64[]"),
        ((5, -1, -1), "%t", ""),
    ],
    ids=str,
)  # fmt: skip
def test_affine_positions(bounds: tuple[int, int, int], index: str, position: str) -> None:
    after = apply(program_of(rnn(*bounds, index, position)), BatchLoops(), EliminateDeadCode())
    (loop,) = loops_of(after.main.body)
    assert len(contractions(loop.body)) == len(contractions(after.main.body)) == 1


@pytest.mark.parametrize("bounds", [(0, 0, 1), (3, 4, 1), (6, 0, 1)], ids=str)
def test_loops_that_run_less_than_twice_stay(bounds: tuple[int, int, int]) -> None:
    check_unchanged(rnn(*bounds), BatchLoops())
    apply(program_of(rnn(*bounds)), BatchLoops())


def test_positions_that_pass_zero_stay() -> None:
    text = rnn(0, 6, 1, "%i", "%i = aten.sub.Tensor(%t, 2) : i64[]")
    check_unchanged(text, BatchLoops())


def test_large_results_stay() -> None:
    check_unchanged(rnn(0, 6, 1), BatchLoops(limit_bytes=100))


def test_other_readers_of_a_row_keep_it() -> None:
    after = apply(
        program_of("""
        func @main(%x: f32[6, 3], %h0: f32[3]) -> (f32[3]) {
          %w = constant "w" : f32[3, 3]
          %b = constant "b" : f32[3]
          %h = for %t in (0, 6, 1) carry (%p = %h0) {
            %x_t = aten.select.int(%x, 0, %t) : f32[3]
            %a = aten.linear.default(%x_t, %w) : f32[3]
            %s = aten.add.Tensor(%a, %b) : f32[3]
            %r = aten.relu.default(%s) : f32[3]
            %c = aten.mul.Tensor(%p, %r) : f32[3]
            %n = aten.add.Tensor(%c, %x_t) : f32[3]
            yield %n
          } : f32[3]
          return %h
        }
        """),
        BatchLoops(),
    )
    (loop,) = loops_of(after.main.body)
    assert targets(after.main.body) == [
        "aten.linear.default",
        "aten.add.Tensor",
        "aten.relu.default",
    ]
    assert targets(loop.body) == [
        "aten.select.int",
        "aten.select.int",
        "aten.mul.Tensor",
        "aten.add.Tensor",
    ]


def test_pointwise_work_alone_stays() -> None:
    check_unchanged(
        """
        func @main(%x: f32[6, 3], %h0: f32[3]) -> (f32[3]) {
          %h = for %t in (0, 6, 1) carry (%p = %h0) {
            %x_t = aten.select.int(%x, 0, %t) : f32[3]
            %r = aten.relu.default(%x_t) : f32[3]
            %n = aten.add.Tensor(%p, %r) : f32[3]
            yield %n
          } : f32[3]
          return %h
        }
        """,
        BatchLoops(),
    )


OUTPUTS = """
func @main(%x: f32[5, 3], %ids: i64[5]) -> (f32[5, 3], i64[]) {
  %w = constant "w" : f32[3, 3]
  %table = constant "table" : f32[4, 3]
  %none = list.new() : list<f32[3]>
  %all = for %t in (0, 5, 1) carry (%l = %none) {
    %x_t = aten.select.int(%x, 0, %t) : f32[3]
    %id = aten.select.int(%ids, 0, %t) : i64[]
    %row = aten.embedding.default(%table, %id) : f32[3]
    %a = aten.linear.default(%x_t, %w) : f32[3]
    %s = aten.add.Tensor(%a, %row) : f32[3]
    %n = list.push(%l, %s) : list<f32[3]>
    yield %n
  } : list<f32[3]>
  %y = list.stack(%all) : f32[5, 3]
  %count = list.length(%all) : i64[]
  return %y, %count
}
"""


def test_a_loop_without_recurrence_dissolves() -> None:
    after = apply(program_of(OUTPUTS), BatchLoops(), ForwardLists(), EliminateDeadCode())
    assert not loops_of(after.main.body)
    assert targets(after.main.body) == [
        "aten.embedding.default",
        "aten.linear.default",
        "aten.add.Tensor",
    ]


NESTED = """
func @main(%x: f32[3, 4, 2], %h0: f32[2], %flag: bool[]) -> (f32[2]) {
  %w = constant "w" : f32[2, 2]
  %h = for %i in (0, 3, 1) carry (%p = %h0) {
    %x_i = aten.select.int(%x, 0, %i) : f32[4, 2]
    %r = if %flag {
      %q = for %j in (0, 4, 1) carry (%o = %p) {
        %x_ij = aten.select.int(%x_i, 0, %j) : f32[2]
        %a = aten.linear.default(%x_ij, %w) : f32[2]
        %n = aten.mul.Tensor(%o, %a) : f32[2]
        yield %n
      } : f32[2]
      yield %q
    } else {
      yield %p
    } : f32[2]
    yield %r
  } : f32[2]
  return %h
}
"""


@pytest.mark.parametrize("flag", [False, True])
def test_inner_loop_in_an_arm(flag: bool) -> None:
    program = program_of(NESTED)
    x, h, _ = random_inputs(program)
    after = apply(program, BatchLoops(), inputs=(x, h, torch.tensor(flag)))
    outer, inner = loops_of(after.main.body)
    assert not contractions(inner.body)
    (branch,) = [op for op in outer.body.ops if isinstance(op, IfOp)]
    assert targets(branch.then) == ["aten.linear.default"]


def test_work_leaves_both_loops() -> None:
    after = apply(
        program_of("""
        func @main(%x: f32[3, 4, 2], %h0: f32[2]) -> (f32[2]) {
          %w = constant "w" : f32[2, 2]
          %h = for %i in (0, 3, 1) carry (%p = %h0) {
            %x_i = aten.select.int(%x, 0, %i) : f32[4, 2]
            %q = for %j in (0, 4, 1) carry (%o = %p) {
              %x_ij = aten.select.int(%x_i, 0, %j) : f32[2]
              %a = aten.linear.default(%x_ij, %w) : f32[2]
              %n = aten.mul.Tensor(%o, %a) : f32[2]
              yield %n
            } : f32[2]
            yield %q
          } : f32[2]
          return %h
        }
        """),
        BatchLoops(),
    )
    assert targets(after.main.body) == ["aten.linear.default"]
    assert [targets(loop.body) for loop in loops_of(after.main.body)] == [["aten.select.int"], [
        "aten.select.int", "aten.mul.Tensor"]]  # fmt: skip


def test_arms_inside_the_body_are_left_alone() -> None:
    check_unchanged(
        """
        func @main(%x: f32[3, 2], %h0: f32[2], %flag: bool[]) -> (f32[2]) {
          %w = constant "w" : f32[2, 2]
          %h = for %i in (0, 3, 1) carry (%p = %h0) {
            %x_i = aten.select.int(%x, 0, %i) : f32[2]
            %r = if %flag {
              %a = aten.linear.default(%x_i, %w) : f32[2]
              yield %a
            } else {
              yield %p
            } : f32[2]
            yield %r
          } : f32[2]
          return %h
        }
        """,
        BatchLoops(),
    )


LISTS = """
func @main(%items: list<f32[2]>, %h0: f32[2]) -> (f32[2]) {
  %w = constant "w" : f32[2, 2]
  %count = list.length(%items) : i64[]
  %h = for %i in (0, %count, 1) carry (%p = %h0) {
    %x_i = list.get(%items, %i) : f32[2]
    %a = aten.linear.default(%x_i, %w) : f32[2]
    %n = aten.add.Tensor(%p, %a) : f32[2]
    yield %n
  } : f32[2]
  return %h
}
"""


@pytest.mark.parametrize("count", [0, 1, 4])
def test_loop_over_a_list_of_unknown_length(count: int) -> None:
    inputs = ([torch.randn(2) for _ in range(count)], torch.randn(2))
    after = apply(program_of(LISTS), BatchLoops(), inputs=inputs)
    (branch,) = [op for op in after.main.body.ops if isinstance(op, IfOp)]
    assert [type(op) for op in branch.then.ops[::2]] == [ListStackOp, ForOp]
    assert targets(branch.then) == ["aten.linear.default"]
    (loop,) = loops_of(after.main.body)
    assert not contractions(loop.body)


def test_list_of_known_length_may_be_longer_than_the_loop() -> None:
    after = apply(
        program_of("""
        func @main(%a: f32[2], %b: f32[2]) -> (f32[2]) {
          %w = constant "w" : f32[2, 2]
          %l = list.new(%a, %b, %a) : list<f32[2]>
          %m = list.push(%l, %b) : list<f32[2]>
          %h = for %i in (2, 0, -1) carry (%p = %a) {
            %x_i = list.get(%m, %i) : f32[2]
            %y = aten.linear.default(%x_i, %w) : f32[2]
            %n = aten.add.Tensor(%p, %y) : f32[2]
            yield %n
          } : f32[2]
          return %h
        }
        """),
        BatchLoops(),
    )
    assert targets(after.main.body) == [
        "aten.slice.Tensor",
        "aten.flip.default",
        "aten.linear.default",
    ]


@pytest.mark.parametrize("stop", ["%m", "4"])
def test_list_of_another_length_stays(stop: str) -> None:
    check_unchanged(
        LISTS.replace("(0, %count, 1)", f"(0, {stop}, 1)").replace(
            "%h0: f32[2])", "%h0: f32[2], %m: i64[])"
        ),
        BatchLoops(),
    )


def test_slices_side_by_side() -> None:
    after = apply(
        program_of("""
        func @main(%x: f32[2, 8], %h0: f32[2, 3]) -> (f32[2, 3]) {
          %w = constant "w" : f32[3, 2]
          %h = for %t in (0, 4, 1) carry (%p = %h0) {
            %i = aten.mul.Tensor(%t, 2) : i64[]
            %part = stretto.narrow(%x, 1, %i, 2) : f32[2, 2]
            %a = aten.linear.default(%part, %w) : f32[2, 3]
            %n = aten.mul.Tensor(%p, %a) : f32[2, 3]
            yield %n
          } : f32[2, 3]
          return %h
        }
        """),
        BatchLoops(),
    )
    assert targets(after.main.body) == [
        "aten.view.default",
        "aten.permute.default",
        "aten.linear.default",
    ]


def test_in_a_recursive_function() -> None:
    after = apply(
        program_of("""
        func @main(%x: f32[3, 2], %h: f32[2], %n: i64[]) -> (f32[2]) {
          %r = call @visit(%x, %h, %n) : f32[2]
          return %r
        }
        func @visit(%x: f32[3, 2], %h: f32[2], %n: i64[]) -> (f32[2]) {
          %w = constant "w" : f32[2, 2]
          %leaf = aten.le.Scalar(%n, 0) : bool[]
          %r = if %leaf {
            yield %h
          } else {
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %s = call @visit(%x, %h, %m) : f32[2]
            %q = for %t in (0, 3, 1) carry (%p = %s) {
              %x_t = aten.select.int(%x, 0, %t) : f32[2]
              %a = aten.linear.default(%x_t, %w) : f32[2]
              %o = aten.add.Tensor(%p, %a) : f32[2]
              yield %o
            } : f32[2]
            yield %q
          } : f32[2]
          return %r
        }
        """),
        BatchLoops(),
        inputs=(torch.randn(3, 2), torch.randn(2), torch.tensor(2)),
    )
    (loop,) = loops_of(after.functions["visit"].body)
    assert not contractions(loop.body)
