"""Constants packed into panels, compared element by element."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product
from math import prod

import pytest
import torch

from stretto.device.expr import Buffer
from stretto.device.forms import Packing
from stretto.ir.types import DType
from stretto.kernels.panels import Packings
from stretto.runtime.constants import copy_of, pack

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


def lines(dim: int) -> Packing:
    """The weight of a square kernel, transformed for lines along a dim."""
    packings = Packings([])
    packings.add_lines(Buffer("w", DType.F32, (8, 8, 5, 5), "constant", 0), 8, 4, dim)
    (found,) = packings.found.values()
    return found


@pytest.mark.parametrize("dims", [(2, 3), (3, 2)])
def test_copies_for_lines_along_another_dim_are_other_copies(dims: tuple[int, int]) -> None:
    weight = torch.randn(8, 8, 5, 5)
    kept = [copy_of(weight, lines(dim), None) for dim in dims]
    for dim, copy in zip(dims, kept, strict=True):
        assert torch.equal(copy.tensor, pack(lines(dim), weight))
    assert copy_of(weight, lines(dims[0]), None) is kept[0]


@pytest.mark.parametrize("name", [field.name for field in fields(Packing)])
def test_each_field_of_a_packing_is_part_of_what_copies_are_shared_by(name: str) -> None:
    """A field that is added later, too."""
    one = packing((), (128, 5), ((5, 1),), 64)
    changes = {
        "buffer": replace(one.buffer, shape=(64, 2, 5)),
        "outer": ((1, 0),),
        "columns": (5, 128),
        "depth": ((1, 5),),
    }
    if name == "source":
        other = replace(one, source=replace(one.source, name="another"))
        assert other.layout == one.layout
        return
    value = changes[name] if name in changes else getattr(one, name) + 1
    assert replace(one, **{name: value}).layout != one.layout


@pytest.mark.parametrize("wanted", [None, packing((), (8, 4), ((4, 1),), 8)])
def test_copies_of_a_tensor_and_of_its_negative_view_are_two(wanted: Packing | None) -> None:
    numbers = torch.randn(8, 4, dtype=torch.complex64)
    plain, negative = numbers.imag, numbers.conj().imag
    assert negative.is_neg() and negative.data_ptr() == plain.data_ptr()
    first, second = (copy_of(tensor, wanted, None) for tensor in (plain, negative))
    assert torch.equal(first.tensor, -second.tensor) and first.tensor.any()
