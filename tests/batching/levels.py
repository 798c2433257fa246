"""Random tables for level programs, and what eager PyTorch makes of them row by row."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stretto.batching.instance_program import BlockStep, Operation, StaticBlock
from stretto.batching.levels import LevelProgram, Tables
from stretto.batching.levels.tables import BASES, END, output_types, row_type, rows_inputs
from stretto.ir.data import OperandPlaceholder
from stretto.ir.types import DType, RowsType, Scalar, TensorType
from tests.batching.level_tables import check_tables

Kind = TensorType | RowsType | Scalar


def f32(*shape: int) -> TensorType:
    return TensorType(DType.F32, shape)


def tensor_type(tensor: torch.Tensor) -> TensorType:
    return TensorType(DType.from_torch(tensor.dtype), tuple(tensor.shape))


def example(type_: Kind, rng: random.Random, length: int = 3, low: int = 0, high: int = 2) -> Any:
    """A random value: tensors near 0, ints from low to high."""
    match type_:
        case RowsType(TensorType(dtype, shape)):
            return example(TensorType(dtype, (length, *shape)), rng, length, low, high)
        case TensorType(dtype, shape):
            seeded = torch.Generator().manual_seed(rng.getrandbits(32))
            if dtype is DType.BOOL:
                return torch.rand(shape, generator=seeded) < 0.5
            if dtype.is_integer:
                made = torch.randint(low, high + 1, shape, generator=seeded)
                return made.to(dtype.torch)
            return torch.randn(shape, generator=seeded, dtype=torch.float64).to(dtype.torch)
        case Scalar.FLOAT:
            return rng.uniform(-2, 2)
        case Scalar.BOOL:
            return rng.random() < 0.5
        case _:
            return rng.randint(low, high)


def block_of(name: str, inputs: Sequence[Kind], function: Callable[..., Any]) -> StaticBlock:
    """A block of one step that calls a function of torch operators."""
    made = function(*(example(type_, random.Random(0)) for type_ in inputs))
    leaves = [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor)]
    types = tuple(tensor_type(leaf) for leaf in leaves)
    places = tuple(range(len(inputs)))
    operation = Operation(function, tuple(OperandPlaceholder(n) for n in places), (), types)
    outputs = tuple(range(len(inputs), len(inputs) + len(leaves)))
    return StaticBlock(name, tuple(inputs), (BlockStep(operation, places),), outputs)


def chain_of(name: str, inputs: Sequence[Kind], *steps: tuple[Any, ...]) -> StaticBlock:
    """A block of steps (function, operand numbers...); its outputs are those of the last."""
    types: list[Kind] = list(inputs)
    done: list[BlockStep] = []
    made: tuple[TensorType, ...] = ()
    for function, *operands in steps:
        given = [example(types[n], random.Random(0)) for n in operands]
        leaves = pytree.tree_leaves(function(*given))
        made = tuple(tensor_type(leaf) for leaf in leaves)
        arguments = tuple(OperandPlaceholder(n) for n in range(len(operands)))
        done.append(BlockStep(Operation(function, arguments, (), made), tuple(operands)))
        types.extend(made)
    outputs = tuple(range(len(types) - len(made), len(types)))
    return StaticBlock(name, tuple(inputs), tuple(done), outputs)


@dataclass
class Launch:
    """Tables, the pools before, and the pools that eager makes of them."""

    tables: Tables
    pools: list[torch.Tensor]
    expected: list[torch.Tensor]


def launch(
    program: LevelProgram,
    counts: Sequence[tuple[int, int]],
    rng: random.Random,
    *,
    rows: int = 5,
    low: int = 0,
    high: int = 2,
    lengths: Sequence[int] = (3, 0, 1, 7),
    together: float = 0.5,
) -> Launch:
    """Steps (block, n) on random rows, those of earlier levels among them. rows: how many tensors
    each pool has before the first step. together: how likely a step is of the level of the one
    before it."""
    layout = program.layout
    capacity = [rows] * len(layout.pools)
    for number, n in counts:
        for type_ in output_types(layout.blocks[number]):
            capacity[layout.pools.index(row_type(type_))] += n * max(lengths)
    pools = [
        example(TensorType(t.dtype, (size, *t.shape)), rng, low=low, high=high)
        for t, size in zip(layout.pools, capacity, strict=True)
    ]
    expected = [pool.clone() for pool in pools]
    known = [rows] * len(pools)
    before = list(known)
    steps: list[list[int]] = []
    indices: list[int] = []
    numbers: list[float] = []
    ends: list[int] = []
    for number, n in counts:
        level = [row[0] for row in steps[len(ends) :]]
        if steps and (number in level or rng.random() >= together):
            ends += [len(steps)] * (len(steps) - len(ends))
            before = list(known)
        block = layout.blocks[number]
        length = rng.choice(lengths)
        row = [number, n, len(indices), len(numbers)] + [0] * (layout.width - 4)
        columns: list[list[Any]] = []
        for place, type_ in enumerate(block.inputs):
            if isinstance(type_, Scalar):
                values = [example(type_, rng, low=low, high=high) for _ in range(n)]
                (numbers if type_ is Scalar.FLOAT else indices).extend(map(_number, values))
                columns.append(values)
                continue
            pool = layout.pools.index(row_type(type_))
            each = length if isinstance(type_, RowsType) else 1
            chosen = [[rng.randrange(before[pool]) for _ in range(each)] for _ in range(n)]
            if isinstance(type_, RowsType):
                row[layout.lengths + rows_inputs(block).index(place)] = length
            indices.extend(item for items in chosen for item in items)
            several = isinstance(type_, RowsType)
            columns.append([expected[pool][r if several else r[0]] for r in chosen])
        with torch.no_grad():
            made = [block(*operands) for operands in zip(*columns, strict=True)]
            if not columns:
                made = [block() for _ in range(n)]
        for place, type_ in enumerate(output_types(block)):
            pool = layout.pools.index(row_type(type_))
            row[BASES + place] = known[pool]
            for results in made:
                several = isinstance(type_, RowsType)
                parts = list(results[place]) if several else [results[place]]
                for part in parts:
                    expected[pool][known[pool]] = part
                    known[pool] += 1
        steps.append(row)
    ends += [len(steps)] * (len(steps) - len(ends))
    for row, end in zip(steps, ends, strict=True):
        row[END] = end
    tables = Tables.of(
        layout,
        torch.tensor(steps, dtype=torch.int64).reshape(len(steps), layout.width),
        torch.tensor(indices, dtype=torch.int64),
        torch.tensor(numbers, dtype=torch.float64),
    )
    check_tables(layout, tables, capacity, [rows] * len(pools))
    return Launch(tables, pools, expected)


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


def check(program: LevelProgram, made: Launch, tolerance: float = 1e-5) -> None:
    """The program's pools are those that eager makes."""
    found = program.run(made.tables, [pool.clone() for pool in made.pools])
    for type_, pool, expected in zip(program.layout.pools, found, made.expected, strict=True):
        torch.testing.assert_close(
            pool,
            expected,
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
            msg=lambda text, t=type_: f"pool {t}: {text}",
        )
