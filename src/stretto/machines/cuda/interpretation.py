"""Launches whose text is interpreted on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from stretto.machines.cuda.launch import Argument, Launch

_WORD = (1 << 64) - 1


class KernelRunner(Protocol):
    """Runs a kernel's text on CPU tensors, as `interpreter.InterpretedKernel` does."""

    def launch(
        self, arguments: Sequence[Argument], reached: Sequence[torch.Tensor] = ()
    ) -> object: ...


class Interpretation:
    """An Invocation that is interpreted. reached: memory that words of its arguments point to."""

    joint = True
    """True: interpreted launches always run one after the other."""

    def __init__(self, kernel: KernelRunner, arguments: Sequence[Argument]) -> None:
        self.kernel = kernel
        self.arguments = list(arguments)
        self.reached: Sequence[torch.Tensor] = ()

    def reach(self, memory: Sequence[torch.Tensor]) -> None:
        self.reached = memory

    def set(self, place: int, argument: Argument) -> None:
        self.arguments[place] = argument

    def launch(self, stream: int) -> None:
        self.kernel.launch(self.arguments, self.reached)

    @property
    def count(self) -> int:
        return len(self.arguments)

    def words_at(self, places: Sequence[int]) -> tuple[int, ...]:
        found = (self.arguments[place] for place in places)
        return tuple(a & _WORD if isinstance(a, int) else a.data_ptr() for a in found)

    def frozen(self) -> Launch:
        """Return a launch with a copy of the current arguments."""
        arguments, reached = list(self.arguments), self.reached
        return lambda stream: _ignore(self.kernel.launch(arguments, reached))


def _ignore(value: object) -> None:
    pass
