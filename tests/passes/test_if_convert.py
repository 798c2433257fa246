"""Branches whose arms cost less than the branch."""

from dataclasses import replace

import pytest

from stretto.device.costs import HOST_COSTS
from stretto.passes.if_convert import IfConvert
from stretto.passes.manager import Target, run_passes
from tests.passes.loops import check
from tests.support import check_same_results, check_unchanged, program_of

CONVERT = IfConvert(Target(HOST_COSTS, 1))


def test_cheap_arms_are_both_computed_inner_branches_first() -> None:
    check(
        """
        func @main(%x: f32[3], %c: bool[], %d: bool[]) -> (f32[3], i64[], bool[]) {
          %n = literal 3 : i64[]
          %r, %s, %t = if %c {
            %a = if %d {
              %e = aten.exp.default(%x) : f32[3]
              yield %e
            } else {
              yield %x
            } : f32[3]
            yield %a, %n, %d
          } else {
            %b = aten.log.default(%x) : f32[3]
            %m = literal 4 : i64[]
            yield %b, %m, %c
          } : f32[3], i64[], bool[]
          return %r, %s, %t
        }
        """,
        CONVERT,
        """
        func @main(%x: f32[3], %c: bool[], %d: bool[]) -> (f32[3], i64[], bool[]) {
          %n = literal 3 : i64[]
          %e = aten.exp.default(%x) : f32[3]
          %a = aten.where.self(%d, %e, %x) : f32[3]
          %b = aten.log.default(%x) : f32[3]
          %m = literal 4 : i64[]
          %r = aten.where.self(%c, %a, %b) : f32[3]
          %s = aten.where.self(%c, %n, %m) : i64[]
          %t = aten.where.self(%c, %d, %c) : bool[]
          return %r, %s, %t
        }
        """,
    )


ARMS = {
    "a position that may be out of range": "%a = aten.select.int(%x, 0, %i) : f32[]",
    "positions in a tensor": (
        "%l = aten.index_select.default(%x, 0, %p) : f32[3]\n%a = aten.sum.default(%l) : f32[]"
    ),
    "an integer divided by what may be 0": (
        "%q = aten.floor_divide.default(%i, %i) : i64[]\n"
        "%a = aten._to_copy.default(%q, dtype=torch.float32) : f32[]"
    ),
    "a remainder": (
        "%q = aten.remainder.Tensor(%i, %i) : i64[]\n"
        "%a = aten._to_copy.default(%q, dtype=torch.float32) : f32[]"
    ),
    "a draw": "%a = aten.rand_like.default(%w) : f32[]",
    "a check": 'check %g, "ValueError", "no"\n%a = aten.sin.default(%w) : f32[]',
    "an exception": (
        '%f = literal False : bool[]\ncheck %f, "ValueError", "no"\n'
        "%a = aten.sin.default(%w) : f32[]"
    ),
    "an item of a list": "%v = list.get(%u, %i) : f32[3]\n%a = aten.sum.default(%v) : f32[]",
    "a length of a list that need not be there": (
        "%s = list.stack(%u) : f32[s0, 3]\n%a = aten.sum.default(%s) : f32[]"
    ),
    "a loop that may not end": (
        "%a = while (%y = %w) {\n%k = aten.lt.Scalar(%y, 0.0) : bool[]\nyield %k\n} do (%z) {\n"
        "%o = aten.add.Tensor(%z, 1) : f32[]\nyield %o\n} : f32[]"
    ),
    "a loop": (
        "%a = for %j in (0, 3, 1) carry (%y = %w) {\n"
        "%o = aten.add.Tensor(%y, 1) : f32[]\nyield %o\n} : f32[]"
    ),
    "much work": (
        "%m = aten.expand.default(%w, (300, 300)) : f32[300, 300]\n"
        "%k = aten.mm.default(%m, %m) : f32[300, 300]\n%a = aten.sum.default(%k) : f32[]"
    ),
    "a product of any size": (
        "%k = aten.outer.default(%h, %h) : f32[n, n]\n%l = aten.mm.default(%k, %k) : f32[n, n]\n"
        "%a = aten.sum.default(%l) : f32[]"
    ),
    "work of any size": ("%k = aten.exp.default(%h) : f32[n]\n%a = aten.sum.default(%k) : f32[]"),
}


