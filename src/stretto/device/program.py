"""The DeviceProgram: the result of compilation that every machine runs.

It is a control tree whose leaves are *schedules*: a list of items for each unit. Synchronisation
uses one progress counter per unit, written by its owner only. Every unit has a register `base`; in
a leaf, `Signal(s)` publishes base + s, and `Wait(u, s)` lasts until unit u has published at least
base + s (a wait may cover several neighbouring units). At the end of the leaf every unit publishes
base + steps and adds `steps` to its base. Step 0 is everything before the leaf: the wait (u, 0) is
for all that unit u did earlier. All units take the same path through the tree, so their bases agree
without communication, and counters only grow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import overload

from stretto.device.expr import Buffer, Reg, input_symbols, known_size
from stretto.device.operator import Kernel
from stretto.device.tree import Check, Leaf, Let, Node, Tree, assigns, is_parallel, walk
from stretto.ir.sizes import Size, Symbol, ceil_div

FRAME_ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector."""


@dataclass(frozen=True, slots=True)
class Run:
    """Run tasks first, first + stride, ... of a kernel, at most `count` of them.

    `count` is None for a kernel with a dynamic grid: all tasks of that stride.
    """

    kernel: str
    first: int
    count: int | None = 1
    stride: int = 1


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until each of the `count` units from `unit` on has published base + step.

    The waiting unit may itself be in the range; it does not wait for itself.
    """

    unit: int
    step: int
    count: int = 1

    def others(self, own: int) -> tuple[int, ...]:
        """Return the units that unit `own` waits for."""
        return tuple(u for u in range(self.unit, self.unit + self.count) if u != own)


@dataclass(frozen=True, slots=True)
class Signal:
    """Publish base + step: everything that this unit did earlier is visible to units that wait for
    it."""

    step: int


Item = Run | Wait | Signal | Let | Check


@dataclass(frozen=True, slots=True)
class Schedule:
    """The items of a leaf: units[u] are those of unit u. All units have the same Lets and
    Checks in the same order.

    `steps` is at least 1, except in an empty leaf or in a parallel loop: there every unit
    has all items of its iterations and publishes nothing.
    """

    units: tuple[tuple[Item, ...], ...]
    steps: int

    @property
    def kernels(self) -> frozenset[str]:
        """Names of the kernels that any unit runs."""
        return frozenset(i.kernel for items in self.units for i in items if isinstance(i, Run))

    @property
    def statements(self) -> tuple[Let | Check, ...]:
        """The Lets and Checks, which every unit executes."""
        return tuple(item for item in self.units[0] if isinstance(item, Let | Check))


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of a local buffer in its function's frame, in bytes.

    copies: for a buffer that is private to the units of a parallel loop, one copy per unit,
    `stride` bytes apart.
    """

    offset: int
    nbytes: int
    copies: int = 1

    @property
    def stride(self) -> int:
        return aligned(self.nbytes)

    @property
    def end(self) -> int:
        """The offset at which the last copy ends."""
        return self.offset + (self.copies - 1) * self.stride + self.nbytes


@dataclass(frozen=True, slots=True)
class SizedPlacement:
    """The place of a local buffer whose size is known only at the call: bytes from the start of
    slot `slot`."""

    slot: int
    offset: int | Size
    nbytes: int | Size


def sized_bytes(buffer: Buffer) -> int | Size:
    return known_size(buffer.shape) * buffer.dtype.itemsize


@overload
def aligned(nbytes: int) -> int: ...
@overload
def aligned(nbytes: int | Size) -> int | Size: ...
def aligned(nbytes: int | Size) -> int | Size:
    """Round up to the next multiple of FRAME_ALIGNMENT, where the next buffer may begin."""
    if isinstance(nbytes, int):
        return -(-nbytes // FRAME_ALIGNMENT) * FRAME_ALIGNMENT
    return (ceil_div(nbytes, FRAME_ALIGNMENT) * FRAME_ALIGNMENT).dim


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """The memory of one activation of a function: placements by buffer name, bytes (aligned).

    `nbytes` is the size of the part with buffers of fixed size. It is followed by `slots`, whose
    sizes the call decides, with the `sized` buffers: a slot is as large as its largest buffer.

    copies: for a function that units call separately, from parallel loops, one frame per unit, one
    after the other. All functions that are called so have frames of one size; then the frames of a
    unit are separate from those of other units, whatever each of them calls.
    """

    nbytes: int
    placements: tuple[tuple[str, Placement], ...]
    slots: tuple[int | Size, ...] = ()
    sized: tuple[tuple[str, SizedPlacement], ...] = ()
    copies: int = 1

    @property
    def starts(self) -> tuple[int | Size, ...]:
        """The offset at which each slot begins."""
        return _starts(self.nbytes, self.slots)

    @property
    def end(self) -> int | Size:
        """The size in bytes of the whole frame, including the copies of all units."""
        return sum(map(Size.of, self.slots), start=Size.of(self.nbytes * self.copies)).dim

    def __getitem__(self, name: str) -> Placement:
        return dict(self.placements)[name]

    def stride(self, name: str) -> int:
        """Return the distance in bytes between two units' copies of a buffer; 0 if all units share
        it."""
        if self.copies > 1:
            return self.nbytes
        place = dict(self.placements).get(name)
        return 0 if place is None or place.copies == 1 else place.stride

    def offset(self, name: str) -> int | Size:
        """Return the offset at which a buffer begins."""
        fixed = dict(self.placements)
        if name in fixed:
            return fixed[name].offset
        place = dict(self.sized)[name]
        return self.starts[place.slot] + place.offset


@lru_cache(64)
def _starts(first: int, slots: tuple[int | Size, ...]) -> tuple[int | Size, ...]:
    """Compute the starts of slots. Cached, since every buffer of a frame needs these long sums."""
    return tuple(accumulate(slots[:-1], initial=first)) if slots else ()


@dataclass(frozen=True, slots=True)
class Small:
    """Calls whose `work` is below `limit` are too small for several units: a machine that wakes
    threads for its units runs all units on the caller's thread. Both are estimates in
    picoseconds."""

    work: Size
    limit: int


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """A program for `units` units that run `tree`; `kernels` by name; `frames` by function name."""

    units: int
    tree: Tree[Schedule]
    kernels: tuple[Kernel, ...]
    frames: tuple[tuple[str, FrameLayout], ...]
    lists: tuple[Buffer, ...] = ()
    small: Small | None = None

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """The symbols whose values a call passes, in that order."""
        return input_symbols(b for b in self.tree.externals if b.is_input)

    def kernel(self, name: str) -> Kernel:
        return next(kernel for kernel in self.kernels if kernel.name == name)

    def frame(self, function: str) -> FrameLayout:
        return dict(self.frames)[function]


def has_parallel(program: DeviceProgram) -> bool:
    """Return True if the program has several units and a parallel loop."""
    return program.units > 1 and any(map(is_parallel, program.tree.walk()))


def assigned_registers(node: Node[Schedule]) -> Iterator[Reg]:
    """Yield the registers that a node, or anything below it, assigns."""
    for inner in walk(node):
        yield from assigns(inner)
        if isinstance(inner, Leaf):
            yield from (item.reg for item in inner.body.statements if isinstance(item, Let))
