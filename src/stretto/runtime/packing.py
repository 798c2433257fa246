"""Lays constants out as kernels want them, once, when a program is loaded."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch

from stretto.device.forms import Packing

Empty = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]


def pack(packing: Packing, source: torch.Tensor, empty: Empty | None = None) -> torch.Tensor:
    """The packed panels [batch ..., columns / lanes, depth, lanes] of a constant, zero-padded.

    empty: makes the tensor.
    """
    batch = prod(size for size, _ in packing.outer)
    depth = prod(size for size, _ in packing.depth)
    count, lanes = packing.columns[0], packing.lanes
    dims = [*packing.outer, *packing.depth, packing.columns]
    view = _strided(source.detach().resolve_neg().contiguous(), packing.start, dims)
    columns = view.reshape(batch, depth, count)
    whole, rest = divmod(count, lanes)
    shape = batch, -(-count // lanes), depth, lanes
    packed = torch.empty(shape, dtype=source.dtype) if empty is None else empty(shape, source.dtype)
    parts = columns[:, :, : whole * lanes].unflatten(2, (whole, lanes))
    packed[:, :whole] = parts.transpose(1, 2)
    if rest:
        packed[:, whole, :, rest:] = 0
        packed[:, whole, :, :rest] = columns[:, :, whole * lanes :]
    return packed.view(packed_shape(packing))


def _strided(tensor: torch.Tensor, start: int, dims: list[tuple[int, int]]) -> torch.Tensor:
    """The elements at `start` + sums of strides, from the first one of a contiguous tensor on.

    torch counts from the storage and knows no negative strides: such dims are walked backwards.
    """
    start += int(tensor.storage_offset())
    start += sum((size - 1) * min(step, 0) for size, step in dims if size)
    sizes, steps = [size for size, _ in dims], [abs(step) for _, step in dims]
    view = torch.as_strided(tensor, sizes, steps, start)
    backwards = [dim for dim, (_, step) in enumerate(dims) if step < 0]
    return view.flip(backwards) if backwards else view


def packed_shape(packing: Packing) -> tuple[int, ...]:
    return tuple(dim for dim in packing.buffer.shape if isinstance(dim, int))
