"""The record of a machine, the only interface through which `build`, `explain()` and `doctor` use
it.

A machine is a folder (or a single file) that creates a frozen dataclass derived from `Machine`. Its
`stages` are the steps from a captured Program to an executable, most of them shared
(`stretto.machines.stages`). Each step takes what it needs from a `Stages` object and adds its
result. A step whose result can be inspected names its `Form`, so that `dump_dir` and `stretto opt`
can print it and read it back.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import torch

from stretto.device.costs import HOST_COSTS, CostModel
from stretto.device.forms import Lowered, ProgramInterface, Scheduled, Selected
from stretto.device.operator import PLAIN_TEMPLATES, Template
from stretto.device.program import DeviceProgram
from stretto.device.regions import Body
from stretto.device.tree import Tree
from stretto.device.verifier import Proof
from stretto.dumps import Dumper
from stretto.errors import BuildError
from stretto.ir.core import Program
from stretto.ir.ops import TensorOp
from stretto.lowering.targets import NO_UPDATES, InputUpdates
from stretto.options import Options
from stretto.passes.manager import Pass
from stretto.passes.pipeline import pipeline
from stretto.progress import logged_stage as timed_stage
from stretto.remarks import Remarks
from stretto.runtime.call_sizes import Values
from stretto.runtime.constants import CopiesAhead, Copy
from stretto.runtime.results import Result
from stretto.schedule.scheduler import Report
from stretto.simulator.work import Kept
from stretto.text import TextSection, counted, seconds_text

# ---- Results of `library_choice`: the products that torch computes, and the times compared.


@dataclass(frozen=True, slots=True)
class ProductSummary:
    """Products at one place of the user's program.

    name: of the place and the operator. nested: they are in a loop, a branch or a function. own,
    library: estimated seconds of one of them by our kernel, and by the library's kernel with the
    gap after it.
    """

    name: str
    ops: tuple[TensorOp, ...]
    nested: bool
    own: float
    library: float

    @property
    def gain(self) -> float:
        """Estimated seconds that the library saves for all of these products."""
        return (self.own - self.library) * len(self.ops)


@dataclass(frozen=True, slots=True)
class LibraryChoice:
    """The choice of library calls, and the reason.

    looked_at: all products that the library could compute. tried: for each program that was
    planned, the number of products that the library computes in it and its simulated seconds; our
    own kernels alone come first. taken: the products that the library computes.
    """

    looked_at: tuple[ProductSummary, ...]
    tried: tuple[tuple[int, float], ...] = ()
    taken: tuple[ProductSummary, ...] = ()
    reason: str = ""

    def text(self) -> str:
        """Return the text for `explain()`."""
        count = sum(len(product.ops) for product in self.taken)
        whole = sum(len(product.ops) for product in self.looked_at)
        head = f"{count} of {counted(whole, 'product')} by the library"
        if self.reason:
            return f"{head}: {self.reason}"
        tried = "; ".join(
            f"{counted(count, 'library call')} {seconds_text(seconds)}"
            for count, seconds in self.tried
        )
        return f"{head}; simulated: {tried}"

    def section(self) -> TextSection:
        """List the products: name, count, both estimates, and who computes each."""
        taken = set(map(id, self.taken))
        rows = [
            (
                product.name + (" (in a loop, branch or function)" if product.nested else ""),
                len(product.ops),
                seconds_text(product.own),
                seconds_text(product.library),
                "library" if id(product) in taken else "own kernel",
            )
            for product in self.looked_at
        ]
        title = "products, by our kernels or by the library (estimated, each by itself)"
        headers = ("product", "count", "own kernel", "library and gap", "computed by")
        return TextSection(title, rows, headers)


HOST = torch.device("cpu")
"""Device whose tensors Python itself can read."""


class Executable(ABC):
    """A program that is ready to be called."""

    copies: tuple[Copy, ...] = ()
    """Copies of constants in another layout, made again when the user's tensor changes."""

    @abstractmethod
    def __call__(self, inputs: list[torch.Tensor], sizes: Values | None = None) -> list[Result]:
        """Run once. `inputs`: contiguous tensors in the order of main's params.

        sizes: the values of `ProgramInterface.symbols`, in that order, from a caller that has
        compared the inputs' shapes with the program's. Without them they are read from the inputs,
        which are checked.
        """

    def expect(self) -> None:
        """Announce a call, so that threads that sleep between calls can wake up."""
        return None

    def synchronize(self) -> None:
        """Wait for all calls. Raise RunError if one of them failed."""
        return None


Supply = Callable[[str, torch.Size, torch.dtype], torch.Tensor]
"""Function that provides the constant of that name, shape and dtype, since no text contains it."""


