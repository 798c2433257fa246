"""Arrays of regions of one buffer, which compute all pairwise overlaps in a few operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from stretto.device.expr import Buffer, Extent
from stretto.device.operator import Piece, Split, TileDim
from stretto.device.regions import (
    Box,
    Interval,
    Kind,
    Part,
    Region,
    refine,
    refined_strides,
    same_dims,
)

Mask = NDArray[np.bool_]
Limits = NDArray[np.int64]

MOST_TASKS = 1024
"""Largest number of tasks whose regions are compared individually. In a larger kernel whose tasks
are dealt among the units, every unit is assumed to touch what all tasks touch: pairwise
comparison would take seconds."""

ALL = 1 << 62
"""The end of a dim that is taken whole."""


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """Regions of one buffer that have one shape and one kind: row r is region r.

    limits[r, d]: first and last + 1 of dim d, in values, or in tiles or parts if the dim is cut.
    """

    buffer: Buffer
    shape: tuple[Extent, ...]
    write: bool
    cuts: tuple[TileDim | Split | None, ...]
    regions: tuple[Region, ...]
    limits: Limits
    _refined: dict[tuple[int, ...], Limits] = field(default_factory=dict[tuple[int, ...], Limits])

    @staticmethod
    def of(regions: Sequence[Region]) -> Boxes:
        first = regions[0]
        limits = _limits([region.box for region in regions], len(first.shape))
        cuts = first.kind[-1]
        return Boxes(first.buffer, first.shape, first.write, cuts, tuple(regions), limits)

    def __len__(self) -> int:
        return len(self.regions)

    def under(self, buffer: Buffer) -> Boxes:
        """Return the same regions in another buffer."""
        return replace(self, buffer=buffer)

    def lasting(self) -> Boxes:
        """Return regions that stay valid when registers change: dims that are cut by a register
        become whole."""
        dims = [n for n, cut in enumerate(self.cuts) if cut is not None and cut.is_cut_by_register]
        if not dims:
            return self
        return Boxes.of([region.whole_in(dims) for region in self.regions])

    def overlap(self, other: Boxes) -> Mask:
        """Return a mask [r, s]: True if region r and region s of `other` may share an element."""
        if self.shape == other.shape:
            return self._overlap_in(len(self.shape), other)
        strides = refined_strides(self.shape, other.shape)
        if strides is not None:
            return meeting(self._cut(strides), other._cut(strides))
        dims = same_dims(self.shape, other.shape)
        return self._overlap_in(dims, other) & meeting(self.spans(), other.spans())

    def _overlap_in(self, dims: int, other: Boxes) -> Mask:
        """Return the mask computed from the first `dims` dims alone, which both shapes share."""
        cuts = zip(self.cuts[:dims], other.cuts[:dims], strict=True)
        same = [number for number, (one, another) in enumerate(cuts) if one == another]
        return meeting(self.limits[:, same], other.limits[:, same])

    def spans(self) -> Limits:
        """Return [r, 0]: the first element and the last + 1 of each region."""
        if () not in self._refined:
            spans = [(region.span,) for region in self.regions]
            self._refined[()] = _limits(spans, 1)
        return self._refined[()]

    def _cut(self, strides: tuple[int, ...]) -> Limits:
        if strides not in self._refined:
            boxes = [refine(region, strides) for region in self.regions]
            self._refined[strides] = _limits(boxes, len(strides))
        return self._refined[strides]


def grouped(regions: Iterable[tuple[int, Region]]) -> list[tuple[Boxes, NDArray[np.int64]]]:
    """Group regions by kind (buffer, shape, access, cuts), with the given number of each region."""
    groups: dict[Kind, list[tuple[int, Region]]] = {}
    for number, region in regions:
        groups.setdefault(region.kind, []).append((number, region))
    return [
        (
            Boxes.of([region for _, region in group]),
            np.array([number for number, _ in group], np.int64),
        )
        for group in groups.values()
    ]


def part(mask: Mask, region: Region) -> Mask:
    """Return the elements of a region, whose dims are numbers, as a view of a buffer's mask."""
    shape = tuple(dim if isinstance(dim, int) else -1 for dim in region.shape)
    size = prod(shape)
    if 0 in shape or 0 <= size < len(mask):
        # The view has fewer elements than the buffer.
        mask = mask[:size]
        shape = tuple(max(dim, 0) for dim in shape)
    box = tuple(slice(*one) if isinstance(one, tuple) else slice(None) for one in region.box)
    return mask.reshape(shape)[(*box, ...)]


def numbers(part: Part, size: int = ALL) -> Interval:
    """Return the interval of a part of a dim of this size, in tiles for a piece."""
    if isinstance(part, Piece):
        return part.first, part.last
    return (0, size) if part is None else part


def _limits(boxes: Sequence[Box], dims: int) -> Limits:
    rows = [[numbers(part) for part in box] for box in boxes]
    return np.array(rows, np.int64).reshape(len(boxes), dims, 2)


def meeting(a: Limits, b: Limits) -> Mask:
    met = np.ones((len(a), len(b)), np.bool_)
    for dim in range(a.shape[1]):
        met &= a[:, dim, 0, None] < b[None, :, dim, 1]
        met &= b[None, :, dim, 0] < a[:, dim, 1, None]
    return met
