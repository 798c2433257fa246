"""Build Triton statements for the control flow of a DeviceProgram and for the leaves.

Every unit runs the same text. `ok` is true while no failure has occurred: Triton has no early
return, so once it is false, tasks and waits are skipped, loops end, and control reaches the end of
the text.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from operator import mul

from stretto.device import tree
from stretto.device.analyses import ends_in_call
from stretto.device.expr import Buffer, Expr, Reg
from stretto.device.operator import Kernel
from stretto.device.program import Run
from stretto.device.runs import called
from stretto.errors import CodegenError
from stretto.ir.types import DType
from stretto.machines import statements as code
from stretto.machines.control_printer import ControlPrinter, is_checked
from stretto.machines.cuda.printer.early import EarlyLoads, first_task
from stretto.machines.cuda.printer.parts import ModuleParts
from stretto.machines.cuda.printer.scalar import (
    BARRIER,
    CONTROL,
    MEMORY_TYPES,
    OK,
    TASK,
    UNIT,
    VALUE_TYPES,
)
from stretto.machines.cuda.printer.stage_nest import tile_count
from stretto.machines.cuda.printer.triton_terms import LanePrinter, size_term
from stretto.machines.cuda.template import power
from stretto.machines.terms import Term, call, infix, literal, variable
from stretto.runtime.results import Status
from stretto.schedule import merge
from stretto.schedule.barriers import BarrierStep, EndStep, LeafSteps

LEAST_LINES, LEAST_REPEATED = 10, 24
"""Lines from which a leaf or branch becomes a separate function: outside of loops, and in a loop,
which pays for the call in each iteration."""
FRAME_UNIT = 64
"""Bytes of the unit in which frames are counted, so that the compiler sees the alignment of
addresses."""
ROW_BITS = 10
"""Bits for the first unit, and for the number of units, of a wait packed into one word, as
`poll_row` of the prelude reads it. The step has the remaining bits."""
BASE, POLLS, TABLES, ROW, FRAME = map(variable, ("base", "polls", "tables", "row", "frame"))


@dataclass(frozen=True, slots=True)
class SavedVariable:
    """A variable that a recursive call saves: its Triton type and its initial value."""

    type: str
    first: Term


class FunctionPrinter(ControlPrinter[ModuleParts, LeafSteps]):
    """Builds statements for the nodes of one function, which all units run.

    saved: by name, the variables that hold registers, and addresses that change. places: the values
    of variables that never change: addresses of buffers, and the waits of units in loops. moving:
    the initial addresses of buffers that trade places. loops: number of loops around the current
    node (a recursive program counts as one).
    """

    ok = OK
    unit = UNIT

    def __init__(
        self, parts: ModuleParts, early: EarlyLoads, function: tree.TreeFunction[LeafSteps]
    ) -> None:
        super().__init__(parts, function)
        self.early = early
        self.rotated = tree.rotating(function.body)
        self.pointers: dict[Buffer, Term] = {}
        self.saved: dict[str, SavedVariable] = {}
        self.places: dict[Term, Term] = {}
        self.moving: dict[Term, Term] = {}
        self.loops = int(parts.recursive)

    # ---- names -------------------------------------------------------------------------------
    def buffer(self, buffer: Buffer) -> Term:
        if buffer not in self.pointers:
            self.pointers[buffer] = self._pointer(buffer)
        return self.pointers[buffer]

    def _pointer(self, buffer: Buffer) -> Term:
        """Return the variable that holds a buffer's address."""
        moves = buffer in self.rotated or buffer.kind == "param"
        is_external = buffer.kind not in ("local", "items", "param")
        is_given = self.function.name == "main" and buffer in self.parts.moving
        if is_given or (is_external and not moves):
            pointer = self.parts.external(buffer)
        else:
            key = self.function.name, "buffer", buffer.name
            pointer = self.parts.variable(key, f"b_{buffer.name}")
            if buffer.kind != "param":
                place = self.parts.external(buffer) if is_external else self.in_frame(buffer)
                (self.moving if moves else self.places)[pointer] = place
        if moves:
            self.saved[pointer.text] = SavedVariable(pointer_type(buffer), arena(buffer))
        return pointer

    def in_frame(self, buffer: Buffer) -> Term:
        """Return the address of a local buffer."""
        size = buffer.dtype.itemsize
        frame = self.parts.program.frame(self.function.name)
        place = frame.offset(buffer.name) // size
        base = arena(buffer)
        base = base + FRAME * (FRAME_UNIT // size) if self.parts.recursive else base
        if stride := frame.stride(buffer.name):
            base = base + UNIT * (stride // size)
        return base + size_term(place, self.reg)

    def reg(self, reg: Reg) -> Term:
        """Return the variable that holds a register: a limit or size parameter, or a variable of
        its own."""
        if reg in self.parts.limits:
            return variable(f"limit{self.parts.limits[reg]}")
        if reg in self.parts.sizes:
            return variable(f"size{self.parts.sizes[reg]}")
        name = self.parts.variable((self.function.name, "reg", reg.name), f"r_{reg.name}")
        return self.keep(name, reg.dtype)

    def keep(self, name: Term, dtype: DType) -> Term:
        """Note that recursive calls must save a variable."""
        kind = VALUE_TYPES[dtype]
        self.saved[name.text] = SavedVariable(kind, call("tl.cast", 0, kind))
        return name

    @property
    def parameters(self) -> tuple[Term, ...]:
        """Variables that a caller of the function assigns."""
        return (*map(self.reg, self.function.params), *map(self.buffer, self.function.tensors))

    def fresh(self, hint: str) -> Term:
        return self.keep(self.parts.fresh(hint), DType.I64)

    def scalar(self, expr: Expr) -> Term:
        """Return one number; its parts are computed by statements before it. Loads happen only
        while `ok`."""
        printer = LanePrinter(self, self.out, conditions=(OK,), counter=self.parts.counter)
        return printer.expr(expr)

    def number(self, expr: Expr, dtype: DType) -> Term:
        return call("tl.cast", self.scalar(expr), VALUE_TYPES[dtype])

    def declare(self, variable: Term, value: Expr) -> None:
        self.out.assign(variable, self.number(value, DType.I64))

    # ---- control -----------------------------------------------------------------------------
    def branch(self, node: tree.If[LeafSteps]) -> None:
        with self.out.within(self.section()):
            super().branch(node)

    def node(self, node: tree.Node[LeafSteps]) -> None:
        self.loops += tree.is_loop(node)
        super().node(node)
        self.loops -= tree.is_loop(node)

    def repeat(self, node: tree.Loop[LeafSteps], loop: code.WhileLoop) -> None:
        self.out.add(*self.early.around(id(node), loop))

    def section(self) -> code.Section:
        return code.Section(least=LEAST_REPEATED if self.loops else LEAST_LINES)

    def invoke(self, function: str, arguments: tuple[Term, ...], results: tuple[Term, ...]) -> None:
        self.out.add(code.FunctionCall(function, arguments, results))

    def dealt(self, node: tree.For[LeafSteps], at: Term, stop: Term) -> int | Term:
        if may_stop(node, self.parts.kernels) or called(node):
            raise CodegenError(
                "on GPUs the iterations of a parallel loop must not stop the run or call functions",
                remedy="leave the pass out: Options(debug=Debug(skip=('parallel_loops',)))",
            )
        return super().dealt(node, at, stop)

    def advance(self, at: Term, stop: Term, step: int | Term, grows: bool) -> None:
        self.out.assign(at, step, operator="+=")

    def whole(self) -> None:
        """Emit the whole function. At the end of `main` every unit publishes its last step."""
        self.node(self.function.body)
        if self.function.name == "main" and ends_in_call(self.parts.program):
            self.publish(0, range(self.parts.program.units))

    # ---- leaves ------------------------------------------------------------------------------
    def leaf(self, body: LeafSteps) -> None:
        with self.out.within(self.section()):
            steps = iter(body.items)
            for step in steps:
                if id(step) not in self.early.sections:
                    self.step(step)
                    continue
                count, load = self.early.sections[id(step)]
                with self.out.block() as found:
                    for inner in (step, *islice(steps, count)):
                        self.step(inner)
                self.out.add(code.Section((self.early.statement(load), *found), least=1))

    def publish(self, steps: int, awaited: Collection[int]) -> None:
        """Advance all units by `steps`; those that are waited for publish it."""
        if steps:
            self.out.assign(BASE, literal(steps), operator="+=")
        if awaited:
            self.signal_by(dict.fromkeys(awaited), BASE)

    def step(self, step: merge.Step | EndStep | BarrierStep) -> None:
        match step:
            case BarrierStep():
                self.out.add(BARRIER)
            case EndStep(steps, awaited):
                self.publish(steps, awaited)
            case merge.RunStep():
                self.run(step)
            case merge.WaitStep():
                self.wait(step)
            case merge.SignalStep():
                self.signal(step)
            case merge.StatementStep(tree.Let() as item):
                self.let(item)
            case merge.StatementStep(item):
                assert isinstance(item, tree.Check)
                self.check(item)

    def require(self, condition: Term, failure: Status, detail: Term) -> None:
        self.out.add(requirement(condition, failure, detail))

    # ---- tasks -------------------------------------------------------------------------------
    def run(self, step: merge.RunStep) -> None:
        kernel, text = self.parts.kernels[step.kernel], self.parts.texts[step.kernel]
        function, held = self.early.tasks[id(step)]
        buffers, regs = map(self.buffer, text.buffers), map(self.reg, text.regs)
        task = code.Do(call(function, *buffers, *regs, CONTROL, TASK, *held.values))
        units = self.parts.program.units
        last = literal(kernel.tasks) if kernel.is_static else self.task_count(kernel)
        start = merge.dealt_from(step, kernel, units)
        if start is None:
            rows = {
                unit: tuple((r.first, last_task(kernel, r), r.stride) for r in runs if r.count != 0)
                for unit, runs in step.runs.items()
            }
            with self.rows(rows, ("first", "last", "stride")) as (first, end, stride):
                self.tasks(first, end if kernel.is_static else last, stride, task)
        elif self.early.key(step) is None:
            self.tasks(first_task(start, units), last, literal(units), task)
        else:
            # `stretto_again` hides the number, so that what is computed from it is not kept in
            # registers over the loop.
            first = first_task(start, units)
            first = call("stretto_again", first) if held.scarce else first
            mine = code.Branch(OK & infix(TASK, "<", last), (task,))
            self.out.add(code.Section((code.Assign(TASK, first), mine)))

    def tasks(self, first: Term, last: Term, stride: Term, task: code.Do) -> None:
        """Emit a loop over tasks, which has no iterations after a failure."""
        self.out.add(code.CountedLoop(TASK, first, call("tl.where", OK, last, 0), stride, (task,)))

    def task_count(self, kernel: Kernel) -> Term:
        """Return the number of tasks of a grid with dynamic dims, as an i32."""
        tiles = (tile_count(dim, self) for dim in kernel.grid)
        return call("tl.cast", reduce(mul, tiles), "tl.int32")

    # ---- synchronisation ---------------------------------------------------------------------
    def wait(self, step: merge.WaitStep) -> None:
        different = set(step.waits.values())
        if len(different) == 1:
            (waits,) = different
            with self.only(step.waits):
                for wait in waits:
                    # In a loop a variable would occupy a register.
                    number = literal if self.loops else self.parts.number
                    first, count = number(wait.unit), number(wait.count)
                    target = BASE + wait.step if wait.step else BASE
                    self.wait_for(first, count, target)
        else:
            rows = {
                unit: tuple((wait.unit, wait.count, wait.step) for wait in waits)
                for unit, waits in step.waits.items()
            }
            kept = self.kept_row(rows)
            if kept is not None:
                rest = kept, BASE, POLLS, OK, self.counters()
                value = call("wait_by", CONTROL, UNIT, *rest, effect=True)
            else:
                rest = TABLES, self.table(rows), BASE, POLLS, OK, self.counters()
                value = call("wait_for_each", CONTROL, UNIT, *rest, effect=True)
            self.out.add(code.WaitCall(value, OK))

    def kept_row(self, rows: Mapping[int, Sequence[Sequence[int]]]) -> Term | None:
        """Return the variable that holds, through a loop, the wait of this unit as one word: it is
        read from a table once, before the loop. None outside of loops, if a unit has more than
        one row, or if a row does not fit into a word."""
        if not self.loops or self.parts.recursive or any(len(r) > 1 for r in rows.values()):
            return None
        if not all(fits_word(row) for found in rows.values() for row in found):
            return None
        units = range(self.parts.program.units)
        words = [one_word(*rows[unit][0]) if rows.get(unit) else 0 for unit in units]
        name = self.parts.variable(("row", *words), "row_of_wait")
        if name not in self.places:
            start = self.parts.table_start()
            self.parts.tables += words
            self.places[name] = table_entry(start, UNIT)
        return name

    def wait_for(self, first: Term, count: Term, target: Term) -> None:
        """Emit a wait for `count` units from `first` on."""
        rest = first, count, target, POLLS, OK, self.counters()
        self.out.add(code.WaitCall(call("wait", CONTROL, UNIT, *rest), OK))

    def counters(self) -> int:
        """Return the size of a block of the counters of all units. It is the same for all waits,
        so that sections that differ only in the units they wait for are one function."""
        return power(self.parts.program.units)

    def signal(self, step: merge.SignalStep) -> None:
        if not self.parts.has_waits:  # part of a schedule whose waits are between launches
            return
        values = set(step.steps.values())
        if len(values) == 1:
            self.signal_by(step.steps, BASE + values.pop())
        else:
            rows = {unit: ((value,),) for unit, value in step.steps.items()}
            with self.rows(rows, ("step",)) as (ahead,):
                self.out.add(code.SignalCall(call("signal", CONTROL, UNIT, BASE + ahead)))

    def signal_by(self, units: Mapping[int, object], value: Term) -> None:
        """Let those units publish `value`."""
        first, last = min(units), max(units)
        if last - first + 1 > len(units) or len(units) == self.parts.program.units:
            with self.only(units):
                self.out.add(code.SignalCall(call("signal", CONTROL, UNIT, value)))
        else:
            self.out.add(code.SignalCall(call("signal_by", CONTROL, UNIT, value, first, last)))

    @contextmanager
    def only(self, units: Mapping[int, object]) -> Generator[None]:
        """Emit a branch that only those units enter."""
        everyone = self.parts.program.units
        if len(units) == everyone:
            yield
            return
        first, last = min(units), max(units)
        if last - first + 1 > len(units):
            place = self.parts.table_start()
            self.parts.tables += [int(unit in units) for unit in range(everyone)]
            condition = infix(table_entry(place, UNIT), "!=", 0)
        elif first == last:
            condition = infix(UNIT, "==", first)
        else:
            condition = infix(UNIT, ">=", first) & infix(UNIT, "<=", last)
        with self.out.within(code.Branch(condition, ())):
            yield

    @contextmanager
    def rows(
        self, rows: Mapping[int, Sequence[Sequence[int]]], names: Sequence[str]
    ) -> Generator[tuple[Term, ...]]:
        """Emit a loop over the table rows of each unit; yields the columns, called `names`."""
        start = self.table(rows)
        begin, end = (table_entry(start, UNIT + n if n else UNIT) for n in (0, 1))
        columns = tuple(variable(name) for name in names)
        loop = code.CountedLoop(ROW, begin, end, literal(len(names)))
        with self.out.within(loop):
            for number, column in enumerate(columns):
                self.out.add(
                    code.Assign(column, call("tl.load", TABLES + ROW + number, effect=True))
                )
            yield columns

    def table(self, rows: Mapping[int, Sequence[Sequence[int]]]) -> Term:
        """Add a table with rows for each unit; return its start. The table begins with the start
        of the rows of each unit."""
        tables, start = self.parts.tables, self.parts.table_start()
        heads = len(tables)
        tables += [0] * (self.parts.program.units + 1)
        for unit in range(self.parts.program.units):
            tables[heads + unit] = len(tables)
            for row in rows.get(unit, ()):
                tables += row
        tables[heads + self.parts.program.units] = len(tables)
        return start


def fits_word(row: Sequence[int]) -> bool:
    """Return True if the first unit, the number of units and the step of a wait fit in a word of
    31 bits."""
    first, count, step = row
    return max(first, count) < 1 << ROW_BITS and step < 1 << (31 - 2 * ROW_BITS)


def one_word(first: int, count: int, step: int) -> int:
    """Pack a wait into a word, as `wait_by` of the prelude reads it."""
    return first | count << ROW_BITS | step << 2 * ROW_BITS


def may_stop(node: tree.Node[LeafSteps], kernels: Mapping[str, Kernel]) -> bool:
    """Return True if the steps in a node, without its callees, may stop the run."""
    steps = [step for leaf in tree.leaves(node) for step in leaf.items]
    return any(
        isinstance(step, merge.StatementStep) and isinstance(step.item, tree.Check)
        for step in steps
    ) or any(isinstance(step, merge.RunStep) and is_checked(kernels[step.kernel]) for step in steps)


def requirement(condition: Term, failure: Status, detail: Term) -> code.CheckedCall:
    holds = call("tl.cast", condition, "tl.int1")
    return code.CheckedCall(call("require", CONTROL, OK, holds, failure.value, detail), OK)


def arena(buffer: Buffer) -> Term:
    """Return the parameter that points to the arena, typed as the buffer's elements."""
    return variable(f"arena_{MEMORY_TYPES[buffer.dtype].removeprefix('tl.')}")


def pointer_type(buffer: Buffer) -> str:
    return f"tl.pointer_type({MEMORY_TYPES[buffer.dtype]})"


def table_entry(start: Term, offset: Term) -> Term:
    return call("tl.load", TABLES + start + offset, effect=True)


def last_task(kernel: Kernel, run: Run) -> int:
    """Return one more than the last task of a run; -1 if it is known only at run time."""
    return -1 if run.count is None else min(run.first + run.count * run.stride, kernel.tasks)
