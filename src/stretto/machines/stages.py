"""The stages that machines share: from a captured Program to a scheduled and verified one."""

from __future__ import annotations

from stretto.device.forms import Scheduled
from stretto.device.verifier import verify_form, verify_selection
from stretto.ir.core import Program
from stretto.ir.printer import print_program as program_text
from stretto.ir.verifier import verify as verify_program
from stretto.lowering.function import LeftToTorch
from stretto.lowering.program import lower
from stretto.machines.forms import KERNELS, OPERATORS, OPTIMISED, SCHEDULED
from stretto.machines.machine import BuildStage, Stages
from stretto.passes.manager import run_passes
from stretto.schedule.policies import chosen_policy
from stretto.schedule.scheduler import schedule_with_report


def _passes(stages: Stages) -> None:
    """The captured Program is verified as what passes make of it is."""

    def dump(name: str, program: Program) -> None:
        if stages.dumper.folder is not None:
            stages.dumper.text(f"{name}.txt", program_text(program))

    if stages.options.verify:
        verify_program(stages.captured)
    stages.program = run_passes(
        stages.captured,
        stages.passes,
        dump=dump,
        verify=stages.options.verify,
        skip=stages.options.skip,
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
    if stages.options.verify:
        verify_form(stages.lowered)


def _select(stages: Stages) -> None:
    assert stages.lowered is not None
    stages.selected = stages.machine.select(
        stages.lowered, stages.units, stages.options, stages.remarks
    )
    if stages.options.verify:
        verify_selection(stages.selected.tree)


def _schedule(stages: Stages) -> None:
    assert stages.selected is not None
    program, stages.report = schedule_with_report(
        stages.selected.tree,
        stages.units,
        stages.machine.costs,
        stages.remarks,
        chosen_policy(stages.options),
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
"""What a machine begins with that runs scheduled programs."""
