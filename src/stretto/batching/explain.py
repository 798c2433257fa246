"""`Batched.explain()`: what was batched at which depth, what was not and why, as text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from stretto.batching.compiled import CompiledBatch
from stretto.batching.levels.tables import BLOCK, ROWS
from stretto.batching.printer import function_name, print_program
from stretto.batching.program import Block, Read, walk
from stretto.errors import SourceLocation
from stretto.text import Writer, counted, table

MOST_STEPS = 40
"""Of a longer list of steps, the first ones are shown."""


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


def _operators(block: Block) -> str:
    names = [function_name(step.operation.function) for step in block.steps]
    unique = list(dict.fromkeys(names))
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
    """What the passes left as it is, and why."""
    found = [
        (remark.what, remark.reason, _place(remark.location))
        for remark in dict.fromkeys(compiled.program.remarks)
    ]
    if not found:
        return
    out.write()
    out.write("left as it is")
    with out.indent():
        for line in table(found, ("what", "because", "line")).splitlines():
            out.write(line)


def _place(location: SourceLocation | None) -> str:
    return "" if location is None else f"{location.file.rsplit('/', 1)[-1]}:{location.line}"


def _steps(out: Writer, compiled: CompiledBatch) -> None:
    """The steps of the last call, in order."""
    found: list[Sequence[object]] = []
    number = 0
    for launch, steps in enumerate(compiled.steps, 1):
        for row in steps.tolist():
            number += 1
            block = compiled.program.blocks[row[BLOCK]]
            found.append((launch, number, f"{row[BLOCK]} {block.name}", row[ROWS]))
    out.write()
    if compiled.times.launches > len(compiled.steps):
        shown = f"the first {len(compiled.steps)} of {compiled.times.launches} launches"
    else:
        shown = counted(compiled.times.launches, "launch")
    out.write(f"steps of the last call, {shown}")
    with out.indent():
        headers = ("launch", "step", "block", "instances")
        for line in table(found[:MOST_STEPS], headers).splitlines():
            out.write(line)
        if len(found) > MOST_STEPS:
            out.write(f"and {len(found) - MOST_STEPS} more")


def _all_steps(compiled: CompiledBatch) -> Iterator[tuple[int, int]]:
    """Block and number of rows of each step that is known of the last call."""
    for steps in compiled.steps:
        for row in steps.tolist():
            yield row[BLOCK], row[ROWS]
