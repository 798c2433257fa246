"""Build stages that machines share: from a captured Program to a scheduled and verified one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from stretto.device.forms import Form as DeviceForm
from stretto.device.forms import Lowered, Scheduled, Selected, externals
from stretto.device.text import parse_form, print_form
from stretto.device.verifier import verify_form, verify_selection
from stretto.errors import ScheduleError
from stretto.ir.core import Program
from stretto.ir.ops import ConstantOp
from stretto.ir.text import parse_program, print_program
from stretto.ir.text import print_program as program_text
from stretto.ir.verifier import verify as verify_program
from stretto.lowering.lower_function import LeftToTorch
from stretto.lowering.lower_program import lower
from stretto.machines.machine import BuildStage, Form, Stages, Supply
from stretto.passes.manager import run_passes
from stretto.schedule.policies import POLICIES
from stretto.schedule.scheduler import schedule_with_report

# ---- Forms of a program that all machines share: `dump_dir` writes them, `stretto opt` reads them.
#
# A text that is read back is parsed and verified. No text contains the tensors of constants: a
# `Supply` provides them.


F = TypeVar("F", bound=DeviceForm)


# ---- Programs --------------------------------------------------------------------------------
def _read_program(text: str, supply: Supply) -> Program:
    program = parse_program(text)
    for op in program.walk():
        if isinstance(op, ConstantOp) and op.key not in program.constants:
            kind = op.result.tensor
            shape = torch.Size(kind.static_shape())
            program.constants[op.key] = supply(op.key, shape, kind.dtype.torch)
    verify_program(program)
    return program


def _read_captured(stages: Stages, text: str, supply: Supply) -> None:
    stages.captured = stages.program = _read_program(text, supply)


CAPTURED = Form(
    "captured",
    "captured.txt",
    lambda stages: [print_program(stages.captured)],
    _read_captured,
    "func",
)
"""The Program as a frontend returns it."""
OPTIMISED = Form(
    "optimised", "optimised.txt", lambda stages: [print_program(stages.program)], _read_captured
)
"""The Program after all passes."""


# ---- Forms of the device language ------------------------------------------------------------
def read_form(stages: Stages, text: str, supply: Supply, kind: type[F]) -> F:
    """Read a program in the device language; its first word names its form.

    Raise ScheduleError if the text is another form or has a mistake in it, and VerifyError if the
    program breaks a rule.
    """
    form: DeviceForm = parse_form(text, None, stages.machine.templates)
    if not isinstance(form, kind):
        raise ScheduleError(f"line 1: this is a form of another stage: {text.split(None, 1)[0]}")
    constants = form.interface.constants
    packed = {packing.buffer for packing in form.interface.packings}
    for buffer in externals(form):
        if buffer.kind == "constant" and buffer not in packed:
            shape = torch.Size([dim for dim in buffer.shape if isinstance(dim, int)])
            constants[buffer.slot] = supply(buffer.name, shape, buffer.dtype.torch)
    verify_form(form)
    return form


def device_form(
    name: str,
    word: str,
    kind: type[F],
    get: Callable[[Stages], F | None],
    put: Callable[[Stages, F], None],
) -> Form:
    """Return a form of the device language. `get` and `put` access the program in `Stages`; what
    is read is verified before it is put there."""

    def texts(stages: Stages) -> list[str]:
        form: Any = get(stages)
        assert form is not None
        return [print_form(form)]

    def read(stages: Stages, text: str, supply: Supply) -> None:
        put(stages, read_form(stages, text, supply, kind))

    return Form(name, f"{name}.txt", texts, read, word)


def _put_lowered(stages: Stages, form: Lowered) -> None:
    stages.lowered = form


def _put_selected(stages: Stages, form: Selected) -> None:
    stages.selected = form


def _put_scheduled(stages: Stages, form: Scheduled) -> None:
    stages.scheduled = form


OPERATORS = device_form("operators", "operators", Lowered, lambda s: s.lowered, _put_lowered)
KERNELS = device_form("kernels", "kernels", Selected, lambda s: s.selected, _put_selected)
SCHEDULED = device_form("scheduled", "program", Scheduled, lambda s: s.scheduled, _put_scheduled)


def _passes(stages: Stages) -> None:
    """Run the passes. The captured Program is verified like the results of the passes."""

    def dump(name: str, program: Program) -> None:
        if stages.dumper.folder is not None:
            stages.dumper.text(f"{name}.txt", program_text(program))

    if stages.options.debug.verify:
        verify_program(stages.captured)
    stages.program = run_passes(
        stages.captured,
        stages.passes,
        dump=dump,
        verify=stages.options.debug.verify,
        skip=stages.options.debug.skip,
    )


def _left_to_torch(stages: Stages) -> LeftToTorch:
    if stages.left is not None:
        return stages.left
    library = stages.options.library
    return () if isinstance(library, str) else library


def _lower(stages: Stages) -> None:
    stages.lowered = lower(
        stages.program,
        stages.machine.costs,
        stages.updates,
        stages.machine.languages,
        _left_to_torch(stages),
    )
    if stages.options.debug.verify:
        verify_form(stages.lowered)


def _select(stages: Stages) -> None:
    assert stages.lowered is not None
    stages.selected = stages.machine.select(
        stages.lowered, stages.units, stages.options, stages.remarks
    )
    if stages.options.debug.verify:
        verify_selection(stages.selected.tree)


def _schedule(stages: Stages) -> None:
    assert stages.selected is not None
    program, stages.report = schedule_with_report(
        stages.selected.tree,
        stages.units,
        stages.machine.costs,
        stages.remarks,
        POLICIES.get(stages.options.debug.policy),
    )
    stages.scheduled = Scheduled(program, stages.selected.interface)


def _verify(stages: Stages) -> None:
    stages.proof = verify_form(Scheduled(*stages.runnable()), stages.source)


PASSES = BuildStage("passes", _passes, OPTIMISED)
LOWER = BuildStage("lower", _lower, OPERATORS)
SELECT = BuildStage("select", _select, KERNELS)
SCHEDULE = BuildStage("schedule", _schedule, SCHEDULED)
VERIFY = BuildStage("verify", _verify)

TO_SCHEDULE = (PASSES, LOWER, SELECT, SCHEDULE, VERIFY)
"""First stages of every machine that runs scheduled programs."""
