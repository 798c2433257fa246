"""Random Programs through everything that takes a Program."""

import pytest
from hypothesis import HealthCheck, given, settings

from stretto.ir.core import Program
from stretto.ir.rewrite import clone_program
from stretto.ir.text import parse_program, print_program
from stretto.ir.verifier import verify
from stretto.passes.cse import EliminateCommonSubexpressions
from stretto.passes.dce import EliminateDeadCode
from stretto.passes.fold import FoldConstants
from stretto.passes.hoist import HoistInvariants
from stretto.passes.inline import InlineFunctions
from stretto.passes.manager import Pass, Repeat, run_passes
from stretto.passes.simplify import Simplify
from tests.property.programs import Features, programs
from tests.support import check_same_results

PASSES: tuple[Pass, ...] = (
    InlineFunctions(),
    FoldConstants(),
    Simplify(),
    EliminateCommonSubexpressions(),
    HoistInvariants(),
    EliminateDeadCode(),
)
ALL = Repeat(PASSES)

SETTINGS = settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@SETTINGS
@given(programs(Features(list_results=True)))
def test_text_round_trips_and_what_it_says_is_valid(program: Program) -> None:
    verify(program)
    text = print_program(program)
    again = parse_program(text, program.constants)
    verify(again)
    assert print_program(again) == text
    assert print_program(clone_program(program)) == text
    check_same_results(program, again, seeds=(0,))


@pytest.mark.parametrize("step", (*PASSES, ALL), ids=lambda step: step.name)
@SETTINGS
@given(program=programs(Features(list_results=True)))
def test_a_pass_keeps_the_results(step: Pass, program: Program) -> None:
    after = run_passes(program, [step])
    verify(after)
    check_same_results(program, after, seeds=(0, 1))


@SETTINGS
@given(programs())
def test_passes_come_to_an_end(program: Program) -> None:
    after = run_passes(program, [Repeat(PASSES, limit=30)])
    for step in PASSES:
        before = print_program(after)
        assert not step.apply(after), f"{step.name} still finds something in\n{before}"
