"""Kernels as Triton functions `(buffers ..., registers ..., control, task)`.

Buffers and registers are parameters in the order of first use, so that kernels that differ only in
them share one function. `control` points at the control block (`source.py`), `task` is an int32.
`functions_text` returns the functions that kernels call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from stretto.device.accesses import Phase
from stretto.device.expr import Buffer, Reg
from stretto.device.operator import Kernel, Operator, Stage
from stretto.kernels.groups import divisible
from stretto.machines.cuda.printer.load_order import loads_first
from stretto.machines.cuda.printer.row_pieces import row_pieces
from stretto.machines.cuda.printer.scalar import BARRIER, CONTROL, TASK
from stretto.machines.cuda.printer.stage_frame import ResultFrame
from stretto.machines.cuda.printer.stage_nest import GridBound, task_bounds
from stretto.machines.cuda.template import CudaTemplate
from stretto.machines.cuda.templates import stage_printer
from stretto.machines.statements import (
    FunctionDefinition,
    Naming,
    Parameters,
    Return,
    StatementBuilder,
    python_function,
)

# ---- Epilogues: pointwise stages that the blocks of a product compute while they hold its results.
#
# Bias, activation, a residual: a stage directly after a product, over the same box, which reads
# from the results of earlier stages only the element at its own position.


def epilogue(stages: tuple[Stage, ...], place: int) -> tuple[Stage, ...]:
    """Return the stages after the product at `place` that are computed as part of it."""
    first = stages[place]
    if first.operator.accumulate or not _takes_epilogue(first):
        return ()
    found: list[Stage] = []
    for stage in stages[place + 1 :]:
        if not follows(stage, [first, *found]):
            break
        found.append(stage)
    return tuple(found)


def _takes_epilogue(stage: Stage) -> bool:
    return isinstance(stage.template, CudaTemplate) and stage.template.has_epilogue


def follows(stage: Stage, before: list[Stage]) -> bool:
    """Return True if a stage can take the results of the stages before it element by element."""
    operator, first = stage.operator, before[0]
    if operator.combine or operator.accumulate or not divisible(operator):
        return False
    if stage.box != first.box or operator.dims != first.operator.dims:
        return False
    made = {item.operator.out.buffer: item.operator for item in before}
    if operator.out.buffer in made or any(_reads(op, operator) for op in made.values()):
        return False
    if not _in_place(operator):
        return False
    same = [
        load.access.offset == made[load.access.buffer].out.offset
        for load in operator.reads()
        if load.access.buffer in made
    ]
    return bool(same) and all(same)


def _reads(reader: Operator, writer: Operator) -> bool:
    return any(load.access.buffer == writer.out.buffer for load in reader.reads())


def _in_place(operator: Operator) -> bool:
    """Return True if an operator reads from the buffer that it writes only the element that it
    writes."""
    out = operator.out
    return all(
        load.access.offset == out.offset
        for load in operator.reads()
        if load.access.buffer == out.buffer
    )


# ---- Printing the stages of a task as Triton, by the templates that kernel selection chose.
#
# The threads of a block pass values through memory, with a barrier in between, or, where lanes
# agree, in registers (stage_frame.py). Loads are emitted at their uses; load_order.py moves them
# ahead.


@dataclass(slots=True)
class TaskPrinter:
    """Prints the stages of one task.

    grid: the position of the task in each grid dim. counter: numbers the names of the text. warps:
    of a unit. reads, writes: the operators that have accessed each buffer since the last barrier.
    phases: what was accessed before it. frame: results held in registers.
    """

    out: StatementBuilder
    names: Naming
    grid: tuple[GridBound, ...]
    warps: int
    counter: list[int] = field(default_factory=lambda: [0])
    frame: ResultFrame | None = None
    reads: dict[Buffer, set[Operator]] = field(default_factory=dict[Buffer, set[Operator]])
    writes: dict[Buffer, Operator] = field(default_factory=dict[Buffer, Operator])
    phases: list[Phase] = field(default_factory=list["Phase"])

    def begin(self, grid: tuple[GridBound, ...]) -> None:
        """Begin a part of the grid with which the following stages are computed. The frame is
        relative to the part, so it is dropped."""
        self.grid = grid
        self.frame = None

    def stage(self, stage: Stage, behind: tuple[Stage, ...] = ()) -> None:
        """Print a stage, after a barrier if other threads have accessed what it reads or writes.
        behind: stages that are computed as part of this product."""
        printer = stage_printer((self.out, self.names, stage, self.grid, self.counter))
        printer.warps = self.warps
        printer.epilogue_operators = tuple(other.operator for other in behind)
        if printer.is_empty:
            return
        if not behind:
            printer.frame = self.frame
        known = printer.loads_in_registers()
        operators = (stage.operator, *printer.epilogue_operators)
        made = {operator.out.buffer: operator for operator in operators}
        # The blocks of a product hand its results to the stages behind it.
        passed = made if behind else {}
        read = [
            (load.access.buffer, op)
            for op in operators
            for load in op.reads()
            if load not in known and load.access.buffer not in passed
        ]
        # The boxes of one operator have no element in common.
        overwrites = any(
            self.writes.get(buffer, op) != op or self.reads.get(buffer, {op}) != {op}
            for buffer, op in made.items()
        )
        if overwrites or any(buffer in self.writes for buffer, _ in read):
            self.out.add(BARRIER)
            self.end_phase()
        for buffer, op in (*read, *((op.out.buffer, op) for op in operators if op.accumulate)):
            self.reads.setdefault(buffer, set()).add(op)
        self.writes |= made
        if self.frame is not None:
            for op in operators:
                self.frame.written(op)
        printer.print()
        if not behind:
            self.frame = printer.frame

    def end_phase(self) -> None:
        self.phases.append(Phase(frozenset(self.reads), frozenset(self.writes)))
        self.reads.clear()
        self.writes.clear()


FUNCTION_FILES = ("scalar_functions.py", "transcendental.py", "blocks.py", "shared.py")
"""Files of machines/cuda/printer/library with the functions that printed kernels call, in order."""
WARPS = 4
"""Warps of a unit, unless a style says otherwise."""


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """The Triton function of a kernel. `buffers` and `regs` are its first arguments, in order.
    phases: what a task accesses, in order, with a barrier between each two of them."""

    function: FunctionDefinition
    buffers: tuple[Buffer, ...]
    regs: tuple[Reg, ...]
    phases: tuple[Phase, ...] = (Phase(),)

    def text(self, name: str) -> str:
        return python_function(name, self.function)


def functions_text() -> str:
    """Return the functions that printed kernels call, as a part of a module. They need `triton`
    and `tl` imported, and PORTABLE of prelude.py."""
    folder = Path(__file__).parent / "library"
    texts = [(folder / name).read_text() for name in FUNCTION_FILES]
    return "\n\n".join(text[text.index("# ---- ") :] for text in texts)


def print_kernel(kernel: Kernel, warps: int = WARPS) -> TritonKernel:
    """Return the function of one kernel, for units of `warps` warps."""
    parameters = Parameters()
    out = StatementBuilder()
    bounds = task_bounds(kernel.grid, parameters, out)
    task = TaskPrinter(out, parameters, bounds, warps)
    for piece in row_pieces(kernel, bounds, warps, out):
        task.begin(piece.grid)
        place = 0
        while place < len(piece.stages):
            behind = epilogue(piece.stages, place)
            task.stage(piece.stages[place], behind)
            place += 1 + len(behind)
    task.end_phase()
    out.add(Return())
    arguments = (*parameters.buffers.values(), *parameters.regs.values(), CONTROL, TASK)
    function = FunctionDefinition(arguments, loads_first(tuple(out.statements)))
    buffers, regs = tuple(parameters.buffers), tuple(parameters.regs)
    return TritonKernel(function, buffers, regs, tuple(task.phases))
