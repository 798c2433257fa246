"""Results of a run as tensors, from the memory that a program wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import torch

from stretto.device.expr import Buffer, Reg
from stretto.device.forms import OutputList, OutputTensor
from stretto.ir.sizes import Size
from stretto.lowering.lazy import memory_order

FIRST_CAPACITY = 64
"""Items that a list of unknown length has room for at first."""

GROWTH = 4
"""A list that was full gets so many times the room."""

Result = torch.Tensor | list[torch.Tensor]


def item_shape(buffer: Buffer) -> tuple[int, ...]:
    """The dims of a buffer that are numbers; of a list that grows those of an item."""
    return tuple(dim for dim in buffer.shape if isinstance(dim, int))


def grows(buffer: Buffer) -> bool:
    """True for a buffer whose leading dim the runtime chooses."""
    return len(item_shape(buffer)) != len(buffer.shape)


def first_capacities(buffers: Iterable[tuple[int, Buffer]]) -> dict[int, int]:
    """How many items the lists among numbered buffers have room for at first, by number."""
    return {
        number: buffer.shape[0] if isinstance(buffer.shape[0], int) else FIRST_CAPACITY
        for number, buffer in buffers
        if buffer.kind == "list"
    }


def result(
    output: OutputTensor | OutputList,
    memory: torch.Tensor,
    scalars: Sequence[int],
    places: Mapping[Reg, int],
) -> Result:
    """One result. `memory` holds its buffer; the value of register r is scalars[places[r]].

    What the memory has room for beyond the result is not kept alive: dynamic results are copies.
    """
    match output:
        case OutputList(buffer, length):
            shape = item_shape(buffer)[0 if grows(buffer) else 1 :]
            count, size = scalars[places[length]], prod(shape)
            items = memory.view(-1)[: count * size].view(count, *shape)
            return [item.clone() for item in items]
        case OutputTensor(_, shape):
            if not any(isinstance(dim, Reg) for dim in shape):
                return memory
            sizes: list[int] = []
            for dim in shape:
                assert not isinstance(dim, Size)
                sizes.append(scalars[places[dim]] if isinstance(dim, Reg) else dim)
            order = memory_order(shape)
            flat = memory.view(-1)[: prod(sizes)].clone()
            stored = flat.view([sizes[dim] for dim in order])
            return stored.permute([order.index(dim) for dim in range(len(order))]).contiguous()
