"""Prints kernels as C++ functions `(ctx, buffers ..., registers ..., task)`.

Buffers and registers are parameters in the order of first use, so kernels that differ in them only
share one function: the thirty convolutions of a network become a handful, and the program compiles
quickly.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.device.expr import Buffer, Extent, Reg
from stretto.device.operator import Kernel
from stretto.machines.cpu.printer.expr import MEMORY_TYPES, VALUE_TYPES, Names
from stretto.machines.cpu.printer.stage import print_stage
from stretto.machines.parameters import Parameters
from stretto.text import Writer


@dataclass(frozen=True, slots=True)
class KernelText:
    """`body` from the parameter list on; `buffers` and `regs` are the arguments, in order."""

    body: str
    buffers: tuple[Buffer, ...]
    regs: tuple[Reg, ...]


def print_kernel(kernel: Kernel) -> KernelText:
    """The text of one kernel without its name."""
    parameters = Parameters()
    names = Names(
        lambda buffer: parameters.buffer(buffer).text,
        lambda reg: parameters.reg(reg).text,
        lambda number: f"i{number}",
    )
    out = Writer()
    with out.block():
        grid = _print_grid(kernel, parameters, out)
        for stage in kernel.stages:
            print_stage(out, names, stage, grid)
    arguments = ["stretto::Context* ctx"]
    arguments += [f"{MEMORY_TYPES[b.dtype]}* {name.text}" for b, name in parameters.buffers.items()]
    arguments += [f"{VALUE_TYPES[r.dtype]} {name.text}" for r, name in parameters.regs.items()]
    arguments.append("int64_t task")
    text = f"({', '.join(arguments)})\n{out.text()}"
    return KernelText(text, tuple(parameters.buffers), tuple(parameters.regs))


def _print_grid(kernel: Kernel, parameters: Parameters, out: Writer) -> tuple[tuple[str, str], ...]:
    """Bounds of the task in each grid dim: g<n> up to e<n>."""
    bounds: list[tuple[str, str]] = []
    rest = "task"
    for number, dim in reversed(list(enumerate(kernel.grid))):
        extent = _extent(dim.extent, parameters)
        tiles = f"(({extent} + {dim.tile - 1}) / {dim.tile})"
        place = f"({rest}) % {tiles}" if number else rest
        out.write(f"const int64_t g{number} = ({place}) * {dim.tile};")
        end = f"g{number} + {dim.tile}"
        out.write(f"const int64_t e{number} = {end} < {extent} ? {end} : {extent};")
        rest = f"({rest}) / {tiles}"
        bounds.append((f"g{number}", f"e{number}"))
    return tuple(reversed(bounds))


def _extent(extent: Extent, parameters: Parameters) -> str:
    return parameters.reg(extent).text if isinstance(extent, Reg) else f"int64_t({extent})"


def task_count(kernel: Kernel, reg: dict[Reg, str] | None = None) -> str:
    """The number of tasks as C++ text; `reg` names the registers of a dynamic grid."""
    if kernel.is_static:
        return str(kernel.tasks)
    parts: list[str] = []
    for dim in kernel.grid:
        extent = (reg or {})[dim.extent] if isinstance(dim.extent, Reg) else str(dim.extent)
        parts.append(f"(({extent} + {dim.tile - 1}) / {dim.tile})")
    return " * ".join(parts)
