"""The constants of a loaded program: the user's own tensors, and copies in other layouts.

Kernels that read the user's tensor read its current content in each call. A copy (packed
panels, or the contiguous form of a view) is made once for all programs of the process that
need it, and again if the memory of its source has changed.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import torch

from stretto.device.expr import Buffer
from stretto.device.forms import Packing, ProgramInterface
from stretto.locks import ForkSafeLock
from stretto.options import Options
from stretto.runtime.memory_watch import RegionSet, WatchedRegion, regions_of
from stretto.runtime.memory_watch import load as load_memory_watch

# ---- Layouts of constants for kernels, computed once, when a program is loaded.


Empty = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]


def pack(packing: Packing, source: torch.Tensor, empty: Empty | None = None) -> torch.Tensor:
    """Return the packed panels [batch ..., columns / lanes, depth / group, lanes * group] of a
    constant, zero-padded.

    empty: allocates the result; torch.empty if None.
    """
    batch = prod(size for size, _ in packing.outer)
    depth = prod(size for size, _ in packing.depth)
    count, lanes = packing.columns[0], packing.lanes
    dims = [*packing.outer, *packing.depth, packing.columns]
    plain = source.detach().resolve_neg().contiguous()
    view = _strided(_transformed(packing, plain), packing.start, dims)
    columns, group = view.reshape(batch, depth, count), packing.group
    groups = -(-depth // group)
    if depth % group:
        columns = torch.nn.functional.pad(columns, (0, 0, 0, groups * group - depth))
    columns = columns.reshape(batch, groups, group, count)
    whole, rest = divmod(count, lanes)
    shape = batch, -(-count // lanes), groups, lanes, group
    packed = torch.empty(shape, dtype=source.dtype) if empty is None else empty(shape, source.dtype)
    parts = columns[..., : whole * lanes].unflatten(3, (whole, lanes))
    packed[:, :whole] = parts.permute(0, 3, 1, 4, 2)
    if rest:
        packed[:, whole, :, rest:] = 0
        packed[:, whole, :, :rest] = columns[..., whole * lanes :].transpose(2, 3)
    return packed.view(packed_shape(packing))


POINTS = {2: (1.0,), 4: (0.625, 1.5)}
"""The points p of the minimal filtering algorithm for each tile size: it has 0, infinity, p and
-p. For 4, 5/8 and 3/2 lose fewer digits than 1 and 2, with which the algorithm is published."""


def _transformed(packing: Packing, weights: torch.Tensor) -> torch.Tensor:
    if packing.line:
        return filtered_lines(weights, packing.tile, packing.line)
    return filtered(weights, packing.tile) if packing.tile else weights


def filtered(weights: torch.Tensor, tile: int) -> torch.Tensor:
    """Return G w G' of weights [out, in, 3, 3], for tiles of tile x tile pixels: [out, in, tile +
    2, tile + 2], rounded once (Lavin and Gray, "Fast Algorithms for Convolutional Neural
    Networks", 2016, section 4)."""
    factor = _factor(tile)
    return (factor @ weights.double() @ factor.T).to(weights.dtype)


def filtered_lines(weights: torch.Tensor, tile: int, dim: int) -> torch.Tensor:
    """Return G w of groups of three taps along a dim (2 or 3) of weights [out, in, height, width],
    for lines of `tile` pixels: [out, in, taps of the other dim, groups, tile + 2], rounded
    once. The last group is padded with zeros."""
    along = weights.double().movedim(dim, 3)
    filled = torch.nn.functional.pad(along, (0, -along.shape[3] % 3))
    return (filled.unflatten(3, (-1, 3)) @ _factor(tile).T).to(weights.dtype).contiguous()


def _factor(tile: int) -> torch.Tensor:
    """Return G, [tile + 2, 3]."""
    squares = [p * p for p in POINTS[tile]]
    rows = [[1 / prod(squares), 0.0, 0.0]]
    for point in POINTS[tile]:
        square = point * point
        others = prod(square - other for other in squares if other != square)
        scale = 1 / (2 * square * others)
        rows += [[scale, sign * point * scale, square * scale] for sign in (1, -1)]
    return torch.tensor([*rows, [0.0, 0.0, 1.0]], dtype=torch.float64)


def _strided(tensor: torch.Tensor, start: int, dims: list[tuple[int, int]]) -> torch.Tensor:
    """Return the elements at `start` plus sums of strides, counted from the first element of a
    contiguous tensor.

    torch counts from the storage and has no negative strides: such dims are flipped.
    """
    start += int(tensor.storage_offset())
    start += sum((size - 1) * min(step, 0) for size, step in dims if size)
    sizes, steps = [size for size, _ in dims], [abs(step) for _, step in dims]
    view = torch.as_strided(tensor, sizes, steps, start)
    backwards = [dim for dim, (_, step) in enumerate(dims) if step < 0]
    return view.flip(backwards) if backwards else view


def packed_shape(packing: Packing) -> tuple[int, ...]:
    return tuple(dim for dim in packing.buffer.shape if isinstance(dim, int))


# ---- Memory for large constants and results in pages of 2 MiB, if the system has them.
#
# Weights of a large model come from memory in every call. A core reads 12 GB/s from pages of 4 KiB,
# and 16 from large ones: the hardware prefetches up to the end of a page, and each page needs a
# translation. Tensors are cut from chunks, as few are a multiple of a page. A chunk lives as long
# as one of its tensors, and takes memory only where it was touched.
#
# A result that is too large for malloc to reuse is new memory in each call: two cores wrote one of
# 37 MB in 12.5 ms in small pages, and in 5.5 in large ones, of which fewer have to be allocated.


PAGE_BYTES = 2 << 20
CHUNK_BYTES = 16 * PAGE_BYTES
LEAST_BYTES = 1 << 17
"""Smaller tensors are not put into large pages: they stay in a second-level cache, or are little
to read."""
_ALIGNMENT = 64
LARGE_RESULT = 4 << 20
"""Least size in bytes of results for which large pages are requested; NumPy does the same."""
_MADV_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", None)
_libc = ctypes.CDLL(None)


def advise(pages: mmap.mmap) -> None:
    """Request large pages, which the system need not grant."""
    if _MADV_HUGEPAGE is None:
        return
    try:
        pages.madvise(_MADV_HUGEPAGE)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel without large pages
            raise


def advise_large(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors, which are new and without content, after requesting large pages for the
    large ones. Failures are ignored."""
    for tensor in tensors:
        if _MADV_HUGEPAGE is not None and tensor.nbytes >= LARGE_RESULT:
            first = -(-tensor.data_ptr() // PAGE_BYTES) * PAGE_BYTES
            last = (tensor.data_ptr() + tensor.nbytes) // PAGE_BYTES * PAGE_BYTES
            _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_HUGEPAGE)
    return tensors


@dataclass(slots=True)
class Chunk:
    """Memory that tensors are cut from; the bytes [used, end) of the pages are free."""

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
    """Allocator of tensors in large pages; they are cut from `current`, the latest chunk."""

    def __init__(self) -> None:
        self.current: Chunk | None = None
        self._lock = ForkSafeLock()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Same as `torch.empty`, for a tensor that is read often and lives long."""
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


Layout = Callable[[torch.Tensor], torch.Tensor]


class Copy:
    """A copy of a constant: `tensor` equals `layout(source)` as of the last `refresh`. first:
    makes the tensor the first time; defaults to `layout`."""

    def __init__(
        self,
        source: torch.Tensor,
        layout: Layout,
        region: WatchedRegion | None,
        first: Layout | None = None,
    ) -> None:
        self.source = source.detach()
        self.address = source.data_ptr()
        self.region = region
        self._layout = layout
        self._generation = 0 if region is None else region.generation
        self.tensor = (first or layout)(self.source)

    def refresh(self) -> None:
        """Recompute the content, in place, if the source has changed."""
        if self.region is None or self.region.generation == self._generation:
            return
        generation = self.region.generation
        self.tensor.copy_(self._layout(self.source))
        self._generation = generation  # last, since another thread takes the copy for complete


_COPIES: weakref.WeakValueDictionary[Hashable, Copy] = weakref.WeakValueDictionary()


def copy_of(source: torch.Tensor, packing: Packing | None, region: WatchedRegion | None) -> Copy:
    """Return the copy of a tensor in a layout, shared by all programs.

    packing: None for a contiguous form. region: the memory of the source; None if nothing can
    change it.
    """
    layout = None if packing is None else packing.layout
    place = source.data_ptr(), source.dtype, source.shape, source.stride(), source.is_neg()
    key = place, layout
    found = _COPIES.get(key)
    if found is not None and found.region is region and found.source.data_ptr() == found.address:
        found.refresh()
        return found
    if packing is None:
        copy = Copy(source, _contiguous, region)
    else:
        first = partial(pack, packing, empty=LARGE_PAGES.empty)
        copy = Copy(source, partial(pack, packing), region, first)
    _COPIES[key] = copy
    return copy


def is_plain(tensor: torch.Tensor) -> bool:
    """True if a kernel can read the tensor in place."""
    return tensor.is_contiguous() and not tensor.is_neg()


def _contiguous(source: torch.Tensor) -> torch.Tensor:
    return source.resolve_neg().contiguous()


class ConstantTable:
    """The tensors of the constants that a program reads. `copies`: those that may become stale."""

    def __init__(
        self,
        interface: ProgramInterface,
        buffers: Iterable[Buffer],
        *,
        native: bool,
    ) -> None:
        packed = {packing.buffer: packing for packing in interface.packings}
        wanted = list(buffers)
        slots = {b: packed[b].source.slot if b in packed else b.slot for b in wanted}
        sources = {buffer: interface.constants[slot] for buffer, slot in slots.items()}
        copied = [b for b in wanted if b in packed or not is_plain(sources[b])]
        living = [b for b in copied if slots[b] not in interface.made]
        regions = dict(zip(living, regions_of([sources[b] for b in living], native), strict=True))
        copies = {b: copy_of(sources[b], packed.get(b), regions.get(b)) for b in copied}
        self.tensors = {b: copies[b].tensor if b in copies else sources[b].detach() for b in wanted}
        self.copies = tuple(copies.values())


class CopiesAhead:
    """The packed constants of a program that is still being compiled: they are copied in a
    separate thread, beside compile stages that keep at most one core busy. Copies are shared,
    so the program's own table finds these as long as this object exists.

    The process waits for the thread when it ends, since the thread is inside torch.
    """

    def __init__(self, interface: ProgramInterface, options: Options) -> None:
        self._interface = interface
        self._options = options
        self._table: ConstantTable | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._copy, name="stretto packs constants")
        if interface.packings:
            self._thread.start()

    def _copy(self) -> None:
        buffers = [packing.buffer for packing in self._interface.packings]
        try:
            load_memory_watch(self._options)
            self._table = ConstantTable(self._interface, buffers, native=True)
        except Exception as error:  # raised by `wait`
            self._error = error

    def wait(self) -> None:
        """Wait until all are copied. Raises the error of the copying thread, if any."""
        if self._interface.packings:
            self._thread.join()
        if self._error is not None:
            raise self._error


class ConstantFreshness:
    """Tells, on each call, if everything that was made from the content of constants is up to date.

    folded: tensors whose content went into a program; if one has changed, the program is stale.
    copies: refreshed if their source has changed.
    """

    def __init__(
        self, folded: Sequence[torch.Tensor], copies: Iterable[Copy], *, native: bool
    ) -> None:
        self._folded = regions_of(folded, native)
        self._copies = tuple(copies)
        copied = [copy.region for copy in self._copies if copy.region is not None]
        self._look = RegionSet((*self._folded, *copied))
        self._known = [region.generation for region in self._folded]
        self.is_current = self._check if self._look.regions else _always

    def _check(self) -> bool:
        if not self._look.finds_changes():
            return True
        if [region.generation for region in self._folded] != self._known:
            return False
        found = self._look.generations()  # the next call finds any later change
        for copy in self._copies:
            copy.refresh()
        self._look.accept(found)
        return True


def _always() -> bool:
    return True
