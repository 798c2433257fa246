"""The stages that machines share: from a captured Program to a scheduled and verified one."""

from __future__ import annotations

from stretto.device.forms import Scheduled
from stretto.device.text import print_program as device_text
from stretto.device.verifier import verify as verify_device
from stretto.ir.core import Program
from stretto.ir.printer import print_program as program_text
from stretto.ir.verifier import verify as verify_program
from stretto.lowering.program import lower
from stretto.machines.machine import Form, Stage, Stages
from stretto.passes.manager import run_passes
from stretto.passes.pipeline import pipeline
from stretto.schedule.scheduler import schedule_with_report

CAPTURED = Form("captured", "captured.txt", lambda stages: [program_text(stages.captured)])
"""The Program as a frontend gives it."""


def _passes(stages: Stages) -> None:
    """The captured Program is verified as what passes make of it is."""

    def dump(name: str, program: Program) -> None:
        stages.dumper.text(f"{name}.txt", lambda: program_text(program))

    if stages.options.verify:
        verify_program(stages.captured)
    stages.program = run_passes(
        stages.captured, pipeline(), dump=dump, verify=stages.options.verify
    )


def _lower(stages: Stages) -> None:
    stages.lowered = lower(stages.program, stages.machine.costs)


def _select(stages: Stages) -> None:
    assert stages.lowered is not None
    stages.selected = stages.machine.select(stages.lowered, stages.units, stages.options)


def _schedule(stages: Stages) -> None:
    assert stages.selected is not None
    program, stages.report = schedule_with_report(
        stages.selected.tree, stages.units, stages.machine.costs
    )
    stages.scheduled = Scheduled(program, stages.selected.interface)


def _scheduled_text(stages: Stages) -> list[str]:
    program, _ = stages.runnable()
    return [device_text(program)]


def _verify(stages: Stages) -> None:
    program, _ = stages.runnable()
    verify_device(program, None if stages.selected is None else stages.selected.tree)


PASSES = Stage("passes", _passes)
LOWER = Stage("lower", _lower)
SELECT = Stage("select", _select)
SCHEDULE = Stage("schedule", _schedule, Form("scheduled", "device.txt", _scheduled_text))
VERIFY = Stage("verify", _verify)

TO_SCHEDULE = (PASSES, LOWER, SELECT, SCHEDULE, VERIFY)
"""What a machine begins with that runs scheduled programs."""
