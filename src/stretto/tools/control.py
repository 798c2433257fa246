"""Control flow as indented rows: of a captured Program, and of a DeviceProgram."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from stretto.device.expr import Const, Expr, Position
from stretto.device.program import DeviceProgram, Run, Schedule, Wait
from stretto.device.tree import Call, Check, For, If, Leaf, Let, Node, Seq, While, walk
from stretto.errors import SourceLocation
from stretto.ir.core import Block, Op, Program
from stretto.ir.ops import CallOp, ForOp, IfOp, TensorOp, WhileOp

INDENT = "  "
MOST_UNITS = 8
"""The tasks of so many units are listed one by one; of more, neighbours alike are counted."""
BY_VALUE = "by value"
"""Stands for a number that is known only when the program runs."""


def place(location: SourceLocation | None) -> str:
    """File name and line, without the folder."""
    return f"{Path(location.file).name}:{location.line}" if location else ""


# ---- a captured Program ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ControlRow:
    """A function, a control op or an arm. `operators` counts the tensor ops directly in it."""

    depth: int
    what: str
    trips: str
    operators: int | None
    location: SourceLocation | None

    def cells(self) -> tuple[str, str, str, str, str]:
        operators = "" if self.operators is None else str(self.operators)
        source = self.location.source().strip() if self.location else ""
        what = INDENT * self.depth + self.what
        return (what, self.trips, operators, place(self.location), source)


def program_rows(program: Program) -> list[ControlRow]:
    """Each function with the loops, branches and calls in it, in order."""
    callees = {
        name: {op.function for op in function.body.walk() if isinstance(op, CallOp)}
        for name, function in program.functions.items()
    }
    rows: list[ControlRow] = []
    for name, function in program.functions.items():
        what = f"{name} (recursive)" if name in reached(name, callees) else name
        rows.append(ControlRow(0, what, "", _operators(function.body), None))
        rows.extend(_block_rows(function.body, 1))
    return rows


def reached(name: str, callees: Mapping[str, set[str]]) -> set[str]:
    """The functions that a call of `name` can come to; itself among them if it is recursive."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        new = callees[waiting.pop()] - seen
        seen |= new
        waiting.extend(new)
    return seen


def _block_rows(block: Block, depth: int) -> list[ControlRow]:
    """The rows of all ops; of neighbours that look the same, only the first, with their number."""
    groups: list[tuple[list[ControlRow], int]] = []
    for op in block.ops:
        rows = list(_op_rows(op, depth))
        if groups and rows == groups[-1][0]:
            groups[-1] = (rows, groups[-1][1] + 1)
        elif rows:
            groups.append((rows, 1))
    result: list[ControlRow] = []
    for (first, *rest), count in groups:
        what = f"{first.what} ({count} in a row)" if count > 1 else first.what
        result += [replace(first, what=what), *rest]
    return result


def _op_rows(op: Op, depth: int) -> Iterator[ControlRow]:
    match op:
        case ForOp():
            trips = op.trip_count()
            shown = BY_VALUE if trips is None else str(trips)
            yield ControlRow(depth, "for", shown, _operators(op.body), op.location)
            yield from _block_rows(op.body, depth + 1)
        case WhileOp():
            count = _operators(op.condition) + _operators(op.body)
            yield ControlRow(depth, "while", BY_VALUE, count, op.location)
            yield from _block_rows(op.condition, depth + 1)
            yield from _block_rows(op.body, depth + 1)
        case IfOp():
            yield ControlRow(depth, "if", "", None, op.location)
            for name, arm in (("then", op.then), ("else", op.orelse)):
                yield ControlRow(depth + 1, name, "", _operators(arm), None)
                yield from _block_rows(arm, depth + 2)
        case CallOp():
            yield ControlRow(depth, f"call {op.function}", "", None, op.location)
        case _:
            pass


def _operators(block: Block) -> int:
    return sum(isinstance(op, TensorOp) for op in block.ops)


# ---- a DeviceProgram -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Runs:
    """How often something runs in one call; `exact` False: at most that; None: known only then."""

    count: int | None = 1
    exact: bool = True

    def times(self, trips: int | None) -> Runs:
        if self.count is None or trips is None:
            return Runs(None)
        return Runs(self.count * trips, self.exact)

    def __add__(self, other: Runs) -> Runs:
        if self.count is None or other.count is None:
            return Runs(None)
        return Runs(self.count + other.count, self.exact and other.exact)

    def __str__(self) -> str:
        if self.count is None:
            return BY_VALUE
        return str(self.count) if self.exact else f"<= {self.count}"


