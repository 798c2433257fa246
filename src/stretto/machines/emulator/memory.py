"""Memory of an emulated run: external buffers and the arena, with checks for races."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stretto.device.evaluate import Registers, resolve
from stretto.device.expr import Buffer, is_known
from stretto.device.program import DeviceProgram
from stretto.device.verifier.races import written_externals
from stretto.errors import RunError

# ---- Detection of data races, from the units and times of the last accesses to each piece.
#
# Every unit has a vector clock. A unit that publishes a step stores its clock with it; a unit that
# waits for a step joins the clock of the *first* publication that satisfies the wait, which is all
# the wait guarantees. Two accesses are ordered if the later unit's clock includes the earlier
# access (as in FastTrack).


Clock = NDArray[np.int32]
Places = NDArray[np.int64]


class RaceError(RunError):
    """Two units access the same memory, one of them writes, and no wait orders the accesses."""


class UninitialisedRead(RunError):
    """A task reads memory that nothing has written. `buffer`: the name by which it reads it."""

    buffer = ""


@dataclass(slots=True)
class Clocks:
    """Vector clocks of the units, and the steps that each has published."""

    units: int
    known: list[Clock] = field(init=False)
    published: list[list[int]] = field(init=False)
    snapshots: list[list[Clock]] = field(init=False)

    def __post_init__(self) -> None:
        start = np.zeros(self.units, np.int32)
        self.known = [start + (np.arange(self.units) == u) for u in range(self.units)]
        self.known = [clock.astype(np.int32) for clock in self.known]
        self.published = [[0] for _ in range(self.units)]
        self.snapshots = [[start] for _ in range(self.units)]

    def publish(self, unit: int, value: int) -> None:
        """Publish a step of a unit, with a copy of its clock."""
        self.published[unit].append(value)
        self.snapshots[unit].append(self.known[unit].copy())
        self.known[unit][unit] += 1

    def has_published(self, unit: int, value: int) -> bool:
        """True if the unit has published this step or a later one."""
        return self.published[unit][-1] >= value

    def join(self, unit: int, other: int, value: int) -> None:
        """Record that `unit` has waited until `other` published `value`."""
        first = bisect_left(self.published[other], value)
        np.maximum(self.known[unit], self.snapshots[other][first], out=self.known[unit])


class Shadow:
    """The last accesses to each of `pieces` pieces of one memory; `grow` adds pieces.

    Events are numbers that the caller chooses. `written`: all of the memory is initialised.
    """

    def __init__(self, name: str, clocks: Clocks, pieces: int, written: bool) -> None:
        self.name = name
        self._clocks = clocks
        self._initialised = written
        self._writer = np.full(pieces, -1, np.int32)
        self._written_at = np.zeros(pieces, np.int32)
        self._write_event = np.zeros(pieces, np.int32)
        self._read_at = np.zeros((clocks.units, pieces), np.int32)
        self._read_event = np.zeros((clocks.units, pieces), np.int32)

    def grow(self, pieces: int) -> None:
        """Extend the shadow to this number of pieces."""
        more = pieces - len(self._writer)
        if more > 0:
            self._writer = np.pad(self._writer, (0, more), constant_values=-1)
            self._written_at = np.pad(self._written_at, (0, more))
            self._write_event = np.pad(self._write_event, (0, more))
            self._read_at = np.pad(self._read_at, ((0, 0), (0, more)))
            self._read_event = np.pad(self._read_event, ((0, 0), (0, more)))

    def read(self, unit: int, places: Places, event: int) -> tuple[int, int] | None:
        """Record a read. Return (place, event) of a write that is not ordered before it, else
        None."""
        writers = self._writer[places]
        if not self._initialised and bool((writers < 0).any()):
            place = int(places[writers < 0][0])
            raise UninitialisedRead(f"{self.name} is read at {place} before it is written")
        self._read_at[unit, places] = self._clocks.known[unit][unit]
        self._read_event[unit, places] = event
        return self._unordered_write(unit, places, writers)

    def write(self, unit: int, places: Places, event: int) -> tuple[int, int] | None:
        """Record a write. Return (place, event) of an access that is not ordered before it, else
        None."""
        found = self._unordered_write(unit, places, self._writer[places])
        if found is None:
            found = self._unordered_read(unit, places)
        self._writer[places] = unit
        self._written_at[places] = self._clocks.known[unit][unit]
        self._write_event[places] = event
        return found

    def _unordered_write(
        self, unit: int, places: Places, writers: NDArray[np.int32]
    ) -> tuple[int, int] | None:
        known = self._clocks.known[unit]
        wrong = (writers >= 0) & (writers != unit) & (self._written_at[places] > known[writers])
        if not wrong.any():
            return None
        place = int(places[wrong][0])
        return place, int(self._write_event[place])

    def _unordered_read(self, unit: int, places: Places) -> tuple[int, int] | None:
        wrong = self._read_at[:, places] > self._clocks.known[unit][:, None]
        wrong[unit] = False
        if not wrong.any():
            return None
        reader, position = (int(found[0]) for found in np.nonzero(wrong))
        place = int(places[position])
        return place, int(self._read_event[reader, place])


_GARBAGE = 0xFF
"""Fill byte of fresh memory: NaN as a float, -1 as an integer."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """A place in an external buffer (its slot) or in the arena (slot None), in bytes."""

    slot: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class AccessOrigin:
    """The unit and the action that made an access."""

    unit: int
    what: str

    def __str__(self) -> str:
        return f"unit {self.unit}, {self.what}"


@dataclass(slots=True)
class _Storage:
    """`data` as bytes. The shadow has an entry per `piece` bytes; without it nothing is checked."""

    data: Tensor
    piece: int
    shadow: Shadow | None


@dataclass(slots=True)
class EmulatedMemory:
    """External buffers by slot, and the arena, which grows up to `arena_limit` bytes."""

    program: DeviceProgram
    clocks: Clocks
    arena_limit: int
    events: list[AccessOrigin] = field(default_factory=list[AccessOrigin])
    arena_bytes: int = 0
    _arena: _Storage = field(init=False)
    _externals: dict[int, _Storage] = field(init=False)

    def __post_init__(self) -> None:
        sizes = [b.dtype.itemsize for f in self.program.tree.functions for b in f.locals]
        shadow = Shadow("the arena", self.clocks, 0, written=False)
        self._arena = _Storage(torch.empty(0, dtype=torch.uint8), min(sizes, default=1), shadow)
        self._externals = {}

    def bind(self, buffers: Mapping[int, Tensor]) -> None:
        """Use the given tensors as the external buffers; they are changed in place."""
        written = written_externals(self.program.tree, self.program.kernels)
        for buffer in self.program.tree.externals:
            if buffer.slot not in buffers:
                continue
            tensor = buffers[buffer.slot]
            if tensor.dtype != buffer.dtype.torch or not tensor.is_contiguous():
                raise RunError(
                    f"the memory of {buffer.name} must be contiguous {buffer.dtype.value}"
                )
            shadow = None
            if buffer.name in written:
                known = buffer.kind != "output"
                shadow = Shadow(buffer.name, self.clocks, tensor.numel(), written=known)
            # A tensor of at most one element may have stride 0, which a view as bytes refuses.
            data = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
            self._externals[buffer.slot] = _Storage(data, buffer.dtype.itemsize, shadow)

    def reserve(self, end: int) -> bool:
        """Make the arena at least `end` bytes long; return False if that is over the limit."""
        if end > self.arena_limit:
            return False
        self.arena_bytes = max(self.arena_bytes, end)
        size = len(self._arena.data)
        if end > size:
            grown = torch.full((max(end, 2 * size),), _GARBAGE, dtype=torch.uint8)
            grown[:size] = self._arena.data
            self._arena.data = grown
            assert self._arena.shadow is not None
            self._arena.shadow.grow(len(grown) // self._arena.piece)
        return True

    def storage(self, pointer: Pointer) -> _Storage:
        if pointer.slot is None:
            return self._arena
        if pointer.slot not in self._externals:
            raise RunError(f"no memory was given for slot {pointer.slot}")
        return self._externals[pointer.slot]

    def race(self, buffer: Buffer, now: AccessOrigin, before: int, element: int) -> RaceError:
        """Return the error that describes a race."""
        return RaceError(
            f"race on {buffer.name}, element {element}: {now} and "
            f"{self.events[before]} access it, one of them writes, and nothing orders them"
        )


@dataclass(frozen=True, slots=True)
class _BufferView:
    """Cached view of a buffer: `flat` is the place at `pointer` of `data`."""

    pointer: Pointer
    data: Tensor
    flat: Tensor


class UnitMemory:
    """Memory as seen by one unit in one activation of a function (a `device.evaluate.Memory`)."""

    def __init__(
        self,
        shared: EmulatedMemory,
        unit: int,
        pointers: Mapping[str, Pointer],
        registers: Registers,
    ) -> None:
        self._registers = registers
        self._shared = shared
        self._unit = unit
        self._pointers = pointers
        self._event = -1
        self._views: dict[str, _BufferView] = {}

    def begin(self, what: str) -> None:
        """Attribute the following accesses to `what`."""
        self._event = len(self._shared.events)
        self._shared.events.append(AccessOrigin(self._unit, what))

    def elements(self, buffer: Buffer) -> int:
        """Return the number of elements of a buffer; for one without known size, those up to the
        end of its memory."""
        if all(is_known(dim) for dim in buffer.shape):
            return prod(resolve(dim, self._registers) for dim in buffer.shape)
        pointer = self._pointers[buffer.name]
        left = len(self._shared.storage(pointer).data) - pointer.offset
        return left // buffer.dtype.itemsize

    def tensor(self, buffer: Buffer) -> Tensor:
        """Return the whole buffer, flat, as a view."""
        pointer = self._pointers[buffer.name]
        data = self._shared.storage(pointer).data
        known = self._views.get(buffer.name)
        if known is not None and known.pointer is pointer and known.data is data:
            return known.flat
        end = pointer.offset + self.elements(buffer) * buffer.dtype.itemsize
        flat = data[pointer.offset : end].view(buffer.dtype.torch)
        self._views[buffer.name] = _BufferView(pointer, data, flat)
        return flat

    def read(self, buffer: Buffer, offsets: Tensor) -> Tensor:
        """Return a copy of elements; indexing with a tensor without dims would return a view of
        the memory."""
        self.note(buffer, offsets, write=False)
        return self.tensor(buffer)[offsets.reshape(-1)].reshape(offsets.shape)

    def write(self, buffer: Buffer, offsets: Tensor, values: Tensor) -> None:
        self.note(buffer, offsets, write=True)
        self.tensor(buffer)[offsets] = values

    def note(self, buffer: Buffer, offsets: Tensor, write: bool) -> None:
        """Check an access. Raise RaceError or UninitialisedRead."""
        pointer = self._pointers[buffer.name]
        storage = self._shared.storage(pointer)
        if storage.shadow is None or offsets.numel() == 0:
            return
        places = self._places(buffer, pointer, storage.piece, offsets)
        check = storage.shadow.write if write else storage.shadow.read
        try:
            found = check(self._unit, places, self._event)
        except UninitialisedRead as error:
            error.buffer = buffer.name
            raise
        if found is not None:
            place, event = found
            element = (place * storage.piece - pointer.offset) // buffer.dtype.itemsize
            raise self._shared.race(buffer, self._shared.events[self._event], event, element)

    def _places(self, buffer: Buffer, pointer: Pointer, piece: int, offsets: Tensor) -> Places:
        size = buffer.dtype.itemsize // piece
        first = offsets.reshape(-1).numpy() * size + pointer.offset // piece
        return first if size == 1 else (first[:, None] + np.arange(size)).reshape(-1)
