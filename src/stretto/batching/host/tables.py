"""The layout shared by the host program and the level program: pools, and the tables of blocks.

A *pool* holds the tensors of one type: a torch tensor `[capacity, *shape]`, a row per tensor.
Its first rows are permanent: tensors that all instances share and that are operands of blocks.
Then follow the tensors of the instances, then the results of blocks. `ProgramLayout` gives the
numbers of the pools; `levels/tables.py` describes the tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from stretto.batching.instance_program import InstanceProgram, StaticBlock
from stretto.batching.levels.tables import BASES, length_groups, output_types, row_type, rows_inputs
from stretto.errors import CodegenError
from stretto.ir.data import AssignOp
from stretto.ir.types import (
    DataType,
    DType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    alternatives,
)


@dataclass(frozen=True, slots=True)
class BlockOutput:
    """pool: the number of the pool it is written to. length_of: for rows, the number of the input
    (of the block) that has the same length; None for a tensor."""

    pool: int
    length_of: int | None = None


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The layout of a block's operands and results in the tables.

    pools: of each input, the number of its pool; None for a scalar. rows: the numbers of the
    inputs that are rows.
    """

    inputs: tuple[TensorType | RowsType | Scalar, ...]
    pools: tuple[int | None, ...]
    rows: tuple[int, ...]
    outputs: tuple[BlockOutput, ...]


@dataclass(frozen=True, slots=True)
class SharedRow:
    """A tensor that all instances share, and its permanent row."""

    tensor: torch.Tensor
    pool: int
    row: int


@dataclass(frozen=True, slots=True)
class ProgramLayout:
    """The pools and tables of a program. pools: the type of each pool, by number. shared: in order
    of first use; the permanent rows of a pool are 0, 1, ... in this order."""

    pools: tuple[TensorType, ...]
    blocks: tuple[BlockLayout, ...]
    shared: tuple[SharedRow, ...]
    max_outputs: int
    max_rows: int

    @property
    def width(self) -> int:
        """Number of columns of `steps`."""
        return BASES + self.max_outputs + self.max_rows

    @property
    def permanent(self) -> tuple[int, ...]:
        """The number of permanent rows of each pool."""
        counts = [0] * len(self.pools)
        for item in self.shared:
            counts[item.pool] += 1
        return tuple(counts)

    def pool(self, type_: TensorType) -> int | None:
        """Return the number of the pool of a type; None if no tensor has that type."""
        return self.pools.index(type_) if type_ in self.pools else None


def layout(program: InstanceProgram) -> ProgramLayout:
    """Number the pools of a program whose operators are in blocks.

    Raises CodegenError if a block returns rows of a length that none of its inputs has.
    """
    shared = _shared_tensors(program)
    found = dict.fromkeys(tensor_type(tensor) for tensor in shared)
    found |= dict.fromkeys(_tensor_types(program))
    numbers = {type_: number for number, type_ in enumerate(found)}
    rows = list[SharedRow]()
    used = [0] * len(numbers)
    for tensor in shared:
        pool = numbers[tensor_type(tensor)]
        rows.append(SharedRow(tensor, pool, used[pool]))
        used[pool] += 1
    blocks = tuple(_block_layout(block, numbers) for block in program.blocks)
    return ProgramLayout(
        tuple(numbers),
        blocks,
        tuple(rows),
        max((len(block.outputs) for block in blocks), default=0),
        max((len(block.rows) for block in blocks), default=0),
    )


def tensor_type(tensor: torch.Tensor) -> TensorType:
    """Return the type of a tensor. Raises KeyError for a dtype that a program cannot carry."""
    return TensorType(DType.from_torch(tensor.dtype), tuple(tensor.shape))


def _shared_tensors(program: InstanceProgram) -> list[torch.Tensor]:
    """Return the tensors of `shared` assignments, each once, by identity."""
    found: dict[int, torch.Tensor] = {}
    for function in program.functions.values():
        for statement in function.body.walk():
            if isinstance(statement, AssignOp) and statement.op == "shared":
                found.setdefault(id(statement.detail), statement.detail)
    return list(found.values())


def _tensor_types(program: InstanceProgram) -> Iterator[TensorType]:
    """Yield the types of tensors in instances, and of those that blocks read and write."""
    for parameter in program.main.parameters:
        yield from _parts(parameter.type)
    for cell in program.cells:
        yield from _parts(cell)
    for block in program.blocks:
        for type_ in (*block.inputs, *output_types(block)):
            yield from _parts(type_)


def _parts(type_: DataType) -> Iterator[TensorType]:
    """Yield the tensor types in a type, in an order that does not depend on hashes."""
    for item in sorted(alternatives(type_), key=str):
        match item:
            case TensorType():
                yield item
            case RowsType(row):
                yield row
            case TupleType(items):
                for part in items:
                    yield from _parts(part)
            case _:
                pass


def _block_layout(block: StaticBlock, numbers: dict[TensorType, int]) -> BlockLayout:
    pools = (None if isinstance(x, Scalar) else numbers[row_type(x)] for x in block.inputs)
    outputs = (numbers[row_type(type_)] for type_ in output_types(block))
    return BlockLayout(
        block.inputs,
        tuple(pools),
        tuple(rows_inputs(block)),
        tuple(map(BlockOutput, outputs, _lengths(block))),
    )


def _lengths(block: StaticBlock) -> tuple[int | None, ...]:
    """Return for each output that is rows an input of the same length; None for other outputs."""
    groups = length_groups(block)
    found = list[int | None]()
    for number in block.outputs:
        group = groups.get(number)
        if group is not None and group >= len(block.inputs):
            raise CodegenError(
                f"block `{block.name}` makes rows, as many as none of its operands has",
                location=block.steps[-1].operation.location,
                remedy="give the result as many rows as one of the operands has",
            )
        found.append(group)
    return tuple(found)
