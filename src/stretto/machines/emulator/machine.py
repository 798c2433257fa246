"""The emulator: runs the scheduled program itself, in Python, and looks for races."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from stretto.device.forms import Lowered, Selected
from stretto.device.operator import Template
from stretto.machines.emulator.executable import EmulatedExecutable
from stretto.machines.machine import BuildStage, Machine, Stages
from stretto.machines.registry import default_machine
from stretto.machines.stages import TO_SCHEDULE
from stretto.options import Options
from stretto.remarks import Remarks


def _load(stages: Stages) -> None:
    program, interface = stages.runnable()
    stages.executable = EmulatedExecutable(program, interface, stages.options)


@dataclass(frozen=True)
class EmulatorMachine(Machine):
    """Units that take turns at random."""

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
        """The kernels of this host's own machine, which is what the emulator stands for."""
        return default_machine().select(lowered, units, options, remarks)


MACHINES = (EmulatorMachine("emulator"),)
