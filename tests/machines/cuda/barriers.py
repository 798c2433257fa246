"""Barriers of the block in printed programs: where they are, and programs without one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from stretto.errors import RunError
from stretto.machines.cuda.printer.source import TritonSource
from stretto.machines.cuda.printer.triton_module import library_text

BARRIER = "tl.debug_barrier()"


def barriers(source: TritonSource) -> list[int]:
    """The lines of the program's own barriers, those of its kernels among them, counted from 0."""
    head, _, own = source.text.partition(library_text())
    first = source.text.count("\n") - own.count("\n")
    assert head
    lines = own.split("\n")
    return [first + place for place, line in enumerate(lines) if line.strip() == BARRIER]


def without(source: TritonSource, line: int, instead: str = "pass") -> TritonSource:
    """The program without the barrier in a line."""
    lines = source.text.split("\n")
    assert BARRIER in lines[line]
    lines[line] = lines[line].replace(BARRIER, instead)
    return replace(source, text="\n".join(lines))


@dataclass(frozen=True, slots=True)
class Removed:
    """What becomes of a program without one barrier. error: that of the run, if there was one.

    is_reached: whether the run comes to the barrier. place: the function, and the lines behind it.
    """

    line: int
    place: str
    error: str
    is_reached: bool

    @property
    def is_noticed(self) -> bool:
        return "no barrier of the block" in self.error


def removals(
    sources: Sequence[TritonSource], run: Callable[[tuple[TritonSource, ...]], object]
) -> Iterator[Removed]:
    """Each barrier is removed, one at a time."""
    for number, source in enumerate(sources):

        def error(mutant: TritonSource, number: int = number) -> str:
            try:
                run((*sources[:number], mutant, *sources[number + 1 :]))
            except RunError as failed:
                return str(failed)
            return ""

        for line in barriers(source):
            found = error(without(source, line))
            reached = bool(found or error(without(source, line, "raise AssertionError")))
            yield Removed(line, _place(source, line), found, reached)


def _place(source: TritonSource, line: int) -> str:
    lines = source.text.split("\n")
    function = next(found for found in reversed(lines[:line]) if found.startswith("def "))
    behind = [found.strip() for found in lines[line + 1 : line + 4]]
    return f"{function.split('(')[0]}: {'; '.join(behind)}"
