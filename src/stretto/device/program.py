"""The DeviceProgram: what every front half produces and every machine runs.

A control tree whose leaves are *schedules*: for each unit a list of items. Synchronisation is one
progress counter per unit, written by its owner only. Every unit keeps a register `base`; in a
leaf, `Signal(s)` publishes base + s, `Wait(u, s)` lasts until unit u has published at least
base + s (a wait may be for several neighbouring units), and at the end of the leaf every unit
publishes base + steps and adds `steps` to its base. Step 0 is what lies before the leaf: the wait
(u, 0) is for all that unit u did before. All units go the same way through the tree, so their bases
agree without talking, and counters only grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from stretto.device.expr import Buffer, input_symbols, known_size
from stretto.device.operator import Kernel
from stretto.device.tree import Check, Let, Tree, is_parallel, walk
from stretto.ir.sizes import Size, Symbol, ceil_div

FRAME_ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector."""


@dataclass(frozen=True, slots=True)
class Run:
    """Runs tasks first, first + stride, ... below the kernel's number, at most `count` of them.

    `count` is None for a kernel with a dynamic grid: all tasks of that stride.
    """

    kernel: str
    first: int
    count: int | None = 1
    stride: int = 1


@dataclass(frozen=True, slots=True)
class Wait:
    """Until each of the `count` units from `unit` on has published base + step.

    A unit that waits for a range of units may be in that range; it does not wait for itself.
    """

    unit: int
    step: int
    count: int = 1

    def others(self, own: int) -> tuple[int, ...]:
        """The units that unit `own` waits for."""
        return tuple(u for u in range(self.unit, self.unit + self.count) if u != own)


@dataclass(frozen=True, slots=True)
class Signal:
    """Publishes base + step: all that this unit did before is visible to units that wait for it."""

    step: int


Item = Run | Wait | Signal | Let | Check


@dataclass(frozen=True, slots=True)
class Schedule:
    """units[u]: the items of unit u. Every unit has the same Lets and Checks in the same order.

    `steps` is at least 1 unless the leaf is empty, or in a parallel loop: there every unit has all
    items of its iterations, and publishes nothing.
    """

    units: tuple[tuple[Item, ...], ...]
    steps: int

    @property
    def kernels(self) -> frozenset[str]:
        """Names of the kernels that any unit runs."""
        return frozenset(i.kernel for items in self.units for i in items if isinstance(i, Run))

    @property
    def statements(self) -> tuple[Let | Check, ...]:
        """What every unit executes."""
        return tuple(item for item in self.units[0] if isinstance(item, Let | Check))


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a local buffer lies in its function's frame, in bytes.

    copies: of a buffer that is private to the units of a parallel loop, one for each unit; they lie
    `stride` bytes apart.
    """

    offset: int
    nbytes: int
    copies: int = 1

    @property
    def stride(self) -> int:
        return -(-self.nbytes // FRAME_ALIGNMENT) * FRAME_ALIGNMENT

    @property
    def end(self) -> int:
        """Where the last copy ends."""
        return self.offset + (self.copies - 1) * self.stride + self.nbytes


@dataclass(frozen=True, slots=True)
class SizedPlacement:
    """Where a local buffer lies whose size is known at the call, in bytes from the beginning of
    slot number `slot`."""

    slot: int
    offset: int | Size
    nbytes: int | Size


def sized_bytes(buffer: Buffer) -> int | Size:
    return known_size(buffer.shape) * buffer.dtype.itemsize


def aligned(nbytes: int | Size) -> int | Size:
    """Rounded up to where the next buffer may begin."""
    return (ceil_div(nbytes, FRAME_ALIGNMENT) * FRAME_ALIGNMENT).dim


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """The memory of one activation of a function: placements by buffer name, bytes (aligned).

    `nbytes` is what the buffers of fixed size take. Behind them lie `slots`, one after the other,
    of as many bytes as the call decides, with the buffers that are `sized`: a slot is as large as
    the largest of its buffers.

    copies: of a function that units call each for itself, from parallel loops, a frame for each
    unit, one behind the other. All functions that are called so have frames of one size: then
    those of a unit lie apart from those of others, whatever each of them calls.
    """

    nbytes: int
    placements: tuple[tuple[str, Placement], ...]
    slots: tuple[int | Size, ...] = ()
    sized: tuple[tuple[str, SizedPlacement], ...] = ()
    copies: int = 1

    @property
    def starts(self) -> tuple[int | Size, ...]:
        """Where each slot begins."""
        return _starts(self.nbytes, self.slots)

    @property
    def end(self) -> int | Size:
        """The bytes of the whole frame, of all units."""
        return sum(map(Size.of, self.slots), start=Size.of(self.nbytes * self.copies)).dim

    def __getitem__(self, name: str) -> Placement:
        return dict(self.placements)[name]

    def stride(self, name: str) -> int:
        """The bytes from one unit's copy of a buffer to the next one's; 0 where all share it."""
        if self.copies > 1:
            return self.nbytes
        place = dict(self.placements).get(name)
        return 0 if place is None or place.copies == 1 else place.stride

    def offset(self, name: str) -> int | Size:
        """Where a buffer begins."""
        fixed = dict(self.placements)
        if name in fixed:
            return fixed[name].offset
        place = dict(self.sized)[name]
        return self.starts[place.slot] + place.offset


@lru_cache(64)
def _starts(first: int, slots: tuple[int | Size, ...]) -> tuple[int | Size, ...]:
    """Sums of long formulas, which each buffer of a frame asks for."""
    return tuple(accumulate(slots[:-1], initial=first)) if slots else ()


@dataclass(frozen=True, slots=True)
class Small:
    """Calls of less `work` than `limit` are too small for several units: a machine that wakes
    threads for its units runs all of them on the caller's thread. An estimate, in picoseconds."""

    work: Size
    limit: int


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """`units` units run `tree`; `kernels` by name; `frames` by function name."""

    units: int
    tree: Tree[Schedule]
    kernels: tuple[Kernel, ...]
    frames: tuple[tuple[str, FrameLayout], ...]
    lists: tuple[Buffer, ...] = ()
    small: Small | None = None

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """The sizes that a call gives, in the order in which it gives them."""
        return input_symbols(b for b in self.tree.externals if b.is_input)

    def kernel(self, name: str) -> Kernel:
        return next(kernel for kernel in self.kernels if kernel.name == name)

    def frame(self, function: str) -> FrameLayout:
        return dict(self.frames)[function]


def has_parallel(program: DeviceProgram) -> bool:
    """Whether units run iterations of their own somewhere in the program."""
    nodes = (node for function in program.tree.functions for node in walk(function.body))
    return program.units > 1 and any(map(is_parallel, nodes))
