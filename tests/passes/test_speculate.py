"""Work of an arm that begins before the condition is known."""

from dataclasses import replace

import pytest

from stretto.device.costs import HOST_COSTS
from stretto.ir.core import Program
from stretto.passes.manager import Target, run_passes
from stretto.passes.speculate import Speculate
from tests.support import check_same_results, program_of

MANY = Speculate(Target(HOST_COSTS, 8))

CHAIN = "".join(f"%s{n + 1} = aten.mm.default(%s{n}, %w) : f32[64, 64]\n" for n in range(8))


PARAMS = "%s0: f32[64, 64], %v: f32[64, 64], %w: f32[64, 64], %i: i64[]"


def branch(arm: str, chain: str = CHAIN, orelse: str = "yield %v") -> Program:
    return program_of(
        f"""
        func @main({PARAMS}) -> (f32[64, 64]) {{
          {chain}
          %t = aten.sum.default(%s8) : f32[]
          %c = aten.gt.Scalar(%t, 0.5) : bool[]
          %r = if %c {{
            {arm}
            yield %a
          }} else {{
            {orelse}
          }} : f32[64, 64]
          return %r
        }}
        """
    )


def begun(program: Program, step: Speculate = MANY) -> int:
    """How many ops leave the arms, with the same results."""
    before = len(program.main.body.ops)
    after = run_passes(program, [step])
    check_same_results(program, after)
    return len(after.main.body.ops) - before


EXP = "aten.exp.default"
MM = "aten.mm.default"


@pytest.mark.parametrize(
    ("arm", "count"),
    [
        (f"%b = {MM}(%v, %v) : f32[64, 64]\n%a = {EXP}(%b) : f32[64, 64]", 2),
        (f"%a = {MM}(%v, %s8) : f32[64, 64]", 0),  # as late as the condition
        (f"%b = {MM}(%v, %v) : f32[64, 64]\n%a = {MM}(%b, %s3) : f32[64, 64]", 1),
        ("%a = aten.neg.default(%v) : f32[64, 64]", 1),
        ("%a = aten.rand_like.default(%v) : f32[64, 64]", 0),
        (
            "%b = aten.select.int(%v, 0, %i) : f32[64]\n"
            "%a = aten.outer.default(%b, %b) : f32[64, 64]",
            0,
        ),
        (
            f"%f = literal False : bool[]\n%b = {MM}(%v, %v) : f32[64, 64]\n"
            f'check %f, "ValueError", "no"\n%a = {MM}(%b, %v) : f32[64, 64]',
            3,
        ),
        (
            f"%a = for %k in (0, 3, 1) carry (%y = %v) {{\n"
            f"%z = {MM}(%v, %v) : f32[64, 64]\nyield %z\n}} : f32[64, 64]",
            0,
        ),
        (
            "%b = aten.repeat.default(%v, (90, 1)) : f32[5760, 64]\n"
            f"%d = {MM}(%b, %v) : f32[5760, 64]\n"
            "%a = aten.slice.Tensor(%d, 0, 0, 64) : f32[64, 64]",
            0,
        ),
    ],
    ids=("all", "late", "half", "cheap", "draw", "position", "check", "loop", "long"),
)
def test_what_may_begin_early(arm: str, count: int) -> None:
    program = branch(arm)
    if "check" in arm or "rand" in arm:
        after = run_passes(program, [MANY])
        assert len(after.main.body.ops) - len(program.main.body.ops) == count
    else:
        assert begun(program) == count


ARM = f"%a = {MM}(%v, %v) : f32[64, 64]"


def test_both_arms_share_what_is_idle() -> None:
    other = f"%b = {EXP}(%v) : f32[64, 64]\n%d = {MM}(%b, %v) : f32[64, 64]\nyield %d"
    assert begun(branch(ARM, orelse=other)) == 3


def test_with_one_unit_or_a_condition_that_is_known_nothing_is_idle() -> None:
    assert begun(branch(ARM), Speculate(Target(HOST_COSTS, 1))) == 0
    assert begun(branch(ARM, chain=f"%s8 = {EXP}(%s0) : f32[64, 64]")) == 0


def test_work_beside_the_chain_is_not_idle() -> None:
    beside = "".join(f"%e{n} = {MM}(%v, %w) : f32[64, 64]\n" for n in range(200))
    assert begun(branch(ARM, CHAIN + beside)) == 0


def test_memory_is_bounded() -> None:
    little = replace(HOST_COSTS, speculated_bytes=64 * 64 * 4 - 1)
    assert begun(branch(ARM), Speculate(Target(little, 8))) == 0


def test_a_chain_behind_a_loop_begins_there() -> None:
    loop = f"""
          %s8 = for %k in (0, 3, 1) carry (%y = %s0) {{
            %z = {MM}(%y, %w) : f32[64, 64]
            yield %z
          }} : f32[64, 64]
    """
    assert begun(branch(ARM, loop)) == 0
