"""The constants of a loaded program: the user's own tensors, and copies in other layouts.

What a kernel reads from the user's tensor is read anew in each call. A copy (packed panels, or a
contiguous form of a view) is made once for all programs of the process that want it, and made anew
when the memory that it was made from has changed.
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
from stretto.runtime.memory_watch import Look, Region, regions_of
from stretto.runtime.memory_watch import load as load_memory_watch

# ---- Lays constants out as kernels want them, once, when a program is loaded.


Empty = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]


def pack(packing: Packing, source: torch.Tensor, empty: Empty | None = None) -> torch.Tensor:
    """The packed panels [batch ..., columns / lanes, depth / group, lanes * group] of a constant,
    zero-padded.

    empty: makes the tensor.
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
"""The points p of the minimal filtering algorithm of each size of tiles: it has 0, infinity, p and
-p. For 4, 5/8 and 3/2 lose fewer digits than 1 and 2, with which the algorithm is published."""


def _transformed(packing: Packing, weights: torch.Tensor) -> torch.Tensor:
    if packing.line:
        return filtered_lines(weights, packing.tile, packing.line)
    return filtered(weights, packing.tile) if packing.tile else weights


def filtered(weights: torch.Tensor, tile: int) -> torch.Tensor:
    """G w G' of weights [out, in, 3, 3], for tiles of tile x tile pixels: [out, in, tile + 2,
    tile + 2], rounded once (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks",
    2016, section 4).
    """
    factor = _factor(tile)
    return (factor @ weights.double() @ factor.T).to(weights.dtype)


def filtered_lines(weights: torch.Tensor, tile: int, dim: int) -> torch.Tensor:
    """G w of groups of three taps along a dim (2 or 3) of weights [out, in, height, width], for
    lines of `tile` pixels: [out, in, taps of the other dim, groups, tile + 2], rounded once. The
    last group is filled up with zeros.
    """
    along = weights.double().movedim(dim, 3)
    filled = torch.nn.functional.pad(along, (0, -along.shape[3] % 3))
    return (filled.unflatten(3, (-1, 3)) @ _factor(tile).T).to(weights.dtype).contiguous()


def _factor(tile: int) -> torch.Tensor:
    """G, [tile + 2, 3]."""
    squares = [p * p for p in POINTS[tile]]
    rows = [[1 / prod(squares), 0.0, 0.0]]
    for point in POINTS[tile]:
        square = point * point
        others = prod(square - other for other in squares if other != square)
        scale = 1 / (2 * square * others)
        rows += [[scale, sign * point * scale, square * scale] for sign in (1, -1)]
    return torch.tensor([*rows, [0.0, 0.0, 1.0]], dtype=torch.float64)


def _strided(tensor: torch.Tensor, start: int, dims: list[tuple[int, int]]) -> torch.Tensor:
    """The elements at `start` + sums of strides, from the first one of a contiguous tensor on.

    torch counts from the storage and knows no negative strides: such dims are walked backwards.
    """
    start += int(tensor.storage_offset())
    start += sum((size - 1) * min(step, 0) for size, step in dims if size)
    sizes, steps = [size for size, _ in dims], [abs(step) for _, step in dims]
    view = torch.as_strided(tensor, sizes, steps, start)
    backwards = [dim for dim, (_, step) in enumerate(dims) if step < 0]
    return view.flip(backwards) if backwards else view


def packed_shape(packing: Packing) -> tuple[int, ...]:
    return tuple(dim for dim in packing.buffer.shape if isinstance(dim, int))


# ---- Memory for large constants and results in pages of 2 MiB, where the system has them.
#
# Weights of a large model come from memory in every call. Of pages of 4 KiB a core reads 12 GB/s,
# of large ones 16: the hardware reads ahead up to the end of a page, and each needs a
# translation. Tensors are cut from chunks, for few are a multiple of a page. A chunk exists as
# long as one of its tensors does, and only where it was touched.
#
# A result that is too large for malloc to keep is new memory in each call: two cores wrote one of
# 37 MB in 12.5 ms in small pages, and in 5.5 in large ones, of which fewer have to be taken.


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


Layout = Callable[[torch.Tensor], torch.Tensor]


class Copy:
    """`tensor` is `layout(source)`, at least since `refresh`. first: makes the tensor, as `layout`
    makes what is copied to it later."""

    def __init__(
        self,
        source: torch.Tensor,
        layout: Layout,
        region: Region | None,
        first: Layout | None = None,
    ) -> None:
        self.source = source.detach()
        self.address = source.data_ptr()
        self.region = region
        self._layout = layout
        self._generation = 0 if region is None else region.generation
        self.tensor = (first or layout)(self.source)

    def refresh(self) -> None:
        """Makes the content anew, in place, where the source has changed."""
        if self.region is None or self.region.generation == self._generation:
            return
        generation = self.region.generation
        self.tensor.copy_(self._layout(self.source))
        self._generation = generation  # not before: another thread must not take it for done


_COPIES: weakref.WeakValueDictionary[Hashable, Copy] = weakref.WeakValueDictionary()


def copy_of(source: torch.Tensor, packing: Packing | None, region: Region | None) -> Copy:
    """The copy of a tensor in a layout, which all programs share.

    packing: None for a contiguous form. region: the memory of the source, unless nobody can change
    it.
    """
    key = (source.data_ptr(), source.dtype, source.shape, source.stride(), _identity(packing))
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
    """Whether a kernel can read the tensor where it lies."""
    return tensor.is_contiguous() and not tensor.is_neg()


def _contiguous(source: torch.Tensor) -> torch.Tensor:
    return source.resolve_neg().contiguous()


def _identity(packing: Packing | None) -> Hashable:
    if packing is None:
        return None
    return (
        packing.start, packing.outer, packing.columns, packing.depth, packing.lanes, packing.tile,
        packing.group,
    )  # fmt: skip


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
    """The packed constants of a program that is still being compiled: they are copied in a thread
    of their own, beside stages that keep one core busy at most. Copies are shared, so the
    program's own table finds these as long as this exists.

    The thread is one that the process waits for when it ends: it is inside of torch.
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
        except Exception as error:  # raised where the copies are waited for
            self._error = error

    def wait(self) -> None:
        """Waits until all are copied. Raises what copying raised."""
        if self._interface.packings:
            self._thread.join()
        if self._error is not None:
            raise self._error


class Weights:
    """Whether what was made from the content of constants is up to date. Asked on each call.

    folded: tensors whose content went into a program; when that has changed, the program is stale.
    copies: made anew where what they were made from has changed.
    """

    def __init__(
        self, folded: Sequence[torch.Tensor], copies: Iterable[Copy], *, native: bool
    ) -> None:
        self._folded = regions_of(folded, native)
        self._copies = tuple(copies)
        copied = [copy.region for copy in self._copies if copy.region is not None]
        self._look = Look((*self._folded, *copied))
        self._known = [region.generation for region in self._folded]
        self.is_current = self._check if self._look.regions else _always

    def _check(self) -> bool:
        if not self._look.finds_changes():
            return True
        if [region.generation for region in self._folded] != self._known:
            return False
        found = self._look.generations()  # what changes from here on is found by the next call
        for copy in self._copies:
            copy.refresh()
        self._look.accept(found)
        return True


def _always() -> bool:
    return True
