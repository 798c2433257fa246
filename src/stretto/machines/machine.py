"""What a machine is: the one record that `build`, `explain()` and `doctor` know a machine by.

A machine is a folder (or a single file) that makes a frozen dataclass which derives from `Machine`.
Its `stages` are the steps from a captured Program to an executable, most of them shared
(`stretto.machines.stages`). Each step takes what it needs from a `Stages` object and adds what it
made; a step whose result can be looked at names the `Form` of it, so that `dump_dir` and
`stretto opt` can print it and read it back.
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
from stretto.device.verifier.assignment import Proof
from stretto.dumps import Dumper
from stretto.errors import BuildError
from stretto.ir.core import Program
from stretto.ir.ops import TensorOp
from stretto.lowering.targets import NO_UPDATES, Updates
from stretto.options import Options
from stretto.passes.manager import Pass
from stretto.passes.pipeline import pipeline
from stretto.progress import stage as timed_stage
from stretto.remarks import Remarks
from stretto.runtime.constants import CopiesAhead, Copy
from stretto.runtime.results import Result
from stretto.runtime.sizes import Values
from stretto.schedule.scheduler import Report
from stretto.simulator.work import Kept
from stretto.text import counted, seconds_text

# ---- What `library_choice` has chosen: which products torch computes, and the times behind that.


@dataclass(frozen=True, slots=True)
class Product:
    """Products of one place of the user's program. name: of the place and the operator. nested:
    whether they are in a loop, a branch or a function. own, library: estimated seconds of one of
    them by our kernel and by the library's, with the gap behind it."""

    name: str
    ops: tuple[TensorOp, ...]
    nested: bool
    own: float
    library: float

    @property
    def gain(self) -> float:
        return (self.own - self.library) * len(self.ops)


@dataclass(frozen=True, slots=True)
class LibraryChoice:
    """What was chosen, and why. looked_at: all products that the library could compute. tried:
    of each program that was planned, how many products the library computes in it, and its
    simulated seconds; our own kernels alone come first. taken: what the library computes."""

    looked_at: tuple[Product, ...]
    tried: tuple[tuple[int, float], ...] = ()
    taken: tuple[Product, ...] = ()
    reason: str = ""

    def text(self) -> str:
        """For `explain()`."""
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

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Of each product: its name, how many, both estimates, and who computes it."""
        taken = set(map(id, self.taken))
        return [
            (
                product.name + (" (in a loop, branch or function)" if product.nested else ""),
                str(len(product.ops)),
                seconds_text(product.own),
                seconds_text(product.library),
                "library" if id(product) in taken else "own kernel",
            )
            for product in self.looked_at
        ]


PRODUCT_HEADERS = ("product", "count", "own kernel", "library and gap", "computed by")


HOST = torch.device("cpu")
"""Where tensors lie that Python itself can read."""


class Executable(ABC):
    """A program that is ready to be called."""

    copies: tuple[Copy, ...] = ()
    """Constants in another layout, to be made anew when the user's tensor changes."""

    @abstractmethod
    def __call__(self, inputs: list[torch.Tensor], sizes: Values | None = None) -> list[Result]:
        """Runs once. `inputs`: contiguous tensors in the order of main's params.

        sizes: the values of `ProgramInterface.symbols`, in that order, by a caller who has compared
        the inputs' shapes with the program's. Without them they are read from the inputs, which
        are checked.
        """

    def expect(self) -> None:
        """Tells that a call is about to come, so that what sleeps between calls may wake up."""
        return None

    def synchronize(self) -> None:
        """Waits for all calls. Raises RunError where one of them failed."""
        return None


Supply = Callable[[str, torch.Size, torch.dtype], torch.Tensor]
"""Gives the constant of that name, shape and dtype, which no text has."""


@dataclass(frozen=True, slots=True)
class Form:
    """A form of a program that can be looked at, between two stages.

    name: as `stretto opt` calls it. file: the name of its dumps. texts: one text, or one per part
    that the machine makes. read: parses and verifies a text, and puts the program where the stage
    before would have put it; None for a form that cannot be read back. word: the first of a text
    that can.
    """

    name: str
    file: str
    texts: Callable[[Stages], Sequence[str]]
    read: Callable[[Stages, str, Supply], None] | None = None
    word: str = ""


@dataclass(frozen=True, slots=True)
class BuildStage:
    """A step of a machine. `name`: what its seconds are booked on. form: what it makes, where that
    can be looked at."""

    name: str
    run: Callable[[Stages], None]
    form: Form | None = None


@dataclass(slots=True)
class Stages:
    """What the stages made of a program so far, with their seconds.

    passes: those to run. program: after all of them. lowered, selected, scheduled: as operators, as
    kernels, as what each unit does. proof: what was verified of that. product: what the machine
    itself made of that, of a type of its own. copies: of constants, under way. updates: the inputs
    that the program changes where they lie (`lowering.updates`). left: what torch computes of the
    program, where that was chosen by cost; library: how it was.
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
    updates: Updates = NO_UPDATES
    left: frozenset[TensorOp] | None = None
    library: LibraryChoice | None = None

    @property
    def backend(self) -> str:
        return self.machine.name

    @property
    def remarks(self) -> Remarks:
        """What stages have declined so far."""
        return self.captured.remarks

    @property
    def device(self) -> DeviceProgram | None:
        """The scheduled program."""
        return None if self.scheduled is None else self.scheduled.program

    def runnable(self) -> tuple[DeviceProgram, ProgramInterface]:
        """What a machine makes an executable of."""
        assert self.scheduled is not None
        return self.scheduled.program, self.scheduled.interface

    @property
    def source(self) -> Tree[Body] | None:
        """The kernels that the scheduled program was made of."""
        return None if self.selected is None else self.selected.tree

    @contextmanager
    def timed(self, stage: str) -> Generator[None]:
        start = time.perf_counter()
        with timed_stage(stage):
            yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class Packed:
    """A program as a machine has made it: the content of a file, without the constants.

    facts: JSON. texts, binaries: by names that the machine gives.
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
class Table:
    """A titled table of `explain()`."""

    title: str
    rows: Sequence[Sequence[object]]
    headers: Sequence[str]


