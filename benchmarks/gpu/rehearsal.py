"""The replacement of a GPU in dry runs: the tests' fake driver, which runs launches on the host.

Programs are launched through it as on a GPU; the text of their kernels is interpreted. It
compiles with the header that Triton includes, and needs a C++ compiler and the source
tree's tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from stretto.device.forms import Scheduled
from stretto.machines.cuda.driver import COOPERATIVE_LAUNCH_TOO_LARGE
from stretto.machines.cuda.executable import CudaExecutable
from stretto.machines.cuda.graphs.graph_builder import Arrangements, arrangements
from stretto.machines.cuda.graphs.graph_executable import GraphExecutable
from stretto.machines.cuda.host import PlanExecutable
from stretto.machines.cuda.machine import CUDA, EmulatedCudaMachine, gpu_program
from stretto.machines.cuda.packed import unpack
from stretto.machines.cuda.printer.source import TritonSource
from stretto.machines.machine import PackedProgram, Stages
from stretto.machines.registry import register
from stretto.runtime.call_sizes import Values
from stretto.runtime.results import Result
from tests.machines.cuda.cuda_fakes import FakeCuda, FakeGpu

T = TypeVar("T", bound=CudaExecutable)

BACKEND = "cuda-rehearsed"
FAILED = 999


@dataclass(slots=True)
class Rehearsal:
    """The fake driver of one process, and its launchers.

    allows: called before each launch; if it returns False the driver refuses the launch.
    """

    cuda: FakeCuda
    machines: dict[int, FakeGpu] = field(default_factory=dict[int, FakeGpu])
    calls: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    allows: Callable[[bool], bool] = lambda cooperative: True
    error: BaseException | None = None

    def launcher(self, sources: Sequence[TritonSource]) -> FakeGpu:
        """Return a launcher of kernels, in this order. All launchers of the process share the
        driver."""
        made = FakeGpu(self.cuda, sources)
        made.fake.calls = self.calls
        self.machines |= dict.fromkeys(made.sources, made)
        self.cuda.on_launch(self._launched)
        self.cuda.on_call(self._called)
        return made

    def _launched(self, kernel: int, *rest: Any) -> int:
        cooperative = bool(rest[4])
        if not self.allows(cooperative):
            return COOPERATIVE_LAUNCH_TOO_LARGE
        return self.machines[kernel]._launched(kernel, *rest)  # pyright: ignore[reportPrivateUsage]

    def _called(self, number: int) -> int:
        """Run a callback and store its exception: ctypes drops it, so the call of the program
        raises it later."""
        try:
            self.calls[number]()
        except Exception as error:
            self.error = error
            return FAILED
        return 0

    def known(self, kind: type[T], machine: FakeGpu) -> type[T]:
        """Return the executable's class with a `__call__` that first registers its inputs with the
        fake driver."""
        rehearsal = self

        class Known(kind):  # pyright: ignore[reportGeneralTypeIssues]
            def __call__(
                self, inputs: list[torch.Tensor], sizes: Values | None = None
            ) -> list[Result]:
                machine.fake.know(*inputs)
                machine.error = rehearsal.error = None
                try:
                    return super().__call__(inputs, sizes)
                except BaseException:
                    seen = machine.error or rehearsal.error
                    if seen is not None:
                        raise seen from None
                    raise

        return Known


def start(folder: Path) -> Rehearsal:
    """Compile the driver into a folder, unless it is there, and register the backend."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Rehearsal(FakeCuda(folder))
    made.cuda.library.fake_reset()
    register(RehearsedMachine(BACKEND, rehearsal=made))
    return made


@dataclass(frozen=True)
class RehearsedMachine(EmulatedCudaMachine):
    """A machine for the emulated GPU's programs, launched through the fake driver."""

    rehearsal: Rehearsal | None = None

    @property
    def packed_by(self) -> str:
        return "cuda"

    def for_packed(self, packed: PackedProgram) -> RehearsedMachine:
        return replace(self, costs=CUDA.for_packed(packed).costs)

    def unpack(
        self, packed: PackedProgram, constants: Mapping[int, torch.Tensor], stages: Stages
    ) -> None:
        """Load the program of a file from its texts; its machine code is not run."""
        found = unpack(packed, constants)
        stages.scheduled = Scheduled(found.program.plan.program, found.interface)
        stages.product = found.program
        self._load(stages, found.arranged)

    def load(self, stages: Stages) -> None:
        made = gpu_program(stages)
        arranged = arrangements(made.plan, stages.machine.costs) if made.as_graph else None
        self._load(stages, arranged)

    def _load(self, stages: Stages, arranged: Arrangements | None) -> None:
        assert self.rehearsal is not None
        made, (_, interface) = gpu_program(stages), stages.runnable()
        machine = self.rehearsal.launcher(made.sources)
        machine.fake.know(*interface.constants.values())
        settings: tuple[Any, ...]
        settings = (made.plan, made.sources, interface, stages.options, machine)
        kind: type[PlanExecutable] = PlanExecutable
        if arranged is not None:
            settings = (*settings, arranged)
            kind = GraphExecutable
        executable = self.rehearsal.known(kind, machine)(*settings)
        filler = executable._filler  # pyright: ignore[reportPrivateUsage]
        machine.fake.know(*filler.constants.values(), *filler.tables)
        stages.executable = executable
