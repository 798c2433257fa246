"""Races inside a unit: two threads of one block access the same memory with no barrier in between.

Triton chooses separately for each statement which thread of a block executes which lane. So a lane
that reads what another statement has written is usually executed by another thread, even if both
lanes have the same number, and a barrier of the block (`tl.debug_barrier`) is needed in between.
Barriers that Triton inserts into reductions and conversions of layouts do not count, since they
depend on layouts. The following are not races:

- two reads; two atomics (volatile loads count as atomics);
- one statement that stores twice from the same lane, in two iterations of a loop: it is one
  instruction with one layout, and among threads that hold copies of a lane the same one always
  stores;
- an update in place: a lane stores a value that depends on what the same lane of an equally large
  block has read there. The read has to come first, in whichever thread. This holds for blocks with
  at least one lane per thread. Lanes of smaller blocks, and scalars, are read by several threads
  each: one of them stores, while another may not have read yet. So there the load has to be part of
  the storing statement, where the others do not use what they read.

A unit publishes with one thread for all, so a barrier is needed between the accesses of the other
threads and the publication; and another one after a wait, in which each thread separately sees what
some other units have published.

The accesses of an epoch (the time between two barriers) are marked in an array per memory, which
holds for each element the last epoch in which it was accessed. Accesses are compared one by one
only if a mark says that an element was accessed twice in an epoch.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Iterator
from dataclasses import dataclass, field
from textwrap import dedent
from types import CodeType, FrameType

import numpy as np

from stretto.machines.cuda.interpreter.memory import Array, InterpretedBuffer, Kind

# ---- Lines of a printed program on which the value stored by a line depends.


Lines = tuple[tuple[CodeType, int], ...]
"""The lines of a text that led to an access: the innermost function first, the kernel last."""


class Dependences:
    """Dependences in the functions of a text, computed on demand.

    The dependences of a variable are those of all its assignments, in any order.
    """

    def __init__(self, text: str) -> None:
        self._text = text.splitlines()
        self._functions: dict[int, _AssignmentLines] = {}

    def reach(self, source: Lines, target: Lines) -> bool:
        """Return True if the value computed at `source` may be part of the value stored at
        `target`; both are lines of functions that call each other, the innermost first."""
        for (code, line), (other, last) in zip(reversed(source), reversed(target), strict=False):
            if code is not other:
                return False
            if line != last:
                first = code.co_firstlineno
                if first not in self._functions:
                    self._functions[first] = _AssignmentLines(self._text, first)
                return line in self._functions[first].sources(last)
        return True


class _AssignmentLines:
    """The lines of each variable's assignments, and of the assignments of the variables in them."""

    def __init__(self, text: list[str], first: int) -> None:
        last = first
        while last < len(text) and (not text[last] or text[last][0] in " )#"):
            last += 1
        tree = ast.parse(dedent("\n".join(text[first - 1 : last])))
        ast.increment_lineno(tree, first - 1)
        self._assigned: dict[str, set[str | int]] = {}
        self._statements: dict[int, set[str | int]] = {}
        for statement in ast.walk(tree):
            if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr):
                self._add(statement)

    def _add(self, statement: ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr) -> None:
        lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
        names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
        used = {*lines, *(node.id for node in names if isinstance(node.ctx, ast.Load))}
        for node in names:
            if isinstance(node.ctx, ast.Store):
                self._assigned.setdefault(node.id, set()).update(used)
        for line in lines:
            self._statements.setdefault(line, set()).update(used)

    def sources(self, line: int) -> set[str | int]:
        """Return the names and lines on which the statement in `line` depends."""
        found: set[str | int] = set()
        waiting = [*self._statements.get(line, ())]
        while waiting:
            item = waiting.pop()
            if item not in found:
                found.add(item)
                waiting += self._assigned.get(item, ()) if isinstance(item, str) else ()
        return found


_AGAINST: dict[Kind, tuple[Kind, ...]] = {
    "read": ("written", "changed atomically"),
    "written": ("written", "read", "changed atomically"),
    "changed atomically": ("written", "read"),
}


class Race(Exception):
    """An access to memory that another thread of the same unit has accessed since its last
    barrier."""


@dataclass(slots=True)
class ExecutedAccess:
    """One execution of a load, a store or an atomic.

    words: the words of `width` bytes, counted from the start of the memory; lanes: the numbers of
    the lanes that they belong to, None if all in order; shape: that of the whole block.
    """

    kind: Kind
    words: Array
    width: int
    lanes: Array | None
    shape: tuple[int, ...]
    lines: Lines

    @property
    def numbers(self) -> Array:
        return np.arange(self.words.size) if self.lanes is None else self.lanes

    def bytes(self) -> Array:
        """Return the offsets of all bytes, those of a word side by side."""
        return (self.words.reshape(-1, 1) * self.width + np.arange(self.width)).reshape(-1)


