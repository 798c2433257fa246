"""Loop-invariant code motion."""

import pytest

from stretto.ir.ops import ForOp
from stretto.passes.hoist import HoistInvariants, stay_reason
from tests.support import check_pass, check_unchanged, program_of

HOIST = HoistInvariants()


def test_invariants_leave_a_for_and_the_branches_in_it() -> None:
    check_pass(
        """
        func @main(%x: f32[3], %m: f32[3, 3], %c: bool[]) -> (f32[3]) {
          %r = for %i in (0, 4, 1) carry (%a = %x) {
            %t = aten.mm.default(%m, %m) : f32[3, 3]
            %u = aten.mv.default(%t, %a) : f32[3]
            %b = if %c {
              %w = constant "w" : f32[3]
              %v = aten.sin.default(%w) : f32[3]
              %p = aten.add.Tensor(%u, %v) : f32[3]
              yield %p
            } else {
              yield %u
            } : f32[3]
            yield %b
          } : f32[3]
          return %r
        }
        """,
        HOIST,
        """
        func @main(%x: f32[3], %m: f32[3, 3], %c: bool[]) -> (f32[3]) {
          %t = aten.mm.default(%m, %m) : f32[3, 3]
          %w = constant "w" : f32[3]
          %v = aten.sin.default(%w) : f32[3]
          %r = for %i in (0, 4, 1) carry (%a = %x) {
            %u = aten.mv.default(%t, %a) : f32[3]
            %b = if %c {
              %p = aten.add.Tensor(%u, %v) : f32[3]
              yield %p
            } else {
              yield %u
            } : f32[3]
            yield %b
          } : f32[3]
          return %r
        }
        """,
    )


def test_invariants_leave_both_blocks_of_a_while_and_all_loops_around() -> None:
    check_pass(
        """
        func @main(%x: f32[3], %n: i64[]) -> (f32[3]) {
          %z = literal 0 : i64[]
          %r = for %i in (0, 2, 1) carry (%a = %x) {
            %k, %s = while (%j = %z, %b = %a) {
              %m = aten.add.Tensor(%n, 1) : i64[]
              %c = aten.lt.Tensor(%j, %m) : bool[]
              yield %c
            } do (%p, %d) {
              %e = aten.sin.default(%x) : f32[3]
              %f = aten.mul.Tensor(%e, %a) : f32[3]
              %g = aten.add.Tensor(%f, %d) : f32[3]
              %o = aten.add.Tensor(%p, 1) : i64[]
              yield %o, %g
            } : i64[], f32[3]
            yield %s
          } : f32[3]
          return %r
        }
        """,
        HOIST,
        """
        func @main(%x: f32[3], %n: i64[]) -> (f32[3]) {
          %z = literal 0 : i64[]
          %m = aten.add.Tensor(%n, 1) : i64[]
          %e = aten.sin.default(%x) : f32[3]
          %r = for %i in (0, 2, 1) carry (%a = %x) {
            %f = aten.mul.Tensor(%e, %a) : f32[3]
            %k, %s = while (%j = %z, %b = %a) {
              %c = aten.lt.Tensor(%j, %m) : bool[]
              yield %c
            } do (%p, %d) {
              %g = aten.add.Tensor(%f, %d) : f32[3]
              %o = aten.add.Tensor(%p, 1) : i64[]
              yield %o, %g
            } : i64[], f32[3]
            yield %s
          } : f32[3]
          return %r
        }
        """,
    )


def test_an_invariant_branch_moves_whole() -> None:
    check_pass(
        """
        func @main(%x: f32[3], %c: bool[]) -> (f32[3]) {
          %r = for %i in (0, 4, 1) carry (%a = %x) {
            %b = if %c {
              %p = aten.sin.default(%x) : f32[3]
              yield %p
            } else {
              yield %x
            } : f32[3]
            %d = aten.add.Tensor(%a, %b) : f32[3]
            yield %d
          } : f32[3]
          return %r
        }
        """,
        HOIST,
        """
        func @main(%x: f32[3], %c: bool[]) -> (f32[3]) {
          %b = if %c {
            %p = aten.sin.default(%x) : f32[3]
            yield %p
          } else {
            yield %x
          } : f32[3]
          %r = for %i in (0, 4, 1) carry (%a = %x) {
            %d = aten.add.Tensor(%a, %b) : f32[3]
            yield %d
          } : f32[3]
          return %r
        }
        """,
    )


def test_a_recursive_function_is_a_place_to_hoist_in_but_its_calls_stay() -> None:
    check_unchanged(
        """
        func @main(%n: i64[], %x: f32[3]) -> (f32[3]) {
          %c = aten.gt.Scalar(%n, 0) : bool[]
          %m = aten.sub.Tensor(%n, 1) : i64[]
          %r = for %i in (0, %n, 1) carry (%a = %x) {
            %b = call @main(%m, %x) : f32[3]
            %d = aten.add.Tensor(%a, %b) : f32[3]
            yield %d
          } : f32[3]
          return %r
        }
        """,
        HOIST,
    )


STAYING = {
    "%o = list.get(%l, %k) : f32[3]": "a list.get may stop the run",
    "%o = aten.select.int(%m, 0, %k) : f32[3]": "a run-time number that may be out of range",
    "%o = aten.embedding.default(%m, %k) : f32[3]": "positions out of range",
    "%o = call @f(%x) : f32[3]": "a call may stop the run, or never end",
    "%o = aten.rand_like.default(%x) : f32[3]": "it is random",
    "%o = if %c { %g = list.get(%l, %k) : f32[3] yield %g } else { yield %x } : f32[3]": (
        "a list.get may stop"
    ),
    "%o = while (%w = %x) { yield %c } do (%q) { yield %q } : f32[3]": "a while may stop",
}


@pytest.mark.parametrize("line", STAYING)
def test_what_may_stop_the_run_stays(line: str) -> None:
    program = program_of(
        f"""
        func @main(%x: f32[3], %m: f32[3, 3], %l: list<f32[3]>, %c: bool[]) -> (f32[3]) {{
          %k = literal 0 : i64[]
          %r = for %i in (0, 4, 1) carry (%a = %x) {{
            {line}
            %d = aten.add.Tensor(%a, %o) : f32[3]
            yield %d
          }} : f32[3]
          return %r
        }}
        func @f(%x: f32[3]) -> (f32[3]) {{ return %x }}
        """
    )
    loop = next(op for op in program.walk() if isinstance(op, ForOp))
    assert STAYING[line] in (stay_reason(loop.body.ops[0]) or "")
    assert not HOIST.apply(program)


def test_an_op_on_a_symbol_that_the_loop_binds_stays() -> None:
    check_unchanged(
        """
        func @main(%x: f32[3], %l: list<f32[3]>) -> (f32[3]) {
          %r = for %i in (0, 4, 1) carry (%a = %x) {
            %s = list.stack(%l) : f32[s0, 3]
            %z = aten.ones.default((s0, 3)) : f32[s0, 3]
            %t = aten.mul.Tensor(%s, %z) : f32[s0, 3]
            %u = aten.sum.dim_IntList(%t, (0,)) : f32[3]
            %d = aten.add.Tensor(%a, %u) : f32[3]
            yield %d
          } : f32[3]
          return %r
        }
        """,
        HOIST,
    )
