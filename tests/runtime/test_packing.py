"""Constants packed into panels, compared element by element."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
import torch

from stretto.device.expr import Buffer
from stretto.device.forms import Packing
from stretto.ir.types import DType
from stretto.runtime.constants import pack

Dim = tuple[int, int]


def packing(
    outer: tuple[Dim, ...],
    columns: Dim,
    depth: tuple[Dim, ...],
    lanes: int,
    start: int = 0,
    group: int = 1,
) -> Packing:
    sizes = [size for size, _ in outer]
    panels, steps = -(-columns[0] // lanes), prod(size for size, _ in depth)
    shape = (*sizes, panels, -(-steps // group), lanes * group)
    buffer = Buffer("packed", DType.F32, shape, "constant", 1)
    source = Buffer("source", DType.F32, (1,), "constant", 0)
    return Packing(buffer, source, start, outer, columns, depth, lanes, group=group)


CASES = [
    packing((), (128, 5), ((5, 1),), 64),
    packing((), (130, 5), ((5, 1),), 64),
    packing((), (7, 1), ((5, 7),), 16),
    packing((), (32, 1), ((0, 32),), 16),
    packing(((3, 40),), (10, 4), ((2, 2), (2, 1)), 6),
    packing(((2, 60), (3, 20)), (12, 1), ((1, 1),), 6),
    packing((), (20, -5), ((5, -1),), 16, start=99),
    packing((), (130, 5), ((5, 1),), 64, group=2),
    packing(((3, 40),), (10, 4), ((2, 2), (3, 1)), 16, group=4),
    packing(((2, 60), (3, 20)), (16, 1), ((1, 16),), 16, group=4),
    packing((), (7, 1), ((0, 7),), 16, group=2),
]


@pytest.mark.parametrize("wanted", CASES)
def test_each_element_is_at_its_place(wanted: Packing) -> None:
    source = torch.randn(700)
    packed = pack(wanted, source)
    assert packed.shape == wanted.buffer.shape and packed.is_contiguous()
    count, step = wanted.columns
    outer = list(product(*(range(size) for size, _ in wanted.outer)))
    depth = list(product(*(range(size) for size, _ in wanted.depth)))
    panels, lanes, group_size = -(-count // wanted.lanes), wanted.lanes, wanted.group
    steps = -(-len(depth) // group_size)
    grouped = packed.view(len(outer), panels, steps, lanes, group_size).transpose(3, 4)
    flat = grouped.reshape(len(outer), panels, steps * group_size, lanes)
    assert not flat[:, :, len(depth) :].any()
    for n, group in enumerate(outer):
        for k, place in enumerate(depth):
            first = wanted.start + sum(i * s for i, (_, s) in zip(group, wanted.outer, strict=True))
            first += sum(i * s for i, (_, s) in zip(place, wanted.depth, strict=True))
            row = flat[n, :, k].reshape(-1)
            assert row[:count].tolist() == [source[first + c * step] for c in range(count)]
            assert not row[count:].any()
