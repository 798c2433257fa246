"""Runs one printed Triton kernel in the interpreter, or compiles it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from stretto.device.evaluate import Number, TensorMemory, run_task, task_count
from stretto.device.expr import Buffer, limit_register
from stretto.device.forms import Lowered
from stretto.device.operator import Kernel
from stretto.device.tree import Check, Let, leaves
from stretto.ir.core import Program
from stretto.ir.types import DType
from stretto.lowering.lower_program import lower
from stretto.machines import statements as code
from stretto.machines.cuda.compile import Resources, compile_source
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.machines.cuda.interpreter import InterpretedKernel
from stretto.machines.cuda.printer.kernel import TritonKernel, functions_text, print_kernel
from stretto.machines.cuda.printer.scalar import BARRIER, POINTER_TYPES
from stretto.machines.cuda.printer.source import (
    ENTRY,
    ERROR,
    PROGRESS,
    KernelParameter,
    TritonSource,
)
from stretto.machines.cuda.select import select
from stretto.options import Options
from tests.lowering import straight_line

HEADER = "import triton\nimport triton.language as tl\n\nPORTABLE = tl.constexpr(False)\n\n\n"
NUMBER_TYPES = {
    dtype: POINTER_TYPES[dtype].removeprefix("*") for dtype in DType if dtype is not DType.BOOL
} | {DType.BOOL: "i1", DType.F16: "fp32", DType.BF16: "fp32"}


def source_of(kernel: Kernel, tasks: int, warps: int = 4) -> TritonSource:
    """A program that runs all tasks of a kernel, one after the other."""
    printed = print_kernel(kernel, warps)
    check_phases(printed)
    parameters = [
        KernelParameter(f"a{n}", POINTER_TYPES[buffer.dtype], "buffer", n)
        for n, buffer in enumerate(printed.buffers)
    ]
    parameters += [
        KernelParameter(f"r{n}", NUMBER_TYPES[reg.dtype], "limit", n)
        for n, reg in enumerate(printed.regs)
    ]
    parameters.append(KernelParameter("control", "*i64", "control"))
    names = ", ".join(parameter.name for parameter in parameters)
    text = (
        f"{HEADER}{functions_text()}\n\n"
        f"@triton.jit(noinline=True)\n{printed.text('k')}\n\n"
        f"@triton.jit\ndef {ENTRY}({names}):\n"
        f"    for task in range({tasks}):\n"
        f"        k({names}, task)\n"
    )
    return TritonSource(text, tuple(parameters), printed.buffers, 1, warps)


def check_phases(printed: TritonKernel) -> None:
    """What a task is said to access between barriers is what its statements load and store.
    Constants are left out: a template may read a packed one in place of the operator's."""
    reads, writes = [set[Buffer]()], [set[Buffer]()]
    for statement in printed.function.body:
        if statement == BARRIER:
            reads.append(set())
            writes.append(set())
        for inner in code.walk((statement,)):
            reads[-1] |= {b for b in code.reads(inner) if b.kind != "constant"}
            writes[-1] |= {b for b in code.writes(inner) if b is not None}
    assert len(printed.phases) == len(reads)
    for phase, loaded, stored in zip(printed.phases, reads, writes, strict=True):
        assert loaded <= phase.reads and stored <= phase.writes


def interpret(
    kernel: Kernel,
    tensors: Mapping[str, Tensor],
    registers: Mapping[str, Number] | None = None,
    warps: int = 4,
) -> int:
    """All tasks of a kernel, on tensors by the name of their buffer; gives the final status."""
    numbers = registers or {}
    printed = print_kernel(kernel, warps)
    source = source_of(kernel, task_count(kernel, numbers), warps)
    control = torch.zeros(PROGRESS + 1, dtype=torch.int64)
    operands = [tensors[buffer.name] for buffer in printed.buffers]
    flat = [t.view(torch.int8) if t.dtype is torch.bool else t for t in operands]
    try:
        InterpretedKernel(source).launch(
            [*flat, *(numbers[reg.name] for reg in printed.regs), control]
        )
    except Exception as error:
        error.add_note(printed.text("k"))
        raise
    return int(control[ERROR])


def evaluate(
    kernel: Kernel, tensors: Mapping[str, Tensor], registers: Mapping[str, Number] | None = None
) -> None:
    """The same by the oracle."""
    memory = TensorMemory(tensors)
    for task in range(task_count(kernel, registers or {})):
        run_task(kernel, task, registers or {}, memory)


def compiled(kernel: Kernel, folder: Path, target: str = "sm_90", warps: int = 4) -> Resources:
    """What a kernel needs on a device."""
    options = Options(cache_dir=str(folder))
    return compile_source(source_of(kernel, 2, warps), target, options).resources


def kernels_of(
    lowered: Lowered, units: int = 132, fused: bool = True, spread: bool = False
) -> list[tuple[Kernel | Let | Check, ...]]:
    """The leaves of main. spread: cut finely, however small the work is."""
    costs = CUDA_COSTS.spread() if spread else CUDA_COSTS
    tree = select(lowered, units, fused, costs).tree
    return list(leaves(tree.main.body))


def run_straight(
    program: Program,
    inputs: list[Tensor],
    units: int = 132,
    fused: bool = True,
    spread: bool = False,
) -> list[Tensor]:
    """The results of a program without control flow, kernel by kernel in the interpreter."""
    lowered = lower(program)
    machine = straight_line.Machine()
    for buffer, tensor in zip(lowered.interface.inputs, inputs, strict=True):
        machine.buffers[buffer] = tensor.contiguous().reshape(-1).clone()
    for buffer in lowered.tree.externals:
        machine.registers[limit_register(buffer.slot).name] = straight_line.CAPACITY
        if buffer.slot in lowered.interface.constants:
            machine.buffers[buffer] = (
                lowered.interface.constants[buffer.slot].contiguous().reshape(-1)
            )
    for items in kernels_of(lowered, units, fused, spread):
        for item in items:
            if not isinstance(item, Kernel):
                machine.step(item)
            elif item.call is not None:
                machine.step(item.call)
            else:
                _run(item, machine)
    return [straight_line.result_of(machine, output) for output in lowered.interface.outputs]


def _run(kernel: Kernel, machine: straight_line.Machine) -> None:
    buffers = print_kernel(kernel).buffers
    tensors = {buffer.name: machine.flat(buffer) for buffer in buffers}
    status = interpret(kernel, tensors, machine.registers)
    if status:
        raise straight_line.RunStopped(str(status))
