"""The interpreter: run a Program op by op through torch. The oracle for all other machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from stretto.interp.interpreter import run
from stretto.ir.core import Program
from stretto.lowering.targets import NO_UPDATES, InputUpdates
from stretto.machines.machine import BuildStage, Executable, Machine, Stages
from stretto.machines.stages import PASSES
from stretto.options import Options
from stretto.runtime.call_sizes import Values
from stretto.runtime.results import Result


class InterpretedExecutable(Executable):
    """Executable that runs a Program op by op in Python."""

    def __init__(
        self, program: Program, options: Options, updates: InputUpdates = NO_UPDATES
    ) -> None:
        self.program = program
        self.updates = updates
        self.timeout = options.timeout

    def __call__(self, inputs: list[torch.Tensor], sizes: Values | None = None) -> list[Result]:
        results = list(run(self.program, inputs, timeout=self.timeout))
        for parameter, number in self.updates.pairs:
            found = results[number]
            assert isinstance(found, torch.Tensor)
            results[number] = inputs[parameter].copy_(found)
        return results


def _load(stages: Stages) -> None:
    stages.executable = InterpretedExecutable(stages.program, stages.options, stages.updates)


@dataclass(frozen=True)
class InterpreterMachine(Machine):
    """Machine without units and kernels: torch runs one op after the other."""

    summary: ClassVar[str] = "the Program op by op through torch, the oracle"
    is_emulated: ClassVar[bool] = True
    is_oracle: ClassVar[bool] = True
    takes_symbols: ClassVar[bool] = True

    @property
    def stages(self) -> tuple[BuildStage, ...]:
        return (PASSES, BuildStage("load", _load))


MACHINES = (InterpreterMachine("interpreter"),)
