"""`Batched.explain()`: what was batched at which depth, what was not and why, as text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from stretto.batching.compiled import CompiledBatch
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
"""Of what is longer, the first ones are shown."""


def explain_batch(compiled: CompiledBatch) -> str:
    """A compiled batch and its last call."""
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
    """The static blocks, with how often the last call ran them."""
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
    """How many products those of the blocks have become."""
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
    """Operators that run once per instance, and why."""
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
    """What the passes did, and what they left as it is, each with the reason."""
    _grouped(out, "what the passes did", [r for r in compiled.program.remarks if r.is_done])
    _grouped(out, "left as it is", [r for r in compiled.program.remarks if not r.is_done])


def _grouped(out: Writer, title: str, remarks: Sequence[Remark]) -> None:
    """Remarks that differ in their lines alone are one row."""
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
    """Depths that follow each other and run the same blocks; rows: of each block at each depth."""

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
    """What the last call ran at which depth, in order."""
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
    """The depths of a launch."""
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
    """Block and number of rows of each step that is known of the last call."""
    for steps in compiled.steps:
        for row in steps.tolist():
            yield row[BLOCK], row[ROWS]
