"""From a Program to something that runs: the stages of a machine, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import torch

from stretto.device.costs import CostModel
from stretto.dumps import Dumper
from stretto.failures import stage_failures
from stretto.ir.core import Program
from stretto.lowering.targets import NO_UPDATES, Updates
from stretto.machines.machine import HOST, BuildStage, FewerUnitsError, Form, Machine, Stages
from stretto.machines.stages import CAPTURED, SELECT
from stretto.options import Options
from stretto.passes.manager import Target
from stretto.passes.pipeline import passes_by_name, pipeline


def build(
    program: Program,
    machine: Machine,
    options: Options,
    place: torch.device = HOST,
    updates: Updates = NO_UPDATES,
) -> Stages:
    """Takes a Program through all stages of a machine: passes, lowering, selection of kernels,
    scheduling, verification, then what the machine plans, prints, compiles and loads.

    place: the device of the tensors. updates: which results lie in the memory of inputs: the
    program changes these where they lie, without copies, and gives back the tensors themselves. A
    run that stops has then written to them, so this is for memory that the caller of the program
    owns. Raises the error class of the stage that fails.
    """
    stages = begin(program, machine, options, place)
    stages.updates = updates
    _dump(stages, CAPTURED)
    run_stages(stages, machine.stages)
    return stages


def begin(program: Program, machine: Machine, options: Options, place: torch.device) -> Stages:
    """A build of which no stage has run yet. Choices go by what was measured on the device. Raises
    ValueError where `Debug.skip` has what is no pass."""
    machine = machine.tuned(options, place)
    units = machine.units(options, place)
    passes = pipeline(Target(_with_recursion(machine.costs, options.debug.recursion), units))
    known = passes_by_name(passes)
    for name in options.debug.skip:
        if name not in known:
            names = ", ".join(known)
            raise ValueError(f"Debug.skip: no pass is called {name!r}; known are {names}")
    dumper = Dumper(options.debug.dump_dir)
    return Stages(program, machine, options, place, dumper, program, passes, units)


def _with_recursion(costs: CostModel, how: str) -> CostModel:
    """The costs with which passes compute recursions as `Debug.recursion` says."""
    least = {"auto": costs.level_bytes, "levels": 0.0, "calls": inf}[how]
    return replace(costs, level_bytes=least)


def run_stages(stages: Stages, steps: Sequence[BuildStage]) -> None:
    """Runs stages in order; dumps what each has made. Where the machine turns out to hold fewer
    units than the program was made for, kernels are selected once more, for those."""
    try:
        _run(stages, steps)
    except FewerUnitsError as fewer:
        if SELECT not in steps:
            raise
        stages.units = fewer.units
        _run(stages, steps[steps.index(SELECT) :])


def _run(stages: Stages, steps: Sequence[BuildStage]) -> None:
    for step in steps:
        with stages.timed(step.name), stage_failures(step.name):
            step.run(stages)
        if step.form is not None:
            _dump(stages, step.form)


def _dump(stages: Stages, form: Form) -> None:
    if stages.dumper.folder is not None:
        for text in form.texts(stages):
            stages.dumper.text(form.file, text)