@dataclass(frozen=True, slots=True)
class Description:
    """What `explain()` says of a program that only its machine knows.

    launches: how often a call goes from Python to the machine. library_calls: where torch runs
    those. lines: label and text. tables: what is to be listed. hosted: why the host decides control
    nodes, by their titles.
    """

    launches: str = "1"
    library_calls: str = "inside the launch"
    lines: Sequence[tuple[str, str]] = ()
    tables: Sequence[Table] = ()
    hosted: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A line of `stretto doctor`. `remedy` says what to do where the status is not "ok"."""

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
    """A program that measures when each task runs. `kernels`: names in the order in which its
    events number them. `decisions`: the ways that control takes in a run: the title of the
    node, the arm of a branch or whether a loop goes on, and the unit that decided so."""

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
    """What the user calls it: `backend="name"`."""
    costs: CostModel = field(default=HOST_COSTS, kw_only=True)

    summary: ClassVar[str]
    """One line for people, beside the name."""
    device_type: ClassVar[str] = HOST.type
    """The type of torch device whose tensors its programs take."""
    is_default: ClassVar[bool] = False
    """Whether backend "auto" takes it for tensors on such devices."""
    is_native: ClassVar[bool] = False
    """Whether programs are C++ of this process, so that guards may be, too."""
    is_emulated: ClassVar[bool] = False
    """Whether Python does the work, so that times mean nothing."""
    targets: ClassVar[tuple[str, ...]] = ()
    """Devices that it compiles for although they need not be there."""
    instead: ClassVar[str] = ""
    """What the command line can do where the device is missing."""
    is_oracle: ClassVar[bool] = False
    """Whether it runs Programs op by op, so that nothing could check its results."""

    stops_at_once: ClassVar[bool] = True
    """Whether a call itself raises what stops its run, and not a later one."""
    takes_symbols: ClassVar[bool] = False
    """Whether its programs may have sizes that are known at the call only."""

    languages: ClassVar[frozenset[str]] = frozenset()
    """The languages in which it takes kernels of users; operators are library calls elsewhere."""

    @property
    @abstractmethod
    def stages(self) -> tuple[BuildStage, ...]:
        """From a captured Program to `Stages.executable`, in order."""

    @property
    def templates(self) -> Mapping[str, type[Template]]:
        """What its kernels are made of, by the names that dumps have."""
        return PLAIN_TEMPLATES

    def device(self) -> torch.device:
        """The device for a program without inputs. Raises BuildError where there is none."""
        return HOST

    def require_ready(self) -> None:
        """Raises BuildError where nothing can be compiled just now."""
        return None

    def prepare(self, options: Options) -> None:
        """Begins, beside what the caller goes on with, what takes time and serves all programs."""
        return None

    def tuned(self, options: Options, place: torch.device) -> Machine:
        """The machine with the costs of the device that programs at `place` run on: those that were
        fitted to it, where the options ask for what was measured and there is any. Otherwise
        itself."""
        return self

    def for_target(self, target: str, units: int | None) -> Machine:
        """A machine that compiles for a device that need not be there, and loads nothing. `units`:
        None is as many as a usual one has. Raises ValueError for a target that is not known."""
        raise ValueError(f"{self.name} compiles for what is here only")

    def pack(self, stages: Stages) -> Packed | None:
        """Packs a built program for a file that another process loads; None for a machine whose
        programs are built where the file is loaded."""
        return None

    def unpack(self, packed: Packed, constants: Mapping[int, torch.Tensor], stages: Stages) -> None:
        """Makes the executable of a program that `pack` has packed, without building it again;
        puts it into `stages`. constants: the tensor of each slot of the program's interface.

        Raises BuildError, with the reason, where the program cannot run on the device that is here.
        """
        raise BuildError(f"the machine {self.name} builds its programs where it runs them")

    @property
    def makes_files(self) -> bool:
        """True if what it compiles for its target can be packed and run there."""
        return False

    @property
    def packed_by(self) -> str:
        """The name of the machine whose packed programs it runs."""
        return self.name

    def for_packed(self, packed: Packed) -> Machine:
        """The machine with the costs that a packed program was made with."""
        return self

    @property
    def runs_on(self) -> str:
        """The type of torch device that its programs run on, which need not be here."""
        return self.device_type

    def units(self, options: Options, device: torch.device) -> int:
        """How many execution units a program gets."""
        return options.unit_count()

    def select(self, lowered: Lowered, units: int, options: Options, remarks: Remarks) -> Selected:
        """Kernels for the operators; `remarks` takes what it declines to do, and why. Raises
        BuildError on a machine that runs none; one whose stages select kernels defines this."""
        raise BuildError(f"the machine {self.name} runs no kernels")

    def kept_constants(self, program: DeviceProgram) -> Kept:
        """By kernel, what of the constants that a task loads its unit has on chip from its second
        task on, for the simulator; an estimate where only a compilation can say."""
        return {}

    def describe(self, stages: Stages) -> Description:
        """What `explain()` says of a program beyond what all machines have."""
        return Description()

    def diagnoses(self, options: Options) -> Iterator[Diagnosis]:
        """What `stretto doctor` finds out about this machine."""
        return iter(())

    def profiler(self, stages: Stages, options: Options) -> Profiler | None:
        """The program once more, with a clock around each task; None where the machine measures no
        time."""
        return None
