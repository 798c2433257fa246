"""Lays constants out as kernels want them, once, when a program is loaded."""

from __future__ import annotations

from math import prod

import torch

from stretto.kernels.select import Packing


def pack(packing: Packing, source: torch.Tensor) -> torch.Tensor:
    """The packed panels [batch ..., columns / lanes, depth, lanes] of a constant, zero-padded."""
    flat = source.detach().contiguous().view(-1)
    sizes = [
        *(size for size, _ in packing.batch),
        *(size for size, _ in packing.depth),
        packing.columns[0],
    ]
    strides = [*(s for _, s in packing.batch), *(s for _, s in packing.depth), packing.columns[1]]
    view = torch.as_strided(flat, sizes, strides, packing.start)
    batch = prod(size for size, _ in packing.batch)
    depth = prod(size for size, _ in packing.depth)
    count = packing.columns[0]
    panels = -(-count // packing.lanes)
    padded = torch.zeros(batch, depth, panels * packing.lanes, dtype=source.dtype)
    padded[:, :, :count] = view.reshape(batch, depth, count)
    panelled = padded.view(batch, depth, panels, packing.lanes).transpose(1, 2).contiguous()
    return panelled.view(packed_shape(packing))


def packed_shape(packing: Packing) -> tuple[int, ...]:
    return tuple(dim for dim in packing.buffer.shape if isinstance(dim, int))
