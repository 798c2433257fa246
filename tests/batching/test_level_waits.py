"""Units wait for each other between the levels of a level program, not between steps of one."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from stretto.batching.levels.level_program import level_code
from stretto.device.program import DeviceProgram
from stretto.device.text import parse_program, print_program
from stretto.device.tree import For, leaves, walk
from stretto.device.verifier import verify
from stretto.errors import VerifyError
from stretto.ir.text import parse_program as parse
from stretto.ir.text import print_program as print_ir
from stretto.ir.verifier import verify as verify_ir
from stretto.lowering.lower_program import lower
from stretto.lowering.targets import InputUpdates
from stretto.machines.cpu.select import select
from stretto.machines.cpu.templates import TEMPLATES
from stretto.options import Options
from stretto.schedule.scheduler import schedule
from tests.backends import SPREAD
from tests.batching.levels import block_of, f32


@pytest.fixture(scope="module")
def scheduled() -> DeviceProgram:
    torch.manual_seed(0)
    blocks = [
        block_of(f"b{n}", (f32(24), f32(24)), lambda x, y, layer=layer: torch.tanh(layer(x) + y))
        for n, layer in enumerate([nn.Linear(24, 24), nn.Linear(24, 24)])
    ]
    program = level_code(blocks, Options()).program
    last = len(program.main.params) - 1
    found = select(lower(program, SPREAD, InputUpdates(((last, 0),), True)), 2, True, SPREAD)
    made = schedule(found.tree, 2, SPREAD)
    verify(made, found.tree)
    return made


def without(text: str, place: re.Match[str]) -> str:
    return text[: place.start()] + text[place.end() :]


def test_a_step_waits_for_none_of_its_level(scheduled: DeviceProgram) -> None:
    (steps,) = [node for node in walk(scheduled.tree.main.body) if isinstance(node, For)]
    assert {buffer.kind for buffer in steps.independent} == {"updated", "items"}
    inside = "\n".join(str(leaf) for leaf in leaves(steps.body))
    assert "Wait" in inside  # for rows that are overwritten, and for columns that others computed
    assert not re.search(r"Wait\([^)]*step=0", inside)


def test_every_wait_is_needed(scheduled: DeviceProgram) -> None:
    text = print_program(scheduled)
    verify(parse_program(text, TEMPLATES))
    waits = list(re.finditer(r"\n *wait [01] step ([0-9]+)", text))
    assert any(wait[1] == "0" for wait in waits)
    for wait in waits:
        with pytest.raises(VerifyError):
            verify(parse_program(without(text, wait), TEMPLATES))


def test_a_loop_whose_iterations_depend_waits_in_each(scheduled: DeviceProgram) -> None:
    """The same schedule of a loop that promises nothing is refused."""
    text = print_program(scheduled)
    (promise,) = re.finditer(r" independent \([^)]*\)", text)
    with pytest.raises(VerifyError, match="race"):
        verify(parse_program(without(text, promise), TEMPLATES))


def test_a_loop_is_independent_in_what_it_changes_only(scheduled: DeviceProgram) -> None:
    text = print_program(scheduled)
    with pytest.raises(VerifyError, match="memory that it does not change"):
        verify(parse_program(text.replace(" independent (", " independent (in0, "), TEMPLATES))


def test_programs_say_what_is_independent() -> None:
    code = level_code([block_of("b", (f32(4),), torch.tanh)], Options())
    text = print_ir(code.program)
    assert "1) independent carry (" in text
    assert print_ir(parse(text)) == text
    wrong = """
    func @main(%x: f32[4]) -> (f32[]) {
      %a = aten.sum.default(%x) : f32[]
      %b = for %i in (0, 4, 1) independent carry (%c = %a) {
        %d = aten.add.Tensor(%c, 1.0) : f32[]
        yield %d
      } : f32[]
      return %b
    }
    """
    with pytest.raises(VerifyError, match="it may carry only tensors with dims"):
        verify_ir(parse(wrong))
