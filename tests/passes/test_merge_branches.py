"""Neighbouring branches on one condition."""

import pytest

from stretto.ir.core import Program
from stretto.ir.ops import IfOp
from stretto.passes.cse import EliminateCommonSubexpressions
from stretto.passes.dce import EliminateDeadCode
from stretto.passes.fold import FoldConstants
from stretto.passes.manager import Repeat, run_passes
from stretto.passes.merge_branches import MergeBranches
from stretto.passes.simplify import Simplify
from tests.passes.loops import check
from tests.support import check_same_results, check_unchanged, program_of

MERGE = MergeBranches()
TIDY = (FoldConstants(), Simplify(), EliminateCommonSubexpressions(), EliminateDeadCode())


def branches(program: Program) -> int:
    return sum(isinstance(op, IfOp) for op in program.walk())


def test_what_stands_between_moves_before_into_the_arms_and_behind() -> None:
    check(
        """
        func @main(%x: f32[3], %c: bool[]) -> (f32[3], f32[3], f32[3]) {
          %a = if %c {
            %p = aten.sin.default(%x) : f32[3]
            yield %p
          } else {
            yield %x
          } : f32[3]
          %s = aten.exp.default(%a) : f32[3]
          %u = aten.cos.default(%x) : f32[3]
          %v = aten.neg.default(%s) : f32[3]
          %b = if %c {
            %d = aten.add.Tensor(%s, %u) : f32[3]
            yield %d
          } else {
            %e = aten.mul.Tensor(%a, %x) : f32[3]
            yield %e
          } : f32[3]
          return %b, %v, %s
        }
        """,
        MERGE,
        """
        func @main(%x: f32[3], %c: bool[]) -> (f32[3], f32[3], f32[3]) {
          %u = aten.cos.default(%x) : f32[3]
          %a, %s, %b = if %c {
            %p = aten.sin.default(%x) : f32[3]
            %f = aten.exp.default(%p) : f32[3]
            %d = aten.add.Tensor(%f, %u) : f32[3]
            yield %p, %f, %d
          } else {
            %g = aten.exp.default(%x) : f32[3]
            %e = aten.mul.Tensor(%x, %x) : f32[3]
            yield %x, %g, %e
          } : f32[3], f32[3], f32[3]
          %v = aten.neg.default(%s) : f32[3]
          return %b, %v, %s
        }
        """,
    )


def test_a_condition_is_known_in_its_arms_and_its_negation_is_a_branch_on_it() -> None:
    program = program_of(
        """
        func @main(%x: f32[3], %c: bool[]) -> (f32[3]) {
          %n = aten.logical_not.default(%c) : bool[]
          %r = if %n {
            %s = if %c {
              %a = aten.sin.default(%x) : f32[3]
              yield %a
            } else {
              %t = for %i in (0, 3, 1) carry (%y = %x) {
                %u = if %n {
                  %b = aten.cos.default(%y) : f32[3]
                  yield %b
                } else {
                  yield %x
                } : f32[3]
                yield %u
              } : f32[3]
              yield %t
            } : f32[3]
            yield %s
          } else {
            yield %x
          } : f32[3]
          %e = if %c {
            %f = aten.exp.default(%r) : f32[3]
            yield %f
          } else {
            yield %r
          } : f32[3]
          return %e
        }
        """
    )
    after = run_passes(program, [Repeat((*TIDY, MERGE))])
    check_same_results(program, after)
    assert branches(after) == 1
    assert not any(op.name == "if" for op in after.main.body.ops[-1].blocks[0].ops)


def test_many_branches_in_a_row_become_one_also_in_loops_and_arms() -> None:
    step = """
            %p{n} = if %c {{
              %a{n} = aten.sin.default(%p{m}) : f32[3]
              yield %a{n}
            }} else {{
              %b{n} = aten.cos.default(%p{m}) : f32[3]
              yield %b{n}
            }} : f32[3]
            """
    steps = "".join(step.format(n=n, m=n - 1) for n in range(1, 6))
    program = program_of(
        f"""
        func @main(%x: f32[3], %c: bool[], %d: bool[], %n: i64[]) -> (f32[3]) {{
          %r = for %i in (0, %n, 1) carry (%y = %x) {{
            %s = if %d {{
              %p0 = aten.neg.default(%y) : f32[3]
              {steps}
              yield %p5
            }} else {{
              yield %y
            }} : f32[3]
            yield %s
          }} : f32[3]
          return %r
        }}
        """
    )
    after = run_passes(program, [Repeat((MERGE, *TIDY))])
    check_same_results(program, after, seeds=range(6))
    assert branches(after) == 2


