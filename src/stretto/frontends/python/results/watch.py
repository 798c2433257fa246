"""Checks whether what a Program was captured with is unchanged. Done on each call: must be
quick."""

# pyright: reportPrivateUsage=false
# version counters of tensors

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from stretto.frontends.python.guards.guards import Guards
from stretto.frontends.python.results.captured import Captured

_version = attrgetter("_version")
_address = torch.Tensor.data_ptr


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
    of their content, with or without a new version. Of those on a GPU it is the version.
    """

    captured: Captured
    versioned: tuple[torch.Tensor, ...]
    versions: list[int]
    tensors: tuple[torch.Tensor, ...]
    addresses: list[int]
    guards: Guards

    @staticmethod
    def of(captured: Captured) -> Watch:
        sources = captured.constants
        versioned = [s for s in sources if s.version is not None and not s.tensor.is_cpu]
        if versioned:
            count_fused_steps()
        return Watch(
            captured,
            tuple(source.tensor for source in versioned),
            [source.version for source in versioned if source.version is not None],
            tuple(source.tensor for source in sources),
            [source.address for source in sources],
            captured.guards,
        )

    def is_current(self) -> bool:
        if self.tensors and not (
            list(map(_version, self.versioned)) == self.versions
            and list(map(_address, self.tensors)) == self.addresses
        ):
            return False
        return self.guards.hold()

    def changed(self) -> str | None:
        """A description of what has changed."""
        for source in self.captured.constants:
            if not source.is_current():
                return f"the tensor {source.key or source.name}"
        return self.guards.changed()
