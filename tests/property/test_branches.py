"""Random Programs with arms that do alike, and with branches on one condition in a row, through the
passes over branches."""

import pytest
from hypothesis import HealthCheck, given, settings

from stretto.device.costs import HOST_COSTS
from stretto.ir.core import Op, Program, Value
from stretto.ir.ops import IfOp
from stretto.ir.rewrite import Definitions, Replacement, clone_op, clone_program, rewrite_block
from stretto.ir.text import print_program
from stretto.ir.verifier import verify
from stretto.passes.analyses.op_facts import keeps_types
from stretto.passes.cse import EliminateCommonSubexpressions
from stretto.passes.dce import EliminateDeadCode
from stretto.passes.fold import FoldConstants
from stretto.passes.if_convert import IfConvert
from stretto.passes.manager import Pass, Repeat, Target, run_passes
from stretto.passes.merge_branches import MergeBranches
from stretto.passes.share_arms import ShareArms
from stretto.passes.simplify import Simplify
from tests.property.programs import Features, programs
from tests.support import check_same_results

BRANCHES: tuple[Pass, ...] = (MergeBranches(), ShareArms(), IfConvert(Target(HOST_COSTS, 2)))
TIDY = (FoldConstants(), Simplify(), EliminateCommonSubexpressions(), EliminateDeadCode())
ALL = Repeat((*BRANCHES, *TIDY))

SETTINGS = settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def doubled(program: Program) -> Program:
    """Each branch computes in its second arm what the first one does, too, and stands there twice:
    once more behind itself, where what follows reads it. A recursion would take long then."""

    def visit(op: Op, _: Definitions) -> Replacement | None:
        if not isinstance(op, IfOp):
            return None
        known: dict[Value, Value] = {}
        op.orelse.ops[:0] = [clone_op(item, known) for item in op.then.ops]
        if keeps_types(op):
            again = clone_op(op, {})
            return [op, again], again.results
        return [op], op.results

    after = clone_program(program)
    for function in after.functions.values():
        rewrite_block(function.body, visit)
    verify(after)
    return after


@pytest.mark.parametrize("step", (*BRANCHES, ALL), ids=lambda step: step.name)
@SETTINGS
@given(program=programs(Features(list_results=True, recursion=False)))
def test_a_pass_over_branches_keeps_the_results(step: Pass, program: Program) -> None:
    before = doubled(program)
    after = run_passes(before, [step])
    check_same_results(before, after, seeds=(0, 1))


@SETTINGS
@given(programs(Features(recursion=False)))
def test_passes_over_branches_come_to_an_end(program: Program) -> None:
    after = run_passes(doubled(program), [Repeat((*BRANCHES, *TIDY), limit=30)])
    for step in (*BRANCHES, *TIDY):
        before = print_program(after)
        assert not step.apply(after), f"{step.name} still finds something in\n{before}"
