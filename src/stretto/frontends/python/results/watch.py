"""Checks whether what a Program was captured with is unchanged. Done on each call: must be
quick."""

# pyright: reportPrivateUsage=false
# version counters of tensors

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from stretto.frontends.python.guards.addresses import probe_addresses
from stretto.frontends.python.guards.guards import Guards, NativeCheck
from stretto.frontends.python.results.captured import Captured

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
