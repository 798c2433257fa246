"""Level programs against eager PyTorch, row by row."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stretto.batching.instance_program import StaticBlock
from stretto.batching.levels import LevelProgram, Tables
from stretto.batching.levels.tables import BASES, END, INDICES
from stretto.errors import CaptureError, VerifyError
from stretto.options import Debug, Options
from tests.batching.blocks import BLOCKS, FLOAT, INT, ROWS_BLOCKS, V
from tests.batching.level_tables import check_tables
from tests.batching.levels import block_of, chain_of, check, f32, launch
from tests.sampling import every

BACKENDS = ("interpreter", "cpu", "emulator", "cuda-emulated")


class Cell(nn.Module):
    """A binary TreeLSTM cell on one node."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gates = nn.Linear(size, 3 * size)
        self.forget = nn.Linear(size, size)

    def forward(self, hl: Any, cl: Any, hr: Any, cr: Any) -> tuple[Any, Any]:
        i, o, u = self.gates(hl + hr).chunk(3)
        c = torch.sigmoid(i) * torch.tanh(u)
        c = c + torch.sigmoid(self.forget(hl)) * cl + torch.sigmoid(self.forget(hr)) * cr
        return torch.sigmoid(o) * torch.tanh(c), c


def tree_blocks(size: int = 8) -> list[StaticBlock]:
    torch.manual_seed(0)
    h = f32(size)
    leaf = nn.Linear(size, size)
    return [
        block_of("leaf", (h,), lambda x: torch.tanh(leaf(x))),
        block_of("cell", (h, h, h, h), Cell(size)),
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_cells_of_trees(backend: str) -> None:
    program = LevelProgram(tree_blocks(), backend=backend)
    rng = random.Random(0)
    check(program, launch(program, [(0, 7), (1, 3), (1, 2), (0, 0), (1, 1), (1, 0)], rng))
    check(program, launch(program, [(1, 4)], rng))
    check(program, launch(program, [(0, 0)], rng))
    check(program, launch(program, [], rng))


@pytest.mark.whole
@pytest.mark.parametrize("backend", BACKENDS)
def test_random_steps_of_many_blocks(backend: str) -> None:
    torch.manual_seed(1)
    layers = [nn.Linear(4, 4) for _ in range(5)]
    blocks = [
        chain_of(f"b{n}", (f32(4), f32(4)), (layer, 0), (torch.mul, 2, 1), (F.relu, 3))
        for n, layer in enumerate(layers)
    ]
    program = LevelProgram(blocks, backend=backend)
    rng = random.Random(1)
    for _ in range(3):
        counts = [(rng.randrange(5), rng.choice((0, 1, 2, 7, 20))) for _ in range(12)]
        check(program, launch(program, counts, rng))


ALL = BLOCKS | ROWS_BLOCKS
COUNTS = [(0, n) for n in (7, 0, 1, 2)]
IN_LOOPS = {
    "bilinear": ["aten._trilinear.default"],
    "repeat": ["aten.roll.default"],
    "cross_entropy": ["if"],
}
"""Operators that run once per row."""


@pytest.mark.parametrize("name", every(3, tuple(ALL)))
def test_a_block_for_any_number_of_rows(name: str) -> None:
    program = LevelProgram([block_of(name, *ALL[name])], backend="interpreter")
    check(program, launch(program, COUNTS, random.Random(0)))
    assert [loop.target for loop in program.code.loops[0]] == IN_LOOPS.get(name, [])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_weight_times_matrices_where_they_lie(backend: str) -> None:
    """Many columns each: no copy puts them side by side, and one kernel multiplies them."""
    block = block_of("wide", *BLOCKS["weight_times_wide_matrix"])
    program = LevelProgram([block], options=Options(units=3, threads=3), backend=backend)
    counts = [(0, n) for n in (0, 1, 2, 3, 7, 64)]
    check(program, launch(program, counts, random.Random(2)), 1e-4)
    check(program, launch(program, [(0, 257)], random.Random(3)), 1e-4)


@pytest.mark.parametrize(("name", "backend"), every(17, tuple(ALL), ("emulator", "cuda-emulated")))
def test_a_block_on_several_units(name: str, backend: str) -> None:
    options = Options(units=3, threads=3, debug=Debug(seed=zlib.crc32(name.encode()) % 100))
    program = LevelProgram([block_of(name, *ALL[name])], options=options, backend=backend)
    check(program, launch(program, COUNTS, random.Random(1)), 1e-4)


@pytest.mark.whole
@pytest.mark.parametrize("group", every(8, range(8)))
def test_blocks_together(group: int) -> None:
    names = list(ALL)[group::8]
    program = LevelProgram([block_of(name, *ALL[name]) for name in names])
    for seed in range(3):
        rng = random.Random(seed)
        for number in range(len(names)):
            check(program, launch(program, [(number, n) for n in (7, 0, 1, 2)], rng))
        counts = [(rng.randrange(len(names)), rng.choice((0, 1, 2, 5))) for _ in range(30)]
        check(program, launch(program, counts, rng), 1e-4)


def test_an_operand_that_is_not_the_first_of_its_batch() -> None:
    """Rows that one step made, read in another order, some of them twice and together with rows
    that were there before."""
    shift = block_of("shift", (V, FLOAT), lambda x, a: x + a)
    minus = block_of("minus", (V, V), lambda a, b: a - 2 * b)
    program = LevelProgram([shift, minus])
    tables = Tables.of(
        program.layout,
        torch.tensor([[0, 3, 0, 0, 1, 2], [1, 4, 3, 3, 2, 5]]),
        torch.tensor([0, 1, 0, 4, 2, 4, 0, 1, 3, 4, 2]),
        torch.tensor([10.0, 20.0, 30.0], dtype=torch.float64),
    )
    pool = torch.zeros(9, 4)
    pool[:2] = torch.randn(2, 4)
    (found,) = program.run(tables, [pool.clone()])
    rows = [*pool[:2], pool[0] + 10, pool[1] + 20, pool[0] + 30]
    pairs = [(4, 1), (2, 3), (4, 4), (0, 2)]
    expected = torch.stack([*rows, *(rows[a] - 2 * rows[b] for a, b in pairs)])
    torch.testing.assert_close(found, expected)


@pytest.mark.whole
def test_ten_thousand_rows() -> None:
    program = LevelProgram(tree_blocks())
    rng = random.Random(4)
    check(program, launch(program, [(0, 10_000), (1, 3000), (1, 1)], rng, lengths=(1,)))


def test_a_weight_that_changes_is_read_anew() -> None:
    layer = nn.Linear(4, 4)
    program = LevelProgram([block_of("layer", (V,), layer)])
    made = launch(program, [(0, 3)], random.Random(0))
    check(program, made)
    with torch.no_grad():
        layer.weight.mul_(2)
    assert program.is_current()
    check(program, launch(program, [(0, 3)], random.Random(0)))


def test_positions_out_of_range_are_named() -> None:
    program = LevelProgram([block_of("item", (V, INT), lambda x, i: x[i])])
    made = launch(program, [(0, 3)], random.Random(0))
    made.tables.indices[4] = 5
    with pytest.raises(IndexError, match="index 5 is out of bounds.* with size 4"):
        program.run(made.tables, made.pools)
    made.tables.indices[4] = 1
    program.run(made.tables, made.pools)


def test_errors_name_the_block_and_the_line() -> None:
    def wrong(x: Any) -> Any:
        return torch.fft.rfft(x)

    block = block_of("spectrum", (V,), lambda x: x)
    step = replace(block.steps[0], operation=replace(block.steps[0].operation, function=wrong))
    with pytest.raises(CaptureError) as caught:
        LevelProgram([replace(block, steps=(step,))])
    assert caught.value.__notes__ == ["in the block spectrum"]
    assert "test_levels.py" in str(caught.value) and "rfft" in str(caught.value)


def test_changes_of_operands_are_refused() -> None:
    with pytest.raises(CaptureError, match="changes a tensor that it is given"):
        LevelProgram([block_of("adds", (V,), lambda x: x.add_(1))])


# ---- tables that are wrong -------------------------------------------------------------------


@pytest.fixture(scope="module")
def cells() -> tuple[LevelProgram, Tables, list[int]]:
    program = LevelProgram(tree_blocks(), backend="interpreter")
    made = launch(program, [(0, 4), (1, 2), (1, 1)], random.Random(0), together=0)
    return program, made.tables, [len(pool) for pool in made.pools]


@pytest.mark.parametrize(
    ("table", "place", "value", "message"),
    [
        ("steps", (0, 0), 2, "there is no block 2"),
        ("steps", (1, 1), 5, "5 rows, and at most 4 were announced"),
        ("steps", (2, 2), 14, "operand 2 is not in its table"),
        ("steps", (0, 5), 4, "result 0 is written over rows that hold a tensor"),
        ("steps", (1, 5), 8, "result 0 is written over rows that hold a tensor"),
        ("steps", (1, 5), 200, "the pool has"),
        ("steps", (0, 4), 0, "the level of step 0 ends before step 0"),
        ("steps", (2, 4), 4, "the level of step 2 ends before step 4"),
        ("steps", (1, 4), 3, "the level of step 1 has two steps of one block"),
        ("indices", (0,), -1, "operand 0 is row -1"),
        ("indices", (0,), 1000, "operand 0 is row 1000"),
        ("indices", (0,), 5, "operand 0 is row 5, which nobody wrote before"),
        ("indices", (5,), 9, "operand 0 is row 9, which nobody wrote before"),
    ],
)
def test_wrong_tables_are_found(
    cells: tuple[LevelProgram, Tables, list[int]],
    table: str,
    place: tuple[int, ...],
    value: int,
    message: str,
) -> None:
    program, tables, capacities = cells
    check_tables(program.layout, tables, capacities, [5] * len(capacities))
    wrong = replace(tables, **{table: getattr(tables, table).clone()})
    getattr(wrong, table)[place] = value
    with pytest.raises(VerifyError, match=message):
        check_tables(program.layout, wrong, capacities, [5] * len(capacities))


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ((2, 2, 3), "operand 0 is row .*, which nobody wrote before"),
        ((2, 3, 3), "step 1 is in two levels"),
    ],
)
def test_wrong_levels_are_found(
    cells: tuple[LevelProgram, Tables, list[int]], ends: tuple[int, ...], message: str
) -> None:
    program, tables, capacities = cells
    wrong = replace(tables, steps=tables.steps.clone(), indices=tables.indices.clone())
    wrong.steps[:, END] = torch.tensor(ends)
    wrong.indices[wrong.steps[1, INDICES]] = wrong.steps[0, BASES]
    with pytest.raises(VerifyError, match=message):
        check_tables(program.layout, wrong, capacities, [5] * len(capacities))
