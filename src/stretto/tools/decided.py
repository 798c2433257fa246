"""Where each loop, branch and call of a scheduled program is decided, and why there.

A unit that decides for itself reads what decides from its registers; where another unit has written
that, it waits for it. In an iteration of a parallel loop, and what that calls, a unit decides
alone. The host decides between launches where the machine has cut the program there. What each way
takes is the cost model's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stretto.device.expr import LIMIT, SIZE, Buffer, Expr, Reg, expr_regs, loads
from stretto.device.program import DeviceProgram, Schedule
from stretto.device.runs import Runs, apart_functions, function_runs, inside, recursive_functions
from stretto.device.tree import (
    Call,
    For,
    Leaf,
    Let,
    Node,
    Seq,
    TreeFunction,
    children,
    inputs,
    is_parallel,
    leaves,
    title,
    trip_count,
    walk,
)
from stretto.text import seconds_text

HEADERS = ("control", "runs", "decided", "because")
UNITS = "by each unit, in registers"
APART = "by one unit, for its own iterations"


@dataclass(frozen=True, slots=True)
class Decided:
    """A control node, how often control comes to it, who decides, and why."""

    what: str
    runs: Runs
    who: str
    why: str

    def cells(self) -> tuple[str, str, str, str]:
        return (self.what, str(self.runs), self.who, self.why)


def decided(
    program: DeviceProgram, wait_seconds: float, hosted: Mapping[str, str]
) -> list[Decided]:
    """A row for each control node, in order. wait_seconds: what a wait for another unit takes.
    hosted: why the host decides, by the titles of the nodes that it does."""
    runs = function_runs(program.tree)
    recursive = recursive_functions(program.tree)
    rows: list[Decided] = []
    alone = apart_functions(program.tree)
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
        yield from _control(child, runs if isinstance(node, Seq) else below)


def _why_call(node: Call[Schedule], recursive: frozenset[str] | set[str], is_apart: bool) -> str:
    if is_apart:
        return "each unit has registers and frames of its own"
    if node.function in recursive:
        return "all units go down together; each has its own registers, and all share the frame"
    return "all units run the function together"


class _Sources:
    """What the registers of a function are computed from."""

    def __init__(self, function: TreeFunction[Schedule]) -> None:
        self.values: dict[Reg, list[Expr]] = {}
        for schedule in leaves(function.body):
            for item in dict.fromkeys(item for unit in schedule.units for item in unit):
                if isinstance(item, Let):
                    self.values.setdefault(item.reg, []).append(item.value)

    def of(self, node: Node[Schedule], units: int, wait_seconds: float) -> tuple[str, str]:
        """Who decides a loop or a branch, and why."""
        if isinstance(node, For) and (trips := trip_count(node)) is not None:
            return "when it was compiled", f"it has {trips} trips"
        assert not isinstance(node, Leaf | Seq | Call)
        registers = {reg for expr in inputs(node) for reg in expr_regs(expr)}
        memory, read = self.reached(registers, [load for e in inputs(node) for load in _memory(e)])
        written = sorted(buffer.name for buffer in memory if _is_written(buffer))
        if written:
            names = ", ".join(written[:3]) + (", ..." if len(written) > 3 else "")
            why = f"it depends on {names}, which the program computes"
            if units > 1:
                wait = seconds_text(wait_seconds)
                why += (
                    f"; a unit waits {wait} for another, and the host would launch anew each time"
                )
            return UNITS, why
        if memory:
            names = ", ".join(sorted(buffer.name for buffer in memory)[:3])
            return UNITS, f"it depends on {names}, which is there before the run"
        if all(reg.name.startswith((SIZE, LIMIT)) for reg in read):
            return UNITS, "it depends on sizes of the call"
        return UNITS, "it depends on numbers in registers alone"

    def reached(self, registers: set[Reg], memory: list[Buffer]) -> tuple[set[Buffer], set[Reg]]:
        """The memory, and the registers that nothing assigns, which some registers depend on."""
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