@dataclass(slots=True)
class EpochAccesses:
    """Accesses of one unit to one memory in an epoch.

    is_busy: True if there are any. marks: by kind and width, the last epoch in which each word was
    accessed. marked: the number of accesses of each kind that `marks` includes.
    """

    size: int
    is_busy: bool = False
    accesses: dict[Kind, list[ExecutedAccess]] = field(
        default_factory=lambda: {kind: [] for kind in _AGAINST}
    )
    marked: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(_AGAINST, 0))
    marks: dict[tuple[Kind, int], Array] = field(default_factory=dict[tuple[Kind, int], Array])

    def clear(self) -> None:
        self.is_busy = False
        for kind, accesses in self.accesses.items():
            accesses.clear()
            self.marked[kind] = 0

    def touched(self, kind: Kind, words: Array, width: int, epoch: int) -> bool:
        """Return True if accesses of this kind have touched any of the words in this epoch."""
        accesses, marked = self.accesses[kind], self.marked[kind]
        for access in accesses[marked:]:
            key = kind, access.width
            if key not in self.marks:
                self.marks[key] = np.zeros(-(-self.size // access.width), np.int32)
            self.marks[key][access.words] = epoch
        self.marked[kind] = len(accesses)
        for (marks_kind, marks_width), marks in self.marks.items():
            if marks_kind == kind:
                places = _in_words(words, width, marks_width)
                if (marks[places] == epoch).any():
                    return True
        return False


def _in_words(words: Array, width: int, other: int) -> Array:
    """Return the words of `other` bytes that contain, or are part of, words of `width` bytes."""
    if width == other:
        return words
    if width < other:
        return words // (other // width)
    parts = width // other
    return words[..., None] * parts + np.arange(parts)


class UnitAccesses:
    """The accesses of one unit since its last barrier.

    threads: of the unit. file: the name of the text in tracebacks.
    """

    def __init__(self, file: str, threads: int, dependences: Dependences) -> None:
        self.file = file
        self.threads = threads
        self.dependences = dependences
        self.epoch = 1
        self.regions: dict[int, EpochAccesses] = {}  # by address
        self.busy: list[EpochAccesses] = []
        self.acquired = False  # and no barrier since

    def publish(self) -> None:
        for kind in ("written", "read"):
            for accesses in (region.accesses[kind] for region in self.busy):
                if accesses:
                    raise Race(
                        f"the unit publishes its progress, with no barrier of the block since "
                        f"memory was {kind}, maybe by another thread, {self._named(accesses[-1])}"
                    )

    def acquire(self) -> None:
        self.acquired = True

    def barrier(self) -> None:
        self.epoch += 1
        self.acquired = False
        for region in self.busy:
            region.clear()
        self.busy.clear()

    def access(
        self,
        kind: Kind,
        words: Array,
        width: int,
        buffer: InterpretedBuffer,
        lanes: Array | None,
        shape: tuple[int, ...],
    ) -> None:
        """Check and record an access. words: of `buffer`, in the order of `lanes`. Raises Race."""
        if self.acquired and kind != "changed atomically":
            raise Race(
                f"{buffer.name} is {kind} after a wait, with no barrier of the block in between, "
                f"maybe by a thread that has not seen what other units published"
            )
        start, size = buffer.memory
        region = self.regions.get(start)
        if region is None:
            region = self.regions[start] = EpochAccesses(size)
        if buffer.address != start:
            words = words + (buffer.address - start) // width
        access = ExecutedAccess(kind, words, width, lanes, shape, self._lines())
        if not region.is_busy:
            region.is_busy = True
            self.busy.append(region)
        else:
            for other in _AGAINST[kind]:
                others = region.accesses[other]
                if others and region.touched(other, words, width, self.epoch):
                    self._compare(access, others, buffer)
        region.accesses[kind].append(access)

    def _lines(self) -> Lines:
        found: list[tuple[CodeType, int]] = []
        frame: FrameType | None = inspect.currentframe()
        while frame is not None:
            code = frame.f_code
            if code.co_filename == self.file:
                found.append((code, frame.f_lineno))
            frame = frame.f_back
        return tuple(found)

    # ---- comparison of single accesses -------------------------------------------------------
    def _compare(
        self, access: ExecutedAccess, others: list[ExecutedAccess], buffer: InterpretedBuffer
    ) -> None:
        for other in others:
            for place in self._races(access, other):
                at = place - (buffer.address - buffer.memory[0])
                raise Race(
                    f"byte {at} of {buffer.name} is {access.kind} here, and was {other.kind} by "
                    f"the same unit with no barrier of the block in between, maybe by another "
                    f"thread, {self._named(other)}"
                )

    def _named(self, access: ExecutedAccess) -> str:
        """Return e.g. `at line 7 in k_sum: tl.store(...)`."""
        if not access.lines:
            return "outside of the text"
        code, line = access.lines[0]
        text = linecache.getline(self.file, line).strip()
        return f"at line {line} in {code.co_name}: {text}"

    def _races(self, access: ExecutedAccess, before: ExecutedAccess) -> Iterator[int]:
        """Yield the first byte at which the two accesses race, if any."""
        mine, theirs = access.bytes(), before.bytes()
        order = np.argsort(theirs, kind="stable")
        sorted_ = theirs[order]
        first = np.searchsorted(sorted_, mine, "left")
        last = np.searchsorted(sorted_, mine, "right")
        if self._same_layout(access, before):
            # No race if a single earlier lane accessed the byte and has the same number.
            lanes = np.repeat(access.numbers, access.width)
            its = np.repeat(before.numbers, before.width)[order]
            same = (last - first == 1) & (its[np.minimum(first, len(its) - 1)] == lanes)
            bad = (last > first) & ~same
        else:
            bad = last > first
        yield from mine[bad][:1].tolist()

    def _same_layout(self, access: ExecutedAccess, before: ExecutedAccess) -> bool:
        """Return True if equal lanes are executed by one thread, or are ordered as if they were."""
        if access.shape != before.shape or access.width != before.width:
            return False
        if access.kind == before.kind == "written":
            return access.lines == before.lines
        if (before.kind, access.kind) != ("read", "written"):
            return False
        if access.lines == before.lines:
            return True
        lanes = int(np.prod(access.shape))
        return lanes >= self.threads and self.dependences.reach(before.lines, access.lines)
