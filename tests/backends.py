"""Run a Program through the whole back end, on every machine, and compare it with the
interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch

from stretto.device.forms import ProgramInterface
from stretto.device.program import DeviceProgram
from stretto.device.verifier import verify
from stretto.interp.interpreter import Datum, run
from stretto.ir.core import Program
from stretto.lowering.lower_program import lower
from stretto.machines import registry
from stretto.machines.cpu.costs import CPU_COSTS, CpuCosts
from stretto.machines.cpu.executable import CpuExecutable
from stretto.machines.cpu.machine import CpuMachine
from stretto.machines.cpu.printer.cpp_file import print_program
from stretto.machines.cpu.select import select
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.machines.cuda.device import emulated_cuda_executable
from stretto.machines.cuda.host import PlanExecutable
from stretto.machines.cuda.printer.triton_module import print_plan
from stretto.machines.cuda.select import select as select_cuda
from stretto.machines.emulator.machine import EmulatedExecutable
from stretto.options import Debug, Options
from stretto.schedule.plan import MOST_KERNELS, make_plan
from stretto.schedule.scheduler import schedule_with_report
from tests.support import program_of, random_inputs

SPREAD = CPU_COSTS.spread()
"""Costs under which even the smallest program uses all units and memory is shared."""

TOLERANCE: dict[torch.dtype, tuple[float, float]] = {
    torch.float32: (1e-4, 1e-4),
    torch.float64: (1e-9, 1e-9),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (4e-2, 4e-2),
}
"""(relative, absolute) per dtype; integers and flags must be equal."""


def avx512_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU machine choose by the costs of a core with AVX-512, whatever this machine has."""
    machines = [
        replace(machine, costs=CPU_COSTS) if isinstance(machine, CpuMachine) else machine
        for machine in registry.known_machines().values()
    ]
    monkeypatch.setattr(registry, "_machines", lambda: machines)


@dataclass(frozen=True, slots=True)
class Built:
    """A scheduled program and what its executables need."""

    interface: ProgramInterface
    device: DeviceProgram

    def cpu(self) -> CpuExecutable:
        options = Options(threads=self.device.units)
        source = print_program(self.device)
        return CpuExecutable(self.device, source, self.interface, options)

    def cuda(
        self, seed: int = 0, most_kernels: int = MOST_KERNELS, max_depth: int = 100_000
    ) -> PlanExecutable:
        """Return the interpreted GPU executable of a program made by `built_cuda`."""
        plan = make_plan(self.device, most_kernels)
        options = Options(units=self.device.units, debug=Debug(seed=seed), max_depth=max_depth)
        return emulated_cuda_executable(plan, print_plan(plan), self.interface, options)

    def emulator(self, seed: int = 0) -> EmulatedExecutable:
        options = Options(threads=self.device.units, debug=Debug(seed=seed))
        return EmulatedExecutable(self.device, self.interface, options)


def built(
    program: Program,
    units: int = 1,
    fuse: bool = True,
    spread: bool = True,
    costs: CpuCosts | None = None,
) -> Built:
    """Schedule a program. `spread`: divide it finely over all units, however small the work is."""
    lowered = lower(program)
    costs = costs or (SPREAD if spread else CPU_COSTS)
    selected = select(lowered, units, fuse, costs)
    device, _ = schedule_with_report(selected.tree, units, costs)
    assert device.units == units or not spread
    verify(device, selected.tree)
    return Built(selected.interface, device)


def built_cuda(program: Program, units: int = 5, fuse: bool = True, spread: bool = True) -> Built:
    """Schedule a program with the kernels of a GPU with this many thread blocks."""
    lowered = lower(program, CUDA_COSTS)
    tree = select_cuda(lowered, units, fuse, CUDA_COSTS.spread() if spread else CUDA_COSTS).tree
    device, _ = schedule_with_report(tree, units, CUDA_COSTS)
    assert device.units == units
    verify(device, tree)
    return Built(lowered.interface, device)


def assert_close(found: Sequence[Datum], expected: Sequence[Datum], scale: float = 1.0) -> None:
    """Check for the same structure, shapes and dtypes, and numbers within the tolerance of their
    dtype."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, list) or isinstance(other, list):
            assert isinstance(one, list) and isinstance(other, list)
            assert_close(one, other, scale)
            continue
        assert one.dtype == other.dtype and one.shape == other.shape
        relative, absolute = TOLERANCE.get(other.dtype, (0.0, 0.0))
        torch.testing.assert_close(
            one, other, rtol=relative * scale, atol=absolute * scale, equal_nan=True
        )


def check(
    program: str | Program,
    inputs: Sequence[torch.Tensor] | None = None,
    *,
    units: Sequence[int] = (1, 2, 3),
    native: Sequence[int] = (2,),
    fuse: Sequence[bool] = (True, False),
    scale: float = 1.0,
) -> None:
    """Check that the emulator with each number of units, and C++ with those in `native`, give the
    oracle's results."""
    program = program_of(program) if isinstance(program, str) else program
    data = list(random_inputs(program) if inputs is None else inputs)
    expected = run(program, data)
    for count in units:
        for fused in fuse:
            one = built(program, count, fused)
            assert_close(one.emulator(seed=count)(data), expected, scale)
            if count in native and fused:
                assert_close(one.cpu()(data), expected, scale)
