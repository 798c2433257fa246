"""Library calls for captured graphs: each runs once before its first capture.

A first call of cuBLAS or cuDNN creates a handle for the thread, loads kernels, and chooses among
algorithms, by trials with `torch.backends.cudnn.benchmark`. A stream that is being captured permits
none of this. So a call is *rehearsed*: it runs outside of captures, in the thread that captures it,
on separate memory. The program's memory is neither read nor written, except for constants.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from stretto.device.expr import Buffer
from stretto.device.operator import LibraryCall
from stretto.errors import RunError
from stretto.machines.cuda.graphs.store import is_out_of_memory
from stretto.runtime.library import Operand, run_call

ALIGNMENT = 256
"""Bytes up to which libraries choose algorithms by the alignment of addresses (cuBLASLt)."""

Empty = Callable[[Sequence[int], torch.dtype], torch.Tensor]
"""Allocates memory of the current stream."""


@dataclass(frozen=True, slots=True)
class GraphCall:
    """A library call for a graph. operands: its tensors and numbers, as `bound` of
    runtime/library.py expects them. run: enqueues the call on the current stream."""

    call: LibraryCall
    operands: Sequence[Operand]
    run: Callable[[], None]

    @property
    def key(self) -> Hashable:
        """A key that is equal for two runs of one call if libraries choose the same algorithms."""
        return id(self.call), tuple(map(_traits, self.operands))

    def rehearse(self, empty: Empty) -> None:
        """Run the call on tensors like its own, filled with zeros: as indices, zeros are always in
        range. If an operator rejects zeros, as an inverse does, the error is ignored here, and
        the capture decides. Raises torch.OutOfMemoryError."""
        kinds, outs = self.call.operands, set(self.call.outs)
        operands = [
            _like(operand, empty)
            if isinstance(operand, torch.Tensor) and not _is_constant(kind, outs)
            else operand
            for kind, operand in zip(kinds, self.operands, strict=True)
        ]
        try:
            run_call(self.call, operands)
        except RunError as error:
            if is_out_of_memory(error):
                raise


@dataclass(frozen=True, slots=True)
class Refusal:
    """A library call that cannot be captured, even after rehearsal. reason: torch's message."""

    call: LibraryCall
    reason: str

    def __str__(self) -> str:
        return f"{self.call.target} ({self.call.source}): {self.reason}"


def _is_constant(kind: object, outs: set[Buffer]) -> bool:
    return isinstance(kind, Buffer) and kind.kind == "constant" and kind not in outs


def _traits(operand: Operand) -> Hashable:
    if not isinstance(operand, torch.Tensor):
        return operand
    return tuple(operand.shape), operand.data_ptr() % ALIGNMENT


def _like(tensor: torch.Tensor, empty: Empty) -> torch.Tensor:
    """Return a contiguous tensor of zeros at an address of the same alignment."""
    memory = empty((tensor.nbytes + ALIGNMENT,), torch.uint8).zero_()
    start = (tensor.data_ptr() - memory.data_ptr()) % ALIGNMENT
    return memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
