"""Prints the stages of a task as Triton, by the templates that kernel selection chose.

The threads of a block hand over through memory, with a barrier in between, or, where lanes agree,
in registers (stage_frame.py). Reductions side by side first load and add up, and only then
combine their lanes: the loads of all are under way at once.
"""

from __future__ import annotations

from collections.abc import Iterator
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

    pending: reductions whose results are still to be printed. reads, writes: buffers touched since
    the last barrier.
    """

    out: Builder
    names: Naming
    grid: tuple[GridBound, ...]
    counter: list[int] = field(default_factory=lambda: [0])
    frame: ResultFrame | None = None
    pending: list[tuple[NestPrinter, Iterator[None]]] = field(
        default_factory=list[tuple[NestPrinter, Iterator[None]]]
    )
    reads: set[Buffer] = field(default_factory=set[Buffer])
    writes: dict[Buffer, Operator] = field(default_factory=dict[Buffer, Operator])

    def stage(self, stage: Stage, behind: tuple[Stage, ...] = ()) -> None:
        """behind: stages that are a part of this product."""
        printer = stage_printer((self.out, self.names, stage, self.grid, self.counter))
        if printer.is_empty:
            return
        touched = {load.access.buffer for load in stage.operator.reads()}
        touched.add(stage.operator.out.buffer)
        if not printer.may_wait or any(
            other.operator.out.buffer in touched and other.operator != stage.operator
            for other, _ in self.pending
        ):
            self.finish()
        if behind:
            self.product(printer, behind)
            return
        printer.frame = self.frame
        known = printer.forwarded()
        loads = {load.access.buffer for load in stage.operator.reads() if load not in known}
        self.barrier(not loads.isdisjoint(self.writes))
        self.reads |= loads
        if printer.may_wait:
            phases = printer.phases()
            next(phases)
            self.pending.append((printer, phases))
            return
        self.before_result(printer)
        _print(printer)
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
        _print(printer)

    def finish(self) -> None:
        """Prints the results that are pending."""
        for printer, phases in self.pending:
            self.before_result(printer)
            printer.frame = self.frame
            next(phases, None)
            self.frame = printer.frame
        self.pending.clear()

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


def _print(printer: NestPrinter) -> None:
    for _ in printer.phases():
        pass
