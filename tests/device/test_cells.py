"""Cells of a buffer tell of regions what a mask of all its elements tells."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stretto.device.boxes import part
from stretto.device.expr import Buffer, Extent, Reg
from stretto.device.regions import Interval, Region
from stretto.device.verifier.cells import Cells
from stretto.ir.types import DType

BUFFER = Buffer("b", DType.F32, (4, 6, 5))
SHAPES: tuple[tuple[Extent, ...], ...] = (
    (4, 6, 5), (120,), (24, 5), (2, 3, 4, 5), (6, 5), (8, 15), (Reg("n"), 10),
)  # fmt: skip


def drawn(rng: random.Random) -> Region:
    shape = rng.choice(SHAPES)
    box: list[Interval | None] = []
    for dim in shape:
        size = dim if isinstance(dim, int) else 12
        first, last = sorted(rng.randint(0, size) for _ in range(2))
        box.append(rng.choice([None, (first, last), (0, size)]))
    return Region(BUFFER, shape, tuple(box), write=True)


@pytest.mark.parametrize("seed", range(20))
def test_as_a_mask_of_elements(seed: int) -> None:
    rng = random.Random(seed)
    regions = [drawn(rng) for _ in range(rng.randint(1, 5))]
    first = rng.randint(0, 119)
    span = first, rng.randint(first, 120)
    cells = Cells.of(BUFFER, regions, [span])
    few, all_of_them = cells.none(), np.zeros(BUFFER.elements, np.bool_)
    for _ in range(12):
        value = rng.random() < 0.6
        if rng.random() < 0.2:
            few[cells.span(span)] = value
            all_of_them[slice(*span)] = value
        else:
            region = rng.choice(regions)
            few[cells.region(region)] = value
            part(all_of_them, region)[...] = value
        wanted = np.repeat(few, np.diff([*cells.starts, BUFFER.elements]))
        assert (wanted == all_of_them).all()
        for region in regions:
            assert few[cells.region(region)].all() == part(all_of_them, region).all()


def test_large_buffers_have_few_cells() -> None:
    large = Buffer("large", DType.F32, (10**9,))
    regions = [
        Region(large, (10**9,), ((3, 10**8),), write=True),
        Region(large, (10**9,), (None,), write=False),
    ]
    assert len(Cells.of(large, regions, ()).starts) == 3
    empty = Buffer("empty", DType.F32, (0, 4))
    cells = Cells.of(empty, [Region(empty, (0, 4), (None, None), write=True)], ())
    assert cells.none()[cells.region(Region(empty, (0, 4), (None, None), write=True))].all()


def test_regions_of_another_shape_are_exact() -> None:
    rng = random.Random(0)
    regions = [drawn(rng) for _ in range(20)]
    cells = Cells.of(BUFFER, regions, ())
    assert all(map(cells.is_exact, regions))
