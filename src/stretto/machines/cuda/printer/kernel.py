"""Kernels as Triton functions `(buffers ..., registers ..., control, task)`.

Buffers and registers are parameters in the order of first use, so kernels that differ in them only
share one function. `control` points at the control block (`source.py`), `task` is an int32. What
the functions call is in `functions_text`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stretto.device.expr import Buffer, Reg
from stretto.device.operator import Kernel
from stretto.machines.cuda.epilogue import epilogue
from stretto.machines.cuda.printer.load_order import loads_first
from stretto.machines.cuda.printer.row_pieces import row_pieces
from stretto.machines.cuda.printer.scalar import CONTROL, TASK
from stretto.machines.cuda.printer.stage import TaskPrinter
from stretto.machines.cuda.printer.stage_nest import task_bounds
from stretto.machines.dialects import python_function
from stretto.machines.parameters import Parameters
from stretto.machines.statements import Builder, Function, Return

FUNCTION_FILES = ("functions.py", "transcendental.py", "blocks.py", "shared.py")
"""Files of machines/cuda/printer/parts with what printed kernels call, in order."""
WARPS = 4
"""Of a unit, unless a style says otherwise."""


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """`buffers` and `regs` are the first arguments of the function, in order."""

    function: Function
    buffers: tuple[Buffer, ...]
    regs: tuple[Reg, ...]

    def text(self, name: str) -> str:
        return python_function(name, self.function)


def functions_text() -> str:
    """The scalar functions that printed kernels call, as a part of a module.

    They want `triton` and `tl` imported, and PORTABLE of prelude.py.
    """
    folder = Path(__file__).parent / "parts"
    texts = [(folder / name).read_text() for name in FUNCTION_FILES]
    return "\n\n".join(text[text.index("# ---- ") :] for text in texts)


def print_kernel(kernel: Kernel, warps: int = WARPS) -> TritonKernel:
    """The function of one kernel, for units of so many warps."""
    parameters = Parameters()
    out = Builder()
    bounds = task_bounds(kernel.grid, parameters, out)
    task = TaskPrinter(out, parameters, bounds, warps)
    for piece in row_pieces(kernel, bounds, warps, out):
        task.begin(piece.grid)
        place = 0
        while place < len(piece.stages):
            behind = epilogue(piece.stages, place)
            task.stage(piece.stages[place], behind)
            place += 1 + len(behind)
    out.add(Return())
    arguments = (*parameters.buffers.values(), *parameters.regs.values(), CONTROL, TASK)
    function = Function(arguments, loads_first(tuple(out.statements)))
    return TritonKernel(function, tuple(parameters.buffers), tuple(parameters.regs))
