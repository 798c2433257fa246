"""Checks whether what a Program was captured with is unchanged. Done on each call: must be
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

# ---- Where torch keeps the memory of a tensor, so that native code can see whether it is another
# one.
#
# `Tensor.data_ptr` takes a tenth of a microsecond, which adds up to more than many a program
# takes. The words behind it lie in torch's own objects, in places that differ between its
# versions: they are found in tensors made for this. Where they cannot be found, `data_ptr` is
# asked as before.


# pyright: reportPrivateUsage=false
# addresses of torch's own objects


# Bytes at the front of torch's objects that are looked at; all of its versions are larger.
_OF_OBJECT, _OF_TENSOR, _OF_STORAGE = 32, 176, 40


@dataclass(frozen=True, slots=True)
class Places:
    """The offsets, in bytes, of words: of torch's tensor in Python's object, of the storage and the
    first element's position in torch's tensor, of the address in torch's storage."""

    tensor: int
    storage: int
    position: int
    address: int


@cache
def places() -> Places | None:
    """None where torch keeps its tensors in another way than is known here."""
    # A position that is equal to no other word, and one that is another tensor's number of bytes.
    samples = (
        torch.empty(70_001)[54_321:54_330],
        torch.nn.Parameter(torch.empty(7, 11, 13), requires_grad=False),
        torch.empty(130_003, dtype=torch.int64)[98_765:][None],
    )
    found = [_places(sample) for sample in samples]
    tensor, storage, position, address = (
        set.intersection(*sets) for sets in zip(*found, strict=True)
    )
    # The memory itself, and what its deleter is given, which lies behind it.
    if min(map(len, (tensor, storage, position, address))) == 0 or len(position) > 1:
        return None
    return Places(min(tensor), min(storage), min(position), min(address))


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
    """Probes that hold while the first elements of these tensors lie at these addresses, and the
    numbers of the tensors that `data_ptr` has to be asked for.

    Each word is looked at only where the ones before it hold, so that none is read in an object
    that is gone.
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
    """Makes each step of a fused optimizer give new versions to tensors on GPUs, which torch does
    not do. (The memory of tensors on the CPU is watched.)"""

    def after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            if group.get("fused"):
                changed = [p for p in group["params"] if not p.is_cpu and not p.is_inference()]
                torch.autograd.graph.increment_version(changed)

    register_optimizer_step_post_hook(after_step)


@dataclass(frozen=True, slots=True, eq=False)
class Watch:
    """The constants and guards of one capture, laid out so that few Python steps check them all.

    Of tensors on the CPU only the address is watched here: `runtime.constants.Weights` sees changes
    of their content, with or without a new version. Of those on a GPU it is the version. hold: that
    of the tensors which native code can look at.
    """

    captured: Captured
    versioned: tuple[torch.Tensor, ...]
    versions: list[int]
    tensors: tuple[torch.Tensor, ...]
    addresses: list[int]
    guards: Guards
    hold: Callable[[], bool]

    @staticmethod
    def of(captured: Captured, native: NativeCheck | None = None) -> Watch:
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
        return Watch(
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
        """A description of what has changed."""
        for source in self.captured.constants:
            if not source.is_current():
                return f"the tensor {source.key or source.name}"
        return self.guards.changed()
