"""The CUDA machine, its emulation, and a cross compiler for GPUs that are not present."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from stretto.device.forms import Lowered, Planned, Scheduled, Selected
from stretto.device.operator import Template
from stretto.device.program import DeviceProgram
from stretto.device.tree import If, walk
from stretto.device.verifier import verify_plan
from stretto.errors import BuildError, RunError
from stretto.machines.cuda.costs import CUDA_COSTS, CudaCosts
from stretto.machines.cuda.describe import describe
from stretto.machines.cuda.device import (
    EMULATED_UNITS,
    cuda_executable,
    diagnoses,
    emulated_cuda_executable,
    find_gpu,
    is_capturing_stream,
    resident_units,
)
from stretto.machines.cuda.executable import CudaExecutable
from stretto.machines.cuda.frequencies import known_frequencies
from stretto.machines.cuda.graphs.graph_builder import Arrangements, arrangements
from stretto.machines.cuda.packed import pack, unpack
from stretto.machines.cuda.select import select
from stretto.machines.cuda.styles import (
    GpuProgram,
    compile_plan,
    kept_constants,
    usual_sources,
)
from stretto.machines.cuda.templates import TEMPLATES
from stretto.machines.cuda.toolchain import TARGETS, GpuTarget, require_triton
from stretto.machines.library_choice import choice_stage
from stretto.machines.machine import (
    BuildStage,
    Description,
    Diagnosis,
    Executable,
    FewerUnitsError,
    Form,
    Machine,
    PackedProgram,
    Stages,
)
from stretto.machines.stages import TO_SCHEDULE, device_form
from stretto.options import Options
from stretto.remarks import Remarks
from stretto.runtime.call_sizes import Values
from stretto.runtime.results import Result
from stretto.schedule.choice import chooser
from stretto.schedule.plan_cost import plan_seconds
from stretto.schedule.plan_search import choose_plan
from stretto.schedule.policies import POLICIES
from stretto.simulator.devices import GPUS, costs_on, device_for, gpu_like
from stretto.simulator.work import Kept

NAMED = {name: gpu for name, gpu in GPUS.items() if name != "v100"}
"""GPUs that a program can be compiled for by name. Triton cannot compile for a V100."""


def gpu_program(stages: Stages) -> GpuProgram:
    """Return the plan, and its launches as far as they are printed and compiled."""
    assert isinstance(stages.product, GpuProgram)
    return stages.product


def _plan(stages: Stages) -> None:
    program, _ = stages.runnable()
    options, costs = stages.options, stages.machine.costs
    conditions = [n.condition.name for n in walk(program.tree.main.body) if isinstance(n, If)]
    counted = options.debug.branches == "auto" and options.enqueue != "stream"
    frequencies = known_frequencies(stages, conditions) if counted else {}
    chosen = choose_plan(program, costs, options, frequencies)
    if options.debug.verify or not chosen.plan.is_whole:
        verify_plan(chosen.plan, stages.source)
    stages.product = GpuProgram(chosen.plan, as_graph=chosen.captured, branches=chosen.branches)


def _seconds_as_planned(stages: Stages, program: DeviceProgram) -> float:
    """Return the simulated seconds of a program in the plan that would be chosen for it. Raises
    ScheduleError if the run is too long to be simulated."""
    costs = stages.machine.costs
    chosen = choose_plan(program, costs, stages.options)
    kept = stages.machine.kept_constants(program) if chosen.plan.is_whole else None
    device = device_for(costs, program.units)
    return plan_seconds(chosen.plan, device, costs, captured=chosen.captured, kept=kept)


LIBRARY = choice_stage(_seconds_as_planned)


def _arranged(stages: Stages) -> Arrangements | None:
    """Return how graphs are enqueued, if the program runs as graphs."""
    made = gpu_program(stages)
    return arrangements(made.plan, stages.machine.costs) if made.as_graph else None


TRITON = Form(
    "text", "program.py", lambda stages: [source.text for source in gpu_program(stages).sources]
)


def _planned(stages: Stages) -> Planned:
    _, interface = stages.runnable()
    return Planned(gpu_program(stages).plan, interface)


def _put_planned(stages: Stages, form: Planned) -> None:
    stages.scheduled = Scheduled(form.plan.program, form.interface)
    stages.product = GpuProgram(form.plan, as_graph=stages.options.enqueue == "graph")


PLAN = BuildStage("plan", _plan, device_form("plan", "plan", Planned, _planned, _put_planned))


@dataclass(frozen=True)
class TritonMachine(Machine):
    """Common base of machines that run programs printed as Triton."""

    costs: CudaCosts = field(default=CUDA_COSTS, kw_only=True)

    takes_symbols: ClassVar[bool] = True
    languages: ClassVar[frozenset[str]] = frozenset({"triton"})

    @property
    def templates(self) -> Mapping[str, type[Template]]:
        return TEMPLATES

    def select(self, lowered: Lowered, units: int, options: Options, remarks: Remarks) -> Selected:
        choose = chooser(options.debug.kernels, units, POLICIES.get(options.debug.policy))
        return select(lowered, units, options.debug.fuse, self.costs, choose, remarks)

    def kept_constants(self, program: DeviceProgram) -> Kept:
        return kept_constants(program)


@dataclass(frozen=True)
class CudaMachine(TritonMachine):
    """An NVIDIA GPU, a resident thread block per unit."""

    summary: ClassVar[str] = "one Triton kernel on an NVIDIA GPU"
    device_type: ClassVar[str] = "cuda"
    is_default: ClassVar[bool] = True
    stops_at_once: ClassVar[bool] = False
    targets: ClassVar[tuple[str, ...]] = (*TARGETS, *NAMED)
    instead: ClassVar[str] = (
        "without a GPU: --backend cuda-emulated runs it here, explain --target sm_90 compiles it"
    )

    @property
    def stages(self) -> tuple[BuildStage, ...]:
        back = (PLAN, BuildStage("compile", self.compile, TRITON), BuildStage("load", self.load))
        return (*TO_SCHEDULE, LIBRARY, *back)

    def device(self) -> torch.device:
        return find_gpu(torch.device(self.device_type)).device

    def for_target(self, target: str, units: int | None) -> CrossCompiler:
        """Return a cross compiler. target: an architecture, such as sm_90, or the name of a GPU,
        such as h100. Raises BuildError if the target is unknown or Triton is missing."""
        gpu = NAMED.get(target)
        known = GpuTarget.parse(target if gpu is None else gpu.target)
        require_triton()
        costs = costs_on(known.usual_gpu if gpu is None else gpu, self.costs)
        count = known.multiprocessors if gpu is None else gpu.units
        return CrossCompiler(self.name, known, target, units or count, count, costs=costs)

    def tuned(self, options: Options, place: torch.device) -> CudaMachine:
        if self.costs is not CUDA_COSTS:
            return self
        gpu = find_gpu(place)
        return replace(self, costs=costs_on(gpu_like(gpu.name, gpu.capability), self.costs))

    def require_ready(self) -> None:
        if is_capturing_stream():
            raise BuildError(
                "a function cannot be compiled while a stream is captured",
                remedy="call it once with such inputs before the capture",
            )

    def units(self, options: Options, device: torch.device) -> int:
        return options.units or find_gpu(device).multiprocessors

    def compile(self, stages: Stages) -> None:
        """Print and compile for the GPU of this machine. Raises FewerUnitsError if it holds fewer
        thread blocks at once than the program has units."""
        major, minor = find_gpu(stages.place).capability
        target = f"sm_{major}{minor}"
        made = compile_plan(gpu_program(stages), target, stages.options)
        stages.product = made
        room = min(resident_units(kernel, stages.place) for kernel in made.compiled)
        _require_room(room, target, stages)

    def load(self, stages: Stages) -> None:
        made, (_, interface) = gpu_program(stages), stages.runnable()
        stages.executable = cuda_executable(
            made.plan, made.sources, made.compiled, interface, stages.options, stages.place,
            _arranged(stages),
        )  # fmt: skip

    def pack(self, stages: Stages) -> PackedProgram | None:
        _, interface = stages.runnable()
        return pack(stages.machine.costs.gpu, gpu_program(stages), interface, _arranged(stages))

    def for_packed(self, packed: PackedProgram) -> CudaMachine:
        return replace(self, costs=costs_on(GPUS[packed.facts["device"]], CUDA_COSTS))

    def unpack(
        self, packed: PackedProgram, constants: Mapping[int, torch.Tensor], stages: Stages
    ) -> None:
        gpu, found = find_gpu(stages.place), unpack(packed, constants)
        here = "sm_{}{}".format(*gpu.capability)
        if found.target != here:
            raise BuildError(
                f"its machine code is for {found.target}, as of the {found.device}, and "
                f"{gpu.device} is {gpu.name} ({here})"
            )
        plan = found.program.plan
        stages.scheduled = Scheduled(plan.program, found.interface)
        stages.product, stages.units = found.program, plan.program.units
        stages.executable = cuda_executable(
            plan, found.program.sources, found.program.compiled, found.interface, stages.options,
            stages.place, found.arranged,
        )  # fmt: skip

    def describe(self, stages: Stages) -> Description:
        gpu = None
        if isinstance(stages.executable, CudaExecutable):
            gpu = find_gpu(stages.executable.launcher.device).multiprocessors
        return describe(stages, gpu_program(stages), gpu)

    def diagnoses(self, options: Options) -> Iterator[Diagnosis]:
        return diagnoses()


def _require_room(room: int, target: str, stages: Stages) -> None:
    """Raise FewerUnitsError if a program has more units than the GPU holds at once (`room`), and
    BuildError if it holds none."""
    if room == 0:
        raise BuildError(
            f"not one thread block of the program fits on a multiprocessor of {target}",
            remedy="use smaller inputs, or cut the function into parts",
        )
    if room < stages.units and stages.options.units is None:
        raise FewerUnitsError(f"the GPU holds only {room} thread blocks at once", room)


@dataclass(frozen=True)
class EmulatedCudaMachine(TritonMachine):
    """The same kernels on CPU tensors; their text is interpreted."""

    summary: ClassVar[str] = "the kernels of a GPU, interpreted on this host"
    is_emulated: ClassVar[bool] = True

    @property
    def stages(self) -> tuple[BuildStage, ...]:
        return (
            *TO_SCHEDULE,
            LIBRARY,
            PLAN,
            BuildStage("print", self.print, TRITON),
            BuildStage("load", self.load),
        )

    def units(self, options: Options, device: torch.device) -> int:
        return options.units or EMULATED_UNITS

    def print(self, stages: Stages) -> None:
        made = gpu_program(stages)
        stages.product = replace(made, sources=usual_sources(made.plan))

    def load(self, stages: Stages) -> None:
        made, (_, interface) = gpu_program(stages), stages.runnable()
        stages.executable = emulated_cuda_executable(
            made.plan, made.sources, interface, stages.options, _arranged(stages)
        )

    def describe(self, stages: Stages) -> Description:
        lines = [("emulated", "the text of each launch is interpreted on the CPU")]
        return describe(stages, gpu_program(stages), None, lines)


class NotHere(Executable):
    """A program for a GPU that is not present; calling it raises RunError."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, inputs: list[torch.Tensor], sizes: Values | None = None) -> list[Result]:
        raise RunError(
            f"the program was compiled for {self.device}, and does not run here",
            remedy="save it, and load it where that GPU is: `save(path)`, `stretto.load(path)`",
        )


