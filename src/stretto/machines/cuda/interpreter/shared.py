"""The part of a unit's shared memory that a printed program addresses itself.

Only constants lie there: printed functions store blocks before a loop, and load them inside of it.
A place is an address from 0 on, as on a device one within the shared memory. Nobody may read what
nobody has written, and threads of the unit are checked against each other (races.py).

Import only inside functions: it imports triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton.language
from triton.runtime.interpreter import TensorHandle

from stretto.machines.cuda.interpreter.builder import Builder, numpy_type
from stretto.machines.cuda.interpreter.memory import Array, Buffer, OutOfBounds

tl: Any = triton.language

NAME = "the unit's shared memory"


class Unwritten(OutOfBounds):
    """A load of what no thread has stored."""


class SharedMemory:
    """`size` bytes of one unit."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._bytes = np.full(-(-size // 8) * 8, 0xFF, np.uint8)
        self._written = np.zeros(size, np.bool_)
        self._buffer = Buffer(NAME, self._bytes.ctypes.data, size)

    def store(self, builder: Builder, places: Array, values: Array) -> None:
        """Values to places of the same shape. Where several lanes have one place, they must store
        the same: which of them is the last is not known."""
        pointers = self._pointers(places)
        builder.memory.store(pointers, values, self._buffer)
        width = values.itemsize
        words = self._buffer.words[width][self._buffer.index(pointers, width)]
        if (words != np.ascontiguousarray(values).view(words.dtype)).any():
            raise OutOfBounds(f"lanes store different values in one place of {NAME}")
        self._written[self._bytes_of(places, width)] = True

    def load(self, builder: Builder, places: Array, kind: np.dtype[Any]) -> Array:
        found = builder.memory.load(self._pointers(places), kind, self._buffer)
        where = self._bytes_of(places, kind.itemsize)
        if not self._written[where].all():
            first = int(where[~self._written[where]][0])
            raise Unwritten(f"byte {first} of {NAME} is read, which nobody has written")
        return found

    def _pointers(self, places: Array) -> Array:
        address = np.uint64(self._buffer.address)
        return places.astype(np.int64).astype(np.uint64) + address

    @staticmethod
    def _bytes_of(places: Array, width: int) -> Array:
        return (places.reshape(-1, 1).astype(np.int64) + np.arange(width)).reshape(-1)


class SharedLanguage:
    """What stands in the places of the functions in printer/parts/shared.py that are assembly.
    memories: by unit. unit: the one that is running."""

    def __init__(self, builder: Builder, memories: Sequence[SharedMemory]) -> None:
        self.builder = builder
        self.memories = memories
        self.unit = 0

    @property
    def memory(self) -> SharedMemory:
        return self.memories[self.unit]

    def put(self, module: dict[str, Any]) -> None:
        module["stretto_shared_end"] = self.end
        module["stretto_to_shared"] = self.store
        module["stretto_from_shared"] = self.load

    def end(self) -> Any:
        return tl.tensor(TensorHandle(np.array([self.memory.size], np.int32), tl.int32), tl.int32)

    def store(self, places: Any, values: Any, _: Any) -> None:
        data = values.handle.data
        shape = np.broadcast_shapes(places.handle.data.shape, data.shape)
        where = np.broadcast_to(places.handle.data, shape)
        self.memory.store(self.builder, where, np.broadcast_to(data, shape))

    def load(self, places: Any, kind: Any, _: Any) -> Any:
        found = self.memory.load(self.builder, places.handle.data, numpy_type(kind))
        block = places.type.with_element_ty(kind) if places.type.is_block() else kind
        return tl.tensor(TensorHandle(found, kind), block)
