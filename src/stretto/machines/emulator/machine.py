"""The emulator: run the scheduled program itself, in Python, and look for races."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch

from stretto.deadline import Deadline
from stretto.device.expr import Buffer
from stretto.device.forms import Lowered, ProgramInterface, Selected
from stretto.device.operator import Template
from stretto.device.program import DeviceProgram, has_parallel
from stretto.machines.emulator.run import EmulatedRun, Emulator
from stretto.machines.machine import BuildStage, Executable, Machine, Stages
from stretto.machines.registry import default_machine
from stretto.machines.stages import TO_SCHEDULE
from stretto.ops.effects import restore
from stretto.options import Options
from stretto.remarks import Remarks
from stretto.runtime.call_sizes import InputSizes, Values
from stretto.runtime.constants import ConstantTable
from stretto.runtime.library import Draws
from stretto.runtime.results import (
    DECIDED_BY_ORDER,
    GROWTH,
    ProgramStopped,
    Result,
    explained,
    first_capacities,
    grows,
    item_shape,
    result,
    stopped,
)

# ---- A program on the emulator, called with tensors like one on the CPU machine.


class EmulatedExecutable(Executable):
    """Executable that runs a DeviceProgram with its units in random order; races and deadlocks are
    errors."""

    def __init__(
        self,
        program: DeviceProgram,
        interface: ProgramInterface,
        options: Options,
    ) -> None:
        self.program = program
        self.interface = interface
        self.sizes = InputSizes(interface.symbols, interface.inputs)
        self.timeout = options.timeout
        self.emulator = Emulator(program, seed=options.debug.seed, max_depth=options.max_depth)
        constants = [b for b in program.tree.externals if b.kind == "constant"]
        self.constants = ConstantTable(interface, constants, native=False)
        self.copies = self.constants.copies
        self.draws = Draws.of(k.call for k in program.kernels if k.call is not None)
        self.results = {reg: n for n, reg in enumerate(program.tree.main.results)}
        self.capacities = first_capacities((b.slot, b) for b in program.tree.externals)

    def __call__(self, inputs: list[torch.Tensor], sizes: Values | None = None) -> list[Result]:
        """Run once; if a list is full, enlarge it and run again."""
        deadline = Deadline.after(self.timeout)
        known = self.sizes.registers(self.sizes.bound(inputs) if sizes is None else sizes)
        drawn = self.draws.states()
        while True:
            constants = self.constants.tensors.items()
            memory = {buffer.slot: tensor.view(-1) for buffer, tensor in constants}
            for buffer, tensor in zip(self.interface.inputs, inputs, strict=True):
                memory[buffer.slot] = tensor.reshape(-1)
            for buffer in self.program.tree.externals:
                if buffer.kind in ("output", "list"):
                    memory[buffer.slot] = self.allocate(buffer, known)
            ran = self.run(memory, known, deadline)
            if ran.full_list is None:
                return [
                    self.shaped(
                        result(o, memory[o.buffer.slot], ran.results, self.results, known),
                        o.buffer,
                        known,
                    )
                    for o in self.interface.outputs
                ]
            restore(drawn)
            self.capacities[ran.full_list] *= GROWTH

    def run(
        self, memory: dict[int, torch.Tensor], sizes: Mapping[str, int], deadline: Deadline
    ) -> EmulatedRun:
        """Run with the given memory. If iterations of a parallel loop may have stopped the run,
        repeat it with the iterations in order, because an earlier one may be the first to fail."""
        emulator, capacities = self.emulator, dict(self.capacities)
        try:
            try:
                return emulator.run(memory, capacities, deadline, sizes)
            except ProgramStopped as stop:
                if stop.status not in DECIDED_BY_ORDER or not has_parallel(self.program):
                    raise
                return emulator.run(memory, capacities, deadline, sizes, in_turn=True)
        except ProgramStopped as stop:
            limits = emulator.max_depth, emulator.arena_limit
            shown = stopped(stop.status, stop.detail, *limits)
            raise explained(shown, self.interface.stops) from stop

    def allocate(self, buffer: Buffer, sizes: Mapping[str, int]) -> torch.Tensor:
        elements = prod(item_shape(buffer, sizes))
        if grows(buffer):
            elements *= self.capacities[buffer.slot]
        return torch.zeros(elements, dtype=buffer.dtype.torch)

    def shaped(self, found: Result, buffer: Buffer, sizes: Mapping[str, int]) -> Result:
        """Return a result with its dims if its size is known; memory is flat here."""
        if isinstance(found, torch.Tensor) and buffer.kind in ("output", "updated"):
            return found.view(item_shape(buffer, sizes))
        return found


def _load(stages: Stages) -> None:
    program, interface = stages.runnable()
    stages.executable = EmulatedExecutable(program, interface, stages.options)


@dataclass(frozen=True)
class EmulatorMachine(Machine):
    """Machine whose units take turns at random."""

    summary: ClassVar[str] = "the schedule step by step in Python; races are errors"
    is_emulated: ClassVar[bool] = True
    takes_symbols: ClassVar[bool] = True

    @property
    def templates(self) -> Mapping[str, type[Template]]:
        return default_machine().templates

    @property
    def stages(self) -> tuple[BuildStage, ...]:
        return (*TO_SCHEDULE, BuildStage("load", _load))

    def select(self, lowered: Lowered, units: int, options: Options, remarks: Remarks) -> Selected:
        """Return the kernels of this host's default machine, which the emulator imitates."""
        return default_machine().select(lowered, units, options, remarks)


MACHINES = (EmulatorMachine("emulator"),)
