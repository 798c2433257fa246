"""All stages from a captured Program to something that runs, in one function."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from stretto.device.forms import Lowered, Packing
from stretto.device.plan import Plan
from stretto.device.program import DeviceProgram
from stretto.device.regions import Body
from stretto.device.text import print_program as device_text
from stretto.device.tree import Tree
from stretto.device.verifier import verify as verify_device
from stretto.errors import BuildError
from stretto.frontends.python import Captured
from stretto.interp.interpreter import run as interpret
from stretto.ir.core import Program
from stretto.ir.printer import print_program as program_text
from stretto.lowering.program import lower
from stretto.machines.cpu.executable import CpuExecutable
from stretto.machines.cpu.printer.program import Source, print_program
from stretto.machines.cpu.select import select
from stretto.machines.cuda.compile import CompiledTriton, compile_source
from stretto.machines.cuda.device import (
    cuda_executable,
    emulated_cuda_executable,
    find_gpu,
    resident_units,
    units_for,
)
from stretto.machines.cuda.executable import CudaExecutable
from stretto.machines.cuda.printer.program import EARLY_REGISTERS, Style, print_plan
from stretto.machines.cuda.printer.program import print_program as print_program_for_gpu
from stretto.machines.cuda.printer.source import TritonSource
from stretto.machines.cuda.select import select_cuda
from stretto.machines.cuda.templates.dot import Dot
from stretto.machines.cuda.toolchain import Target, require_triton
from stretto.machines.emulator.executable import EmulatedExecutable
from stretto.options import Options
from stretto.passes.check_unused import CheckUnused
from stretto.passes.cse import EliminateCommonSubexpressions
from stretto.passes.dce import EliminateDeadCode
from stretto.passes.fold import FoldConstants
from stretto.passes.hoist import HoistInvariants
from stretto.passes.inline import InlineFunctions
from stretto.passes.loop_pipeline import loop_passes
from stretto.passes.manager import Pass, Repeat, run_passes
from stretto.passes.simplify import Simplify
from stretto.runtime.constants import Copy
from stretto.runtime.results import Result
from stretto.schedule.costs import GPU_COSTS, MachineCosts
from stretto.schedule.plan import make_plan
from stretto.schedule.scheduler import Report, schedule_with_report

CPU = torch.device("cpu")


def pipeline(options: Options) -> tuple[Pass, ...]:
    """Every pass over a Program, in order."""
    tidy = (FoldConstants(), Simplify(), EliminateCommonSubexpressions())
    return (
        InlineFunctions(),
        Repeat((*tidy, EliminateDeadCode(keep_positions=True))),
        CheckUnused(),
        Repeat((*tidy, EliminateDeadCode())),
        HoistInvariants(),
        *loop_passes(),
        Repeat((*tidy, EliminateDeadCode())),
    )


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
    plan: Plan | None = None
    triton: tuple[TritonSource, ...] = ()
    compiled: tuple[CompiledTriton, ...] = ()

    @contextmanager
    def timed(self, stage: str) -> Generator[None]:
        start = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


class InterpretedExecutable:
    """Runs a Program op by op in Python: the oracle."""

    def __init__(self, program: Program, options: Options) -> None:
        self.program = program
        self.timeout = options.timeout
        self.copies: tuple[Copy, ...] = ()

    def __call__(self, inputs: list[torch.Tensor]) -> list[Result]:
        return list(interpret(self.program, inputs, timeout=self.timeout))


Executable = CpuExecutable | EmulatedExecutable | InterpretedExecutable | CudaExecutable


def build(
    captured: Captured,
    backend: str,
    options: Options,
    costs: MachineCosts | None = None,
    device: torch.device = CPU,
) -> tuple[Executable, Stages]:
    """Takes a captured function through passes, lowering, selection, scheduling, verification and
    printing.

    backend: "cpu", "cuda", "cuda-emulated", "emulator" or "interpreter".
    costs: what the scheduler takes the machine's waits to cost, where it is not the usual.
    device: where the tensors are.
    Raises the error class of the stage that fails.
    """
    stages = Stages(captured, backend, captured.program)
    dump = Dumper(options)
    lowered = _front(stages, options, dump)
    if lowered is None:
        return InterpretedExecutable(stages.program, options), stages
    if backend in ("cuda", "cuda-emulated"):
        costs = costs or GPU_COSTS
        return _build_cuda(stages, lowered, options, costs, dump, device), stages
    units = options.unit_count()
    with stages.timed("select"):
        tree, stages.packings = select(lowered, units, options.fuse)
        interface = replace(lowered.interface, packings=stages.packings)
    program = _schedule(stages, tree, units, costs, dump)
    if backend == "emulator":
        return EmulatedExecutable(program, interface, options), stages
    with stages.timed("print"):
        stages.source = source = print_program(program)
    dump.text("program.cpp", lambda: source.text)
    with stages.timed("compile"):
        executable = CpuExecutable(program, source, interface, options)
    return executable, stages


def _front(stages: Stages, options: Options, dump: Dumper) -> Lowered | None:
    """From the captured Program to operators; None where the Program itself is run."""
    dump.text("captured.txt", lambda: program_text(stages.captured.program))
    with stages.timed("passes"):
        stages.program = run_passes(
            stages.captured.program,
            pipeline(options),
            dump=dump.after_pass,
            verify=options.verify,
        )
    if stages.backend == "interpreter":
        return None
    with stages.timed("lower"):
        stages.lowered = lower(stages.program)
    return stages.lowered


def _schedule(
    stages: Stages, tree: Tree[Body], units: int, costs: MachineCosts | None, dump: Dumper
) -> DeviceProgram:
    with stages.timed("schedule"):
        device, stages.report = schedule_with_report(tree, units, costs)
        stages.device = device
    dump.text("device.txt", lambda: device_text(device))
    with stages.timed("verify"):
        verify_device(device, tree)
    return device


# ---- GPUs ------------------------------------------------------------------------------------


def plan_for_gpu(
    stages: Stages,
    lowered: Lowered,
    units: int,
    options: Options,
    costs: MachineCosts,
    dump: Dumper,
) -> Plan:
    """The plan for a GPU with so many resident thread blocks."""
    with stages.timed("select"):
        tree = select_cuda(lowered, units, options.fuse)
    device = _schedule(stages, tree, units, costs, dump)
    stages.plan = make_plan(device)
    return stages.plan


WAYS = (
    *(Style(registers=registers) for registers in EARLY_REGISTERS),
    Style(registers=0, inline=True),
    Style(registers=0, warps=8),
)
"""Ways to print a launch, the best first. The less constants are kept in registers, and the more
threads share the work, the more registers are free; a call needs some, too."""
PATIENCE = 10.0
"""Seconds of a compilation after which no other way is tried."""
WIDE = 4096
"""Results of a block of a product that four warps have no registers for."""
MOST_INLINE = 20
"""Kernels of a program whose text may stand wherever they run."""


def ways(program: DeviceProgram) -> tuple[Style, ...]:
    """The styles to try for a program."""
    templates = [stage.template for kernel in program.kernels for stage in kernel.stages]
    products = [template for template in templates if isinstance(template, Dot)]
    if any(product.rows * product.columns > WIDE for product in products):
        return (Style(warps=8), Style(warps=8, registers=0), *WAYS)
    return WAYS


def compile_plan(stages: Stages, target: str, options: Options, dump: Dumper) -> None:
    """Prints and compiles the launches of a plan, each in the first way whose registers suffice."""
    assert stages.plan is not None
    chosen: list[tuple[TritonSource, CompiledTriton]] = []
    with stages.timed("compile"):
        for name, launch in stages.plan.launches:
            tried: dict[tuple[str, int], tuple[TritonSource, CompiledTriton]] = {}
            for style in ways(launch.program):
                if style.inline and len(launch.program.kernels) > MOST_INLINE:
                    continue
                words = stages.plan.words[name]
                source = print_program_for_gpu(launch.program, words, style)
                if (source.text, style.warps) in tried:
                    continue
                kernel = compile_source(source, target, options)
                tried[source.text, style.warps] = source, kernel
                if kernel.resources.spill_bytes == 0 or kernel.seconds > PATIENCE:
                    break
            chosen.append(min(tried.values(), key=lambda pair: pair[1].resources.spill_bytes))
    stages.triton = tuple(source for source, _ in chosen)
    stages.compiled = tuple(kernel for _, kernel in chosen)
    for source in stages.triton:
        dump.text("program.py", lambda source=source: source.text)


def _build_cuda(
    stages: Stages,
    lowered: Lowered,
    options: Options,
    costs: MachineCosts,
    dump: Dumper,
    device: torch.device,
) -> CudaExecutable:
    """A program on the GPU `device`, with as many units as that holds at once; on the CPU, one
    whose kernels are interpreted."""
    units = units_for(device, options.units)
    plan = plan_for_gpu(stages, lowered, units, options, costs, dump)
    if device.type == "cpu":
        with stages.timed("print"):
            stages.triton = print_plan(plan)
        for source in stages.triton:
            dump.text("program.py", lambda source=source: source.text)
        return emulated_cuda_executable(plan, stages.triton, lowered.interface, options)
    major, minor = find_gpu(device).capability
    target = f"sm_{major}{minor}"
    compile_plan(stages, target, options, dump)
    room = min(resident_units(kernel, device) for kernel in stages.compiled)
    if room == 0:
        raise BuildError(
            f"not one thread block of the program fits on a multiprocessor of {target}",
            remedy="use smaller inputs, or cut the function into parts",
        )
    if room < units and options.units is None:
        plan = plan_for_gpu(stages, lowered, room, options, costs, dump)
        compile_plan(stages, target, options, dump)
    with stages.timed("load"):
        interface = lowered.interface
        return cuda_executable(plan, stages.triton, stages.compiled, interface, options, device)


def compile_for_target(
    captured: Captured, target: str, units: int, options: Options, costs: MachineCosts | None = None
) -> Stages:
    """All that `build` does for a GPU, except to load it: the GPU need not be there.

    captured: of tensors on the CPU. target: one that Target.parse knows, as "sm_90". units: its
    multiprocessors, a unit each.
    Raises ValueError for another target, and else as `build`; BuildError where Triton is missing.
    """
    machine = Target.parse(target)
    require_triton()
    stages = Stages(captured, "cuda", captured.program)
    dump = Dumper(options)
    lowered = _front(stages, options, dump)
    assert lowered is not None
    plan_for_gpu(stages, lowered, units, options, costs or GPU_COSTS, dump)
    compile_plan(stages, machine.name, options, dump)
    return stages


@contextmanager
def _writing_dumps() -> Generator[None]:
    try:
        yield
    except OSError as error:
        remedy = "choose another dump_dir"
        raise BuildError(f"cannot write dumps: {error}", remedy=remedy) from error


def _write_new(path: Path, text: str) -> bool:
    """Writes a file that is not there yet; False where there is something, be it a link."""
    try:
        with path.open("x") as file:  # never opens what a link leads to
            file.write(text)
    except FileExistsError:
        return False
    return True


class Dumper:
    """Writes each stage's text into `Options.dump_dir`, numbered in order.

    What is in the folder already stays: numbers go on from the largest one, so that each signature,
    and each process, adds files. No link is followed.
    """

    def __init__(self, options: Options) -> None:
        self.folder = None if options.dump_dir is None else Path(options.dump_dir)
        self.number = 0
        if self.folder is not None:
            with _writing_dumps():
                self.folder.mkdir(parents=True, exist_ok=True)
                taken = (re.match(r"\d+(?=-)", name) for name in os.listdir(self.folder))
                self.number = max((int(found[0]) + 1 for found in taken if found), default=0)

    def text(self, name: str, make: Callable[[], str]) -> None:
        if self.folder is None:
            return
        text = make()
        with _writing_dumps():
            while not _write_new(self.folder / f"{self.number:02d}-{name}", text):
                self.number += 1
        self.number += 1

    def after_pass(self, name: str, program: Program) -> None:
        self.text(f"{name}.txt", lambda: program_text(program))