@pytest.mark.parametrize("is_then", (True, False), ids=("then", "else"))
@pytest.mark.parametrize("arm", ARMS.values(), ids=ARMS)
def test_an_arm_that_may_stop_the_run_draws_or_takes_long_stays(arm: str, is_then: bool) -> None:
    arms = [f"{arm}\nyield %a", "yield %w"]
    then, orelse = arms if is_then else arms[::-1]
    params = (
        "%x: f32[3], %w: f32[], %i: i64[], %p: i64[3], %c: bool[], %g: bool[], %u: list<f32[3]>"
    )
    check_unchanged(
        f"""
        func @main({params}, %h: f32[n]) -> (f32[]) {{
          %r = if %c {{
            {then}
          }} else {{
            {orelse}
          }} : f32[]
          return %r
        }}
        """,
        CONVERT,
    )


@pytest.mark.parametrize("number", ("inf", "nan", "-0.0", "0.0"))
def test_what_is_not_taken_leaves_no_trace(number: str) -> None:
    program = program_of(
        f"""
        func @main(%x: f32[3], %c: bool[]) -> (f32[3]) {{
          %s = literal {number} : f32[]
          %r = if %c {{
            %a = aten.mul.Tensor(%x, %s) : f32[3]
            %b = aten.sub.Tensor(%a, %a) : f32[3]
            yield %b
          }} else {{
            %z = aten.mul.Tensor(%x, 0.0) : f32[3]
            %d = aten.div.Tensor(%z, %z) : f32[3]
            %e = aten.neg.default(%z) : f32[3]
            yield %e
          }} : f32[3]
          return %r
        }}
        """
    )
    after = run_passes(program, [CONVERT])
    assert not any(op.blocks for op in after.main.body.ops)
    check_same_results(program, after, seeds=range(4))


def test_lists_and_sizes_of_their_own_stay() -> None:
    check_unchanged(
        """
        func @main(%x: f32[3], %l: list<f32[3]>, %c: bool[]) -> (list<f32[3]>) {
          %r = if %c {
            %a = list.push(%l, %x) : list<f32[3]>
            yield %a
          } else {
            yield %l
          } : list<f32[3]>
          return %r
        }
        """,
        CONVERT,
    )


TEXT = """
func @main(%x: f32[3000], %c: bool[]) -> (f32[3000]) {
  %r = if %c {
    %a = aten.sin.default(%x) : f32[3000]
    yield %a
  } else {
    yield %x
  } : f32[3000]
  return %r
}
"""


def test_a_branch_that_nothing_passed_on_decides_leaves_the_loop() -> None:
    program = program_of(
        """
        func @main(%x: f32[8, 64]) -> (f32[64]) {
          %z = literal 0.0 : f32[]
          %s = aten.expand.default(%z, (64,)) : f32[64]
          %r = for %i in (0, 8, 1) carry (%a = %s) {
            %y = aten.select.int(%x, 0, %i) : f32[64]
            %t = aten.sum.default(%y) : f32[]
            %c = aten.gt.Scalar(%t, 0) : bool[]
            %u = if %c {
              %n = aten.neg.default(%y) : f32[64]
              yield %n
            } else {
              yield %y
            } : f32[64]
            %b = aten.add.Tensor(%a, %u) : f32[64]
            %v = if %c {
              %m = aten.neg.default(%b) : f32[64]
              yield %m
            } else {
              yield %b
            } : f32[64]
            yield %v
          } : f32[64]
          return %r
        }
        """
    )
    after = run_passes(program, [IfConvert(Target(HOST_COSTS, 1))])
    check_same_results(program, after)
    assert [op.name for op in after.main.body.ops[-1].blocks[0].ops].count("if") == 1


@pytest.mark.parametrize(
    ("wait", "units", "converted"), [(2e-7, 2, False), (1e-6, 2, True), (1e-6, 1, False)]
)
def test_costs_of_the_machine_decide(wait: float, units: int, converted: bool) -> None:
    """Two waits, where units share the work beside the branch."""
    target = Target(replace(HOST_COSTS, wait_seconds=wait, small_waits=0.3), units)
    after = run_passes(program_of(TEXT), [IfConvert(target)])
    assert any(op.blocks for op in after.main.body.ops) != converted
    assert bool(list(after.remarks)) != converted
