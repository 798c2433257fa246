"""Memory for large constants in pages of 2 MiB, where the system has them.

Weights of a large model come from memory in every call. Of pages of 4 KiB a core reads 12 GB/s, of
large ones 16: the hardware reads ahead up to the end of a page, and each needs a translation.
Tensors are cut from chunks, for few are a multiple of a page. A chunk exists as long as one of its
tensors does, and only where it was touched.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from math import prod

import torch

from stretto.locks import ForkSafeLock

PAGE_BYTES = 2 << 20
CHUNK_BYTES = 16 * PAGE_BYTES
LEAST_BYTES = 1 << 17
"""What is smaller stays in a second-level cache, or is little to read."""
_ALIGNMENT = 64


@dataclass(slots=True)
class Chunk:
    """The bytes [used, end) of the pages are free."""

    pages: mmap.mmap
    used: int
    end: int

    @staticmethod
    def made(least: int) -> Chunk:
        size = max(least, CHUNK_BYTES)
        pages = mmap.mmap(-1, size + PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_HUGEPAGE)
        address = torch.frombuffer(pages, dtype=torch.uint8, count=1).data_ptr()
        start = -address % PAGE_BYTES
        return Chunk(pages, start, start + size)


class LargePages:
    """Tensors are taken from `current`, the chunk that was made last."""

    def __init__(self) -> None:
        self.current: Chunk | None = None
        self._lock = ForkSafeLock()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """As `torch.empty`, for a tensor that is read again and again and lives long."""
        count = prod(shape)
        needed = count * dtype.itemsize
        if needed < LEAST_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
            return torch.empty(shape, dtype=dtype)
        with self._lock:
            if self.current is None or self.current.used + needed > self.current.end:
                self.current = Chunk.made(needed)
            chunk, start = self.current, self.current.used
            chunk.used = -(-(start + needed) // _ALIGNMENT) * _ALIGNMENT
        return torch.frombuffer(chunk.pages, dtype=dtype, count=count, offset=start).view(shape)


LARGE_PAGES = LargePages()
