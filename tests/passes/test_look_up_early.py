"""Numbers of an arm that are looked up before its branch."""

from __future__ import annotations

import pytest

from stretto.device.costs import HOST_COSTS
from stretto.ir.core import Block, Program
from stretto.ir.ops import CallOp, IfOp, TensorOp
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.passes.look_up_early import LookUpEarly
from stretto.passes.manager import Target, run_passes
from tests.support import check_same_results, program_of

GPU = LookUpEarly(Target(CUDA_COSTS, 132))
PARAMS = "%n: i64[], %leaf: bool[7], %left: i64[7], %deep: i64[7, 2], %x: f32[7], %small: i64[5]"


def branch(arm: str, orelse: str = "") -> Program:
    """A function in a loop in a branch: the inner branch is decided by what it looks up."""
    return program_of(
        f"""
        func @main({PARAMS}) -> (i64[]) {{
          %go = aten.ge.Scalar(%n, 0) : bool[]
          %z = if %go {{
            %s = for %i in (0, 3, 1) carry (%a = %n) {{
              %r = call @f(%i, %leaf, %left, %deep, %x, %small) : i64[]
              %b = aten.add.Tensor(%a, %r) : i64[]
              yield %b
            }} : i64[]
            yield %s
          }} else {{
            yield %n
          }} : i64[]
          return %z
        }}
        func @f({PARAMS}) -> (i64[]) {{
          %c = aten.select.int(%leaf, 0, %n) : bool[]
          %r = if %c {{
            {orelse}
            yield %n
          }} else {{
            {arm}
            yield %y
          }} : i64[]
          return %r
        }}
        """
    )


def looked_up(program: Program) -> tuple[list[str], list[str]]:
    """The names of what `f` selects before its branch, and in it."""
    body = program.functions["f"].body
    (inner,) = (op for op in body.ops if isinstance(op, IfOp))
    return _selects(body), [name for arm in inner.blocks for name in _selects(arm)]


def _selects(block: Block) -> list[str]:
    found = (op for op in block.ops if isinstance(op, TensorOp))
    return [op.result.hint for op in found if op.target == "aten.select.int"]


def check(program: Program, before: list[str], inside: list[str]) -> None:
    after = run_passes(program, [GPU])
    assert looked_up(after) == (["c", *before], inside)
    check_same_results(program, after)


def test_what_is_looked_up_at_the_same_position() -> None:
    arm = """
        %l = aten.select.int(%left, 0, %n) : i64[]
        %m = aten.select.int(%leaf, 0, %n) : bool[]
        %y = aten.add.Tensor(%l, %n) : i64[]
    """
    check(branch(arm), ["l", "m"], [])
    check(branch(arm, orelse="%k = aten.select.int(%left, 0, %n) : i64[]"), ["k", "l", "m"], [])


@pytest.mark.parametrize(
    ("arm", "inside"),
    [
        ("%y = aten.select.int(%small, 0, %n) : i64[]", ["y"]),
        (
            "%m = aten.add.Tensor(%n, 1) : i64[]\n%y = aten.select.int(%left, 0, %m) : i64[]",
            ["y"],
        ),
        (
            "%d = aten.select.int(%deep, 0, %n) : i64[2]\n%y = aten.select.int(%d, 0, 1) : i64[]",
            ["d", "y"],
        ),
        (
            "%d = aten.select.int(%x, 0, %n) : f32[]\n"
            "%y = aten._to_copy.default(%d, dtype=torch.int64) : i64[]",
            ["d"],
        ),
    ],
    ids=["position not checked", "position of the arm", "of a row of the arm", "no register"],
)
def test_what_stays(arm: str, inside: list[str]) -> None:
    check(branch(arm), [], inside)


def test_a_branch_in_an_arm() -> None:
    arm = """
        %d = aten.gt.Scalar(%n, 1) : bool[]
        %y = if %d {
          %l = aten.select.int(%left, 0, %n) : i64[]
          yield %l
        } else {
          yield %n
        } : i64[]
    """
    after = run_passes(branch(arm), [GPU])
    (outer,) = (op for op in after.functions["f"].body.ops if isinstance(op, IfOp))
    inner = outer.orelse.ops[-1]
    assert isinstance(inner, IfOp) and not inner.then.ops
    assert looked_up(after) == (["c", "l"], [])
    check_same_results(branch(arm), after)


def test_a_recursion() -> None:
    program = program_of(
        """
        func @main(%left: i64[7], %leaf: bool[7], %n: i64[]) -> (i64[]) {
          %y = call @f(%n, %left, %leaf) : i64[]
          return %y
        }
        func @f(%n: i64[], %left: i64[7], %leaf: bool[7]) -> (i64[]) {
          %c = aten.select.int(%leaf, 0, %n) : bool[]
          %z = aten.le.Scalar(%n, 0) : bool[]
          %e = aten.logical_or.default(%c, %z) : bool[]
          %y = if %e {
            yield %n
          } else {
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %a = call @f(%m, %left, %leaf) : i64[]
            %l = aten.select.int(%left, 0, %n) : i64[]
            %t = aten.add.Tensor(%a, %l) : i64[]
            yield %t
          } : i64[]
          return %y
        }
        """
    )
    after = run_passes(program, [GPU])
    ops = after.functions["f"].body.ops
    assert [op.result.hint for op in ops if isinstance(op, TensorOp)][-1] == "l"
    (outer,) = (op for op in ops if isinstance(op, IfOp))
    assert isinstance(outer.orelse.ops[1], CallOp) and len(outer.orelse.ops) == 3
    check_same_results(program, after)


def test_only_where_loads_take_long() -> None:
    program = branch("%y = aten.select.int(%left, 0, %n) : i64[]")
    for target in (None, Target(HOST_COSTS, 2)):
        after = run_passes(program, [LookUpEarly(target)])
        assert looked_up(after) == (["c"], ["y"])
