"""Whether what a Program was captured with is unchanged. Checked on each call: must be quick."""

# pyright: reportPrivateUsage=false
# version counters of tensors

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

import torch

from stretto.capture.guards import Guards
from stretto.capture.result import Captured

_version = attrgetter("_version")
_address = torch.Tensor.data_ptr


@dataclass(frozen=True, slots=True, eq=False)
class Watch:
    """The constants and guards of one capture, laid out so that few Python steps check them all."""

    captured: Captured
    versioned: tuple[torch.Tensor, ...]
    versions: list[int]
    tensors: tuple[torch.Tensor, ...]
    addresses: list[int]
    guards: Guards

    @staticmethod
    def of(captured: Captured) -> Watch:
        sources = captured.constants
        versioned = [source for source in sources if source.version is not None]
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

    def changed(self) -> str:
        """What is not what it was, in words."""
        for source in self.captured.constants:
            if not source.is_current():
                return f"the tensor {source.key or source.name}"
        return self.guards.changed() or "nothing"
