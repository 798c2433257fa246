"""The memory of an emulated run: external buffers and the arena, every access checked for races."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
import torch
from torch import Tensor

from stretto.device.evaluate import Registers, resolve
from stretto.device.expr import Buffer, is_known
from stretto.device.program import DeviceProgram
from stretto.device.verifier.assignment import written_externals
from stretto.errors import RunError
from stretto.machines.emulator.shadow import Clocks, Places, RaceError, Shadow, UninitialisedRead

_GARBAGE = 0xFF
"""What fresh memory is filled with: NaN as a float, -1 as an integer."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """A place in an external buffer (its slot) or in the arena (slot None), in bytes."""

    slot: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class Event:
    """Who made an access."""

    unit: int
    what: str

    def __str__(self) -> str:
        return f"unit {self.unit}, {self.what}"


@dataclass(slots=True)
class _Storage:
    """`data` as bytes. The shadow has an entry for `piece` bytes; without it nothing is checked."""

    data: Tensor
    piece: int
    shadow: Shadow | None


@dataclass(slots=True)
class SharedMemory:
    """External buffers by slot, and the arena, which grows up to `arena_limit` bytes."""

    program: DeviceProgram
    clocks: Clocks
    arena_limit: int
    events: list[Event] = field(default_factory=list[Event])
    arena_bytes: int = 0
    _arena: _Storage = field(init=False)
    _externals: dict[int, _Storage] = field(init=False)

    def __post_init__(self) -> None:
        sizes = [b.dtype.itemsize for f in self.program.tree.functions for b in f.locals]
        shadow = Shadow("the arena", self.clocks, 0, written=False)
        self._arena = _Storage(torch.empty(0, dtype=torch.uint8), min(sizes, default=1), shadow)
        self._externals = {}

    def bind(self, buffers: Mapping[int, Tensor]) -> None:
        """Takes the memory of the external buffers that are given; they are changed in place."""
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
            # A tensor of one element or none is contiguous with stride 0, too, which a view as
            # bytes refuses.
            data = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
            self._externals[buffer.slot] = _Storage(data, buffer.dtype.itemsize, shadow)

    def reserve(self, end: int) -> bool:
        """Makes the arena at least `end` bytes long; False when that is over the limit."""
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

    def race(self, buffer: Buffer, now: Event, before: int, element: int) -> RaceError:
        return RaceError(
            f"race on {buffer.name}, element {element}: {now} and "
            f"{self.events[before]} access it, one of them writes, and nothing orders them"
        )


@dataclass(frozen=True, slots=True)
class _View:
    """What a buffer was when it was looked at last: `flat` is the place at `pointer` of `data`."""

    pointer: Pointer
    data: Tensor
    flat: Tensor


class UnitMemory:
    """Memory as one unit sees it in one activation of a function (a `kernels.evaluate.Memory`)."""

    def __init__(
        self,
        shared: SharedMemory,
        unit: int,
        pointers: Mapping[str, Pointer],
        registers: Registers,
    ) -> None:
        self._registers = registers
        self._shared = shared
        self._unit = unit
        self._pointers = pointers
        self._event = -1
        self._views: dict[str, _View] = {}

    def begin(self, what: str) -> None:
        """What follows is done by `what`."""
        self._event = len(self._shared.events)
        self._shared.events.append(Event(self._unit, what))

    def elements(self, buffer: Buffer) -> int:
        if all(is_known(dim) for dim in buffer.shape):
            return prod(resolve(dim, self._registers) for dim in buffer.shape)
        pointer = self._pointers[buffer.name]
        left = len(self._shared.storage(pointer).data) - pointer.offset
        return left // buffer.dtype.itemsize

    def tensor(self, buffer: Buffer) -> Tensor:
        """The whole buffer, flat, as a view."""
        pointer = self._pointers[buffer.name]
        data = self._shared.storage(pointer).data
        known = self._views.get(buffer.name)
        if known is not None and known.pointer is pointer and known.data is data:
            return known.flat
        end = pointer.offset + self.elements(buffer) * buffer.dtype.itemsize
        flat = data[pointer.offset : end].view(buffer.dtype.torch)
        self._views[buffer.name] = _View(pointer, data, flat)
        return flat

    def read(self, buffer: Buffer, offsets: Tensor) -> Tensor:
        """A copy: a tensor without dims as index would give a view of the memory."""
        self.note(buffer, offsets, write=False)
        return self.tensor(buffer)[offsets.reshape(-1)].reshape(offsets.shape)

    def write(self, buffer: Buffer, offsets: Tensor, values: Tensor) -> None:
        self.note(buffer, offsets, write=True)
        self.tensor(buffer)[offsets] = values

    def note(self, buffer: Buffer, offsets: Tensor, write: bool) -> None:
        """Checks an access. Raises RaceError and UninitialisedRead."""
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
