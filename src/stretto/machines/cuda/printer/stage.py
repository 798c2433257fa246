"""Prints the stages of a task as Triton, by the templates that kernel selection chose.

The threads of a block hand over through memory, with a barrier in between, or, where lanes agree,
in registers (stage_frame.py). Loads stand where their values are used; load_order.py moves them
ahead.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.device.expr import Buffer
from stretto.device.operator import Operator, Stage
from stretto.machines.cuda.printer.scalar import BARRIER
from stretto.machines.cuda.printer.stage_frame import ResultFrame
from stretto.machines.cuda.printer.stage_nest import GridBound, NestPrinter
from stretto.machines.cuda.templates import stage_printer
from stretto.machines.parameters import Naming
from stretto.machines.statements import Builder


@dataclass(slots=True)
class TaskPrinter:
    """`grid`: where the task lies in each grid dim; `counter` numbers the names of the text.

    warps: of a unit. reads, writes: buffers touched since the last barrier.
    """

    out: Builder
    names: Naming
    grid: tuple[GridBound, ...]
    warps: int
    counter: list[int] = field(default_factory=lambda: [0])
    frame: ResultFrame | None = None
    reads: set[Buffer] = field(default_factory=set[Buffer])
    writes: dict[Buffer, Operator] = field(default_factory=dict[Buffer, Operator])

    def begin(self, grid: tuple[GridBound, ...]) -> None:
        """The stages that follow are those of this part of the grid. What lanes of a frame stand
        for is relative to it."""
        self.grid = grid
        self.frame = None

    def stage(self, stage: Stage, behind: tuple[Stage, ...] = ()) -> None:
        """behind: stages that are a part of this product."""
        printer = stage_printer((self.out, self.names, stage, self.grid, self.counter))
        printer.warps = self.warps
        if printer.is_empty:
            return
        if behind:
            self.product(printer, behind)
            return
        printer.frame = self.frame
        known = printer.forwarded()
        loads = {load.access.buffer for load in stage.operator.reads() if load not in known}
        self.barrier(not loads.isdisjoint(self.writes))
        self.reads |= loads
        self.before_result(printer)
        printer.print()
        self.frame = printer.frame

    def product(self, printer: NestPrinter, behind: tuple[Stage, ...]) -> None:
        """A product and what its blocks compute behind it."""
        operators = [printer.operator, *(stage.operator for stage in behind)]
        made = {operator.out.buffer for operator in operators}
        loads = {load.access.buffer for op in operators for load in op.reads()}
        before = self.reads | self.writes.keys()
        self.barrier(not (loads - made).isdisjoint(self.writes) or not made.isdisjoint(before))
        self.reads |= loads - made
        for operator in operators:
            self.writes[operator.out.buffer] = operator
            if self.frame is not None:
                self.frame.written(operator)
        printer.beside = tuple(operators[1:])
        printer.print()

    def before_result(self, printer: NestPrinter) -> None:
        """What has been read or written there before must be done."""
        operator = printer.stage.operator
        result = operator.out.buffer
        own = {load.access.buffer for load in operator.reads()}
        # The boxes of one operator have no element in common.
        other = self.writes.get(result, operator) != operator
        self.barrier(other or result in self.reads - own)
        self.writes[result] = operator
        if self.frame is not None:
            self.frame.written(operator)

    def barrier(self, needed: bool) -> None:
        if needed:
            self.out.add(BARRIER)
            self.reads.clear()
            self.writes.clear()
