"""Control flow as indented rows: of a captured Program, and of a DeviceProgram."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from stretto.device.program import DeviceProgram, Run, Schedule, Wait
from stretto.device.runs import BY_VALUE, NEVER, Runs, function_runs, inside, reached, tree_runs
from stretto.device.tree import (
    Check,
    For,
    If,
    Leaf,
    Let,
    Node,
    Seq,
    children,
    title,
    trip_count,
)
from stretto.errors import SourceLocation
from stretto.ir.core import Block, Op, Program
from stretto.ir.ops import CallOp, ForOp, IfOp, TensorOp, WhileOp

INDENT = "  "
MOST_UNITS = 8
"""The tasks of so many units are listed one by one; of more, neighbours alike are counted."""
MOST_KERNELS = 8
"""So many kernels of a leaf are listed by name."""


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
        names = kernel_names(self.schedule)
        steps, kernels = str(self.schedule.steps), ", ".join(names[:MOST_KERNELS])
        if len(names) > MOST_KERNELS:
            kernels += f", and {len(names) - MOST_KERNELS} more"
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
    runs = function_runs(program.tree)
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
    below = inside(node, runs)
    match node:
        case Leaf(schedule):
            if any(schedule.units):
                yield ScheduleRow(depth, _leaf_name(schedule), runs, schedule)
            return
        case Seq(nodes):
            for child in nodes:
                yield from _node_rows(child, depth, runs)
            return
        case If():
            yield ScheduleRow(depth, title(node), runs)
            for name, arm in (("then", node.then), ("else", node.orelse)):
                if rows := list(_node_rows(arm, depth + 2, below)):
                    yield ScheduleRow(depth + 1, name, runs)
                    yield from rows
            return
        case For():
            what = f"{title(node)}, trips: {Runs().times(trip_count(node))}"
        case _:
            what = title(node)
    yield ScheduleRow(depth, what, runs)
    for child in children(node):
        yield from _node_rows(child, depth + 1, below)


def kernel_runs(program: DeviceProgram) -> dict[str, Runs]:
    """How often each kernel is launched, as a set of tasks, in one call."""
    found = {kernel.name: NEVER for kernel in program.kernels}
    for node, runs in tree_runs(program.tree):
        if isinstance(node, Leaf):
            for name in node.body.kernels:
                found[name] = found[name] + runs
    return found