@dataclass(frozen=True)
class CrossCompiler(TritonMachine):
    """Compiles for a GPU that need not be present, and loads nothing.

    target: one that GpuTarget.parse knows, such as "sm_90". wanted: the name that the user gave,
    such as "h100". most_units: the most units that programs may have, on a GPU with
    `multiprocessors` of them.
    """

    target: GpuTarget
    wanted: str
    most_units: int
    multiprocessors: int
    summary: ClassVar[str] = "compiles for a GPU that need not be there"

    @property
    def stages(self) -> tuple[BuildStage, ...]:
        back = (PLAN, BuildStage("compile", self.compile, TRITON), BuildStage("load", self.load))
        return (*TO_SCHEDULE, LIBRARY, *back)

    @property
    def runs_on(self) -> str:
        return CudaMachine.device_type

    @property
    def makes_files(self) -> bool:
        return self.target.backend == "cuda"  # there is no launcher for GPUs of AMD

    def units(self, options: Options, device: torch.device) -> int:
        return self.most_units

    def compile(self, stages: Stages) -> None:
        """Print and compile. Raises FewerUnitsError as on the GPU itself, from the resources of
        the compiled kernels."""
        stages.product = made = compile_plan(gpu_program(stages), self.target.name, stages.options)
        if self.target.multiprocessor is not None and made.compiled:
            fitting = min(kernel.resources.units_per_sm for kernel in made.compiled)
            _require_room(fitting * self.multiprocessors, self.wanted, stages)

    def load(self, stages: Stages) -> None:
        stages.executable = NotHere(self.wanted)

    def pack(self, stages: Stages) -> PackedProgram | None:
        if not self.makes_files:
            return None
        _, interface = stages.runnable()
        return pack(self.costs.gpu, gpu_program(stages), interface, _arranged(stages))

    def describe(self, stages: Stages) -> Description:
        return describe(stages, gpu_program(stages), self.multiprocessors)


CUDA = CudaMachine("cuda")
MACHINES = (CUDA, EmulatedCudaMachine("cuda-emulated"))
