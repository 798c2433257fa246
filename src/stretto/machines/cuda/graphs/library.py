"""Library calls for captured graphs: each runs once before its first capture.

A first call of cuBLAS or cuDNN makes a handle of the thread's, loads kernels, and chooses among
algorithms, by trials with `torch.backends.cudnn.benchmark`. A stream that is captured permits
none of this. So a call is *rehearsed*: it runs outside of captures, by the thread that captures it,
on memory of its own. The program's memory is neither read nor written, except for constants.
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
"""Bytes: libraries choose algorithms by the alignment of addresses, up to this one (cuBLASLt)."""

Empty = Callable[[Sequence[int], torch.dtype], torch.Tensor]
"""Gives memory of the current stream."""


@dataclass(frozen=True, slots=True)
class GraphCall:
    """A library call for a graph. operands: its tensors and numbers, as `bound` of
    runtime/library.py wants them. run: puts the call on the current stream."""

    call: LibraryCall
    operands: Sequence[Operand]
    run: Callable[[], None]

    @property
    def key(self) -> Hashable:
        """Equal for two runs of one call where libraries choose the same algorithms."""
        return id(self.call), tuple(map(_traits, self.operands))

    def rehearse(self, empty: Empty) -> None:
        """Runs the call on tensors like its own, which hold zeros: as indices, these are in range
        of everything. An operator that refuses zeros, as an inverse does, says so when it is
        captured. Raises torch.OutOfMemoryError."""
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
    """A library call that cannot be captured, though it was rehearsed. reason: torch's own."""

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
    """A contiguous tensor of zeros at an address of the same alignment."""
    memory = empty((tensor.nbytes + ALIGNMENT,), torch.uint8).zero_()
    start = (tensor.data_ptr() - memory.data_ptr()) % ALIGNMENT
    return memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
