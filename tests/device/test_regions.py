"""Regions: what tasks touch, and when two regions overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from stretto.device.evaluate import run_task
from stretto.device.expr import (
    Access,
    Apply,
    Buffer,
    ComputedPosition,
    Const,
    Expr,
    Extent,
    Index,
    Load,
    Position,
    Reg,
    Var,
)
from stretto.device.operator import Kernel, LibraryCall, Operator, Span, Stage, TileDim
from stretto.device.regions import (
    Box,
    Part,
    Region,
    block_regions,
    covers,
    expr_regions,
    index_range,
    kernel_reads,
    kernel_regions,
    moved_box,
    overlap,
    stage_regions,
    task_regions,
)
from stretto.ir.sizes import Size, Symbol
from stretto.ir.types import DType

X, Y = Buffer("x", DType.F32, (4, 12)), Buffer("y", DType.F32, (4, 12))


def region(buffer: Buffer, *box: tuple[int, int] | None, shape: tuple[int, ...] = ()) -> Region:
    return Region(buffer, shape or buffer.shape, box, False)


def copy(out: Access, source: Access, *dims: int) -> Operator:
    return Operator("copy", dims, (), "", Load(source), out)


def access(buffer: Buffer, *index: int | Var | Reg | Index | ComputedPosition, shape=()) -> Access:  # pyright: ignore
    return Access(buffer, shape or buffer.shape, tuple(Index.of(i) for i in index))


ROW, COLUMN = Index.of(Var(0)), Index.of(Var(1))


def tiled(operator: Operator, *tiles: int) -> Kernel:
    grid = tuple(TileDim(e, t) for e, t in zip(operator.dims, tiles, strict=True))
    spans = tuple(Span(extent, grid=n) for n, extent in enumerate(operator.dims))
    return Kernel(operator.name, grid, (Stage(operator, spans),))


def boxes(regions: tuple[Region, ...], write: bool) -> list[tuple[str, Box]]:
    return [(r.buffer.name, r.box) for r in regions if r.write == write]


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (ROW * 2 + COLUMN * -1 + 3, (3 + 4 - 6, 3 + 8 + 1)),
        ((ROW * 3 + 1) // 4, (1, 4)),
        (ROW % 8, (2, 5)),
        (ROW % 3, (0, 3)),
        (ROW + Index.of(Reg("n")), None),
        (Index.of(ComputedPosition(Load(access(X, 0, 0)))), None),
    ],
)
def test_index_ranges(index: Index, expected: tuple[int, int] | None) -> None:
    assert index_range(index, ((2, 5), (0, 7))) == expected


def test_tasks_touch_their_tile() -> None:
    kernel = tiled(copy(access(Y, ROW, COLUMN), access(X, ROW * -1 + 3, COLUMN), 4, 12), 2, 5)
    regions = task_regions(kernel, 2)  # the last tile of the first row of tiles
    assert boxes(regions, write=True) == [("y", ((0, 2), (10, 12)))]
    assert boxes(regions, write=False) == [("x", ((2, 4), (10, 12)))]


def test_masked_loads_stay_in_range() -> None:
    """Reading 2 left of the tile, where that exists: the first task reads less, padding nothing."""
    shifted = COLUMN + -2
    guard = Apply("ge", (Position(shifted), Const(0, DType.I64)), DType.BOOL)
    value: Expr = Apply(
        "where", (guard, Load(access(X, ROW, shifted)), Const(0.0, DType.F32)), DType.F32
    )
    kernel = tiled(Operator("pad", (4, 12), (), "", value, access(Y, ROW, COLUMN)), 4, 2)
    assert boxes(task_regions(kernel, 0), write=False) == []
    assert boxes(task_regions(kernel, 1), write=False) == [("x", (None, (0, 2)))]


def test_registers_make_a_dim_whole() -> None:
    t = Reg("t")
    kernel = tiled(copy(access(Y, t, ROW), access(X, t, ROW), 12), 6)
    assert boxes(task_regions(kernel, 1), write=True) == [("y", (None, (6, 12)))]
    assert {reg.name for reg in kernel_reads(kernel)} == {"t"}


def test_dynamic_grids_touch_whole_buffers() -> None:
    n = Reg("n")
    kernel = tiled(copy(access(Y, ROW, COLUMN), access(X, ROW, COLUMN), 4, 12), 2, 5)
    kernel = replace(kernel, grid=(TileDim(n, 2), kernel.grid[1]))
    expected = [("x", (None, None))]
    assert boxes(kernel_regions(kernel), write=False) == expected
    assert boxes(block_regions(kernel, 0, 1), write=False) == expected
    assert {reg.name for reg in kernel_reads(kernel)} == {"n"}


def test_library_calls_touch_whole_buffers() -> None:
    call = LibraryCall("sort", "aten.sort", ((X, Reg("n")),), (), (Y,), "")
    kernel = Kernel("sort", (), (), call=call)
    regions = kernel_regions(kernel)
    assert boxes(regions, write=False) == [("x", (None, None))]
    assert boxes(regions, write=True) == [("y", (None, None))]
    assert {reg.name for reg in kernel_reads(kernel)} == {"n"}


def test_positions_read_memory_too() -> None:
    place = ComputedPosition(Load(access(Buffer("p", DType.I64, (9,)), 7)))
    (table, position) = expr_regions(Load(access(X, place, 3)))
    assert (table.buffer.name, table.box) == ("x", (None, (3, 4)))
    assert (position.buffer.name, position.box) == ("p", ((7, 8),))


def test_stages_are_told_apart() -> None:
    first, second = (
        copy(access(X, ROW, COLUMN), access(Y, ROW, COLUMN), 4, 12),
        copy(access(Y, ROW, COLUMN), access(X, ROW, COLUMN), 4, 12),
    )
    spans = (Span(4, grid=0), Span(12))
    kernel = Kernel("two", (TileDim(4, 1),), (Stage(first, spans), Stage(second, spans)))
    stages = list(stage_regions(kernel, 3))
    assert [boxes(stage, write=True) for stage in stages] == [
        [("x", ((3, 4), None))],
        [("y", ((3, 4), None))],
    ]


def test_offsets_of_stages() -> None:
    operator = copy(access(Y, ROW, COLUMN), access(X, ROW, COLUMN), 4, 12)
    spans = (Span(2, offset=1), Span(12, grid=0, offset=6))
    kernel = Kernel("part", (TileDim(6, 3),), (Stage(operator, spans),))
    assert boxes(task_regions(kernel, 1), write=True) == [("y", ((1, 3), (9, 12)))]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (region(X, (0, 2), None), region(X, (2, 4), None), False),
        (region(X, (0, 2), (0, 6)), region(X, (1, 3), (5, 7)), True),
        (region(X, None, (0, 6)), region(X, (1, 3), (6, 7)), False),
        # The same memory with other dims.
        (region(X, (1, 2), (0, 6)), region(X, (12, 18), shape=(48,)), True),
        (region(X, (1, 2), (0, 6)), region(X, (18, 48), shape=(48,)), True),
        (region(X, None, (0, 6)), region(X, (6, 12), shape=(48,)), False),
        (region(X, None, (0, 6)), region(X, None, (1, 2), None, shape=(4, 2, 6)), False),
        (region(X, (0, 1), (0, 3)), region(X, (1, 2), None, shape=(16, 3)), False),
        # Shapes that do not nest are compared from end to end.
        (region(X, (0, 1), None), region(X, (2, 3), None, shape=(6, 8)), False),
        (region(X, (0, 1), None), region(X, (1, 2), None, shape=(6, 8)), True),
    ],
)
def test_overlap(a: Region, b: Region, expected: bool) -> None:
    assert overlap(a, b) is expected
    assert overlap(b, a) is expected


VIEWS_OF_FEWER = [(24,), (5,), (4, 6), (3, 12), (2, 2, 6), (1, 12)]
SHAPES = [(48,), (4, 12), (2, 2, 12), (16, 3), (6, 8), (1, 48), (4, 1, 3, 4)]
VIEWS = [*SHAPES, *VIEWS_OF_FEWER]


@st.composite
def regions_of_x(draw: st.DrawFn) -> Region:
    shape = draw(st.sampled_from(VIEWS))
    box: list[tuple[int, int] | None] = []
    for extent in shape:
        low = draw(st.integers(0, extent - 1))
        box.append(draw(st.sampled_from([None, (low, draw(st.integers(low + 1, extent)))])))
    return Region(X, shape, tuple(box), False)


def elements(a: Region) -> set[int]:
    shape = [d for d in a.shape if isinstance(d, int)]
    numbers = torch.arange(prod(shape)).reshape(shape)
    ranges = [range(*i) if i else range(d) for i, d in zip(a.box, shape, strict=True)]
    return {int(numbers[place]) for place in product(*ranges)}


N = Reg("n", DType.I64)
S, T = (Size.of(Symbol(name, 4, 64)) for name in "st")


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((24,), (48,), False),
        ((48,), (24,), True),
        ((4, 6), (48,), False),
        ((N,), (48,), False),
        ((48,), (N,), False),
        ((N,), (N, 2), False),
        ((S,), (S * 2,), False),
        ((S * 2,), (S,), True),
        ((S, 3), (3, S), True),
        ((S,), (T,), False),
        ((4,), (S,), False),
        ((S,), (4,), True),
        ((S, 4), (S, 2, 2), True),
        ((S, 4), (S, 8), False),
        ((S, 8), (S, 4), True),
    ],
)
def test_a_whole_view_covers_no_more_than_it_has(
    a: tuple[Extent, ...], b: tuple[Extent, ...], expected: bool
) -> None:
    one, other = (Region(X, shape, (None,) * len(shape), False) for shape in (a, b))
    assert covers(one, other) is expected


@given(regions_of_x(), regions_of_x())
def test_overlap_is_never_missed(a: Region, b: Region) -> None:
    common = elements(a) & elements(b)
    assert overlap(a, b) or not common
    if a.shape == b.shape:
        assert overlap(a, b) == bool(common)
    if covers(a, b):
        assert elements(b) <= elements(a)
    span = a.span
    assert span is not None
    assert span == (min(elements(a)), max(elements(a)) + 1)


@given(st.integers(1, 5), st.integers(1, 13), st.data())
def test_blocks_are_the_tasks_together(rows: int, columns: int, data: st.DataObject) -> None:
    kernel = tiled(copy(access(Y, ROW, COLUMN), access(X, ROW, COLUMN), 4, 12), rows, columns)
    first = data.draw(st.integers(0, kernel.tasks - 1))
    count = data.draw(st.integers(1, kernel.tasks - first))
    wanted: set[int] = set()
    for task in range(first, first + count):
        wanted |= {e for r in task_regions(kernel, task) if r.write for e in elements(r)}
    found = {e for r in block_regions(kernel, first, count) if r.write for e in elements(r)}
    assert found == wanted


class Watching:
    """Memory that keeps which elements are accessed."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, bool], set[int]] = {}

    def elements(self, buffer: Buffer) -> int:
        return buffer.elements

    def read(self, buffer: Buffer, offsets: Tensor) -> Tensor:
        self.seen.setdefault((buffer.name, False), set()).update(offsets.reshape(-1).tolist())
        return torch.zeros(offsets.shape)

    def write(self, buffer: Buffer, offsets: Tensor, values: Tensor) -> None:
        self.seen.setdefault((buffer.name, True), set()).update(offsets.reshape(-1).tolist())