NEVER = Runs(0)


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A function, control node or leaf of a DeviceProgram; the numbers are those of a leaf."""

    depth: int
    what: str
    runs: Runs
    schedule: Schedule | None = None

    def cells(self) -> tuple[str, str, str, str, str, str]:
        what = INDENT * self.depth + self.what
        if self.schedule is None:
            return (what, "", "", "", "", "")
        waits = sum(isinstance(item, Wait) for unit in self.schedule.units for item in unit)
        tasks = _task_counts(self.schedule)
        steps, kernels = str(self.schedule.steps), ", ".join(kernel_names(self.schedule))
        return (what, str(self.runs), steps, tasks, str(waits), kernels)


def _task_counts(schedule: Schedule) -> str:
    """Tasks of each unit, as `4 | 4`, or `4 x100 | 3 x32`; a dynamic grid shows as `?`."""
    texts: list[str] = []
    for unit in schedule.units:
        runs = [item for item in unit if isinstance(item, Run)]
        count = sum(item.count or 0 for item in runs)
        texts.append(f"{count}{'+?' if any(item.count is None for item in runs) else ''}")
    if len(texts) > MOST_UNITS:
        groups = [(text, len(list(group))) for text, group in groupby(texts)]
        texts = [f"{text} x{count}" if count > 1 else text for text, count in groups]
        if len(texts) > MOST_UNITS:
            texts = [*texts[:MOST_UNITS], "..."]
    return " | ".join(texts)


def kernel_names(schedule: Schedule) -> list[str]:
    """The kernels of a leaf, in the order in which units come to them."""
    items = (item for unit in schedule.units for item in unit)
    return list(dict.fromkeys(item.kernel for item in items if isinstance(item, Run)))


def schedule_rows(program: DeviceProgram) -> list[ScheduleRow]:
    """The control tree of each function, with its leaves."""
    runs = function_runs(program)
    rows: list[ScheduleRow] = []
    for function in program.tree.functions:
        rows.append(ScheduleRow(0, function.name, runs[function.name]))
        rows.extend(_node_rows(function.body, 1, runs[function.name]))
    return rows


def _leaf_name(schedule: Schedule) -> str:
    """What a leaf is there for: tasks, registers that control reads, or waits only."""
    items = [item for unit in schedule.units for item in unit]
    if any(isinstance(item, Run) for item in items):
        return "tasks"
    return "registers" if any(isinstance(item, Let | Check) for item in items) else "waits"


def _node_rows(node: Node[Schedule], depth: int, runs: Runs) -> Iterator[ScheduleRow]:
    match node:
        case Leaf(schedule):
            if any(schedule.units):
                yield ScheduleRow(depth, _leaf_name(schedule), runs, schedule)
        case Seq(nodes):
            for child in nodes:
                yield from _node_rows(child, depth, runs)
        case For():
            trips = trip_count(node)
            shown = BY_VALUE if trips is None else str(trips)
            yield ScheduleRow(depth, f"for {node.index.name}, trips: {shown}", runs)
            yield from _node_rows(node.body, depth + 1, runs.times(trips))
        case While():
            yield ScheduleRow(depth, f"while {node.condition.name}", runs)
            yield from _node_rows(node.head, depth + 1, runs.times(None))
            yield from _node_rows(node.body, depth + 1, runs.times(None))
        case If():
            yield ScheduleRow(depth, f"if {node.condition.name}", runs)
            for name, arm in (("then", node.then), ("else", node.orelse)):
                if rows := list(_node_rows(arm, depth + 2, Runs(runs.count, False))):
                    yield ScheduleRow(depth + 1, name, runs)
                    yield from rows
        case Call():
            yield ScheduleRow(depth, f"call {node.function}", runs)


def trip_count(loop: For[Schedule]) -> int | None:
    """The number of iterations, where the bounds are constants."""
    start, stop = _constant(loop.start), _constant(loop.stop)
    if start is None or stop is None:
        return None
    return len(range(start, stop, loop.step))


def _constant(expr: Expr) -> int | None:
    match expr:
        case Const(value):
            return int(value)
        case Position(index) if index.is_const:
            return index.const
        case _:
            return None


def recursive_functions(program: DeviceProgram) -> set[str]:
    """Functions that can have several activations at a time."""
    callees = {
        function.name: {node.function for node in walk(function.body) if isinstance(node, Call)}
        for function in program.tree.functions
    }
    return {name for name in callees if name in reached(name, callees)}


def function_runs(program: DeviceProgram) -> dict[str, Runs]:
    """How often each function runs in one call; what recursion reaches is known only then."""
    recursive = recursive_functions(program)
    found = {function.name: NEVER for function in program.tree.functions}

    def visit(name: str, runs: Runs, path: tuple[str, ...]) -> None:
        if name in path:
            return
        runs = Runs(None) if name in recursive else runs
        found[name] = found[name] + runs
        for call, inner in _calls(program.tree.function(name).body, runs):
            visit(call.function, inner, (*path, name))

    visit("main", Runs(), ())
    return found


def _calls(node: Node[Schedule], runs: Runs) -> Iterator[tuple[Call[Schedule], Runs]]:
    match node:
        case Call():
            yield node, runs
        case For():
            yield from _calls(node.body, runs.times(trip_count(node)))
        case While():
            yield from _calls(node.head, runs.times(None))
            yield from _calls(node.body, runs.times(None))
        case If():
            for arm in (node.then, node.orelse):
                yield from _calls(arm, Runs(runs.count, False))
        case Seq(nodes):
            for child in nodes:
                yield from _calls(child, runs)
        case Leaf():
            pass


def kernel_runs(program: DeviceProgram) -> dict[str, Runs]:
    """How often each kernel is launched, as a set of tasks, in one call."""
    found = {kernel.name: NEVER for kernel in program.kernels}
    for row in schedule_rows(program):
        if row.schedule is not None:
            for name in kernel_names(row.schedule):
                found[name] = found[name] + row.runs
    return found
