"""The tables that a level program runs, and what must hold of them.

    steps    i64 [S, width], a row per step: block number, number of rows n, first position in
             `indices`, first position in `numbers`, the number of the first step after its level,
             then a base per output of the block, then, from the same column in all steps, a length
             per input of the block that is rows
    indices  i64: for each input of the block in order, except floats: n row numbers (a tensor),
             n * L row numbers (rows, one instance after the other), or n values (int, bool)
    numbers  f64: n values for each input that is a float

A base is the first of n rows (n * L for rows) of the pool of the output's type. A level is a run of
consecutive steps, each of another block, which run in any order: a step may read rows that steps of
earlier levels wrote, never rows that a step of its own or of a later level writes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _python_dispatch

from stretto.batching.instance_program import StaticBlock, call_operation
from stretto.ir.data import Operation
from stretto.ir.types import DataType, RowsType, Scalar, TensorType

BLOCK, ROWS, INDICES, NUMBERS, END, BASES = range(6)
"""The columns of `steps` that do not depend on the block."""

LIMITS = ("largest", "longest")
"""Names of the sizes that a launch announces: the largest n of a step, and the largest L of one
instance. They bound the memory of intermediate values."""


def row_type(type_: TensorType | RowsType) -> TensorType:
    """Return the type of the pool that holds a value's rows."""
    return type_.row if isinstance(type_, RowsType) else type_


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The meaning of the columns of `steps` for these blocks. pools: the types of the pools, in
    order."""

    blocks: tuple[StaticBlock, ...]
    pools: tuple[TensorType, ...]
    lengths: int = field(init=False)
    """The first column of lengths."""
    width: int = field(init=False)

    def __post_init__(self) -> None:
        outputs = max((len(block.outputs) for block in self.blocks), default=0)
        rows = max((len(rows_inputs(block)) for block in self.blocks), default=0)
        object.__setattr__(self, "lengths", BASES + outputs)
        object.__setattr__(self, "width", BASES + outputs + rows)

    @property
    def written(self) -> tuple[int, ...]:
        """The numbers of the pools that blocks write."""
        types = {row_type(type_) for block in self.blocks for type_ in output_types(block)}
        return tuple(number for number, type_ in enumerate(self.pools) if type_ in types)


def rows_inputs(block: StaticBlock) -> list[int]:
    """Return the positions of a block's inputs that are rows."""
    return [n for n, type_ in enumerate(block.inputs) if isinstance(type_, RowsType)]


def output_types(block: StaticBlock) -> list[TensorType | RowsType]:
    """Return the types of a block's outputs."""
    found = [block.types[number] for number in block.outputs]
    assert not any(isinstance(type_, Scalar) for type_ in found)
    return [type_ for type_ in found if not isinstance(type_, Scalar)]


def pool_types(blocks: Sequence[StaticBlock]) -> tuple[TensorType, ...]:
    """Return the types of all tensors that blocks read or write, in order of first appearance."""
    found: dict[TensorType, None] = {}
    for block in blocks:
        for type_ in (*block.inputs, *output_types(block)):
            if not isinstance(type_, Scalar):
                found[row_type(type_)] = None
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one launch, as tensors in host memory.

    largest, longest: upper bounds for n of a step, and for L of one instance.
    """

    steps: torch.Tensor
    indices: torch.Tensor
    numbers: torch.Tensor
    largest: int
    longest: int

    @staticmethod
    def of(
        layout: TableLayout, steps: torch.Tensor, indices: torch.Tensor, numbers: torch.Tensor
    ) -> Tables:
        """Build tables, computing `largest` and `longest` from the steps."""
        lengths = steps[:, layout.lengths :]
        return Tables(steps, indices, numbers, _most(steps[:, ROWS]), _most(lengths))


def _most(found: torch.Tensor) -> int:
    return int(found.max()) if found.numel() else 0


# ---- Groups of rows of a block that have the same length, and their least lengths.
#
# All rows that one operation takes and returns have the same length: the front end emits checks of
# that into the instance program. So the groups do not depend on the instances.


trial: Any = _python_dispatch._disable_current_modes  # pyright: ignore[reportPrivateUsage]
"""Context manager: operators called inside it are not traced into the program under
construction."""


def length_groups(block: StaticBlock) -> dict[int, int]:
    """Return for each value that is rows the first value of the same length: its group."""
    types = block.types
    found = {n: n for n, type_ in enumerate(block.inputs) if isinstance(type_, RowsType)}
    made = len(block.inputs)
    for step in block.steps:
        results = range(made, made + len(step.operation.results))
        made = results.stop
        rows = [n for n in (*step.operands, *results) if isinstance(types[n], RowsType)]
        if not rows:
            continue
        joined = {found.get(n, n) for n in rows}
        first = min(joined)
        found |= dict.fromkeys(rows, first)
        found |= {n: first for n, group in found.items() if group in joined}
    return found


def least_lengths(block: StaticBlock) -> dict[int, int]:
    """Return the least length of each group that has one: an operation of the group raises for
    fewer rows, so an instance with fewer has already ended."""
    groups = length_groups(block)
    types = block.types
    found: dict[int, int] = {}
    for step in block.steps:
        rows = [n for n in step.operands if n in groups]
        if rows:
            errors = short_errors(step.operation, [types[number] for number in step.operands])
            found[groups[rows[0]]] = max(found.get(groups[rows[0]], 0), len(errors))
    return found


_MOST_SHORT = 8


def short_errors(operation: Operation, types: Sequence[DataType]) -> tuple[Exception, ...]:
    """Return the errors that an operation raises for 0, 1, ... rows, up to the least number for
    which it returns; () if it raises for every number tried. It is called on real tensors,
    since fake ones do not raise all errors that real ones do."""
    found = list[Exception]()
    with trial(), torch.no_grad(), warnings.catch_warnings(action="ignore"):
        for length in range(_MOST_SHORT + 1):
            try:
                call_operation(operation, [_example(type_, length) for type_ in types])
            except (TypeError, RuntimeError, IndexError, ValueError) as error:
                found.append(error)
            else:
                return tuple(found)
    return ()


def _example(type_: DataType, length: int) -> Any:
    match type_:
        case TensorType() as kind:
            return torch.zeros(kind.static_shape(), dtype=kind.dtype.torch)
        case RowsType(row):
            return torch.zeros((length, *row.static_shape()), dtype=row.dtype.torch)
        case Scalar.FLOAT:
            return 1.0
        case Scalar.BOOL:
            return True
        case _:
            return 1