@given(st.integers(1, 4), st.integers(1, 12), st.integers(0, 2), st.data())
def test_regions_hold_all_accesses(
    rows: int, columns: int, shift: int, data: st.DataObject
) -> None:
    column = COLUMN + shift
    inside = Apply("lt", (Position(column), Const(12, DType.I64)), DType.BOOL)
    source = access(X, (ROW * 12 + COLUMN) // 12, column)
    value: Expr = Apply("where", (inside, Load(source), Const(0.0, DType.F32)), DType.F32)
    flat = access(Y, ROW * 12 + COLUMN * -1 + 11, shape=(48,))
    kernel = tiled(Operator("o", (4, 12), (), "", value, flat), rows, columns)
    task = data.draw(st.integers(0, kernel.tasks - 1))
    memory = Watching()
    run_task(kernel, task, {}, memory)
    regions = task_regions(kernel, task)
    for (name, write), places in memory.seen.items():
        held = {
            e for r in regions if (r.buffer.name, r.write) == (name, write) for e in elements(r)
        }
        assert places <= held


OF_SIXTY = ((4, 3, 5), (12, 5), (4, 15), (60,), (2, 2, 3, 5), (1, 12, 1, 5), (5, 12), (3, 4, 5))


@given(st.sampled_from(OF_SIXTY), st.sampled_from(OF_SIXTY), st.data())
def test_a_box_over_other_dims_has_the_same_elements(
    seen: tuple[int, ...], own: tuple[int, ...], data: st.DataObject
) -> None:
    box: list[tuple[int, int] | None] = []
    for size in seen:
        low = data.draw(st.integers(0, size - 1))
        part = low, data.draw(st.integers(low + 1, size))
        box.append(data.draw(st.sampled_from((None, part))) if size > 1 else None)
    moved = moved_box(box, seen, own)
    if moved is not None:
        assert positions(seen, box) == positions(own, moved)
    is_whole = all(part is None for part in box)
    assert moved is not None or not is_whole


def positions(shape: tuple[int, ...], box: Sequence[Part]) -> set[int]:
    found = torch.arange(60).reshape(shape)
    for dim, part in enumerate(box):
        if isinstance(part, tuple):
            found = found.narrow(dim, part[0], part[1] - part[0])
    return set(found.flatten().tolist())


def test_a_box_over_joined_symbolic_dims() -> None:
    s = Size.of(Symbol("s0"))
    images, rows = (s, 56, 56, 384), (s * 3136, 384)
    assert moved_box((None, None, None, (0, 192)), images, rows) == (None, (0, 192))
    assert moved_box((None, (0, 192)), rows, images) == (None, None, None, (0, 192))
    assert moved_box((None, (0, 8), None, None), images, rows) is None
    assert moved_box((None, None), rows, (s, 56, 384)) is None
