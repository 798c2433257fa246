"""From a Program to something that runs: the stages of a machine, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stretto.dumps import Dumper
from stretto.ir.core import Program
from stretto.machines.machine import HOST, FewerUnitsError, Machine, Stage, Stages
from stretto.machines.stages import CAPTURED, SELECT
from stretto.options import Options


def build(
    program: Program, machine: Machine, options: Options, place: torch.device = HOST
) -> Stages:
    """Takes a Program through all stages of a machine: passes, lowering, selection of kernels,
    scheduling, verification, then what the machine prints, compiles and loads.

    place: the device of the tensors. Raises the error class of the stage that fails.
    """
    dumper = Dumper(options.dump_dir)
    stages = Stages(program, machine, options, place, dumper, program)
    stages.units = machine.units(options, place)
    dumper.text(CAPTURED.file, lambda: CAPTURED.texts(stages)[0])
    try:
        run_stages(stages, machine.stages)
    except FewerUnitsError as fewer:
        stages.units = fewer.units
        steps = machine.stages
        run_stages(stages, steps[steps.index(SELECT) :])
    return stages


def run_stages(stages: Stages, steps: Sequence[Stage]) -> None:
    """Runs stages in order; dumps what each has made."""
    for step in steps:
        with stages.timed(step.name):
            step.run(stages)
        if step.form is not None and stages.dumper.folder is not None:
            for text in step.form.texts(stages):
                stages.dumper.text(step.form.file, lambda text=text: text)
