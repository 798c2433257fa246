"""Prints the control flow of a DeviceProgram as Triton, and what the units do in leaves.

Every unit runs the same text. `ok` is true while nothing went wrong: Triton has no early return, so
once it is false tasks and waits are skipped, loops end, and the text falls through to its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

from stretto.device.expr import Buffer, Expr, Reg, loads
from stretto.device.operator import Kernel
from stretto.device.program import Schedule
from stretto.device.regions import statement_regions
from stretto.device.tree import Check, For, If, Leaf, Let, Node, Seq, While
from stretto.errors import CodegenError
from stretto.machines.cuda.printer.expr import ExprPrinter, Names, Text
from stretto.machines.cuda.printer.outline import assigned, outline
from stretto.machines.cuda.printer.parts import Parts
from stretto.machines.cuda.printer.scalar import VALUE_TYPES
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
from stretto.text import Writer

LEAST_LINES = 24
"""A piece of the text of so many lines is a function of its own."""
CHECK_CODES = {
    "list_full": Status.LIST_FULL,
    "index": Status.INDEX,
    "assertion": Status.ASSERTION,
}


class FunctionPrinter:
    """Prints nodes of one function into `out`.

    `pointer` names the variable that holds a buffer's address.
    """

    def __init__(
        self, parts: Parts, function: str, out: Writer, pointer: Callable[[Buffer], str]
    ) -> None:
        self.parts = parts
        self.function = function
        self.out = out
        self.pointer = pointer
        self.clean = False  # all threads of the unit see what the unit has written
        self.outlines = False  # every variable is assigned in `out` or `outer`
        self.whole = False  # the piece at hand stays where it is
        self.outer: list[Writer] = []  # texts around the one at hand
        self.aligned: set[str] = set()  # pointers that are multiples of 16
        self.ahead: list[str] = []  # kernels whose constants are loaded for their next run

    # ---- names -------------------------------------------------------------------------------
    def reg(self, reg: Reg) -> str:
        if reg in self.parts.limits:
            return f"limit{self.parts.limits[reg]}"
        return self.parts.identifiers.of((self.function, "reg", reg.name), f"r_{reg.name}")

    def scalar(self, expr: Expr) -> str:
        """One number, its parts on lines before; loads happen only while `ok`."""
        names = Names(self.pointer, self.reg)
        printer = ExprPrinter(names, self.out, conditions=(Text("ok"),), counter=self.parts.counter)
        return printer.expr(expr).text

    def assign(self, name: str, text: str, kind: str) -> None:
        self.out.write(f"{name} = tl.cast({text}, {kind})")

    # ---- control -----------------------------------------------------------------------------
    def node(self, node: Node[Schedule]) -> None:
        match node:
            case Leaf(schedule):
                with self.piece():
                    self.leaf(schedule)
            case Seq(children):
                for child in children:
                    self.node(child)
            case For():
                self.for_loop(node)
            case While():
                self.while_loop(node)
            case If(condition, then, orelse):
                with self.piece():
                    self.out.write(f"if {self.reg(condition)}:")
                    self.arm(then)
                    self.out.write("else:")
                    self.arm(orelse)
                self.clean = False
            case _:
                raise CodegenError("a call outside of the state machine")

    def arm(self, node: Node[Schedule]) -> None:
        with self.out.indent():
            self.clean = False
            self.out.write("pass")
            self.node(node)

    def for_loop(self, node: For[Schedule]) -> None:
        at, stop = (self.parts.identifiers.fresh(hint) for hint in ("at", "stop"))
        self.assign(at, self.scalar(node.start), "tl.int64")
        self.assign(stop, self.scalar(node.stop), "tl.int64")
        with self.held(node.body):
            self.out.write(f"while ok & ({at} {'<' if node.step > 0 else '>'} {stop}):")
            with self.out.indent():
                self.clean = False
                self.out.write(f"{self.reg(node.index)} = {at}")
                self.node(node.body)
                self.rotate(node.rotate)
                self.out.write(f"{at} += {node.step}")
        self.clean = False

    def while_loop(self, node: While[Schedule]) -> None:
        going = self.parts.identifiers.fresh("going")
        self.assign(going, "ok", "tl.int1")
        with self.held(Seq((node.head, node.body))):
            self.out.write(f"while {going}:")
            with self.out.indent():
                self.clean = False
                self.node(node.head)
                self.out.write(f"{going} = ok & {self.reg(node.condition)}")
                self.out.write(f"if {going}:")
                with self.out.indent():
                    self.node(node.body)
                    self.rotate(node.rotate)
                    self.out.write(f"{going} = ok")
        self.clean = False

    @contextmanager
    def held(self, body: Node[Schedule]) -> Generator[None]:
        """A loop whose kernels keep in registers what they read in every iteration."""
        early = self.parts.early
        before = list(early.names)
        with self.piece(least=1):
            for step in every_iteration(body):
                if early.values(step.kernel) is None:
                    self.load_early(step)
            keeps = len(early.names) > len(before)
            yield
            early.drop(before)
            if not keeps:
                self.whole = True

    @contextmanager
    def piece(self, least: int = LEAST_LINES) -> Generator[None]:
        """What is printed inside becomes a function of its own, if it has so many lines.

        Not where weights are held: a function takes numbers and addresses only.
        """
        self.whole = False
        self.outer.append(self.out)
        self.out = Writer("    ")
        yield
        text, self.out = self.out.text(), self.outer.pop()
        stays = self.whole or not self.outlines or self.parts.early.names
        if stays or text.count("\n") < least:
            self.out.write(text.rstrip("\n"))
        else:
            self.outlined(text)
        self.whole = False

    def outlined(self, text: str) -> None:
        """Prints a call of a function with this text."""
        known = set[str]().union(*(assigned(writer.text()) for writer in [*self.outer, self.out]))
        piece = outline(text, known)
        function = self.parts.function(f"piece_{self.function}", piece.text)
        self.out.write(f"{', '.join(piece.gives)} = {function}({', '.join(piece.takes)})")
        for name in piece.gives:
            if name in self.aligned:
                self.out.write(f"{name} = tl.multiple_of({name}, 16)")

    def rotate(self, pairs: Sequence[tuple[Buffer, Buffer]]) -> None:
        for current, following in pairs:
            a, b = self.pointer(current), self.pointer(following)
            self.out.write(f"{a}, {b} = {b}, {a}")

    # ---- leaves ------------------------------------------------------------------------------
    def leaf(self, schedule: Schedule) -> None:
        steps = merge(schedule)
        for place, step in enumerate(steps):
            self.load_ahead(steps[place : place + 2])
            self.step(step)
        if any(map(publishes, steps)):
            self.out.write(f"base += {schedule.steps}")
            self.out.write("signal(control, unit, base)")
            self.clean = True

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
                self.assign(self.reg(reg), self.scalar(value), VALUE_TYPES[reg.dtype])
            case StatementStep(item):
                assert isinstance(item, Check)
                self.check(item)

    def settle(self) -> None:
        """The threads of the unit exchange what they have written."""
        if not self.clean:
            self.out.write("tl.debug_barrier()")
            self.clean = True

    def check(self, item: Check) -> None:
        code = CHECK_CODES.get(item.code)
        if code is None:
            raise CodegenError(f"unknown check {item.code}")
        if next(loads(item.condition), None) is not None:
            self.settle()
        subject = self.parts.places[item.subject] if item.code == "list_full" else item.subject
        detail = str(subject)
        if item.detail is not None:
            detail = f"packed_detail({subject}, {self.scalar(item.detail)})"
        self.require(self.scalar(item.condition), code, detail)

    def require(self, condition: str, code: Status, detail: str) -> None:
        self.out.write(
            f"ok = require(control, ok, tl.cast({condition}, tl.int1), {code.value}, {detail})"
        )

    # ---- tasks -------------------------------------------------------------------------------
    def run(self, step: RunStep) -> None:
        kernel = self.parts.kernels[step.kernel]
        text = self.parts.texts[step.kernel]
        arguments = [
            *(self.pointer(buffer) for buffer in text.buffers),
            *(self.reg(reg) for reg in text.regs),
            "control",
            "task",
        ]
        values = self.parts.early.values(step.kernel)
        if values is None:
            function = self.parts.function(f"k_{step.kernel}", text.body)
        else:
            split = self.parts.early.splits[step.kernel]
            function = self.parts.function(f"k_{step.kernel}", split.body, inline=True)
            arguments += values
        call = f"{function}({', '.join(arguments)})"
        if step.kernel in self.ahead:
            self.ahead.remove(step.kernel)
            self.parts.early.drop([n for n in self.parts.early.names if n != step.kernel])
        units = self.parts.units
        last = str(kernel.tasks) if kernel.is_static else self.task_count(kernel)
        start = dealt_from(step, kernel, units)
        if start is None:
            rows = {
                unit: tuple((r.first, self.last_task(kernel, r), r.stride) for r in runs)
                for unit, runs in step.runs.items()
            }
            with self.rows(rows, ("first", "last", "stride")):
                stop = "last" if kernel.is_static else last
                self.tasks("first", stop, "stride", call)
            return
        first = self.first_task(start)
        if kernel.is_static and kernel.tasks <= units:
            self.out.write(f"task = {first}")
            self.out.write(f"if ok & (task < {last}):")
            with self.out.indent():
                self.out.write(call)
        else:
            self.tasks(first, last, str(units), call)

    def first_task(self, start: int) -> str:
        units = self.parts.units
        return f"(unit + {units - start}) % {units}" if start else "unit"

    def load_early(self, step: RunStep) -> None:
        """Prints the loads of a kernel that need not wait."""
        kernel, early = self.parts.kernels[step.kernel], self.parts.early
        start = dealt_from(step, kernel, self.parts.units)
        if start is None or not kernel.is_static or not 0 < kernel.tasks <= self.parts.units:
            return
        split = early.take(self.parts.texts[step.kernel], step.kernel)
        if split is None:
            return
        function = self.parts.function(f"e_{step.kernel}", split.early, inline=True)
        buffers = self.parts.texts[step.kernel].buffers
        names = [self.parts.identifiers.fresh(f"early_{value}") for value in split.values]
        pointers = [self.pointer(buffers[place]) for place in split.constants]
        task = f"tl.minimum({self.first_task(start)}, {kernel.tasks - 1})"
        call = f"{function}({', '.join([*pointers, task])})"
        self.out.write(f"{', '.join(names)} = {call}")
        early.hold(step.kernel, names)

    def load_ahead(self, steps: Sequence[Step]) -> None:
        """What a kernel loads early is under way while its wait goes on."""
        match steps:
            case [WaitStep(), RunStep() as run] if self.parts.early.values(run.kernel) is None:
                self.load_early(run)
                self.ahead.append(run.kernel)
            case _:
                pass

    def tasks(self, first: str, last: str, stride: str, call: str) -> None:
        self.out.write(f"for task in range({first}, tl.where(ok, {last}, 0), {stride}):")
        with self.out.indent():
            self.out.write(call)

    def last_task(self, kernel: Kernel, run: object) -> int:
        count, first, stride = (getattr(run, name) for name in ("count", "first", "stride"))
        return -1 if count is None else min(first + count * stride, kernel.tasks)

    def task_count(self, kernel: Kernel) -> str:
        """The number of tasks of a grid with dynamic dims, as an i32."""
        factors: list[str] = []
        for dim in kernel.grid:
            extent = self.reg(dim.extent) if isinstance(dim.extent, Reg) else str(dim.extent)
            factors.append(f"(({extent} + {dim.tile - 1}) // {dim.tile})")
        return f"tl.cast({' * '.join(factors)}, tl.int32)"

    # ---- synchronisation ---------------------------------------------------------------------
    def wait(self, step: WaitStep) -> None:
        different = set(step.waits.values())
        if len(different) == 1:
            (waits,) = different
            with self.only(step.waits):
                for wait in waits:
                    count = wait.count
                    self.wait_text(str(wait.unit), str(count), str(wait.step), count)
        else:
            rows = {
                unit: tuple((wait.unit, wait.count, wait.step) for wait in waits)
                for unit, waits in step.waits.items()
            }
            widest = max(w.count for waits in step.waits.values() for w in waits)
            with self.rows(rows, ("first", "count", "step")):
                self.wait_text("first", "count", "step", widest)
        if len(step.waits) == self.parts.units:
            self.clean = True

    def wait_text(self, first: str, count: str, step: str, widest: int) -> None:
        target = "base" if step == "0" else f"base + {step}"
        block = 1 << (widest - 1).bit_length()
        self.out.write(f"ok = wait(control, unit, {first}, {count}, {target}, polls, ok, {block})")

    def signal(self, step: SignalStep) -> None:
        values = set(step.steps.values())
        if len(values) == 1:
            with self.only(step.steps):
                self.out.write(f"signal(control, unit, base + {values.pop()})")
        else:
            rows = {unit: ((value,),) for unit, value in step.steps.items()}
            with self.rows(rows, ("step",)):
                self.out.write("signal(control, unit, base + step)")
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
            condition = f"tl.load(tables + {place} + unit) != 0"
        elif first == last:
            condition = f"unit == {first}"
        else:
            condition = f"(unit >= {first}) & (unit <= {last})"
        self.out.write(f"if {condition}:")
        with self.out.indent():
            yield

    @contextmanager
    def rows(
        self, rows: Mapping[int, Sequence[Sequence[int]]], names: Sequence[str]
    ) -> Generator[None]:
        """A loop over what a table holds for each unit; `names` are the columns."""
        tables = self.parts.tables
        heads = len(tables)
        tables += [0] * (self.parts.units + 1)
        for unit in range(self.parts.units):
            tables[heads + unit] = len(tables)
            for row in rows.get(unit, ()):
                tables += row
        tables[heads + self.parts.units] = len(tables)
        begin, end = (f"tl.load(tables + {heads + n} + unit)" for n in (0, 1))
        self.out.write(f"for row in range({begin}, {end}, {len(names)}):")
        with self.out.indent():
            for number, name in enumerate(names):
                self.out.write(f"{name} = tl.load(tables + row + {number})")
            yield


def every_iteration(node: Node[Schedule]) -> list[RunStep]:
    """The kernels that a loop body runs outside of branches and inner loops, each in one place."""
    match node:
        case Leaf(schedule):
            found = [step for step in merge(schedule) if isinstance(step, RunStep)]
        case Seq(children):
            found = [step for child in children for step in every_iteration(child)]
        case _:
            found = []
    counts = Counter(step.kernel for step in found)
    return [step for step in found if counts[step.kernel] == 1]


def publishes(step: Step) -> bool:
    """Is there something that other units may wait for? What a unit has itself waited for counts:
    who waits for it later need not wait for that again."""
    return not isinstance(step, StatementStep) or bool(statement_regions(step.item))
