"""Every form of a program is read back from its text exactly, and one can go on from it."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, reject, settings
from torch import Tensor

from stretto.device.forms import Form, Lowered, Planned, ProgramInterface, Scheduled, Selected
from stretto.device.plan import Launch
from stretto.device.text import form_constants, parse_form, print_form
from stretto.device.verifier import verify_form
from stretto.errors import CodegenError, ScheduleError
from stretto.interp.interpreter import run
from stretto.ir.core import Program
from stretto.ir.text import parse_program
from stretto.lowering.lower_program import lower
from stretto.machines.cpu.select import select
from stretto.machines.cpu.templates import TEMPLATES as CPU_TEMPLATES
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.machines.cuda.select import select as select_cuda
from stretto.machines.cuda.templates import TEMPLATES as CUDA_TEMPLATES
from stretto.machines.emulator.machine import EmulatedExecutable
from stretto.options import Options
from stretto.schedule.plan import make_plan
from stretto.schedule.scheduler import schedule
from tests.backends import assert_close
from tests.property.programs import Features, programs
from tests.schedule.random_trees import random_tree
from tests.support import program_of, random_inputs

NO_INTERFACE = ProgramInterface((), ())
TEMPLATES = {**CPU_TEMPLATES, **CUDA_TEMPLATES}


def again(form: Form) -> Form:
    """The form as its text says it."""
    return parse_form(print_form(form), form_constants(form), TEMPLATES)


def forms(program: Program) -> list[Form]:
    """A program in all its forms, for two machines."""
    lowered = lower(program)
    selected = select(lowered, 2)
    scheduled = Scheduled(schedule(selected.tree, 2), selected.interface)
    return [lowered, selected, scheduled, *forms_for_gpu(lowered)]


def forms_for_gpu(lowered: Lowered) -> list[Form]:
    interface = lowered.interface
    tree = select_cuda(lowered, 3).tree
    program = schedule(tree, 3, CUDA_COSTS)
    plans = [Planned(make_plan(program, most), interface) for most in (1, 400)]
    return [Selected(tree, interface), Scheduled(program, interface), *plans]


@pytest.mark.whole
@settings(
    max_examples=15,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(programs(Features(list_results=True)))
def test_every_form_of_random_programs_is_read_back_and_correct(program: Program) -> None:
    source = None
    try:
        found = forms(program)
    except CodegenError as error:  # has no place in a frame
        known = (
            "is recursive, and makes a",
            "returns a tensor whose size is known only in the run",
        )
        assert any(text in str(error) for text in known)
        reject()
    for form in found:
        assert again(form) == form
        source = form.tree if isinstance(form, Selected) else source
        verify_form(form, source)


EARLIER_ITEMS = """
func @main(%0: f32[], %1: f32[3], %2: f32[2, 3], %3: f32[3, 2], %4: f32[6], %5: i64[3], %6: i64[], %7: bool[]) -> (f32[3]) {
  %8 = constant "c0" : f32[3]
  %10 = constant "c2" : f32[6]
  %13 = aten.remainder.Scalar(%6, 4) : i64[]
  %14, %15, %16 = for %17 in (%13, 1, -1) carry (%18 = %5, %19 = %4, %20 = %6) {
    %21 = if %7 {
      %24 = constant "c4" : f32[2, 3]
      yield %24
    } else {
      %32 = aten.mul.Tensor(%2, %8) : f32[2, 3]
      %33 = aten.tanh.default(%32) : f32[2, 3]
      yield %33
    } : f32[2, 3]
    %34 = aten.remainder.Scalar(%17, 4) : i64[]
    %35 = constant "c5" : f32[2, 3]
    %36, %37, %38 = for %39 in (1, %34, 1) carry (%40 = %10, %41 = %35, %42 = %35) {
      %46 = constant "c7" : f32[2, 3]
      yield %40, %46, %42
    } : f32[6], f32[2, 3], f32[2, 3]
    %47, %48 = if %7 {
      %55 = list.new(%2) : list<f32[2, 3]>
      %56, %57 = list.pop(%55) : list<f32[2, 3]>, f32[2, 3]
      yield %55, %17
    } else {
      %60 = constant "c9" : f32[2, 3]
      %61 = list.new(%60, %2) : list<f32[2, 3]>
      %62 = list.push(%61, %60) : list<f32[2, 3]>
      yield %62, %20
    } : list<f32[2, 3]>, i64[]
    yield %18, %10, %6
  } : i64[3], f32[6], i64[]
  %63 = aten.remainder.Scalar(%6, 2) : i64[]
  %64 = aten.mul.Scalar(%8, %63) : f32[3]
  return %64
}
"""  # noqa: E501


def test_an_item_is_read_of_a_list_that_is_made_anew_in_each_iteration() -> None:
    """Which item a pop reads only the length tells. Another iteration has written others, which
    must not lie where something else has been written since."""
    constants = {
        name: torch.ones([int(size) for size in shape.split(",")])
        for name, shape in re.findall(r'constant "(\w+)" : f32\[(.*)\]', EARLIER_ITEMS)
    }
    for form in forms(parse_program(EARLIER_ITEMS, constants)):
        verify_form(form)


@pytest.mark.parametrize("seed", range(20))
def test_random_trees_are_read_back(seed: int) -> None:
    tree = random_tree(seed)
    program = schedule(tree, 3, CUDA_COSTS)
    for form in (
        Selected(tree, NO_INTERFACE),
        Scheduled(program, NO_INTERFACE),
        Planned(make_plan(program, 2), NO_INTERFACE),
    ):
        assert again(form) == form
        verify_form(form, tree)


LOOP = """
func @main(%x: f32[4, 8], %w: f32[8, 8]) -> (f32[4, 8], i64[]) {
  %zero = literal 0 : i64[]
  %one = literal 1 : i64[]
  %limit = literal 5 : i64[]
  %h, %n = while (%a = %x, %i = %zero) {
    %more = aten.lt.Tensor(%i, %limit) : bool[]
    yield %more
  } do (%b, %j) {
    %product = aten.mm.default(%b, %w) : f32[4, 8]
    %c = aten.tanh.default(%product) : f32[4, 8]
    %k = aten.add.Tensor(%j, %one) : i64[]
    yield %c, %k
  } : f32[4, 8], i64[]
  %known = constant "bias" : f32[8]
  %y = aten.add.Tensor(%h, %known) : f32[4, 8]
  return %y, %n
}
"""


def loop() -> Program:
    return program_of(LOOP)


def tensors_for(program: Program) -> list[Tensor]:
    return [item for item in random_inputs(program) if isinstance(item, Tensor)]


def run_form(form: Form, inputs: list[Tensor]) -> list[Tensor]:
    """Goes on from a form, on two units, and runs the program on the emulator."""
    match form:
        case Lowered():
            return run_form(select(form, 2), inputs)
        case Selected(tree, interface):
            return run_form(Scheduled(schedule(tree, 2), interface), inputs)
        case Scheduled(program, interface):
            results = EmulatedExecutable(program, interface, Options())(inputs)
            return [result for result in results if isinstance(result, Tensor)]
        case Planned(plan, interface):
            return run_form(Scheduled(plan.program, interface), inputs)


def test_one_goes_on_from_any_form() -> None:
    program = loop()
    inputs = tensors_for(program)
    expected = [item for item in run(program, inputs) if isinstance(item, Tensor)]
    for form in forms(program):
        assert_close(run_form(again(form), inputs), expected)


def test_what_the_text_says_can_be_edited() -> None:
    """One more round of the loop, by a change of the number in the text of the operators."""
    program = loop()
    inputs = tensors_for(program)
    form = lower(program)
    text = print_form(form)
    assert "5:i64" in text
    edited = parse_form(text.replace("5:i64", "6:i64"), form_constants(form), TEMPLATES)
    _, rounds = run_form(edited, inputs)
    assert rounds.item() == 6


def test_the_first_word_is_the_name_of_the_form() -> None:
    firsts = [print_form(form).split()[0] for form in forms(loop())]
    assert firsts == ["operators", "kernels", "program", "kernels", "program", "plan", "plan"]


def test_without_constants_a_form_is_read_but_holds_none() -> None:
    form = parse_form(print_form(lower(loop())))
    assert form.interface.constants == {}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("plan ", "plans ", "expected one of operators, kernels, program, plan"),
        ("kernels (", "kernels (other, ", "the plan names 'other', which its program"),
        ("tensor out0", "tensors out0", "expected one of tensor, list"),
        ("outputs (", "outputs ", "expected `\\("),
    ],
)
def test_mistakes_in_a_plan(old: str, new: str, reason: str) -> None:
    form = forms(loop())[-1]
    assert isinstance(form, Planned)
    assert any(isinstance(launch, Launch) for _, launch in form.plan.launches)
    with pytest.raises(ScheduleError, match=reason):
        parse_form(print_form(form).replace(old, new, 1), templates=TEMPLATES)
