"""Sections of `Batched.explain()`: blocks that were batched, by depth, and those that were not,
with the reason. Also the times of `Batched.profile()`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from statistics import median
from time import perf_counter
from typing import Any

import torch

from stretto.batching.compiled import CompiledBatch, Times
from stretto.batching.instance_program import InstanceProgram, PassRemark, StaticBlock
from stretto.batching.levels.level_program import LevelProgram
from stretto.batching.levels.tables import BLOCK, END, ROWS
from stretto.batching.printer import function_name, print_program
from stretto.errors import SourceLocation
from stretto.ir.data import ReadOp
from stretto.ir.ops import TensorOp
from stretto.ops.properties import is_contraction
from stretto.text import TextSection, counted, listed, seconds_text, table

MOST_LINES = 4
MOST_ROWS = 12
MOST_BLOCKS = 6
"""Longer lists are cut off after this many entries."""


def batch_sections(compiled: CompiledBatch) -> Iterator[str | TextSection]:
    """Yield lines and sections about a compiled batch and its last call."""
    program = compiled.program
    reads = sum(isinstance(s, ReadOp) for s in program.walk())
    functions = counted(len(program.functions), "function")
    yield (
        f"an instance: {functions}, {counted(len(program.blocks), 'block')} of tensor operators, "
        f"{counted(reads, 'place')} where it waits for the value of a tensor"
    )
    if not reads:
        yield "no decision depends on a tensor: a batch is one launch"
    times = ", ".join(f"{name} {seconds_text(spent)}" for name, spent in compiled.seconds.items())
    yield f"compiled in: {times}"
    yield str(compiled.tuning).rstrip()
    yield _blocks(compiled)
    if compiled.levels is not None:
        yield _alone(compiled.levels, program)
    for title, is_done in (("what the passes did", True), ("left as it is", False)):
        yield _remarks(title, [r for r in program.notes if r.is_done is is_done])
    yield _steps(compiled)
    yield TextSection("the program of an instance", parts=[print_program(program).rstrip()])


def _blocks(compiled: CompiledBatch) -> TextSection:
    """List the static blocks, with the number of times the last call ran them."""
    times: Counter[int] = Counter()
    rows: Counter[int] = Counter()
    for row in chain.from_iterable(steps.tolist() for steps in compiled.steps):
        times[row[BLOCK]] += 1
        rows[row[BLOCK]] += row[ROWS]
    found = [
        (
            f"{number} {block.name}",
            len(block.steps),
            _operators(block),
            len(block.inputs),
            len(block.outputs),
            rows[number],
            times[number],
            f"{rows[number] / times[number]:.1f}" if times[number] else "-",
            _lines(block),
        )
        for number, block in enumerate(compiled.program.blocks)
    ]
    headers = (
        "block", "operators", "such as", "operands", "results", "instances", "steps",
        "instances per step", "lines",
    )  # fmt: skip
    joined = [] if compiled.levels is None else _joined(compiled.levels)
    return TextSection("blocks, and how often the last call ran them", found, headers, joined)


def _joined(levels: LevelProgram) -> list[str]:
    """Return a line about how many products those of the blocks have been joined into, if any."""
    before, after = (
        sum(isinstance(op, TensorOp) and is_contraction(op) for op in program.walk())
        for program in (levels.code.program, levels.stages.program)
    )
    text = (
        f"{before} products of tensors run as {after}: those of one operand are joined, and equal "
        "ones are computed once"
    )
    return [text] if after < before else []


def _alone(levels: LevelProgram, program: InstanceProgram) -> TextSection:
    """List the operators that run once per instance, and why."""
    found = [
        (f"{number} {block.name}", loop.target, loop.reason, _place(loop.location))
        for number, (block, loops) in enumerate(zip(program.blocks, levels.code.loops, strict=True))
        for loop in loops
    ]
    title = "not batched: these run once per instance"
    headers = ("block", "operator", "because", "line")
    return TextSection(title, found, headers, [] if found else ["none"])


def _operators(block: StaticBlock) -> str:
    names = ", ".join(function_name(step.operation.function) for step in block.steps)
    return listed(dict.fromkeys(names.split(", ")), 4)


def _lines(block: StaticBlock) -> str:
    places = [step.operation.location for step in block.steps]
    lines = sorted({place.line for place in places if place is not None})
    file = next((place.file.rsplit("/", 1)[-1] for place in places if place is not None), "")
    return f"{file}:{','.join(map(str, lines[:6]))}{',...' if len(lines) > 6 else ''}"


def _remarks(title: str, remarks: Sequence[PassRemark]) -> TextSection:
    """List remarks; those that differ only in their lines share a row."""
    lines: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for remark in remarks:
        lines[remark.what, remark.reason].append(_place(remark.location))
    rows = [
        (what, len(all_), reason, listed(filter(None, dict.fromkeys(all_)), MOST_LINES))
        for (what, reason), all_ in lines.items()
    ]
    return TextSection(title, rows, ("what", "times", "because", "lines"))


def _place(location: SourceLocation | None) -> str:
    return "" if location is None else location.short


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


def _steps(compiled: CompiledBatch) -> TextSection:
    """List what the last call ran at which depth, in order."""
    found = [item for n, steps in enumerate(compiled.steps, 1) for item in _depths(n, steps)]
    shown = "1 launch" if len(compiled.steps) == 1 else f"{len(compiled.steps)} launches"
    if compiled.times.launches > len(compiled.steps):
        shown = f"the first {len(compiled.steps)} of {compiled.times.launches} launches"
    return TextSection(
        f"what the last call ran at which depth, {shown}",
        [item.show(compiled.program) for item in found],
        ("launch", "depth", "blocks, and how many instances of each at each depth"),
    )


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
class BatchProfile:
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


def profile_of(
    compiled: CompiledBatch, columns: Sequence[Sequence[Any]], runs: int
) -> BatchProfile:
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
    return BatchProfile(
        len(columns[0]) if columns else 0,
        total * 1e3,
        {name: seconds[name] * 1e3 for name in ACTIVITIES},
        compiled.times.launches,
        sum(len(steps) for steps in tables),
        sum(int(steps[:, 1].sum()) for steps in tables),
    )
