"""Work that both arms of a branch do."""

import pytest

from stretto.ir.ops import IfOp
from stretto.passes.dce import EliminateDeadCode
from stretto.passes.manager import run_passes
from stretto.passes.share_arms import ShareArms
from tests.passes.loops import check
from tests.support import check_same_results, check_unchanged, program_of

SHARE = ShareArms()


def test_equal_ops_move_before_the_branch_and_a_product_at_the_end_behind_it() -> None:
    check(
        """
        func @main(%x: f32[3, 3], %c: bool[]) -> (f32[3, 3]) {
          %r = if %c {
            %a = aten.mm.default(%x, %x) : f32[3, 3]
            %b = aten.softmax.int(%a, 0) : f32[3, 3]
            %s = aten.mm.default(%b, %x) : f32[3, 3]
            yield %s
          } else {
            %l = aten.cos.default(%x) : f32[3, 3]
            %d = aten.mm.default(%x, %x) : f32[3, 3]
            %e = aten.mm.default(%d, %l) : f32[3, 3]
            %t = aten.mm.default(%e, %x) : f32[3, 3]
            yield %t
          } : f32[3, 3]
          return %r
        }
        """,
        SHARE,
        """
        func @main(%x: f32[3, 3], %c: bool[]) -> (f32[3, 3]) {
          %a = aten.mm.default(%x, %x) : f32[3, 3]
          %j = if %c {
            %b = aten.softmax.int(%a, 0) : f32[3, 3]
            yield %b
          } else {
            %l = aten.cos.default(%x) : f32[3, 3]
            %e = aten.mm.default(%a, %l) : f32[3, 3]
            yield %e
          } : f32[3, 3]
          %r = aten.mm.default(%j, %x) : f32[3, 3]
          return %r
        }
        """,
    )


def test_a_chain_moves_whole_and_twins_of_one_op_are_taken_once() -> None:
    program = program_of(
        """
        func @main(%x: f32[3], %c: bool[]) -> (f32[3], f32[3]) {
          %r, %s = if %c {
            %a = aten.exp.default(%x) : f32[3]
            %b = aten.sin.default(%a) : f32[3]
            %d = aten.neg.default(%b) : f32[3]
            yield %d, %a
          } else {
            %e = aten.exp.default(%x) : f32[3]
            %f = aten.exp.default(%x) : f32[3]
            %g = aten.sin.default(%e) : f32[3]
            %h = aten.add.Tensor(%f, %g) : f32[3]
            yield %h, %f
          } : f32[3], f32[3]
          return %r, %s
        }
        """
    )
    after = run_passes(program, [SHARE])
    branch = after.main.body.ops[-1]
    assert isinstance(branch, IfOp)
    assert [len(arm.ops) for arm in branch.blocks] == [1, 2]
    check_same_results(program, after)


def test_pushes_to_one_list_need_no_branch() -> None:
    check(
        """
        func @main(%x: f32[3], %c: bool[]) -> (list<f32[3]>) {
          %n = list.new() : list<f32[3]>
          %r = if %c {
            %a = aten.sin.default(%x) : f32[3]
            %l = list.push(%n, %a) : list<f32[3]>
            yield %l
          } else {
            %b = list.push(%n, %x) : list<f32[3]>
            yield %b
          } : list<f32[3]>
          return %r
        }
        """,
        SHARE,
        """
        func @main(%x: f32[3], %c: bool[]) -> (list<f32[3]>) {
          %n = list.new() : list<f32[3]>
          %i = if %c {
            %a = aten.sin.default(%x) : f32[3]
            yield %a
          } else {
            yield %x
          } : f32[3]
          %r = list.push(%n, %i) : list<f32[3]>
          return %r
        }
        """,
    )


def test_products_at_the_end_of_nested_branches_leave_both() -> None:
    program = program_of(
        """
        func @main(%x: f32[3, 3], %c: bool[], %d: bool[]) -> (f32[3, 3]) {
          %r = if %c {
            %i = if %d {
              %a = aten.sin.default(%x) : f32[3, 3]
              %m = aten.mm.default(%a, %x) : f32[3, 3]
              yield %m
            } else {
              %b = aten.cos.default(%x) : f32[3, 3]
              %n = aten.mm.default(%b, %x) : f32[3, 3]
              yield %n
            } : f32[3, 3]
            yield %i
          } else {
            %e = aten.exp.default(%x) : f32[3, 3]
            %o = aten.mm.default(%e, %x) : f32[3, 3]
            yield %o
          } : f32[3, 3]
          return %r
        }
        """
    )
    after = run_passes(program, [SHARE])
    assert [op.name for op in after.main.body.ops] == ["if", "tensor"]
    check_same_results(program, after)