@dataclass(frozen=True, slots=True)
class Form:
    """A form of a program between two stages that can be inspected.

    name: the one `stretto opt` uses. file: the name of its dumps. texts: one text, or one for each
    part that the machine makes. read: parses and verifies a text, and puts the program where the
    earlier stage would have put it; None for a form that cannot be read back. word: the first word
    of a text that can.
    """

    name: str
    file: str
    texts: Callable[[Stages], Sequence[str]]
    read: Callable[[Stages, str, Supply], None] | None = None
    word: str = ""


@dataclass(frozen=True, slots=True)
class BuildStage:
    """A step of a machine. `name`: key of its seconds in `Stages.seconds`. `form`: form of its
    result, if that can be inspected."""

    name: str
    run: Callable[[Stages], None]
    form: Form | None = None


@dataclass(slots=True)
class Stages:
    """Results of the stages so far, with their seconds.

    passes: those to run. program: after all of them. lowered, selected, scheduled: as operators, as
    kernels, as a schedule. proof: the result of verifying the schedule. product: what the machine
    built from it, of a type of the machine. copies: of constants, in progress. updates: the inputs
    that the program changes in place (`lowering.updates`). left: the ops that torch computes, if
    they were chosen by cost; library: that choice.
    """

    captured: Program
    machine: Machine
    options: Options
    place: torch.device
    dumper: Dumper
    program: Program
    passes: tuple[Pass, ...] = field(default_factory=pipeline)
    units: int = 1
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    lowered: Lowered | None = None
    selected: Selected | None = None
    scheduled: Scheduled | None = None
    report: Report | None = None
    proof: Proof | None = None
    product: object = None
    copies: CopiesAhead | None = None
    executable: Executable | None = None
    updates: InputUpdates = NO_UPDATES
    left: frozenset[TensorOp] | None = None
    library: LibraryChoice | None = None

    @property
    def backend(self) -> str:
        return self.machine.name

    @property
    def remarks(self) -> Remarks:
        """Remarks of the stages so far: what they declined, and why."""
        return self.captured.remarks

    @property
    def device(self) -> DeviceProgram | None:
        """The scheduled program."""
        return None if self.scheduled is None else self.scheduled.program

    def runnable(self) -> tuple[DeviceProgram, ProgramInterface]:
        """Return the scheduled program and interface, from which a machine builds an executable."""
        assert self.scheduled is not None
        return self.scheduled.program, self.scheduled.interface

    @property
    def source(self) -> Tree[Body] | None:
        """The kernels from which the scheduled program was made."""
        return None if self.selected is None else self.selected.tree

    @contextmanager
    def timed(self, stage: str) -> Generator[None]:
        """Add the time of the block to the seconds of `stage`."""
        start = time.perf_counter()
        with timed_stage(stage):
            yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class PackedProgram:
    """A program as built by a machine: the content of a file, without the constants.

    facts: JSON. texts, binaries: by names that the machine chooses.
    """

    facts: Any
    texts: Mapping[str, str]
    binaries: Mapping[str, bytes]


class FewerUnitsError(BuildError):
    """The machine turned out to hold only `units` units of this program at once."""

    def __init__(self, message: str, units: int) -> None:
        super().__init__(message)
        self.units = units


