"""Memory of results on this machine that is handed out again once nobody has it any more.

torch's allocator of a GPU does so by itself: a result that the caller has dropped leaves its place
to the next one of its size, so that a captured graph finds its arguments where they were. Memory of
this machine has no such habit, and emulated graphs would have to be patched in every call.

A program works on a tensor of its own over a block; the caller gets another one over the same
bytes. Whether that one, or any view of it, is still there says the array that its storage keeps
alive: no block is handed out before that is gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

KEPT_CALLS = 4
"""A block that so many calls did not need is forgotten."""


@dataclass(eq=False, slots=True)
class _Block:
    """memory: its bytes. call: the last one that it was taken for. callers: the arrays behind what
    callers have of it. result: what they got last."""

    memory: torch.Tensor
    call: int
    callers: list[weakref.ref[Any]] = field(default_factory=list[weakref.ref[Any]])
    result: weakref.ref[torch.Tensor] | None = None

    def is_free(self, call: int) -> bool:
        return self.call != call and all(caller() is None for caller in self.callers)


class ReusedBlocks:
    """The blocks of one program, which is in one call at a time."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._call = 0

    def begin(self) -> None:
        """A call begins. What the one before took and did not hand out is free again."""
        self._call += 1
        self._blocks = [b for b in self._blocks if self._call - b.call <= KEPT_CALLS]

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory of the call for a result, with whatever is in it."""
        nbytes = prod(shape) * dtype.itemsize
        if not nbytes:
            return torch.empty(tuple(shape), dtype=dtype)
        for block in self._blocks:
            if block.memory.nbytes == nbytes and block.is_free(self._call):
                block.call, block.result = self._call, None
                block.callers.clear()
                break
        else:
            block = _Block(torch.empty(nbytes, dtype=torch.uint8), self._call)
            self._blocks.append(block)
        return block.memory.view(dtype).view(tuple(shape))

    def hand_out(self, result: torch.Tensor) -> torch.Tensor:
        """A result for the caller, with the bytes of what `take` gave; the same tensor again for
        one that is a result twice."""
        place = result.data_ptr()
        found = (b for b in self._blocks if b.call == self._call and b.memory.data_ptr() == place)
        block = next(found, None)
        if block is None or not result.nbytes:
            return result
        known = None if block.result is None else block.result()
        if known is not None and known.dtype == result.dtype and known.shape == result.shape:
            return known
        array = block.memory.numpy()[:]
        block.callers.append(weakref.ref(array))
        storage = torch.from_numpy(array).untyped_storage()
        made = torch.empty(0, dtype=result.dtype)
        made.set_(storage, 0, result.shape, result.stride())
        block.result = weakref.ref(made)
        return made
