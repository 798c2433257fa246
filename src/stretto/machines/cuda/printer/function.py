"""Makes Triton statements of the control flow of a DeviceProgram, and of what units do in leaves.

Every unit runs the same text. `ok` is true while nothing went wrong: Triton has no early return, so
once it is false tasks and waits are skipped, loops end, and the text falls through to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import mul

from stretto.device.expr import Buffer, Expr, Reg, loads
from stretto.device.operator import Kernel
from stretto.device.program import Run, Schedule
from stretto.device.regions import statement_regions
from stretto.device.tree import Call, Check, If, Let, While
from stretto.errors import CodegenError
from stretto.ir.types import DType
from stretto.machines import statements as code
from stretto.machines.control import ControlPrinter
from stretto.machines.cuda.printer.expr import LanePrinter
from stretto.machines.cuda.printer.parts import ModuleParts
from stretto.machines.cuda.printer.scalar import BARRIER, CONTROL, OK, TASK, UNIT, VALUE_TYPES
from stretto.machines.cuda.printer.stage_nest import tile_count
from stretto.machines.terms import Term, call, infix, literal, variable
from stretto.runtime.status import Status
from stretto.schedule.merge import (
    RunStep,
    SignalStep,
    StatementStep,
    Step,
    WaitStep,
    dealt_from,
    merge,
)

LEAST_LINES = 24
"""A leaf or branch of so many lines is a function of its own."""
BASE, POLLS, TABLES, ROW = (variable(name) for name in ("base", "polls", "tables", "row"))


class TeamPrinter(ControlPrinter):
    """Makes statements of the nodes of one function, which all units run.

    `pointer` is the variable that holds a buffer's address.
    """

    def __init__(
        self, parts: ModuleParts, function: str, pointer: Callable[[Buffer], Term]
    ) -> None:
        super().__init__()
        self.parts = parts
        self.function = function
        self.pointer = pointer
        self.clean = False  # all threads of the unit see what the unit has written

    # ---- names -------------------------------------------------------------------------------
    def buffer(self, buffer: Buffer) -> Term:
        return self.pointer(buffer)

    def reg(self, reg: Reg) -> Term:
        if reg in self.parts.limits:
            return variable(f"limit{self.parts.limits[reg]}")
        return self.parts.variable((self.function, "reg", reg.name), f"r_{reg.name}")

    def place(self, slot: int) -> int:
        return self.parts.places[slot]

    def fresh(self, hint: str) -> Term:
        return self.parts.fresh(hint)

    def scalar(self, expr: Expr) -> Term:
        """One number, its parts in statements before; loads happen only while `ok`."""
        printer = LanePrinter(self, self.out, conditions=(OK,), counter=self.parts.counter)
        return printer.expr(expr)

    def declare(self, variable: Term, value: Term, dtype: DType) -> None:
        self.out.assign(variable, call("tl.cast", value, VALUE_TYPES[dtype]))

    # ---- control -----------------------------------------------------------------------------
    @contextmanager
    def inside(self) -> Generator[list[code.Statement]]:
        self.clean = False
        with self.out.block() as block:
            yield block
        self.clean = False

    def branch(self, node: If[Schedule]) -> None:
        with self.out.within(code.Section(least=LEAST_LINES)):
            super().branch(node)

    def loop(self, condition: Term, body: Iterable[code.Statement]) -> None:
        self.out.add(code.Loop(OK & condition, body=tuple(body)))

    def while_loop(self, node: While[Schedule]) -> None:
        going = self.fresh("going")
        with self.inside() as head:
            self.node(node.head)
        with self.out.block() as body:
            self.node(node.body)
            self.rotate(node.rotate)
        self.clean = False
        self.out.add(code.Loop(self.reg(node.condition), tuple(head), tuple(body), going, OK))

    def call(self, node: Call[Schedule]) -> None:
        raise CodegenError("a call outside of the state machine")

    def advance(self, at: Term, stop: Term, step: int) -> None:
        self.out.assign(at, literal(step), operator="+=")

    # ---- leaves ------------------------------------------------------------------------------
    def leaf(self, schedule: Schedule) -> None:
        with self.out.within(code.Section(least=LEAST_LINES)):
            steps = merge(schedule)
            for step in steps:
                self.step(step)
            if any(map(publishes, steps)):
                self.publish(schedule.steps)
                self.clean = True

    def publish(self, steps: int) -> None:
        """The unit's progress counter goes on by `steps`."""
        self.out.assign(BASE, literal(steps), operator="+=")
        self.out.add(code.Signal(call("signal", CONTROL, UNIT, BASE)))

    def step(self, step: Step) -> None:
        match step:
            case RunStep():
                self.settle()
                self.run(step)
                self.clean = False
            case WaitStep():
                self.wait(step)
            case SignalStep():
                self.signal(step)
            case StatementStep(item=Let(reg, value)):
                if next(loads(value), None) is not None:
                    self.settle()
                self.declare(self.reg(reg), self.scalar(value), reg.dtype)
            case StatementStep(item):
                assert isinstance(item, Check)
                self.check(item)

    def settle(self) -> None:
        """The threads of the unit exchange what they have written."""
        if not self.clean:
            self.out.add(BARRIER)
            self.clean = True

    def check(self, item: Check) -> None:
        if next(loads(item.condition), None) is not None:
            self.settle()
        super().check(item)

    def require(self, condition: Term, failure: Status, detail: Term) -> None:
        holds = call("tl.cast", condition, "tl.int1")
        self.out.add(code.Guard(call("require", CONTROL, OK, holds, failure.value, detail), OK))

    def packed_detail(self, subject: Term, detail: Term) -> Term:
        return call("packed_detail", subject, detail)

    # ---- tasks -------------------------------------------------------------------------------
    def run(self, step: RunStep) -> None:
        kernel = self.parts.kernels[step.kernel]
        text = self.parts.texts[step.kernel]
        buffers, regs = map(self.buffer, text.buffers), map(self.reg, text.regs)
        arguments = (*buffers, *regs, CONTROL, TASK)
        units = self.parts.units
        last = literal(kernel.tasks) if kernel.is_static else self.task_count(kernel)
        start = dealt_from(step, kernel, units)
        if start is not None:
            first = infix(UNIT + (units - start), "%", units) if start else UNIT
            single = kernel.tasks if kernel.is_static and kernel.tasks <= units else 0
            self.out.add(code.Run(step.kernel, arguments, first, last, literal(units), single))
            return
        rows = {
            unit: tuple((r.first, last_task(kernel, r), r.stride) for r in runs)
            for unit, runs in step.runs.items()
        }
        with self.rows(rows, ("first", "last", "stride")) as (first, end, stride):
            stop = end if kernel.is_static else last
            self.out.add(code.Run(step.kernel, arguments, first, stop, stride))

    def task_count(self, kernel: Kernel) -> Term:
        """The number of tasks of a grid with dynamic dims, as an i32."""
        tiles = (tile_count(dim, self) for dim in kernel.grid)
        return call("tl.cast", reduce(mul, tiles), "tl.int32")

    # ---- synchronisation ---------------------------------------------------------------------
    def wait(self, step: WaitStep) -> None:
        different = set(step.waits.values())
        if len(different) == 1:
            (waits,) = different
            with self.only(step.waits):
                for wait in waits:
                    first, count = literal(wait.unit), literal(wait.count)
                    target = BASE + wait.step if wait.step else BASE
                    self.wait_for(first, count, target, wait.count)
        else:
            rows = {
                unit: tuple((wait.unit, wait.count, wait.step) for wait in waits)
                for unit, waits in step.waits.items()
            }
            widest = max(w.count for waits in step.waits.values() for w in waits)
            with self.rows(rows, ("first", "count", "step")) as (first, count, ahead):
                self.wait_for(first, count, BASE + ahead, widest)
        if len(step.waits) == self.parts.units:
            self.clean = True

    def wait_for(self, first: Term, count: Term, target: Term, widest: int) -> None:
        """Waits for `count` units from `first` on; `widest`: the largest that `count` may be."""
        block = 1 << (widest - 1).bit_length()
        value = call("wait", CONTROL, UNIT, first, count, target, POLLS, OK, block)
        self.out.add(code.Wait(value, OK))

    def signal(self, step: SignalStep) -> None:
        values = set(step.steps.values())
        if len(values) == 1:
            with self.only(step.steps):
                self.out.add(code.Signal(call("signal", CONTROL, UNIT, BASE + values.pop())))
        else:
            rows = {unit: ((value,),) for unit, value in step.steps.items()}
            with self.rows(rows, ("step",)) as (ahead,):
                self.out.add(code.Signal(call("signal", CONTROL, UNIT, BASE + ahead)))
        if len(step.steps) == self.parts.units:
            self.clean = True

    @contextmanager
    def only(self, units: Mapping[int, object]) -> Generator[None]:
        """A branch that only those units enter."""
        total = self.parts.units
        if len(units) == total:
            yield
            return
        first, last = min(units), max(units)
        if last - first + 1 > len(units):
            place = len(self.parts.tables)
            self.parts.tables += [int(unit in units) for unit in range(total)]
            condition = infix(table_entry(place, UNIT), "!=", 0)
        elif first == last:
            condition = infix(UNIT, "==", first)
        else:
            condition = infix(UNIT, ">=", first) & infix(UNIT, "<=", last)
        with self.out.within(code.If(condition, ())):
            yield

    @contextmanager
    def rows(
        self, rows: Mapping[int, Sequence[Sequence[int]]], names: Sequence[str]
    ) -> Generator[tuple[Term, ...]]:
        """A loop over what a table holds for each unit; gives the columns, called `names`."""
        tables = self.parts.tables
        heads = len(tables)
        tables += [0] * (self.parts.units + 1)
        for unit in range(self.parts.units):
            tables[heads + unit] = len(tables)
            for row in rows.get(unit, ()):
                tables += row
        tables[heads + self.parts.units] = len(tables)
        begin, end = (table_entry(heads + n, UNIT) for n in (0, 1))
        columns = tuple(variable(name) for name in names)
        with self.out.within(code.For(ROW, begin, end, literal(len(names)))):
            for number, column in enumerate(columns):
                self.out.add(
                    code.Assign(column, call("tl.load", TABLES + ROW + number, effect=True))
                )
            yield columns


def table_entry(place: int, offset: Term) -> Term:
    return call("tl.load", TABLES + place + offset, effect=True)


def last_task(kernel: Kernel, run: Run) -> int:
    """One more than the last task of a run; -1 where only the program knows it."""
    return -1 if run.count is None else min(run.first + run.count * run.stride, kernel.tasks)


def publishes(step: Step) -> bool:
    """Whether the step does something that other units may wait for. A wait counts: a unit that
    waits for this one later need not wait for the same thing again."""
    return not isinstance(step, StatementStep) or bool(statement_regions(step.item))
