"""Lays constants out as kernels want them, once, when a program is loaded."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch

from stretto.device.forms import Packing

Empty = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]


def pack(packing: Packing, source: torch.Tensor, empty: Empty | None = None) -> torch.Tensor:
    """The packed panels [batch ..., columns / lanes, depth / group, lanes * group] of a constant,
    zero-padded.

    empty: makes the tensor.
    """
    batch = prod(size for size, _ in packing.outer)
    depth = prod(size for size, _ in packing.depth)
    count, lanes = packing.columns[0], packing.lanes
    dims = [*packing.outer, *packing.depth, packing.columns]
    plain = source.detach().resolve_neg().contiguous()
    view = _strided(_transformed(packing, plain), packing.start, dims)
    columns, group = view.reshape(batch, depth, count), packing.group
    groups = -(-depth // group)
    if depth % group:
        columns = torch.nn.functional.pad(columns, (0, 0, 0, groups * group - depth))
    columns = columns.reshape(batch, groups, group, count)
    whole, rest = divmod(count, lanes)
    shape = batch, -(-count // lanes), groups, lanes, group
    packed = torch.empty(shape, dtype=source.dtype) if empty is None else empty(shape, source.dtype)
    parts = columns[..., : whole * lanes].unflatten(3, (whole, lanes))
    packed[:, :whole] = parts.permute(0, 3, 1, 4, 2)
    if rest:
        packed[:, whole, :, rest:] = 0
        packed[:, whole, :, :rest] = columns[..., whole * lanes :].transpose(2, 3)
    return packed.view(packed_shape(packing))


POINTS = {2: (1.0,), 4: (0.625, 1.5)}
"""The points p of the minimal filtering algorithm of each size of tiles: it has 0, infinity, p and
-p. For 4, 5/8 and 3/2 lose fewer digits than 1 and 2, with which the algorithm is published."""


def _transformed(packing: Packing, weights: torch.Tensor) -> torch.Tensor:
    if packing.line:
        return filtered_lines(weights, packing.tile, packing.line)
    return filtered(weights, packing.tile) if packing.tile else weights


def filtered(weights: torch.Tensor, tile: int) -> torch.Tensor:
    """G w G' of weights [out, in, 3, 3], for tiles of tile x tile pixels: [out, in, tile + 2,
    tile + 2], rounded once (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks",
    2016, section 4).
    """
    factor = _factor(tile)
    return (factor @ weights.double() @ factor.T).to(weights.dtype)


def filtered_lines(weights: torch.Tensor, tile: int, dim: int) -> torch.Tensor:
    """G w of groups of three taps along a dim (2 or 3) of weights [out, in, height, width], for
    lines of `tile` pixels: [out, in, taps of the other dim, groups, tile + 2], rounded once. The
    last group is filled up with zeros.
    """
    along = weights.double().movedim(dim, 3)
    filled = torch.nn.functional.pad(along, (0, -along.shape[3] % 3))
    return (filled.unflatten(3, (-1, 3)) @ _factor(tile).T).to(weights.dtype).contiguous()


def _factor(tile: int) -> torch.Tensor:
    """G, [tile + 2, 3]."""
    squares = [p * p for p in POINTS[tile]]
    rows = [[1 / prod(squares), 0.0, 0.0]]
    for point in POINTS[tile]:
        square = point * point
        others = prod(square - other for other in squares if other != square)
        scale = 1 / (2 * square * others)
        rows += [[scale, sign * point * scale, square * scale] for sign in (1, -1)]
    return torch.tensor([*rows, [0.0, 0.0, 1.0]], dtype=torch.float64)


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
