"""Detection of writes to the memory of tensors, whatever wrote it.

Version counters of torch miss writes through `.data`, NumPy, another library, or a fused optimizer.
`memory_watch.cpp` gets the written pages from Linux, and compares hashes of those, or of all pages
if Linux does not track them. If the process runs no machine code, the bytes are digested in Python.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import weakref
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import torch

from stretto.options import Options
from stretto.runtime.compiler import NativeLibrary

_SMALL = 1 << 15
"""Number of bytes up to which comparing them is faster than a system call, as in
memory_watch.cpp."""


class WatchedRegion:
    """The memory of a tensor, kept alive. `generation` increases when a look finds changed content.

    `handle` belongs to memory_watch.cpp; without a library the bytes are digested here.
    """

    def __init__(self, tensor: torch.Tensor, library: ctypes.PyDLL | None, trackable: bool) -> None:
        self._storage = tensor.untyped_storage()
        self.address, self.bytes = span(tensor)
        self.library = library
        self.handle: int | None = None
        if library is None:
            self._generation, self._digest = 0, self._digested()
        else:
            self.handle = library.stretto_watch_open(self.address, self.bytes, int(trackable))
            closing = weakref.finalize(self, library.stretto_watch_close, self.handle)
            closing.atexit = False

    @property
    def generation(self) -> int:
        if self.library is None:
            return self._generation
        return self.library.stretto_watch_generation(self.handle)

    @property
    def is_tracked(self) -> bool:
        """True if the system records which of its pages are written."""
        return self.library is not None and bool(self.library.stretto_watch_is_tracked(self.handle))

    def look(self) -> None:
        """Digest the bytes again, if no library watches them."""
        if self.library is None and (digest := self._digested()) != self._digest:
            self._generation, self._digest = self._generation + 1, digest

    def _digested(self) -> bytes:
        content = (ctypes.c_char * self.bytes).from_address(self.address)
        return hashlib.blake2b(content, digest_size=16).digest()


class RegionSet:
    """Some regions, laid out so that one native call compares all of them."""

    def __init__(self, regions: Iterable[WatchedRegion]) -> None:
        self.regions = tuple(sorted(set(regions), key=lambda region: region.address))
        count = len(self.regions)
        library = self.regions[0].library if self.regions else None
        self._native = None if library is None else library.stretto_watch_look
        self._handles = (ctypes.c_void_p * count)(*(region.handle for region in self.regions))
        self._known = (ctypes.c_int64 * count)()
        self._count = ctypes.c_int64(count)
        self.accept(self.generations())

    def generations(self) -> list[int]:
        return [region.generation for region in self.regions]

    def accept(self, generations: list[int]) -> None:
        """Record the content of the regions in these generations as known."""
        self._known[:] = generations

    def finds_changes(self) -> bool:
        """True if the content of a region differs from the known one."""
        if self._native is not None:
            return self._native(self._handles, self._known, self._count) != 0
        for region in self.regions:
            region.look()
        return self.generations() != self._known[:]


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the address of the first byte of a tensor's elements, and the number of bytes up to
    the last."""
    if tensor.numel() == 0:
        return tensor.data_ptr(), 0
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (reach + 1) * tensor.element_size()


_REGIONS: weakref.WeakValueDictionary[tuple[int, int, bool], WatchedRegion] = (
    weakref.WeakValueDictionary()
)


def regions_of(tensors: Sequence[torch.Tensor], native: bool) -> list[WatchedRegion]:
    """Return the region of each tensor; tensors in the same place share one.

    native: use memory_watch.cpp, for programs whose calls are quick.
    """
    library = load(Options()) if native else None
    shared: list[tuple[int, int]] | None = None
    found: list[WatchedRegion] = []
    known: list[WatchedRegion] = []
    for tensor in tensors:
        key = (*span(tensor), native)
        region = _REGIONS.get(key)
        if region is not None:
            known.append(region)
        else:
            if shared is None and key[1] > _SMALL:
                shared = _shared_memory()
            first, last = key[0], key[0] + key[1]
            trackable = all(end <= first or last <= start for start, end in shared or ())
            region = _REGIONS[key] = WatchedRegion(tensor, library, trackable)
        found.append(region)
    RegionSet(known).finds_changes()  # updates generations, as they may have been written since
    return found


def _shared_memory() -> list[tuple[int, int]]:
    """Return the address ranges that other processes may write to, which this process's page table
    does not show."""
    found: list[tuple[int, int]] = []
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return [(0, 1 << 64)]
    for line in lines:
        bounds, access, *_ = line.split(maxsplit=2)
        if "s" in access:
            start, _, end = bounds.partition("-")
            found.append((int(start, 16), int(end, 16)))
    return found


def tracks_pages(options: Options) -> bool:
    """True if this system records which pages are written, so that large weights cost no time."""
    return bool(load(options).stretto_watch_tracks())


def _prepare(library: ctypes.PyDLL) -> None:
    library.stretto_watch_open.restype = ctypes.c_void_p
    library.stretto_watch_open.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
    library.stretto_watch_close.argtypes = [ctypes.c_void_p]
    library.stretto_watch_close.restype = None
    library.stretto_watch_generation.argtypes = [ctypes.c_void_p]
    library.stretto_watch_generation.restype = ctypes.c_int64
    library.stretto_watch_is_tracked.argtypes = [ctypes.c_void_p]
    # stretto_watch_look has no argtypes, as its arguments need no conversion.
    library.stretto_watch_look.restype = ctypes.c_int64


SUPPORT = NativeLibrary(Path(__file__).with_name("memory_watch.cpp"), _prepare)
built, load = SUPPORT.built, SUPPORT.load


# ---- Memory limit of this process.


CONTROL_GROUP = Path("/sys/fs/cgroup")


@cache
def usable_memory(folder: Path = CONTROL_GROUP) -> int:
    """Return the bytes of the machine's memory, or the limit of the container at `folder` if that
    is less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return min(limits)