ARMS = {
    "a position that may be out of range": (
        "%a = aten.select.int(%x, 0, %i) : f32[]",
        "%a = aten.select.int(%x, 0, %i) : f32[]",
    ),
    "an integer divided by what may be 0": (
        "%q = aten.floor_divide.default(%i, %k) : i64[]\n%a = aten.select.int(%x, 0, 0) : f32[]",
        "%q = aten.floor_divide.default(%i, %k) : i64[]\n%a = aten.select.int(%x, 0, 1) : f32[]",
    ),
    "draws": (
        "%a = aten.rand.default(()) : f32[]",
        "%a = aten.rand.default(()) : f32[]",
    ),
    "results that are read twice, at the end": (
        "%b = aten.select.int(%x, 0, 0) : f32[]\n%a = aten.dot.default(%y, %y) : f32[]",
        "%b = aten.select.int(%x, 0, 1) : f32[]\n%a = aten.dot.default(%y, %z) : f32[]",
    ),
    "numbers of different kinds": (
        "%a = aten.mul.Scalar(%w, 1) : f32[]",
        "%a = aten.mul.Scalar(%w, 1.0) : f32[]",
    ),
    "zeros of different signs": (
        "%a = aten.mul.Scalar(%w, 0.0) : f32[]",
        "%a = aten.mul.Scalar(%w, -0.0) : f32[]",
    ),
}


@pytest.mark.parametrize("arms", ARMS.values(), ids=ARMS)
def test_what_differs_and_what_may_stop_the_run_stays(arms: tuple[str, str]) -> None:
    then, orelse = (
        arm.replace("%a", f"%a{n}").replace("%b", f"%b{n}").replace("%q", f"%q{n}")
        for n, arm in enumerate(arms)
    )
    params = "%x: f32[4], %y: f32[3], %z: f32[3], %w: f32[], %i: i64[], %k: i64[], %c: bool[]"
    program = program_of(
        f"""
        func @main({params}) -> (f32[]) {{
          %r = if %c {{
            {then}
            yield %a0
          }} else {{
            {orelse}
            yield %a1
          }} : f32[]
          return %r
        }}
        """
    )
    after = run_passes(program, [SHARE, EliminateDeadCode()])
    assert [op.name for op in after.main.body.ops] == ["if"]


def test_a_product_stays_with_what_follows_it_element_by_element() -> None:
    check_unchanged(
        """
        func @main(%x: f32[3, 3], %c: bool[]) -> (f32[3, 3]) {
          %r = if %c {
            %a = aten.mm.default(%x, %x) : f32[3, 3]
            %b = aten.relu.default(%a) : f32[3, 3]
            yield %b
          } else {
            %d = aten.mm.default(%x, %x) : f32[3, 3]
            %e = aten.softmax.int(%d, 0) : f32[3, 3]
            yield %e
          } : f32[3, 3]
          return %r
        }
        """,
        SHARE,
    )


def test_products_of_other_values_stay_where_copies_would_cost_more() -> None:
    """Two large tensors from outside would have to be copied to the place where the branch has its
    result."""
    check_unchanged(
        """
        func @main(%x: f32[64, 64], %y: f32[64, 64], %w: f32[64, 3], %c: bool[]) -> (f32[64, 3]) {
          %r = if %c {
            %a = aten.mm.default(%x, %w) : f32[64, 3]
            yield %a
          } else {
            %b = aten.mm.default(%y, %w) : f32[64, 3]
            yield %b
          } : f32[64, 3]
          return %r
        }
        """,
        SHARE,
    )


def test_a_square_of_one_value_is_no_product_with_another() -> None:
    check_unchanged(
        """
        func @main(%x: f32[3, 3], %c: bool[]) -> (f32[3, 3]) {
          %s = aten.sin.default(%x) : f32[3, 3]
          %r = if %c {
            %a = aten.mm.default(%x, %x) : f32[3, 3]
            yield %a
          } else {
            %b = aten.mm.default(%s, %x) : f32[3, 3]
            yield %b
          } : f32[3, 3]
          return %r
        }
        """,
        SHARE,
    )


def test_sizes_that_an_arm_binds_stay_in_it() -> None:
    check_unchanged(
        """
        func @main(%x: list<f32[3]>, %c: bool[]) -> (f32[3]) {
          %r = if %c {
            %s = list.stack(%x) : f32[s0, 3]
            %a = aten.sum.dim_IntList(%s, (0,)) : f32[3]
            yield %a
          } else {
            %t = list.stack(%x) : f32[s1, 3]
            %b = aten.sum.dim_IntList(%t, (0,)) : f32[3]
            yield %b
          } : f32[3]
          return %r
        }
        """,
        SHARE,
    )
