"""Memory for large constants and results in pages of 2 MiB, where the system has them.

Weights of a large model come from memory in every call. Of pages of 4 KiB a core reads 12 GB/s, of
large ones 16: the hardware reads ahead up to the end of a page, and each needs a translation.
Tensors are cut from chunks, for few are a multiple of a page. A chunk exists as long as one of its
tensors does, and only where it was touched.

A result that is too large for malloc to keep is new memory in each call: two cores wrote one of 37
MB in 12.5 ms in small pages, and in 5.5 in large ones, of which fewer have to be taken.
"""

from __future__ import annotations

import ctypes
import errno
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
LARGE_RESULT = 4 << 20
"""Bytes from which on results are asked for in large pages; NumPy does the same."""
_MADV_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", None)
_libc = ctypes.CDLL(None)


def advise(pages: mmap.mmap) -> None:
    """Asks for large pages, which a system without them need not give."""
    if _MADV_HUGEPAGE is None:
        return
    try:
        pages.madvise(_MADV_HUGEPAGE)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel without large pages
            raise


def advise_large(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors, new ones without content; the large ones should get large pages when they are
    written. Whether they do is of no consequence."""
    for tensor in tensors:
        if _MADV_HUGEPAGE is not None and tensor.nbytes >= LARGE_RESULT:
            first = -(-tensor.data_ptr() // PAGE_BYTES) * PAGE_BYTES
            last = (tensor.data_ptr() + tensor.nbytes) // PAGE_BYTES * PAGE_BYTES
            _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_HUGEPAGE)
    return tensors


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
        advise(pages)
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
        if needed < LEAST_BYTES or _MADV_HUGEPAGE is None:
            return torch.empty(shape, dtype=dtype)
        with self._lock:
            if self.current is None or self.current.used + needed > self.current.end:
                self.current = Chunk.made(needed)
            chunk, start = self.current, self.current.used
            chunk.used = -(-(start + needed) // _ALIGNMENT) * _ALIGNMENT
        return torch.frombuffer(chunk.pages, dtype=dtype, count=count, offset=start).view(shape)


LARGE_PAGES = LargePages()
