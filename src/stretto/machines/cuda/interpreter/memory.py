"""Memory of an interpreted launch: buffers at real addresses, with every access checked."""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Literal, Protocol

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Lanes = np.ndarray[Any, np.dtype[np.bool_]]
"""The lanes of a block that make an access: a mask in the shape of the block."""

Kind = Literal["read", "written", "changed atomically"]
"""Kind of an access; a volatile load counts as an atomic, since other units may write
concurrently."""


class AccessObserver(Protocol):
    """Receives every access of the running unit before it happens."""

    def access(
        self,
        kind: Kind,
        words: Array,
        width: int,
        buffer: InterpretedBuffer,
        lanes: Array | None,
        shape: tuple[int, ...],
    ) -> None:
        """Check an access. words: the words of `width` bytes of the buffer. lanes: the numbers of
        the lanes, in a block of this shape, that they belong to; None if all in order."""
        ...

    def barrier(self) -> None:
        """All threads of the unit have reached a barrier."""
        ...

    def publish(self) -> None:
        """One thread publishes the progress of the unit."""
        ...

    def acquire(self) -> None:
        """Each thread separately has seen progress that other units have published."""
        ...


class OutOfBounds(Exception):
    """An access that leaves the buffer of its pointer, or that is not aligned."""


class InterpretedBuffer:
    """`size` bytes at `address`, also as arrays of words of each width.

    is_constant: True if no launch writes to it. memory: the address and the size of the largest
    buffer that contains it.
    """

    __slots__ = ("address", "is_constant", "memory", "name", "size", "words")

    def __init__(self, name: str, address: int, size: int, is_constant: bool = False) -> None:
        self.name = name
        self.address = address
        self.size = size
        self.is_constant = is_constant
        self.memory = address, size
        raw: Any = (ctypes.c_uint8 * size).from_address(address) if size else b""
        whole = np.frombuffer(raw, np.uint8)
        self.words: dict[int, Array] = {
            width: whole[: size // width * width].view(f"u{width}") for width in (1, 2, 4, 8)
        }

    def index(self, pointers: Array, width: int) -> Array:
        """Return the indices of the words that `pointers` address. Raises OutOfBounds."""
        offsets = pointers - np.uint64(self.address)  # below the buffer: wraps to a huge one
        last = int(offsets.max())
        if last + width > self.size:
            signed = offsets.view(np.int64)
            low, high = int(signed.min()), int(signed.max())
            start = f", {-low} bytes before the start of {self.name}"
            end = f" at byte {high} of {self.name}, which has {self.size} bytes"
            raise OutOfBounds(f"an access of {width} bytes{start if low < 0 else end}")
        if last % width:
            raise OutOfBounds(
                f"an access of {width} bytes at byte {last} of {self.name} is not aligned"
            )
        return (offsets >> np.uint64(width.bit_length() - 1)).view(np.int64)


class LaunchMemory:
    """The buffers of a launch; several may share memory.

    watch: of the unit that is running.
    """

    def __init__(self, buffers: Iterable[InterpretedBuffer]) -> None:
        self.watch: AccessObserver | None = None
        self.buffers: list[InterpretedBuffer] = []  # without those contained in others
        end = -1
        for buffer in sorted(buffers, key=lambda buffer: (buffer.address, -buffer.size)):
            if buffer.address + buffer.size > end:
                self.buffers.append(buffer)
                end = buffer.address + buffer.size
            else:
                buffer.memory = self.buffers[-1].memory
        self._starts = [buffer.address for buffer in self.buffers]

    def load(
        self,
        pointers: Array,
        kind: np.dtype[Any],
        buffer: InterpretedBuffer | None,
        lanes: Lanes | None = None,
        access: Kind = "read",
    ) -> Array:
        """Return the values at `pointers`, in their shape. `buffer`: the one that they point into,
        if known."""
        buffer = buffer or self._buffer_of(pointers)
        words = buffer.words[kind.itemsize]
        index = buffer.index(pointers, kind.itemsize)
        if self.watch is not None:
            self._tell(self.watch, access, index, kind.itemsize, buffer, lanes)
        return words[index].view(kind)

    def store(
        self,
        pointers: Array,
        values: Array,
        buffer: InterpretedBuffer | None,
        lanes: Lanes | None = None,
    ) -> None:
        """Write `values`, which have or broadcast to the shape of `pointers`."""
        buffer = buffer or self._buffer_of(pointers)
        width = values.itemsize
        words = buffer.words[width]
        index = buffer.index(pointers, width)
        if self.watch is not None:
            self._tell(self.watch, "written", index, width, buffer, lanes)
        words[index] = np.ascontiguousarray(values).view(words.dtype)

    @staticmethod
    def _tell(
        watch: AccessObserver,
        kind: Kind,
        index: Array,
        width: int,
        buffer: InterpretedBuffer,
        lanes: Lanes | None,
    ) -> None:
        if buffer.is_constant and kind == "read":
            return
        if lanes is None:
            watch.access(kind, index.reshape(-1), width, buffer, None, index.shape)
        else:
            watch.access(kind, index, width, buffer, np.flatnonzero(lanes), lanes.shape)

    def _buffer_of(self, pointers: Array) -> InterpretedBuffer:
        """Return the last buffer that begins at or before the lowest pointer, for pointers without
        a buffer."""
        place = bisect_right(self._starts, int(pointers.min())) - 1
        if place < 0:
            raise OutOfBounds("an access before all buffers")
        return self.buffers[place]
