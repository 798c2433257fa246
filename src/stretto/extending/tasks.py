"""Single tasks of a kernel, on tensors between guards: what its check runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

GUARD = 64
"""Elements before and behind each tensor, which belong to nobody."""

Box = tuple[tuple[int, int], ...]
"""The range of each index."""
Number = bool | int | float


class Tasks(Protocol):
    """The tasks of a kernel in one language, on tensors of certain sizes."""

    def run(self, held: Sequence[Guarded], box: Box, numbers: Sequence[Number], /) -> None:
        """One task. held: the tensors in the order of the schema, then the result."""
        ...


@dataclass(frozen=True, slots=True)
class Guarded:
    """A tensor with guards around it: `result` is a view into `memory`; `before` is a copy of that
    from before the call. Both are bits."""

    memory: Tensor
    before: Tensor
    result: Tensor

    @property
    def guarded(self) -> Tensor:
        return bits(self.memory)

    def around(self, inside: Tensor) -> Tensor:
        """A mask of the memory."""
        mask = torch.zeros(self.memory.numel(), dtype=torch.bool)
        mask[GUARD : GUARD + inside.numel()] = inside.reshape(-1)
        return mask

    def positions(self, mask: Tensor, like: Tensor) -> str:
        """The first of some elements, for people."""
        at = int(mask.nonzero()[0, 0]) - GUARD
        if at < 0 or at >= like.numel():
            side = "before" if at < 0 else "behind"
            return f"{-at if at < 0 else at - like.numel() + 1} elements {side} the tensor"
        found: list[int] = []
        for size in reversed(like.shape):
            at, rest = divmod(at, size)
            found.insert(0, rest)
        return f"element {tuple(found)}"


def guarded(tensor: Tensor, known: Tensor, poison: int) -> Guarded:
    memory = _poison(tensor.numel() + 2 * GUARD, tensor.dtype, poison)
    inner = memory[GUARD : GUARD + tensor.numel()].view(tensor.shape)
    inner[known] = tensor[known]
    return Guarded(memory, bits(memory).clone(), inner)


def _poison(count: int, dtype: torch.dtype, kind: int) -> Tensor:
    """NaN of two kinds, or rubbish of two kinds."""
    if dtype.is_floating_point:
        found = torch.full((count,), float("nan"), dtype=dtype)
        return -found if kind else found
    if dtype is torch.bool:
        return torch.full((count,), bool(kind))
    info = torch.iinfo(dtype)
    return torch.full((count,), info.max - 1 if kind else info.min // 2 + 1, dtype=dtype)


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(_BITS[tensor.element_size()])
