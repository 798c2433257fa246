"""All stages from a captured Program to something that runs, in one function."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from stretto.capture import Captured
from stretto.codegen.cpp_program import Source, print_program
from stretto.errors import BuildError
from stretto.interp.interpreter import run as interpret
from stretto.ir.core import Program
from stretto.ir.printer import print_program as program_text
from stretto.kernels.lowered import Lowered, lower
from stretto.kernels.select import Packing, select
from stretto.options import Options
from stretto.passes.cse import EliminateCommonSubexpressions
from stretto.passes.dce import EliminateDeadCode
from stretto.passes.fold import FoldConstants
from stretto.passes.hoist import HoistInvariants
from stretto.passes.inline import InlineFunctions
from stretto.passes.loop_pipeline import loop_passes
from stretto.passes.manager import Pass, Repeat, run_passes
from stretto.passes.simplify import Simplify
from stretto.runtime.emulated import EmulatedExecutable
from stretto.runtime.executable import CpuExecutable
from stretto.runtime.results import Result
from stretto.schedule.costs import MachineCosts
from stretto.schedule.printer import print_program as device_text
from stretto.schedule.program import DeviceProgram
from stretto.schedule.scheduler import Report, schedule_with_report
from stretto.schedule.verifier import verify as verify_device


def pipeline(options: Options) -> tuple[Pass, ...]:
    """Every pass over a Program, in order."""
    tidy = Repeat(
        (FoldConstants(), Simplify(), EliminateCommonSubexpressions(), EliminateDeadCode())
    )
    return (InlineFunctions(), tidy, HoistInvariants(), *loop_passes(), tidy)


@dataclass(slots=True)
class Stages:
    """What each stage produced, for `explain()` and dumps, with its seconds."""

    captured: Captured
    backend: str
    program: Program
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    lowered: Lowered | None = None
    packings: tuple[Packing, ...] = ()
    device: DeviceProgram | None = None
    report: Report | None = None
    source: Source | None = None

    @contextmanager
    def timed(self, stage: str) -> Generator[None]:
        start = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


class InterpretedExecutable:
    """Runs a Program op by op in Python: the oracle."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def __call__(self, inputs: list[torch.Tensor]) -> list[Result]:
        return list(interpret(self.program, inputs))


Executable = CpuExecutable | EmulatedExecutable | InterpretedExecutable


def build(
    captured: Captured, backend: str, options: Options, costs: MachineCosts | None = None
) -> tuple[Executable, Stages]:
    """Takes a captured function through passes, lowering, selection, scheduling, verification and
    printing.

    backend: "cpu", "emulator" or "interpreter".
    costs: what the scheduler takes the machine's waits to cost, where it is not the usual.
    Raises the error class of the stage that fails.
    """
    stages = Stages(captured, backend, captured.program)
    dump = Dumper(options)
    dump.text("captured.txt", lambda: program_text(captured.program))
    with stages.timed("passes"):
        stages.program = run_passes(
            captured.program, pipeline(options), dump=dump.after_pass, verify=options.verify
        )
    if backend == "interpreter":
        return InterpretedExecutable(stages.program), stages
    units = options.unit_count()
    with stages.timed("lower"):
        stages.lowered = lowered = lower(stages.program)
    with stages.timed("select"):
        tree, stages.packings = select(lowered, units, options.fuse)
    with stages.timed("schedule"):
        device, stages.report = schedule_with_report(tree, units, costs)
        stages.device = device
    dump.text("device.txt", lambda: device_text(device))
    with stages.timed("verify"):
        verify_device(device)
    if backend == "emulator":
        return EmulatedExecutable(device, lowered, stages.packings, options), stages
    with stages.timed("print"):
        stages.source = source = print_program(device)
    dump.text("program.cpp", lambda: source.text)
    with stages.timed("compile"):
        executable = CpuExecutable(device, source, lowered, stages.packings, options)
    return executable, stages


@contextmanager
def _writing_dumps() -> Generator[None]:
    try:
        yield
    except OSError as error:
        remedy = "choose another dump_dir"
        raise BuildError(f"cannot write dumps: {error}", remedy=remedy) from error


class Dumper:
    """Writes each stage's text into `Options.dump_dir`, numbered in order."""

    def __init__(self, options: Options) -> None:
        self.folder = None if options.dump_dir is None else Path(options.dump_dir)
        self.number = 0
        if self.folder is not None:
            with _writing_dumps():
                self.folder.mkdir(parents=True, exist_ok=True)

    def text(self, name: str, make) -> None:  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
        if self.folder is None:
            return
        with _writing_dumps():
            (self.folder / f"{self.number:02d}-{name}").write_text(make())  # pyright: ignore[reportUnknownArgumentType]
        self.number += 1

    def after_pass(self, name: str, program: Program) -> None:
        self.text(f"{name}.txt", lambda: program_text(program))
