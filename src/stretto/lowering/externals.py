"""The argument block of a program that is being lowered."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from stretto.device.expr import Buffer, Extent
from stretto.errors import CodegenError, SourceLocation
from stretto.ir.failure import NUMBER_BITS, Failure, Stop
from stretto.ir.types import DType


@dataclass(slots=True)
class Externals:
    """The argument block: buffers by slot, the tensors of constants, shared by all functions.

    stops: what the checks of the program raise, by their number. stacks: lists that grow at run
    time. Each activation of a function has a part of its own in them (`Lowering.base`).
    """

    buffers: list[Buffer] = field(default_factory=list[Buffer])
    constants: dict[str, Buffer] = field(default_factory=dict[str, Buffer])
    tensors: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])
    draws: Buffer | None = None
    """Counts the draws of random numbers, which keeps their order; None where there are none."""
    stops: list[Stop] = field(default_factory=list[Stop])
    stacks: list[Buffer] = field(default_factory=list[Buffer])

    def add(self, name: str, dtype: DType, shape: tuple[Extent, ...], kind: str) -> Buffer:
        buffer = Buffer(name, dtype, shape, kind, len(self.buffers))
        self.buffers.append(buffer)
        return buffer

    def stack(self, name: str, dtype: DType, shape: tuple[Extent, ...]) -> Buffer:
        """A list that grows at run time, shared by the activations of functions."""
        buffer = self.add(name, dtype, shape, "list")
        self.stacks.append(buffer)
        return buffer

    def constant(self, key: str, tensor: torch.Tensor) -> Buffer:
        """The buffer of a constant, entered once per key."""
        if key not in self.constants:
            dtype = DType.from_torch(tensor.dtype)
            buffer = self.add(key, dtype, tuple(tensor.shape), "constant")
            self.constants[key] = buffer
            self.tensors[buffer.slot] = tensor
        return self.constants[key]

    def stop(self, failure: Failure, location: SourceLocation | None) -> int:
        """The number of a check that raises `failure`, entered once per failure and place."""
        entry = Stop(failure, location)
        for number, known in enumerate(self.stops):
            if known == entry and known.failure.raised is failure.raised:
                return number
        if len(self.stops) == 1 << NUMBER_BITS:
            raise CodegenError(
                f"a program with more than {1 << NUMBER_BITS} checks", location=location
            )
        self.stops.append(entry)
        return len(self.stops) - 1
