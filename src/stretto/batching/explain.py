"""The text of `Batched.explain()`: what was batched at which depth, what was not and why. Also the
times of `Batched.profile()`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from statistics import median
from time import perf_counter
from typing import Any

import torch

from stretto.batching.compiled import CompiledBatch, Times
from stretto.batching.levels.tables import BLOCK, END, ROWS
from stretto.batching.printer import function_name, print_program
from stretto.batching.program import Block, InstanceProgram, Read, Remark, walk
from stretto.errors import SourceLocation
from stretto.ir.ops import TensorOp
from stretto.ops.properties import is_contraction
from stretto.text import Writer, counted, table

MOST_STEPS = 40
MOST_LINES = 4
MOST_ROWS = 12
MOST_BLOCKS = 6
"""Longer lists are cut off after this many entries."""


def explain_batch(compiled: CompiledBatch) -> str:
    """Return the report of a compiled batch and its last call."""
    program = compiled.program
    reads = sum(isinstance(s, Read) for f in program.functions for s in walk(f.body))
    out = Writer()
    functions = counted(len(program.functions), "function")
    out.write(
        f"an instance: {functions}, {counted(len(program.blocks), 'block')} of tensor operators, "
        f"{counted(reads, 'place')} where it waits for the value of a tensor"
    )
    if not reads:
        out.write("no decision depends on a tensor: a batch is one launch")
    times = ", ".join(f"{name} {value:.2f} s" for name, value in compiled.seconds.items())
    out.write(f"compiled in: {times}")
    for line in str(compiled.tuning).splitlines():
        out.write(line)
    _blocks(out, compiled)
    _products(out, compiled)
    _rows_alone(out, compiled)
    _remarks(out, compiled)
    _steps(out, compiled)
    out.write()
    out.write("the program of an instance")
    with out.indent():
        for line in print_program(program).splitlines():
            out.write(line)
    return out.text()


def _blocks(out: Writer, compiled: CompiledBatch) -> None:
    """Write the static blocks, with the number of times the last call ran them."""
    steps: defaultdict[int, int] = defaultdict(int)
    rows: defaultdict[int, int] = defaultdict(int)
    for number, count in _all_steps(compiled):
        steps[number] += 1
        rows[number] += count
    found = [
        (
            f"{number} {block.name}",
            len(block.steps),
            _operators(block),
            len(block.inputs),
            len(block.outputs),
            rows[number],
            steps[number],
            f"{rows[number] / steps[number]:.1f}" if steps[number] else "-",
            _lines(block),
        )
        for number, block in enumerate(compiled.program.blocks)
    ]
    out.write()
    out.write("blocks, and how often the last call ran them")
    with out.indent():
        headers = (
            "block", "operators", "such as", "operands", "results", "instances", "steps",
            "instances per step", "lines",
        )  # fmt: skip
        for line in table(found, headers).splitlines():
            out.write(line)


def _products(out: Writer, compiled: CompiledBatch) -> None:
    """Write how many products those of the blocks have been joined into."""
    if compiled.levels is None:
        return
    before, after = (
        sum(isinstance(op, TensorOp) and is_contraction(op) for op in program.walk())
        for program in (compiled.levels.code.program, compiled.levels.stages.program)
    )
    if after < before:
        out.write()
        out.write(
            f"{before} products of tensors run as {after}: those of one operand are joined, and "
            "equal ones are computed once"
        )


def _operators(block: Block) -> str:
    functions = [step.operation.function for step in block.steps]
    names = ", ".join(function_name(function) for function in functions)
    unique = list(dict.fromkeys(names.split(", ")))
    return ", ".join(unique[:4]) + (", ..." if len(unique) > 4 else "")


def _lines(block: Block) -> str:
    places = [step.operation.location for step in block.steps]
    lines = sorted({place.line for place in places if place is not None})
    file = next((place.file.rsplit("/", 1)[-1] for place in places if place is not None), "")
    return f"{file}:{','.join(map(str, lines[:6]))}{',...' if len(lines) > 6 else ''}"


def _rows_alone(out: Writer, compiled: CompiledBatch) -> None:
    """Write the operators that run once per instance, and why."""
    if compiled.levels is None:
        return
    found = [
        (f"{number} {block.name}", loop.target, loop.reason, _place(loop.location))
        for number, (block, loops) in enumerate(
            zip(compiled.program.blocks, compiled.levels.code.loops, strict=True)
        )
        for loop in loops
    ]
    out.write()
    if not found:
        out.write("not batched: nothing")
        return
    out.write("not batched: these run once per instance")
    with out.indent():
        for line in table(found, ("block", "operator", "because", "line")).splitlines():
            out.write(line)


def _remarks(out: Writer, compiled: CompiledBatch) -> None:
    """Write what the passes did and what they left as it is, each with the reason."""
    _grouped(out, "what the passes did", [r for r in compiled.program.remarks if r.is_done])
    _grouped(out, "left as it is", [r for r in compiled.program.remarks if not r.is_done])


def _grouped(out: Writer, title: str, remarks: Sequence[Remark]) -> None:
    """Write a table of remarks; those that differ only in their lines share a row."""
    lines: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for remark in remarks:
        lines[remark.what, remark.reason].append(_place(remark.location))
    if not lines:
        return
    out.write()
    out.write(title)
    found = [(what, len(all_), reason, _listed(all_)) for (what, reason), all_ in lines.items()]
    with out.indent():
        for line in table(found, ("what", "times", "because", "lines")).splitlines():
            out.write(line)


def _listed(places: Sequence[str]) -> str:
    unique = [place for place in dict.fromkeys(places) if place]
    return ", ".join(unique[:MOST_LINES]) + (", ..." if len(unique) > MOST_LINES else "")


def _place(location: SourceLocation | None) -> str:
    return "" if location is None else f"{location.file.rsplit('/', 1)[-1]}:{location.line}"


@dataclass(slots=True)
class _Depths:
    """Consecutive depths that run the same blocks; rows: of each block at each depth."""

    launch: int
    first: int
    blocks: tuple[int, ...]
    rows: list[list[int]]

    def show(self, program: InstanceProgram) -> tuple[int, str, str]:
        last = self.first + len(self.rows[0]) - 1
        depths = str(self.first) if last == self.first else f"{self.first} to {last}"
        shown = [
            f"{program.blocks[number].name}: {_numbers(rows)}"
            for number, rows in zip(self.blocks, self.rows, strict=True)
        ]
        left = len(shown) - MOST_BLOCKS
        more = f"; and {counted(left, 'more block')}" if left > 0 else ""
        return self.launch, depths, "; ".join(shown[:MOST_BLOCKS]) + more


def _numbers(rows: Sequence[int]) -> str:
    shown = ", ".join(map(str, rows[:MOST_ROWS]))
    return shown if len(rows) <= MOST_ROWS else f"{shown}, ... {rows[-1]}"


def _steps(out: Writer, compiled: CompiledBatch) -> None:
    """Write what the last call ran at which depth, in order."""
    found = [item for n, steps in enumerate(compiled.steps, 1) for item in _depths(n, steps)]
    out.write()
    if compiled.times.launches > len(compiled.steps):
        shown = f"the first {len(compiled.steps)} of {compiled.times.launches} launches"
    else:
        shown = "1 launch" if compiled.times.launches == 1 else f"{len(compiled.steps)} launches"
    out.write(f"what the last call ran at which depth, {shown}")
    with out.indent():
        rows = [item.show(compiled.program) for item in found[:MOST_STEPS]]
        headers = ("launch", "depth", "blocks, and how many instances of each at each depth")
        for line in table(rows, headers).splitlines():
            out.write(line)
        if len(found) > MOST_STEPS:
            out.write(f"and {len(found) - MOST_STEPS} more")


def _depths(launch: int, steps: torch.Tensor) -> list[_Depths]:
    """Return the depths of a launch, joined where consecutive ones run the same blocks. steps: i64
    [S, width]."""
    levels: dict[int, list[tuple[int, int]]] = {}
    for row in steps.tolist():
        levels.setdefault(row[END], []).append((row[BLOCK], row[ROWS]))
    found: list[_Depths] = []
    for depth, level in enumerate(levels.values(), 1):
        blocks = tuple(block for block, _ in level)
        if not found or found[-1].blocks != blocks:
            found.append(_Depths(launch, depth, blocks, [[] for _ in blocks]))
        for rows, (_, count) in zip(found[-1].rows, level, strict=True):
            rows.append(count)
    return found


def _all_steps(compiled: CompiledBatch) -> Iterator[tuple[int, int]]:
    """Yield block number and number of rows of each step stored from the last call."""
    for steps in compiled.steps:
        for row in steps.tolist():
            yield row[BLOCK], row[ROWS]


# ---- `Batched.profile()`: the time of a batch by activity (ACRoBat, Table 5).


ACTIVITIES: dict[str, str] = {
    "flatten": "instances read from Python's objects",
    "copy": "their tensors copied to the pools",
    "record": "the program of each instance walked",
    "schedule": "what was recorded sorted into tables",
    "execute": "tensor operators run",
    "results": "Python's objects made",
    "other": "between these",
}


@dataclass(frozen=True, slots=True)
class Profile:
    """Medians over several runs of one batch, in milliseconds.

    milliseconds: by activity, as in `ACTIVITIES`. launches: number of launches of the level
    program. steps: number of steps it ran; rows: sum of their rows, i.e. of blocks run for
    single instances.
    """

    instances: int
    total_ms: float
    milliseconds: dict[str, float]
    launches: int
    steps: int
    rows: int

    @property
    def host_share(self) -> float:
        """The fraction of the time that is not spent in tensor operators."""
        return 1 - self.milliseconds["execute"] / self.total_ms if self.total_ms else 0.0

    def __str__(self) -> str:
        rows = [
            (name, f"{self.milliseconds[name]:.3f}", f"{self._share(name):.1f} %", what)
            for name, what in ACTIVITIES.items()
        ]
        rows.append(("all", f"{self.total_ms:.3f}", "100.0 %", ""))
        head = (
            f"{self.instances} instances: {self.rows} blocks in {self.steps} steps, "
            f"{self.launches} launches\n"
        )
        return head + table(rows, ("activity", "ms", "share", "what"))

    def _share(self, name: str) -> float:
        return 100 * self.milliseconds[name] / self.total_ms if self.total_ms else 0.0


def profile_of(compiled: CompiledBatch, columns: Sequence[Sequence[Any]], runs: int) -> Profile:
    """Run a batch `runs` times and return the medians. Raises ValueError if `runs` is below 1."""
    if runs < 1:
        raise ValueError(f"profile: runs must be at least 1, not {runs}")
    found: list[Times] = []
    totals: list[float] = []
    for _ in range(runs):
        begin = perf_counter()
        compiled.is_current()  # part of every call
        outcomes = compiled.run(columns)
        totals.append(perf_counter() - begin)
        found.append(compiled.times)
        del outcomes  # freeing results is not part of a call, since users keep them
    names = [item.name for item in fields(Times) if item.name != "launches"]
    seconds = {name: median(getattr(times, name) for times in found) for name in names}
    total = median(totals)
    seconds["other"] = max(0.0, total - sum(seconds.values()))
    tables = compiled.steps
    return Profile(
        len(columns[0]) if columns else 0,
        total * 1e3,
        {name: seconds[name] * 1e3 for name in ACTIVITIES},
        compiled.times.launches,
        sum(len(steps) for steps in tables),
        sum(int(steps[:, 1].sum()) for steps in tables),
    )