@dataclass(frozen=True, slots=True)
class Description:
    """Data on a program that only its machine knows, for `explain()`.

    launches: number of launches per call. library_calls: where torch runs them. lines: label and
    text. sections: further ones. hosted: why the host executes control nodes, by their titles.
    """

    launches: str = "1"
    library_calls: str = "inside the launch"
    lines: Sequence[tuple[str, str]] = ()
    sections: Sequence[TextSection] = ()
    hosted: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A line of `stretto doctor`. `remedy` says what to do if the status is not "ok"."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """One task on one unit; times in nanoseconds of the monotonic clock."""

    unit: int
    kernel: int
    task: int
    start: int
    end: int


class Profiler(Protocol):
    """A program that measures when each task runs.

    `kernels`: kernel names in the order in which its events number them. `decisions`: the paths
    that control takes in a run: the title of the node, the arm of a branch (or 1 if a loop goes
    on), and the unit that decided.
    """

    @property
    def kernels(self) -> Sequence[str]: ...
    def profile(self, inputs: list[torch.Tensor]) -> tuple[list[Result], list[TaskEvent]]: ...
    def decisions(self, inputs: list[torch.Tensor]) -> list[tuple[str, int, int]]: ...


@dataclass(frozen=True)
class Machine(ABC):
    """A machine that programs run on; `replace(machine, costs=...)` makes a variant.

    costs: what selection and scheduling assume of it.
    """

    name: str
    """Name for the user: `backend="name"`."""
    costs: CostModel = field(default=HOST_COSTS, kw_only=True)

    summary: ClassVar[str]
    """One-line description, shown beside the name."""
    device_type: ClassVar[str] = HOST.type
    """Type of torch device whose tensors its programs take."""
    is_default: ClassVar[bool] = False
    """True if backend "auto" takes it for tensors on such devices."""
    is_native: ClassVar[bool] = False
    """True if programs are C++ in this process, so that guards may be, too."""
    is_emulated: ClassVar[bool] = False
    """True if Python does the work, so that times mean nothing."""
    targets: ClassVar[tuple[str, ...]] = ()
    """Devices that it compiles for although they need not be present."""
    instead: ClassVar[str] = ""
    """Advice of the command line for what to do if the device is missing."""
    is_oracle: ClassVar[bool] = False
    """True if it runs Programs op by op, so that there is no other machine to check its results."""

    stops_at_once: ClassVar[bool] = True
    """True if the failing call itself raises the error of its run, instead of a later call."""
    takes_symbols: ClassVar[bool] = False
    """True if its programs may have sizes that are known only at the call."""

    languages: ClassVar[frozenset[str]] = frozenset()
    """Languages of user kernels that it compiles; elsewhere their operators are library calls."""

    @property
    @abstractmethod
    def stages(self) -> tuple[BuildStage, ...]:
        """Steps from a captured Program to `Stages.executable`, in order."""

    @property
    def templates(self) -> Mapping[str, type[Template]]:
        """Templates of its kernels, by their names in dumps."""
        return PLAIN_TEMPLATES

    def device(self) -> torch.device:
        """Return the device for a program without inputs. Raise BuildError if there is none."""
        return HOST

    def require_ready(self) -> None:
        """Raise BuildError if nothing can be compiled at present."""
        return None

    def prepare(self, options: Options) -> None:
        """Start, in the background, slow preparations that serve all programs."""
        return None

    def tuned(self, options: Options, place: torch.device) -> Machine:
        """Return the machine with costs fitted to the device that programs at `place` run on, if
        the options ask for measured costs and there are any; otherwise return itself."""
        return self

    def for_target(self, target: str, units: int | None) -> Machine:
        """Return a machine that compiles for a device that need not be present, and loads nothing.
        `units`: None is the usual number for such a device. Raise ValueError for an unknown
        target."""
        raise ValueError(f"the machine {self.name} compiles only for the device of this process")

    def pack(self, stages: Stages) -> PackedProgram | None:
        """Pack a built program for a file that another process loads. Return None if this machine
        builds its programs where the file is loaded."""
        return None

    def unpack(
        self, packed: PackedProgram, constants: Mapping[int, torch.Tensor], stages: Stages
    ) -> None:
        """Put the executable of a packed program into `stages`, without building it again.
        `constants`: the tensor of each slot of the program's interface.

        Raise BuildError, with the reason, if the program cannot run on the present device.
        """
        raise BuildError(f"the machine {self.name} cannot load packed programs: it builds its own")

    @property
    def makes_files(self) -> bool:
        """True if what it compiles for its target can be packed and run there."""
        return False

    @property
    def packed_by(self) -> str:
        """Name of the machine whose packed programs it runs."""
        return self.name

    def for_packed(self, packed: PackedProgram) -> Machine:
        """Return the machine with the costs that a packed program was built with."""
        return self

    @property
    def runs_on(self) -> str:
        """Type of torch device that its programs run on, which need not be present."""
        return self.device_type

    def units(self, options: Options, device: torch.device) -> int:
        """Return the number of execution units for a program."""
        return options.unit_count()

    def select(self, lowered: Lowered, units: int, options: Options, remarks: Remarks) -> Selected:
        """Return kernels for the operators; `remarks` receives what is declined, and why. Machines
        whose stages select kernels override this; the others raise BuildError."""
        raise BuildError(f"the machine {self.name} runs no kernels")

    def kept_constants(self, program: DeviceProgram) -> Kept:
        """Return, by kernel, the constants that a unit still has on chip from its second task on,
        for the simulator; an estimate where only a compilation can tell."""
        return {}

    def describe(self, stages: Stages) -> Description:
        """Return what `explain()` prints about a program beyond what all machines have."""
        return Description()

    def diagnoses(self, options: Options) -> Iterator[Diagnosis]:
        """Yield the lines of `stretto doctor` about this machine."""
        return iter(())

    def profiler(self, stages: Stages, options: Options) -> Profiler | None:
        """Return the program again, with a clock around each task; None if the machine measures no
        time."""
        return None
