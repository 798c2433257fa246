"""Results of a run as tensors, from the memory that a program wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import torch

from stretto.device.evaluate import resolve
from stretto.device.expr import Buffer, Reg, is_known
from stretto.device.forms import OutputList, OutputTensor
from stretto.lowering.lazy import memory_order

FIRST_CAPACITY = 64
"""Items that a list of unknown length has room for at first."""

GROWTH = 4
"""A list that was full gets so many times the room."""

SMALL_ELEMENTS = 1 << 9
"""Elements that a result may keep alive beyond its own."""

Result = torch.Tensor | list[torch.Tensor]


NO_SIZES: Mapping[str, int] = {}
"""The sizes of a program without symbols."""


def item_shape(buffer: Buffer, sizes: Mapping[str, int] = NO_SIZES) -> tuple[int, ...]:
    """The dims of a buffer that are known at the call; of a list that grows those of an item.

    sizes: the values of symbols, by the names of their registers.
    """
    return tuple(resolve(dim, sizes) for dim in buffer.shape if is_known(dim))


def grows(buffer: Buffer) -> bool:
    """True for a buffer whose leading dim the runtime chooses."""
    return not all(map(is_known, buffer.shape))


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
    sizes: Mapping[str, int] = NO_SIZES,
) -> Result:
    """One result. `memory` holds its buffer; the value of register r is scalars[places[r]], that of
    a symbol in `sizes`, by the name of its register.

    What the memory has room for beyond the result is not kept alive: dynamic results are copies.
    """
    match output:
        case OutputList(buffer, length):
            shape = item_shape(buffer, sizes)[0 if grows(buffer) else 1 :]
            count, size = scalars[places[length]], prod(shape)
            items = memory.view(-1)[: count * size].view(count, *shape)
            return [item.clone() for item in items]
        case OutputTensor(buffer, shape):
            if not any(isinstance(dim, Reg) for dim in shape):
                return memory
            dims = [
                scalars[places[dim]] if isinstance(dim, Reg) else resolve(dim, sizes)
                for dim in shape
            ]
            order = memory_order(shape)
            rows = item_shape(buffer, sizes)[0 if grows(buffer) else 1 :]
            steps = [prod(rows[place:]) for place in range(len(dims))]
            stored = memory.view(-1).as_strided([dims[dim] for dim in order], steps)
            ordered = stored.permute([order.index(dim) for dim in range(len(order))])
            return ordered.clone(memory_format=torch.contiguous_format)


def first_rows(memory: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The first rows of memory that nothing else uses: the memory itself, unless it is much larger
    than the result."""
    if is_kept(memory.shape[0], shape[0], shape[1:]):
        return memory.resize_(shape)
    return memory.view(-1)[: prod(shape)].clone().view(shape)


def is_kept(room: int, rows: int, row: tuple[int, ...]) -> bool:
    """Whether a result of so many rows may keep memory for `room` alive."""
    return 2 * rows >= room or room * prod(row) <= SMALL_ELEMENTS
