"""Check that a Program's constants and guards are unchanged. Done on each call, so it must be
quick."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from stretto.frontends.python.guards.guards import Guards, NativeCheck, ProbeKind, Probes
from stretto.frontends.python.results.captured import Captured

# ---- Location of a tensor's address in torch's objects, so that native code can check it.
#
# `Tensor.data_ptr` takes a tenth of a microsecond, which adds up to more than many a program takes.
# The words from which it is computed are in torch's own objects, at offsets that differ between
# versions: they are searched in tensors made for this purpose. If they are not found, `data_ptr` is
# called.


# pyright: reportPrivateUsage=false
# addresses of torch's own objects


# Bytes at the start of torch's objects that are searched; the objects are larger in all versions.
_OF_OBJECT, _OF_TENSOR, _OF_STORAGE = 32, 176, 40


@dataclass(frozen=True, slots=True)
class WordOffsets:
    """Offsets of words, in bytes.

    tensor: of torch's tensor in Python's object. storage, position: of the storage and the
    first element's position in torch's tensor. address: of the memory in torch's storage.
    """

    tensor: int
    storage: int
    position: int
    address: int


@cache
def places() -> WordOffsets | None:
    """Return the offsets in this version of torch; None if its layout is not recognised."""
    # Other words may equal the one searched for by chance, but not in all of these samples.
    samples = (
        torch.empty(70_001)[54_321:54_330],
        torch.nn.Parameter(torch.empty(7, 11, 13), requires_grad=False),
        torch.empty(130_003, dtype=torch.int64)[98_765:][None],
    )
    found = [_places(sample) for sample in samples]
    tensor, storage, position, address = (
        set.intersection(*sets) for sets in zip(*found, strict=True)
    )
    # The address may occur twice: the first is the memory, the later one its deleter's argument.
    if min(map(len, (tensor, storage, position, address))) == 0 or len(position) > 1:
        return None
    return WordOffsets(min(tensor), min(storage), min(position), min(address))


def _places(sample: torch.Tensor) -> tuple[set[int], set[int], set[int], set[int]]:
    storage = sample.untyped_storage()
    return (
        _where(id(sample), _OF_OBJECT, sample._cdata),
        _where(sample._cdata, _OF_TENSOR, storage._cdata),
        _where(sample._cdata, _OF_TENSOR, int(sample.storage_offset())),
        _where(storage._cdata, _OF_STORAGE, storage.data_ptr()),
    )


def _where(address: int, nbytes: int, word: int) -> set[int]:
    words = struct.unpack(f"{nbytes // 8}q", ctypes.string_at(address, nbytes))
    return {8 * number for number, found in enumerate(words) if found == word}


def probe_addresses(
    tensors: Sequence[torch.Tensor], addresses: Sequence[int]
) -> tuple[Probes, list[int]]:
    """Return probes that hold while these tensors' first elements are at these addresses.

    Also returns the numbers of the tensors for which `data_ptr` must be called. Each word is
    read only if the probes before it hold, so none is read in an object that is freed.
    """
    probes, others, known = Probes(), list[int](), places()
    for number, (tensor, address) in enumerate(zip(tensors, addresses, strict=True)):
        if known is None or not _is_ordinary(tensor):
            others.append(number)
            continue
        storage, position = tensor.untyped_storage(), int(tensor.storage_offset())
        first = address - position * tensor.element_size()
        probes.add_numbers(ProbeKind.WORD, tensor, known.tensor, tensor._cdata)
        for subject, place, word in (
            (tensor._cdata, known.storage, storage._cdata),
            (tensor._cdata, known.position, position),
            (storage._cdata, known.address, first),
        ):
            probes.add_word(subject, place, word)
    return probes, others


def _is_ordinary(tensor: torch.Tensor) -> bool:
    kinds = (torch.Tensor, torch.nn.Parameter)
    is_stored = tensor.is_cpu and tensor.layout == torch.strided and tensor.numel() > 0
    return type(tensor) in kinds and is_stored


# pyright: reportPrivateUsage=false
# version counters of tensors


_version = attrgetter("_version")
_address = torch.Tensor.data_ptr


def _always() -> bool:
    return True


@cache
def count_fused_steps() -> None:
    """Make each step of a fused optimizer increment the versions of tensors on GPUs, which torch
    does not do. (Tensors on the CPU are watched by content.)"""

    def after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            if group.get("fused"):
                changed = [p for p in group["params"] if not p.is_cpu and not p.is_inference()]
                torch.autograd.graph.increment_version(changed)

    register_optimizer_step_post_hook(after_step)


@dataclass(frozen=True, slots=True, eq=False)
class CaptureWatch:
    """The constants and guards of one capture, arranged so that few Python steps check them all.

    For tensors on the CPU only the address is watched here: `runtime.constants.Weights` detects
    changes of their content, with or without a new version. For tensors on a GPU the version is
    watched too. hold: check of the addresses that native code can read.
    """

    captured: Captured
    versioned: tuple[torch.Tensor, ...]
    versions: list[int]
    tensors: tuple[torch.Tensor, ...]
    addresses: list[int]
    guards: Guards
    hold: Callable[[], bool]

    @staticmethod
    def of(captured: Captured, native: NativeCheck | None = None) -> CaptureWatch:
        sources = captured.constants
        versioned = [s for s in sources if s.version is not None and not s.tensor.is_cpu]
        if versioned:
            count_fused_steps()
        tensors, hold = [source.tensor for source in sources], _always
        addresses = [source.address for source in sources]
        if native is not None and tensors:
            probes, left = probe_addresses(tensors, addresses)
            tensors, addresses = [tensors[n] for n in left], [addresses[n] for n in left]
            hold = native(probes)
        return CaptureWatch(
            captured,
            tuple(source.tensor for source in versioned),
            [source.version for source in versioned if source.version is not None],
            tuple(tensors),
            addresses,
            captured.guards,
            hold,
        )

    def is_current(self) -> bool:
        if not self.hold() or list(map(_address, self.tensors)) != self.addresses:
            return False
        return list(map(_version, self.versioned)) == self.versions and self.guards.hold()

    def changed(self) -> str | None:
        """Return a description of what has changed, or None."""
        for source in self.captured.constants:
            if not source.is_current():
                return f"the tensor {source.key or source.name}"
        return self.guards.changed()
