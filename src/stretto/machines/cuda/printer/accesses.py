"""The parts of buffers that the statements of a program access.

For a kernel it matters where its text has barriers: accesses before the first one may conflict with
what the unit did earlier, accesses after the last one with what follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from stretto.device.expr import Buffer
from stretto.device.operator import Combine, Kernel
from stretto.machines import statements as code
from stretto.machines.cuda.printer.extents import (
    Box,
    Shape,
    access_box,
    covers,
    may_meet,
    stage_ranges,
)
from stretto.machines.cuda.printer.kernel import TritonKernel
from stretto.machines.cuda.printer.registers import Registers
from stretto.machines.cuda.printer.scalar import BARRIER


@dataclass(frozen=True, slots=True)
class Access:
    """A load or a store. buffer: None is the stack of a recursive program. box: the accessed part
    of the buffer, seen with dims `shape`; None is the whole buffer."""

    buffer: Buffer | None
    writes: bool
    shape: Shape = ()
    box: Box | None = None

    def covers(self, other: Access) -> bool:
        """Return True if this access surely contains `other`."""
        if (self.buffer, self.writes) != (other.buffer, other.writes):
            return False
        if self.box is None or other.box is None:
            return self.box is None
        return self.shape == other.shape and covers(self.box, other.box)

    def may_meet(self, other: Access, registers: Registers) -> bool:
        """Return True if both may touch the same element, provided the buffers are the same."""
        if self.box is None or other.box is None:
            return True
        return may_meet(self.box, self.shape, other.box, other.shape, registers)


Accesses = frozenset[Access]


@dataclass(frozen=True, slots=True)
class KernelAccesses:
    """Accesses of a kernel's tasks around the barriers in its text.

    before: what a task may touch before its first barrier; behind: what it may touch after its last
    one. passes: True if every path through its text has a barrier.
    """

    before: Accesses
    behind: Accesses
    passes: bool


def kernel_accesses(kernel: Kernel, text: TritonKernel) -> KernelAccesses:
    """Return the accesses of all tasks of a kernel together. Without knowledge of the text (a
    user's kernel, or a statement with unknown effects) every access counts as both before and
    after the barriers."""
    everything = frozenset(_stage_accesses(kernel))
    if any(stage.operator.combine is Combine.KERNEL for stage in kernel.stages):
        return KernelAccesses(everything, everything, passes=False)  # the user's text is not known
    way = _Way()
    is_open, behind = way.through(text.function.body, True, frozenset())

    def those(found: set[Place] | frozenset[Place]) -> Accesses:
        return frozenset(one for one in everything if (one.buffer, one.writes) in found)

    if UNKNOWN in way.before | behind:
        return KernelAccesses(everything, everything, passes=not is_open)
    return KernelAccesses(those(way.before), those(behind), passes=not is_open)


def _stage_accesses(kernel: Kernel) -> Iterator[Access]:
    for stage in kernel.stages:
        operator, ranges = stage.operator, stage_ranges(stage, kernel)
        for load in operator.reads():
            yield _access(
                load.access.buffer, False, load.access.shape, access_box(load.access, ranges)
            )
        out = operator.out
        box = access_box(out, ranges)
        yield _access(out.buffer, True, out.shape, box)
        if operator.accumulate:
            yield _access(out.buffer, False, out.shape, box)


def _access(buffer: Buffer, writes: bool, shape: Shape, box: Box) -> Access:
    return Access(buffer, writes, shape, box)


Place = tuple[Buffer | None, bool]
"""A buffer, and True if it is written."""
UNKNOWN: Place = (None, True)
"""Marks a statement in the text of a kernel whose accesses are not known."""


@dataclass(slots=True)
class _Way:
    """A walk over all paths through the text of a task. before: what some path touches before any
    barrier."""

    before: set[Place] = field(default_factory=set[Place])

    def through(
        self, block: code.Block, is_open: bool, since: frozenset[Place]
    ) -> tuple[bool, frozenset[Place]]:
        """Walk over a block. is_open: True if some path reaches it without a barrier; since: what
        has been touched since the last barrier. Returns both for the end of the block."""
        for statement in block:
            if statement == BARRIER:
                is_open, since = False, frozenset()
                continue
            found = frozenset(_places(statement))
            since |= found
            if is_open:
                self.before |= found
            match statement:
                case code.If(_, then, orelse):
                    ways = [self.through(arm, is_open, since) for arm in (then, orelse)]
                    is_open = any(way[0] for way in ways)
                    since = ways[0][1] | ways[1][1]
                case code.For(body=body) | code.Loop(body=body):
                    assert not (isinstance(statement, code.Loop) and statement.head)
                    since |= self.through(body, is_open, since)[1]
                    since |= self.through(body, is_open, since)[1]  # the next iteration
                case code.Section(body):
                    is_open, since = self.through(body, is_open, since)
                case _:
                    pass
        return is_open, since


def _places(statement: code.Statement) -> Iterator[Place]:
    """Yield what a statement itself touches, without the statements nested in it."""
    yield from ((buffer, False) for buffer in code.reads(statement))
    match statement:
        case code.Store(Buffer() as buffer):
            yield buffer, True
        case code.Store() | code.Do() | code.Raw() | code.Call() | code.Run():
            yield UNKNOWN
        case _:
            pass
