"""Templates of the CPU in the text of a program."""

from __future__ import annotations

import pytest

from stretto.device.text import parse_program, print_program
from stretto.errors import ScheduleError
from stretto.machines.cpu.select import select
from stretto.machines.cpu.templates import TEMPLATES
from stretto.machines.cpu.templates.pixels import common_panel
from stretto.schedule.scheduler import schedule
from tests.lowering.programs import lowered
from tests.machines.cpu.test_select import product

CONVOLUTION = """
    func @main(%x: f32[2, 4, 9, 9]) -> (f32[2, {0}, 9, 9]) {{
      %w = constant "w" : f32[{0}, {1}, 3, 3]
      %y = aten.convolution.default(%x, %w, None, {2}, {3}) : f32[2, {0}, 9, 9]
      return %y
    }}
    """
ARGUMENTS = "(1, 1), (1, 1), (1, 1), False, (0, 0)"
SORT = """
    func @main(%x: f32[3, 50]) -> (i64[3, 50]) {
      %v, %i = aten.sort.stable(%x, stable=True, dim=1, descending=False) : f32[3, 50], i64[3, 50]
      return %i
    }
    """
PROGRAMS = {
    "packed": product(8, 128, 64, "constant"),
    "rows": product(8, 128, 64, "input"),
    "dots": product(8, 128, 64, "turned"),
    "conv": CONVOLUTION.format(8, 2, ARGUMENTS, 2),
    "depthwise": CONVOLUTION.format(4, 1, ARGUMENTS, 4),
    "sort": SORT,
}


def text_of(name: str) -> str:
    return print_program(schedule(select(lowered(PROGRAMS[name]), 2).tree, 2))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_text_of_every_template_is_read_back(name: str) -> None:
    program = schedule(select(lowered(PROGRAMS[name]), 2).tree, 2)
    text = print_program(program)
    assert f"stage {name}(" in text
    assert parse_program(text, TEMPLATES) == program


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("packed", "mul(", "add(", "template packed: the operator is no contraction"),
        ("conv", "mul(", "add(", "template conv: the operator is no convolution"),
        ("packed", "rows = 6, ", "", "template packed: .*missing"),
        ("packed", "rows = 6", "lines = 6", "template packed: .*lines"),
        ("rows", ") box", ") packed in0 box", "template rows: .*panels"),
        ("sort", "stage sort", "stage sorted", "the machine has no template sorted"),
    ],
)
def test_a_template_that_cannot_compute_its_operator_is_a_mistake(
    name: str, old: str, new: str, reason: str
) -> None:
    text = text_of(name)
    assert old in text
    with pytest.raises(ScheduleError, match=reason):
        parse_program(text.replace(old, new), TEMPLATES)


@pytest.mark.parametrize(("channels", "panel"), [(44, 44), (88, 88), (256, 128), (132, 66), (7, 7)])
def test_panels_of_joined_convolutions_divide_their_channels(channels: int, panel: int) -> None:
    assert common_panel(channels) == panel