PLAIN = "%k{n} = aten.sin.default(%x) : f32[3]"
CHECK = 'check %g, "ValueError", "no"'
DRAW = "%k{n} = aten.rand_like.default(%x) : f32[3]"
NEEDED = "%k{n} = aten.exp.default(%a) : f32[3]"

ORDERS = {
    "nothing": (PLAIN, PLAIN, PLAIN, 1),
    "a check in the first alone": (CHECK, PLAIN, PLAIN, 1),
    "checks in both": (CHECK, PLAIN, CHECK, 1),
    "draws in both": (DRAW, PLAIN, DRAW, 1),
    "a check between": (PLAIN, CHECK, PLAIN, 1),
    "a check between and in the first": (CHECK, CHECK, PLAIN, 1),
    "a check between and in the second": (PLAIN, CHECK, CHECK, 2),
    "a draw between and a check in the second": (PLAIN, DRAW, CHECK, 2),
    "a draw that the second needs": (PLAIN, DRAW, NEEDED.replace("%a", "%k1"), 1),
    "a draw that the second needs, and a check in the first": (
        CHECK,
        DRAW,
        NEEDED.replace("%a", "%k1"),
        2,
    ),
    "a draw that the second needs, behind a check": (
        PLAIN,
        f"{CHECK}\n{DRAW}",
        NEEDED.replace("%a", "%k1"),
        2,
    ),
    "a draw of what the first makes, which the second needs": (
        PLAIN,
        DRAW.replace("%x", "%a"),
        NEEDED.replace("%a", "%k1"),
        2,
    ),
}


@pytest.mark.parametrize("case", ORDERS.values(), ids=ORDERS)
def test_what_may_stop_the_run_and_draws_keep_their_order(case: tuple[str, str, str, int]) -> None:
    first, between, second = (text.format(n=n) for n, text in enumerate(case[:3]))
    program = program_of(
        f"""
        func @main(%x: f32[3], %y: f32[3], %c: bool[], %g: bool[]) -> (f32[3]) {{
          %a = if %c {{
            {first}
            yield %x
          }} else {{
            yield %y
          }} : f32[3]
          {between}
          %b = if %c {{
            {second}
            yield %y
          }} else {{
            yield %a
          }} : f32[3]
          return %b
        }}
        """
    )
    assert branches(run_passes(program, [MERGE])) == case[3]


def test_sizes_of_their_own_keep_branches_apart() -> None:
    check_unchanged(
        """
        func @main(%x: list<f32[3]>, %c: bool[]) -> (f32[3]) {
          %a = if %c {
            %s = list.stack(%x) : f32[s0, 3]
            yield %s
          } else {
            %t = list.stack(%x) : f32[s1, 3]
            yield %t
          } : f32[s2, 3]
          %b = if %c {
            %u = aten.sum.dim_IntList(%a, (0,)) : f32[3]
            yield %u
          } else {
            %v = aten.amax.default(%a, (0,)) : f32[3]
            yield %v
          } : f32[3]
          return %b
        }
        """,
        MERGE,
    )


def test_branches_around_another_one_become_one() -> None:
    program = program_of(
        """
        func @main(%x: f32[3], %c: bool[], %d: bool[]) -> (f32[3], f32[3]) {
          %a = if %c {
            %p = aten.sin.default(%x) : f32[3]
            yield %p
          } else {
            yield %x
          } : f32[3]
          %e = if %d {
            %q = aten.exp.default(%x) : f32[3]
            yield %q
          } else {
            yield %x
          } : f32[3]
          %b = if %c {
            %r = aten.mul.Tensor(%a, %e) : f32[3]
            yield %r
          } else {
            yield %e
          } : f32[3]
          %f = if %d {
            yield %b
          } else {
            %s = aten.neg.default(%b) : f32[3]
            yield %s
          } : f32[3]
          return %f, %a
        }
        """
    )
    after = run_passes(program, [MERGE])
    assert branches(after) == 3  # the last one needs what the others make
    check_same_results(program, after, seeds=range(4))
