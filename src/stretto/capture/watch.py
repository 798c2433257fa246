"""Whether what a Program was captured with is unchanged. Checked on each call: must be quick."""

# pyright: reportPrivateUsage=false
# version counters of tensors

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter, is_, methodcaller

import torch

from stretto.capture.guards import Guard
from stretto.capture.result import Captured

_version = attrgetter("_version")
_address = methodcaller("data_ptr")


@dataclass(frozen=True, slots=True, eq=False)
class Watch:
    """The constants and guards of one capture, laid out so that few Python steps check them all."""

    captured: Captured
    versioned: tuple[torch.Tensor, ...]
    versions: list[int]
    tensors: tuple[torch.Tensor, ...]
    addresses: list[int]
    guards: tuple[Guard, ...]

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
        if list(map(_version, self.versioned)) != self.versions:
            return False
        if list(map(_address, self.tensors)) != self.addresses:
            return False
        for guard in self.guards:
            if not all(map(is_, guard.read(), guard.values)) and not guard.is_current():
                return False
        return True

    def changed(self) -> str:
        """What is not what it was, in words."""
        for source in self.captured.constants:
            if not source.is_current():
                return f"the tensor {source.key or source.name}"
        found = (guard.changed() for guard in self.guards)
        return next((text for text in found if text), "nothing")
