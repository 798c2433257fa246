"""Prints kernels as Triton functions `(buffers ..., registers ..., control, task)`.

Buffers and registers are parameters in the order of first use, so kernels that differ in them only
share one function. `control` points at the control block (`triton_source.py`), `task` is an int32.
What the functions call is in `functions_text`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stretto.device.expr import Buffer, Reg
from stretto.device.operator import Kernel
from stretto.machines.cuda.epilogue import epilogue
from stretto.machines.cuda.printer.expr import Names
from stretto.machines.cuda.printer.stage import TaskPrinter
from stretto.machines.cuda.printer.stage_nest import task_bounds
from stretto.machines.parameters import Parameters
from stretto.text import Writer

FUNCTION_FILES = ("functions.py", "transcendental.py", "blocks.py")
"""Files of machines/cuda/printer/parts with what printed kernels call, in order."""


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """`body` from the parameter list on; `buffers` and `regs` are the arguments, in order."""

    body: str
    buffers: tuple[Buffer, ...]
    regs: tuple[Reg, ...]


def functions_text() -> str:
    """The scalar functions that printed kernels call, as a part of a module.

    They want `triton` and `tl` imported, and PORTABLE of prelude.py.
    """
    folder = Path(__file__).parent / "parts"
    texts = [(folder / name).read_text() for name in FUNCTION_FILES]
    return "\n\n".join(text[text.index("# ---- ") :] for text in texts)


def print_kernel(kernel: Kernel) -> TritonKernel:
    """The text of one kernel without its name."""
    parameters = Parameters()
    names = Names(parameters.buffer, parameters.reg)
    out = Writer("    ")
    with out.indent():
        grid = task_bounds(kernel.grid, names, out)
        task = TaskPrinter(out, names, grid)
        place = 0
        while place < len(kernel.stages):
            behind = epilogue(kernel.stages, place)
            task.stage(kernel.stages[place], behind)
            place += 1 + len(behind)
        task.finish()
        out.write("return")
    arguments = [*parameters.buffers.values(), *parameters.regs.values(), "control", "task"]
    text = f"({', '.join(arguments)}):\n{out.text()}"
    return TritonKernel(text, tuple(parameters.buffers), tuple(parameters.regs))
