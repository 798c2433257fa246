"""Analyses of control trees: leaf ends that units wait for, later accesses.

The end of a leaf counts as a step of every unit, but needs a release only if another unit waits for
it: in the same leaf, for a step after the last signal of the unit; or in a later leaf, for step 0,
before the unit publishes anything else. Anything a unit does in a leaf whose end is not awaited is
published with its next signal, since counters only grow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from stretto.device.boxes import Mask
from stretto.device.expr import Buffer
from stretto.device.flow import Backward
from stretto.device.operator import Stage
from stretto.device.program import DeviceProgram, Item, Schedule, Signal, Wait
from stretto.device.regions import statement_regions
from stretto.device.tree import Call, Node, Rotation, swaps

L = TypeVar("L")

Units = frozenset[int]


def has_end(schedule: Schedule) -> bool:
    """Return True if the end of a leaf counts as a step. In a leaf that only computes registers
    from registers nothing happens that another unit could wait for."""
    if not schedule.steps:
        return False
    statements = schedule.statements
    others = any(len(items) > len(statements) for items in schedule.units)
    return others or any(statement_regions(item) for item in statements)


def awaited_ends(program: DeviceProgram) -> Mapping[int, Units]:
    """Map each leaf's schedule, by identity, to the units whose end of that leaf another unit
    waits for.

    For the last leaf of `main` these are all units unless `ends_in_call`: the next run
    starts from the counters that they have published. In a program without waits no unit
    publishes anything, since not all units may run and other programs may run concurrently.
    """
    return _Ends(program).found if has_waits(program) else defaultdict(frozenset)


def has_waits(program: DeviceProgram) -> bool:
    """Return True if any unit waits for another one."""
    leaves = program.tree.leaves()
    return any(isinstance(item, Wait) for s in leaves for items in s.units for item in items)


def ends_in_call(program: DeviceProgram) -> bool:
    """Return True if on some path through `main` a call follows the last leaf that has an end.
    Units then publish after that leaf. False for a program without waits."""
    if not has_waits(program):
        return False
    last = _LastCall()
    last.visit(program.tree.main.body, True)
    return last.found


class _LastCall(Backward[Schedule, bool]):
    """State: True if the program may end before another leaf with an end runs."""

    def __init__(self) -> None:
        self.found = False

    def leaf(self, body: Schedule, after: bool) -> bool:
        return after and not has_end(body)

    def call(self, call: Call[Schedule], after: bool) -> bool:
        self.found |= after
        return False

    def merge(self, a: bool, b: bool) -> bool:
        return a or b


class _Ends(Backward[Schedule, Units]):
    """State: the units that are waited for before they publish anything else."""

    def __init__(self, program: DeviceProgram) -> None:
        self.found: dict[int, Units] = defaultdict(frozenset)
        self._begins: dict[str, Units] = defaultdict(frozenset)
        self._returns: dict[str, Units] = defaultdict(frozenset)
        everyone = frozenset(range(program.units))
        self._returns["main"] = frozenset() if ends_in_call(program) else everyone
        before = None
        while before != (self._begins, self._returns):
            before = dict(self._begins), dict(self._returns)
            for function in program.tree.functions:
                after = self._returns[function.name]
                self._begins[function.name] |= self.visit(function.body, after)

    def leaf(self, body: Schedule, after: Units) -> Units:
        asked = {
            (other, item.step)
            for unit, items in enumerate(body.units)
            for item in items
            if isinstance(item, Wait)
            for other in item.others(unit)
        }
        at_start = frozenset(unit for unit, step in asked if step == 0)
        if not has_end(body):
            return at_start | after
        published = [_last_signal(items) for items in body.units]
        at_end = frozenset(unit for unit, step in asked if step > published[unit])
        self.found[id(body)] |= after | at_end
        return at_start

    def call(self, call: Call[Schedule], after: Units) -> Units:
        self._returns[call.function] |= after
        return self._begins[call.function]

    def merge(self, a: Units, b: Units) -> Units:
        return a | b


def _last_signal(items: tuple[Item, ...]) -> int:
    return max((item.step for item in items if isinstance(item, Signal)), default=0)


# ---- Buffers that control nodes access, and those that a function may still access after each of
# its leaves; other buffers need not be tracked.


BufferNames = frozenset[str]


def later_names(
    body: Node[L], names: Callable[[L], Iterable[str]], *, returns: bool
) -> Callable[[L], BufferNames | None]:
    """Return a function from the body of a leaf to the names of the buffers accessed after it
    on any path; None: all.

    A call may access any buffer, and so may the caller if the function `returns`. Rotating
    buffers are accessed under each other's names.
    """
    later = _Later(names)
    later.visit(body, None if returns else frozenset())
    return lambda leaf: later.found[id(leaf)]


class _Later(Backward[L, BufferNames | None]):
    def __init__(self, names: Callable[[L], Iterable[str]]) -> None:
        self._names = names
        self.found: dict[int, BufferNames | None] = {}

    def leaf(self, body: L, after: BufferNames | None) -> BufferNames | None:
        self.found[id(body)] = self.merge(self.found.get(id(body), frozenset()), after)
        return self.merge(after, frozenset(self._names(body)))

    def call(self, call: Call[L], after: BufferNames | None) -> BufferNames | None:
        return None

    def merge(self, a: BufferNames | None, b: BufferNames | None) -> BufferNames | None:
        return None if a is None or b is None else a | b

    def rotate(self, state: BufferNames | None, pairs: Rotation) -> BufferNames | None:
        if state is None:
            return None
        return state | {other.name for name, other in swaps(pairs).items() if name in state}


# ---- Number of barriers among the threads of a unit within a task.
#
# Threads pass values through memory with a barrier in between. If a stage holds its results in the
# registers of the threads that continue with them (`Template.holds_rows`), pointwise stages over
# the same tile take them from there and need no barrier.


def meetings(stages: Sequence[Stage]) -> int:
    """Return the number of barriers between the stages of a task."""
    held: dict[Buffer, frozenset[int]] = {}
    written: set[Buffer] = set()
    count = 0
    for stage in stages:
        operator, tiled = stage.operator, _tiled(stage)
        taken = {load.access.buffer for load in operator.reads()} & written
        in_registers = not operator.combine and all(held.get(one) == tiled for one in taken)
        if taken and not in_registers:
            count += 1
            written.clear()
        written.add(operator.out.buffer)
        if stage.template.holds_rows or (taken and in_registers):
            held[operator.out.buffer] = tiled
    return count


def _tiled(stage: Stage) -> frozenset[int]:
    """Return the grid dims along which a stage has the tile of its task."""
    return frozenset(span.grid for span in stage.box if span.grid is not None)


# ---- Relations between units as boolean matrices.


FEW_ROWS = 64
"""Below this number of rows, composing all rows is faster than finding equal ones."""


def compose(a: Mask, b: Mask) -> Mask:
    """Return the composition of two relations: [i, k] is True if a[i, j] and b[j, k] for some
    j. Equal rows of `a` are computed once.

    It works on words of 64 columns: a matrix product would wake the threads of the BLAS
    library, which costs milliseconds while other threads use the cores.
    """
    if len(a) < FEW_ROWS:
        return _compose(a, b)
    kinds: dict[bytes, int] = {}
    kind_of = [kinds.setdefault(row.tobytes(), len(kinds)) for row in np.packbits(a, axis=1)]
    if len(kinds) == len(a):
        return _compose(a, b)
    _, first = np.unique(kind_of, return_index=True)
    return _compose(a[first], b)[kind_of]


def _compose(a: Mask, b: Mask) -> Mask:
    columns = b.shape[1]
    packed = np.zeros((len(b), -(-columns // 64) * 8), np.uint8)
    packed[:, : -(-columns // 8)] = np.packbits(b, axis=1)
    words = packed.view(np.uint64)
    met = np.where(a[:, :, None], words[None], np.uint64(0))
    joined = np.ascontiguousarray(np.bitwise_or.reduce(met, axis=1))
    return np.unpackbits(joined.view(np.uint8), axis=1, count=columns).astype(np.bool_)
