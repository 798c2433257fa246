"""Control flow as indented rows: of a captured Program, and of a DeviceProgram."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

from stretto.device.expr import LIMIT, SIZE, Buffer, Expr, Reg, expr_regs, loads
from stretto.device.program import DeviceProgram, Run, Schedule, Wait
from stretto.device.runs import (
    BY_VALUE,
    NEVER,
    Runs,
    function_runs,
    functions_in_parallel_loops,
    inside,
    reached,
    recursive_functions,
    tree_runs,
)
from stretto.device.tree import (
    Call,
    Check,
    For,
    If,
    Leaf,
    Let,
    Node,
    Seq,
    TreeFunction,
    children,
    flattened,
    inputs,
    is_parallel,
    leaves,
    title,
    trip_count,
    walk,
)
from stretto.errors import SourceLocation
from stretto.ir.core import Block, Op, Program
from stretto.ir.ops import CallOp, ForOp, IfOp, TensorOp, WhileOp
from stretto.text import listed, seconds_text

INDENT = "  "
MOST_UNITS = 8
"""Number of units up to which the tasks of each are listed; of more units, equal neighbours are
counted."""
MOST_KERNELS = 8
"""Maximum number of kernels of a leaf that are listed by name."""


def source_cells(location: SourceLocation | None) -> tuple[str, str]:
    """Return file name and line, without the folder, and the source line; empty if unknown."""
    return ("", "") if location is None else (location.short, location.source().strip())


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
        what = INDENT * self.depth + self.what
        return (what, self.trips, operators, *source_cells(self.location))


def program_rows(program: Program) -> list[ControlRow]:
    """Return each function with the loops, branches and calls in it, in order."""
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
    """Return the rows of all ops; of consecutive ops with equal rows only the first, with their
    number."""
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
    """A function, control node or leaf of a DeviceProgram; only leaves have a schedule."""

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
    """Return the number of tasks of each unit, as `4 | 4`, or `4 x100 | 3 x32`; a dynamic grid
    shows as `?`."""
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
    """Return the kernels of a leaf, in the order in which units run them."""
    items = (item for unit in schedule.units for item in unit)
    return list(dict.fromkeys(item.kernel for item in items if isinstance(item, Run)))


def schedule_rows(program: DeviceProgram) -> list[ScheduleRow]:
    """Return the control tree of each function, with its leaves."""
    runs = function_runs(program.tree)
    rows: list[ScheduleRow] = []
    for function in program.tree.functions:
        rows.append(ScheduleRow(0, function.name, runs[function.name]))
        rows.extend(_node_rows(function.body, 1, runs[function.name]))
    return rows


def _leaf_name(schedule: Schedule) -> str:
    """Return the purpose of a leaf: tasks, registers that control reads, or waits only."""
    items = [item for unit in schedule.units for item in unit]
    if any(isinstance(item, Run) for item in items):
        return "tasks"
    return "registers" if any(isinstance(item, Let | Check) for item in items) else "waits"


def _node_rows(body: Node[Schedule], depth: int, runs: Runs) -> Iterator[ScheduleRow]:
    for node in flattened(body):
        if isinstance(node, Leaf):
            if any(node.body.units):
                yield ScheduleRow(depth, _leaf_name(node.body), runs, node.body)
            continue
        below = inside(node, runs)
        what = title(node)
        if isinstance(node, For):
            what += f", trips: {Runs().times(trip_count(node))}"
        yield ScheduleRow(depth, what, runs)
        if isinstance(node, If):
            for name, arm in (("then", node.then), ("else", node.orelse)):
                if rows := list(_node_rows(arm, depth + 2, below)):
                    yield ScheduleRow(depth + 1, name, runs)
                    yield from rows
        else:
            for child in children(node):
                yield from _node_rows(child, depth + 1, below)


def kernel_runs(program: DeviceProgram) -> dict[str, Runs]:
    """Return the number of times that each kernel, as a set of tasks, is launched in one call."""
    found = {kernel.name: NEVER for kernel in program.kernels}
    for node, runs in tree_runs(program.tree):
        if isinstance(node, Leaf):
            for name in node.body.kernels:
                found[name] = found[name] + runs
    return found


# ---- Where each loop, branch and call of a scheduled program is decided, and why there.
#
# A unit that decides for itself reads the condition from its registers; if another unit computes
# it, the unit waits for that one. In an iteration of a parallel loop, and in functions called
# there, a unit decides alone. The host decides between launches if the machine cut the program
# there. Times are from the cost model.


HEADERS = ("control", "runs", "decided", "because")
UNITS = "by each unit, in registers"
APART = "by one unit, for its own iterations"


class Decided(NamedTuple):
    """A control node, how often it runs, who decides it, and why."""

    what: str
    runs: Runs
    who: str
    why: str


def decided(
    program: DeviceProgram, wait_seconds: float, hosted: Mapping[str, str]
) -> list[Decided]:
    """Return a row for each control node, in order. wait_seconds: time of a wait for another unit.
    hosted: the reasons why the host decides, by the title of the node."""
    runs = function_runs(program.tree)
    recursive = recursive_functions(program.tree)
    rows: list[Decided] = []
    alone = functions_in_parallel_loops(program.tree)
    for function in program.tree.functions:
        sources = _Sources(function)
        loops = [node for node in walk(function.body) if is_parallel(node)]
        apart = {id(inner) for loop in loops for inner in walk(loop.body)}
        for node, times in _control(function.body, runs[function.name]):
            name = title(node)
            if (reason := hosted.get(name)) is not None:
                who, why = "on the host, between launches", reason
            elif isinstance(node, Call):
                is_apart = node.function in alone and program.units > 1
                who = APART if is_apart else UNITS
                why = _why_call(node, recursive, is_apart)
            elif is_parallel(node) and program.units > 1:
                who, why = UNITS, f"its iterations are dealt to {program.units} units"
            elif id(node) in apart or function.name in alone:
                who = APART if program.units > 1 else UNITS
                _, why = sources.of(node, 1, wait_seconds)
            else:
                who, why = sources.of(node, program.units, wait_seconds)
            rows.append(Decided(f"{function.name}: {name}", times, who, why))
    return rows


def _control(node: Node[Schedule], runs: Runs) -> Iterator[tuple[Node[Schedule], Runs]]:
    if not isinstance(node, Leaf | Seq):
        yield node, runs
    below = inside(node, runs)
    for child in children(node):
        yield from _control(child, below)


def _why_call(node: Call[Schedule], recursive: frozenset[str] | set[str], is_apart: bool) -> str:
    if is_apart:
        return "each unit has registers and frames of its own"
    if node.function in recursive:
        return "all units go down together; each has its own registers, and all share the frame"
    return "all units run the function together"


class _Sources:
    """The values that the registers of a function are computed from."""

    def __init__(self, function: TreeFunction[Schedule]) -> None:
        self.values: dict[Reg, list[Expr]] = {}
        for schedule in leaves(function.body):
            for item in dict.fromkeys(item for unit in schedule.units for item in unit):
                if isinstance(item, Let):
                    self.values.setdefault(item.reg, []).append(item.value)

    def of(self, node: Node[Schedule], units: int, wait_seconds: float) -> tuple[str, str]:
        """Return who decides a loop or a branch, and why."""
        if isinstance(node, For) and (trips := trip_count(node)) is not None:
            return "when it was compiled", f"it has {trips} trips"
        assert not isinstance(node, Leaf | Seq | Call)
        registers = {reg for expr in inputs(node) for reg in expr_regs(expr)}
        memory, read = self.reached(registers, [load for e in inputs(node) for load in _memory(e)])
        written = sorted(buffer.name for buffer in memory if _is_written(buffer))
        if written:
            why = f"it depends on {listed(written, 3)}, which the program computes"
            if units > 1:
                wait = seconds_text(wait_seconds)
                why += (
                    f"; a unit waits {wait} for another, and the host would launch anew each time"
                )
            return UNITS, why
        if memory:
            names = listed(sorted(buffer.name for buffer in memory), 3)
            return UNITS, f"it depends on {names}, which is there before the run"
        if all(reg.name.startswith((SIZE, LIMIT)) for reg in read):
            return UNITS, "it depends on sizes of the call"
        return UNITS, "it depends on numbers in registers alone"

    def reached(self, registers: set[Reg], memory: list[Buffer]) -> tuple[set[Buffer], set[Reg]]:
        """Return the memory, and the registers that nothing assigns, which some registers depend
        on."""
        found, seen, ends = set(memory), set(registers), set[Reg]()
        waiting = list(registers)
        while waiting:
            reg = waiting.pop()
            values = self.values.get(reg, [])
            if not values:
                ends.add(reg)
            for value in values:
                found.update(_memory(value))
                new = expr_regs(value) - seen
                seen |= new
                waiting += new
        return found, ends


def _memory(expr: Expr) -> list[Buffer]:
    return [load.access.buffer for load in loads(expr)]


def _is_written(buffer: Buffer) -> bool:
    return buffer.kind not in ("input", "constant")
