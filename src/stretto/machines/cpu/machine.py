"""The CPU machine: C++ for native threads, one per execution unit."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from stretto.device.forms import Lowered, Selected
from stretto.device.operator import Template
from stretto.errors import BuildError
from stretto.extending.cpp_source import located
from stretto.kernels.variants import Chooser
from stretto.machines.cpu import calls, pool
from stretto.machines.cpu.costs import CpuCosts, host_costs
from stretto.machines.cpu.executable import CpuExecutable
from stretto.machines.cpu.measured import MeasuredChooser
from stretto.machines.cpu.printer.cpp_file import CppSource, print_program
from stretto.machines.cpu.select import select
from stretto.machines.cpu.templates import TEMPLATES
from stretto.machines.machine import (
    HOST,
    BuildStage,
    Description,
    Diagnosis,
    Form,
    Machine,
    Profiler,
    Stages,
)
from stretto.machines.stages import SELECT, TO_SCHEDULE
from stretto.options import Options
from stretto.remarks import Remarks
from stretto.runtime import memory_watch, probes
from stretto.runtime.compiler import build_flags, build_in_background, cpu, find_compiler
from stretto.runtime.constants import CopiesAhead
from stretto.runtime.memory_watch import tracks_pages
from stretto.schedule.choice import chooser
from stretto.schedule.policies import POLICIES
from stretto.tuning import Database, this_cpu

# ---- Lines of `stretto doctor` about this host.


VECTORS = (
    *("avx512f", "avx512_bf16", "avx512_vnni", "avx512_fp16", "amx_tile"),
    *("avx2", "fma", "f16c", "avx_vnni", "asimd", "bf16", "asimddp", "sve"),
)


def diagnoses(options: Options) -> Iterator[Diagnosis]:
    """Yield the lines of `stretto doctor` about this host."""
    yield check_compiler()
    yield check_vectors(cpu())
    yield check_cores(options)
    yield check_weights(options)


def check_compiler() -> Diagnosis:
    try:
        found = find_compiler()
    except BuildError as error:
        return Diagnosis("compiler", "fail", error.message, error.remedy or "")
    version = found.version.splitlines()[0]
    flags = " ".join(flag for flag in build_flags(trace=False) if flag.startswith(("-O", "-m")))
    return Diagnosis("compiler", "ok", f"{shlex.join(found.command)} ({version}), {flags}")


def check_vectors(processor: str) -> Diagnosis:
    """Check the vector extensions that generated code can use."""
    words = set(processor.replace("'", " ").split())
    found = [name for name in VECTORS if name in words]
    if "avx512f" in found or "avx2" in found or "asimd" in found:
        return Diagnosis("vectors", "ok", " ".join(found))
    remedy = "programs run, but slowly: use a processor with AVX2, AVX-512 or NEON"
    return Diagnosis("vectors", "warn", "none of AVX-512, AVX2, NEON", remedy)


def check_cores(options: Options) -> Diagnosis:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    units = options.unit_count()
    detail = f"{cpus} CPUs for this process, {units} execution units by default"
    return Diagnosis("cores", "ok", detail)


def check_weights(options: Options) -> Diagnosis:
    """Check how a program learns that its weights were written."""
    try:
        tracked = tracks_pages(options)
    except BuildError as error:
        return Diagnosis("weights", "fail", error.message, error.remedy or "see above")
    if tracked:
        return Diagnosis("weights", "ok", "the system reports which pages of them were written")
    detail = "the system does not report writes, so packed weights are read at each call"
    remedy = "use Linux 6.7 or later, and allow userfaultfd (containers: in the seccomp profile)"
    return Diagnosis("weights", "warn", detail, remedy)


def source_of(stages: Stages) -> CppSource:
    """Return the printed program."""
    assert isinstance(stages.product, CppSource)
    return stages.product


def _pack(stages: Stages) -> None:
    """Start to copy constants in parallel with the stages that follow. These are Python on one
    core, and a large model has hundreds of megabytes of weights."""
    assert stages.selected is not None
    stages.copies = CopiesAhead(stages.selected.interface, stages.options)


def _print(stages: Stages) -> None:
    program, _ = stages.runnable()
    stages.product = print_program(program)


def _compile(stages: Stages) -> None:
    stages.executable = _executable(stages, stages.options)


def _executable(stages: Stages, options: Options) -> CpuExecutable:
    program, interface = stages.runnable()
    copies, stages.copies = stages.copies, None
    try:
        return CpuExecutable(program, source_of(stages), interface, options, copies)
    except BuildError as error:
        raise located(error, program.kernels) from error


CPP = Form("text", "program.cpp", lambda stages: [source_of(stages).text])


@dataclass(frozen=True)
class CpuMachine(Machine):
    """Machine that runs programs on native threads of this process."""

    costs: CpuCosts = field(default_factory=host_costs, kw_only=True)
    measured: Database | None = field(default=None, kw_only=True)
    """Measurements on this device, if they are to decide."""
    chooser: Chooser | None = field(default=None, kw_only=True)
    """Chooser of variants that replaces the one that the options name."""

    summary: ClassVar[str] = "C++ on the threads of this host"
    is_default: ClassVar[bool] = True
    is_native: ClassVar[bool] = True
    takes_symbols: ClassVar[bool] = True
    languages: ClassVar[frozenset[str]] = frozenset({"cpp"})

    @property
    def templates(self) -> Mapping[str, type[Template]]:
        return TEMPLATES

    @property
    def stages(self) -> tuple[BuildStage, ...]:
        front = list(TO_SCHEDULE)
        front.insert(front.index(SELECT) + 1, BuildStage("pack", _pack))
        return (*front, BuildStage("print", _print, CPP), BuildStage("compile", _compile))

    def prepare(self, options: Options) -> None:
        """As in Machine. Raise BuildError for options that would split a program into several
        launches."""
        if options.debug.launches == "per_kernel" or options.debug.control == "host":
            raise BuildError(
                "the CPU machine runs a program in one launch, control flow included",
                remedy='leave Debug.launches and Debug.control at "auto", "one" and "units"',
            )
        some = (calls.SUPPORT,) if options.library else ()
        build_in_background((pool.SUPPORT, memory_watch.SUPPORT, probes.SUPPORT, *some), options)

    def tuned(self, options: Options, place: torch.device = HOST) -> Machine:
        if options.tune == "off" or self.costs is not host_costs() or self.measured is not None:
            return self
        database = Database(options.cache_path())
        if not database.path.exists():
            return self
        parameters = database.parameters(this_cpu(options))
        costs = self.costs.fitted(parameters) if parameters else self.costs
        return replace(self, costs=costs, measured=database)

    def select(self, lowered: Lowered, units: int, options: Options, remarks: Remarks) -> Selected:
        costs = replace(self.costs, most_filtered=options.winograd)
        choose = self.chooser or chooser(
            options.debug.kernels, units, POLICIES.get(options.debug.policy)
        )
        if self.measured is not None:
            choose = MeasuredChooser(choose, self.measured, this_cpu(options), units)
        return select(lowered, units, options.debug.fuse, costs, choose, remarks)

    def describe(self, stages: Stages) -> Description:
        lines: list[tuple[str, str]] = []
        if isinstance(stages.executable, CpuExecutable):
            cached = stages.executable.shared.from_cache
            lines.append(("build cache", "hit" if cached else "miss, built now"))
        return Description(lines=lines)

    def diagnoses(self, options: Options) -> Iterator[Diagnosis]:
        return diagnoses(options)

    def profiler(self, stages: Stages, options: Options) -> Profiler:
        return _executable(
            stages, replace(options, profile=True, debug=replace(options.debug, dump_dir=None))
        )


MACHINES = (CpuMachine("cpu"),)
