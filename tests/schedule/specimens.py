"""Correct DevicePrograms of many kinds with their sources: what mutants are made of."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

import stretto
from benchmarks.models import CORE
from benchmarks.models import build as build_model
from checks.mutants import Outcome, Specimen
from stretto.device.costs import CostModel
from stretto.device.forms import ProgramInterface
from stretto.device.normalize import normalize
from stretto.device.program import DeviceProgram
from stretto.device.regions import Body
from stretto.device.tree import Tree
from stretto.ir.core import Program
from stretto.ir.sizes import Symbol
from stretto.lowering.lower_program import lower
from stretto.machines.cpu.select import select
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.machines.cuda.select import select as select_cuda
from stretto.machines.emulator.machine import EmulatedExecutable
from stretto.machines.emulator.run import Emulator
from stretto.machines.interpreter.machine import InterpretedExecutable, InterpreterMachine
from stretto.machines.machine import BuildStage, Stages
from stretto.machines.registry import registered
from stretto.machines.stages import PASSES
from stretto.options import Debug, Options
from stretto.runtime.call_sizes import Values
from stretto.schedule.scheduler import schedule
from tests.backends import SPREAD
from tests.e2e.language import CASES
from tests.schedule.policies import POLICIES
from tests.schedule.random_trees import random_memory, random_tree
from tests.symbolic import EXAMPLES, Example

UNITS = (1, 2, 3, 7)
DEPTH = 60
"""Calls inside of calls: a mutant that never returns is to be stopped soon."""


# ---- random trees ----------------------------------------------------------------------------
def tree_specimen(seed: int, units: int, costs: CostModel) -> Specimen:
    tree = random_tree(seed)

    def run(program: DeviceProgram, order: int) -> Outcome:
        memory = random_memory(seed)
        Emulator(program, order, max_depth=DEPTH, arena_limit=1 << 24).run(memory)
        return (memory[3],)

    return specimen(f"tree {seed}", tree, units, costs, run)


def specimen(
    name: str,
    tree: Tree[Body],
    units: int,
    costs: CostModel,
    run: Callable[[DeviceProgram, int], Outcome],
    policy: str = "",
) -> Specimen:
    """policy: by name, or "auto"; else one that depends on the name of the specimen."""

    def sequential(source: Tree[Body]) -> Outcome:
        return run(schedule(source, 1), 0)

    policies = ["auto", *sorted(POLICIES)]
    policy = policy or policies[crc32(f"{name} {units}".encode()) % len(policies)]
    text = "one text" if costs.uniform else "a text each"
    name = f"{name}, {units} units, {text}, policy {policy}"
    program = schedule(tree, units, costs, POLICIES.get(policy))
    return Specimen(name, program, normalize(tree), run, sequential)


# ---- symbolic sizes --------------------------------------------------------------------------
MOST = 20
"""Sizes that are drawn are at most so much above the smallest."""


def random_sizes(symbols: Iterable[Symbol], rng: random.Random) -> dict[Symbol, int]:
    """A value of its range for each symbol; the smallest ones are drawn often."""
    drawn: dict[Symbol, int] = {}
    for symbol in symbols:
        high = min(symbol.low + MOST, symbol.low + MOST if symbol.high is None else symbol.high)
        drawn[symbol] = rng.choice([symbol.low, rng.randint(symbol.low, high), high])
    return drawn


def sized_specimen(
    example: Example, units: int, costs: CostModel, fuse: bool, rng: random.Random
) -> Specimen:
    """A program for every size, run with sizes drawn at random."""
    lowered = lower(example.program())
    if costs.uniform:
        selected = select_cuda(lowered, units, fuse, CUDA_COSTS.spread())
    else:
        selected = select(lowered, units, fuse, SPREAD)
    bindings = [random_sizes(selected.interface.symbols, rng) for _ in range(2)]
    runners = [_Runner(selected.interface, example.inputs(binding)) for binding in bindings]

    def run(program: DeviceProgram, order: int) -> Outcome:
        return tuple(tensor for runner in runners for tensor in runner(program, order))

    return specimen(f"sizes {example.name}", selected.tree, units, costs, run)


# ---- captured functions ----------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Recorded:
    """An optimised program and the inputs of one of its calls."""

    program: Program
    inputs: list[Tensor]


def record(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Recorded:
    with registered(RECORDER), torch.no_grad():
        compiled = stretto.compile(
            function, backend=RECORDER.name, options=Options(debug=Debug(unroll=2))
        )
        compiled(*copy.deepcopy(arguments))
    (entry,) = compiled.signatures
    assert isinstance(entry.executable, Recorder)
    return Recorded(entry.stages.program, entry.executable.inputs[0])


class Recorder(InterpretedExecutable):
    """Keeps the inputs of its calls."""

    def __init__(self, program: Program, options: Options) -> None:
        super().__init__(program, options)
        self.inputs: list[list[Tensor]] = []

    def __call__(self, inputs: list[Tensor], sizes: Values | None = None) -> Any:
        self.inputs.append([tensor.clone() for tensor in inputs])
        return super().__call__(inputs, sizes)


@dataclass(frozen=True)
class RecordingMachine(InterpreterMachine):
    @property
    def stages(self) -> tuple[BuildStage, ...]:
        return (PASSES, BuildStage("load", self.load))

    def load(self, stages: Stages) -> None:
        stages.executable = Recorder(stages.program, stages.options)


RECORDER = RecordingMachine("recorder")


def captured_specimen(
    name: str, recorded: Recorded, units: int, costs: CostModel, policy: str = ""
) -> Specimen:
    lowered = lower(recorded.program)
    if costs.uniform:
        selected = select_cuda(lowered, units, True, CUDA_COSTS.spread())
    else:
        selected = select(lowered, units, True, SPREAD)
    run = _Runner(selected.interface, recorded.inputs)
    return specimen(name, selected.tree, units, costs, run, policy)


@dataclass(frozen=True, slots=True)
class _Runner:
    interface: ProgramInterface
    inputs: list[Tensor]

    def __call__(self, program: DeviceProgram, order: int) -> Outcome:
        options = Options(debug=Debug(seed=order), max_depth=DEPTH)
        executable = EmulatedExecutable(program, self.interface, options)
        results = executable([tensor.clone() for tensor in self.inputs])
        flat = [item for r in results for item in (r if isinstance(r, list) else [r])]
        return tuple(tensor.clone() for tensor in flat)


@cache
def recorded_function(topic: str, name: str) -> Recorded:
    functions = {function.__name__: function for function in CASES[topic]}
    return record(functions[name], CASES[topic][functions[name]][0])


@cache
def recorded_model(name: str) -> Recorded:
    model, inputs = build_model(name, "small")
    return record(model, inputs)


def recordings() -> Iterator[tuple[str, Callable[[], Recorded]]]:
    for topic, functions in CASES.items():
        for function in functions:
            name = function.__name__
            yield name, lambda topic=topic, name=name: recorded_function(topic, name)


def specimens(count: int, seed: int) -> list[Specimen]:
    """Programs of all kinds: a third of them random trees, some for every size, a few models, else
    functions."""
    rng = random.Random(seed)
    functions = list(recordings())
    rng.shuffle(functions)
    made: list[Specimen] = []
    for number in range(count):
        units = rng.choice(UNITS)
        costs = rng.choice([SPREAD, SPREAD, CUDA_COSTS])
        if number % 6 == 2:
            example = rng.choice(EXAMPLES)
            fuse = rng.random() < 0.5
            made.append(sized_specimen(example, units, costs, fuse, rng))
        elif number % 3 == 0:
            made.append(tree_specimen(rng.randrange(10**6), units, costs))
        elif number % 20 == 1:
            name = CORE[number // 20 % len(CORE)]
            made.append(captured_specimen(name, recorded_model(name), units, costs))
        else:
            name, recording = functions[number % len(functions)]
            made.append(captured_specimen(name, recording(), units, costs))
    return made
