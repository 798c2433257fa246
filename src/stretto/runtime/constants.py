"""The constants of a loaded program: the user's own tensors, and copies in other layouts.

What a kernel reads from the user's tensor is read anew in each call. A copy (packed panels, or a
contiguous form of a view) is made once for all programs of the process that want it, and made anew
when the memory that it was made from has changed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial

import torch

from stretto.device.expr import Buffer
from stretto.device.forms import Packing, ProgramInterface
from stretto.options import Options
from stretto.runtime.large_pages import LARGE_PAGES
from stretto.runtime.memory_watch import Look, Region, regions_of
from stretto.runtime.memory_watch import load as load_memory_watch
from stretto.runtime.packing import pack

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
