"""A machine in one file: one unit, a kernel per operator, everything evaluated in Python.

This is the example of the recipe "Add a machine" in CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NoReturn

import pytest
import torch
from typer.testing import CliRunner

import stretto
from stretto.device.evaluate import TensorMemory, evaluate, run_task, task_count
from stretto.device.expr import Buffer, Expr
from stretto.device.forms import LeafItem, Lowered, ProgramInterface, Selected
from stretto.device.operator import Kernel, LibraryCall, Loops, Operator, Span, Stage
from stretto.device.program import DeviceProgram, Item, Run, Schedule
from stretto.device.tree import (
    Call,
    Check,
    Conditional,
    Execution,
    For,
    Let,
    Rotation,
    leaves,
    map_tree,
)
from stretto.errors import BuildError
from stretto.machines import machine as machines
from stretto.machines.machine import Description, Diagnosis, Executable, Form, Machine, Stages
from stretto.machines.registry import known_machines, register, registered, unregister
from stretto.machines.stages import TO_SCHEDULE
from stretto.options import Debug, Options
from stretto.remarks import Remarks
from stretto.runtime.call_sizes import Values
from stretto.runtime.results import Result
from stretto.tools.cli import app

# ---- the machine -----------------------------------------------------------------------------


class ToyExecutable(Executable):
    """Walks the control tree; each buffer is a tensor of its own."""

    def __init__(self, program: DeviceProgram, interface: ProgramInterface) -> None:
        self.program = program
        self.interface = interface

    def __call__(self, inputs: list[torch.Tensor], sizes: Values | None = None) -> list[Result]:
        main = self.program.tree.main
        tensors = {b.name: _empty(b) for b in (*self.program.tree.externals, *main.locals)}
        for buffer in self.program.tree.externals:
            if buffer.kind == "constant":
                tensors[buffer.name] = self.interface.constants[buffer.slot].contiguous()
        for buffer, tensor in zip(self.interface.inputs, inputs, strict=True):
            tensors[buffer.name] = tensor
        activation = Activation(self.program, tensors)
        for leaf, _ in activation.leaves(main.body, None):
            for item in leaf.body.units[0]:
                activation.item(item)
        return [activation.tensors[output.buffer.name] for output in self.interface.outputs]


def _empty(buffer: Buffer) -> torch.Tensor:
    shape = [dim for dim in buffer.shape if isinstance(dim, int)]
    return torch.empty(shape, dtype=buffer.dtype.torch)


@dataclass(slots=True)
class Activation(Execution[Schedule, None]):
    program: DeviceProgram
    tensors: dict[str, torch.Tensor]
    registers: dict[str, bool | int | float] = field(default_factory=dict)

    def trips(self, node: For[Schedule], state: None) -> Iterator[None]:
        for trip in range(int(self.value(node.start)), int(self.value(node.stop)), node.step):
            self.registers[node.index.name] = trip
            yield

    def holds(self, node: Conditional[Schedule], state: None, done: int) -> bool:
        return bool(self.registers[node.condition.name])

    def call(self, node: Call[Schedule], state: None) -> NoReturn:
        raise AssertionError("`select` refuses functions")

    def rotate(self, pairs: Rotation, state: None) -> None:
        for a, b in pairs:
            self.tensors[a.name], self.tensors[b.name] = self.tensors[b.name], self.tensors[a.name]

    def item(self, item: Item) -> None:
        match item:
            case Run(name):
                kernel = self.program.kernel(name)
                for task in range(task_count(kernel, self.registers)):
                    run_task(kernel, task, self.registers, TensorMemory(self.tensors))
            case Let(reg, value):
                self.registers[reg.name] = self.value(value)
            case _:  # one unit waits for nobody; `select` refuses checks
                pass

    def value(self, expr: Expr) -> bool | int | float:
        return evaluate(expr, self.registers, TensorMemory(self.tensors))


def _load(stages: Stages) -> None:
    stages.executable = ToyExecutable(*stages.runnable())


def _print(stages: Stages) -> None:
    program, _ = stages.runnable()
    schedules = leaves(program.tree.main.body)
    runs = [item for leaf in schedules for item in leaf.units[0] if isinstance(item, Run)]
    stages.product = "".join(f"run {run.kernel}\n" for run in runs)


LISTING = Form("listing", "listing.txt", lambda stages: [str(stages.product)])


@dataclass(frozen=True)
class ToyMachine(Machine):
    summary: ClassVar[str] = "one unit in Python, without fusion"
    is_emulated: ClassVar[bool] = True

    @property
    def stages(self) -> tuple[machines.BuildStage, ...]:
        back = (machines.BuildStage("print", _print, LISTING), machines.BuildStage("load", _load))
        return (*TO_SCHEDULE, *back)

    def units(self, options: Options, device: torch.device) -> int:
        return 1

    def select(self, lowered: Lowered, units: int, options: Options, remarks: Remarks) -> Selected:
        if len(lowered.tree.functions) > 1:
            raise BuildError("the toy machine calls no functions")
        numbers = iter(range(1000))
        kernels = map_tree(
            lowered.tree, lambda items: tuple(_kernel(item, next(numbers)) for item in items)
        )
        return Selected(kernels, lowered.interface)

    def describe(self, stages: Stages) -> Description:
        return Description(lines=[("listing", f"{str(stages.product).count('run')} runs")])

    def diagnoses(self, options: Options) -> Iterator[Diagnosis]:
        yield Diagnosis("toy", "ok", "always there")


def _kernel(item: LeafItem, number: int) -> Kernel | Let:
    match item:
        case Operator():
            box = tuple(Span(extent) for extent in item.dims)
            return Kernel(f"k{number}", (), (Stage(item, box, Loops()),), 1e-6)
        case Let():
            return item
        case LibraryCall() | Check():
            raise BuildError(f"the toy machine has no {type(item).__name__}")


TOY = ToyMachine("toy")

# ---- what it can do --------------------------------------------------------------------------


@pytest.fixture
def toy() -> Iterator[None]:
    with registered(TOY):
        yield


WEIGHT = torch.linspace(-1.0, 1.0, 16).view(4, 4)
X = torch.linspace(0.0, 1.0, 8).view(2, 4)


def settled(x: torch.Tensor) -> torch.Tensor:
    """A loop, a branch in it, two products and a reduction."""
    for k in range(6):
        x = torch.tanh(x @ WEIGHT) + x * k
    while x.abs().sum() > 1:
        if x.sum() > 0:
            x = x * 0.5
        else:
            x = (x @ WEIGHT) * 0.3
    return x


def test_it_runs_what_all_run(toy: None) -> None:
    fast = stretto.compile(settled, (X,), backend="toy")
    for x in (X, -X, 3 * X):
        torch.testing.assert_close(fast(x), settled(x))


def test_it_is_explained(toy: None) -> None:
    text = stretto.compile(settled, (X,), backend="toy").explain()
    assert "signature 1: backend toy, 0 calls" in text
    assert "listing            " in text and text.count(" runs\n") == 1


def test_its_forms_are_dumped_and_read_back(toy: None, tmp_path: Path) -> None:
    fast = stretto.compile(
        settled, (X,), backend="toy", options=Options(debug=Debug(dump_dir=tmp_path))
    )
    names = sorted(path.name.split("-")[1] for path in tmp_path.iterdir())
    assert {"kernels.txt", "scheduled.txt", "listing.txt"} <= set(names)
    (file,) = tmp_path.glob("*-scheduled.txt")
    shown = CliRunner().invoke(app, ["opt", str(file), "--backend", "toy", "--to", "listing"])
    (listing,) = tmp_path.glob("*-listing.txt")
    assert shown.stdout == listing.read_text() == fast.signatures[0].stages.product


def test_its_errors_name_it(toy: None) -> None:
    with pytest.raises(BuildError, match="the toy machine has no LibraryCall"):
        stretto.compile(torch.linalg.inv, (torch.eye(2),), backend="toy")
    with pytest.raises(BuildError, match="the toy backend has no timeline"):
        stretto.compile(settled, (X,), backend="toy").timeline("no.html")


def test_it_comes_and_goes() -> None:
    register(TOY)
    assert known_machines()["toy"] is TOY
    unregister("toy")
    with pytest.raises(ValueError, match="backend must be one of .*, not 'toy'"):
        stretto.compile(settled, backend="toy")
