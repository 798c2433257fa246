"""The tables that a level program runs, and what must hold of them.

    steps    i64 [S, width], a row per step: block number, number of rows n, first position in
             `indices`, first position in `numbers`, the step behind the last one of its level, then
             a base per output of the block, then, from the same column in all steps, a length per
             input of the block that is rows
    indices  i64: for each input of the block in order but floats: n row numbers (a tensor), n * L
             row numbers (rows, one instance after the other), or n values (int, bool)
    numbers  f64: n values for each input that is a float

A base is the first of n rows (n * L for rows) of the pool of the output's type. A level is some
steps in a row, each of another block, which run in any order: a step may read rows that steps of
earlier levels wrote, never rows that a step of its own or of a later level writes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _python_dispatch

from stretto.batching.program import Block, Operation, call_operation
from stretto.batching.types import RowsType, Scalar, TensorType, Type

BLOCK, ROWS, INDICES, NUMBERS, END, BASES = range(6)
"""The columns that all steps have."""

LIMITS = ("largest", "longest")
"""Sizes that a launch announces: the most rows n of a step, the most rows L of one instance. They
say how much memory intermediate values may need."""


def row_type(type_: TensorType | RowsType) -> TensorType:
    """The type of the pool that a value's rows lie in."""
    return type_.row if isinstance(type_, RowsType) else type_


@dataclass(frozen=True, slots=True)
class Layout:
    """What the columns of `steps` mean for these blocks. pools: their types, in order."""

    blocks: tuple[Block, ...]
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


def rows_inputs(block: Block) -> list[int]:
    """The places of a block's inputs that are rows."""
    return [n for n, type_ in enumerate(block.inputs) if isinstance(type_, RowsType)]


def output_types(block: Block) -> list[TensorType | RowsType]:
    """The types of a block's outputs."""
    found = [block.types[number] for number in block.outputs]
    assert not any(isinstance(type_, Scalar) for type_ in found)
    return [type_ for type_ in found if not isinstance(type_, Scalar)]


def pool_types(blocks: Sequence[Block]) -> tuple[TensorType, ...]:
    """The types of all tensors that blocks read or write, in the order in which they come up."""
    found: dict[TensorType, None] = {}
    for block in blocks:
        for type_ in (*block.inputs, *output_types(block)):
            if not isinstance(type_, Scalar):
                found[row_type(type_)] = None
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one launch, as tensors in the memory of the host.

    largest, longest: the most rows n of a step, and the most rows L of one instance, or more.
    """

    steps: torch.Tensor
    indices: torch.Tensor
    numbers: torch.Tensor
    largest: int
    longest: int

    @staticmethod
    def of(
        layout: Layout, steps: torch.Tensor, indices: torch.Tensor, numbers: torch.Tensor
    ) -> Tables:
        """The same, with the limits looked up."""
        lengths = steps[:, layout.lengths :]
        return Tables(steps, indices, numbers, _most(steps[:, ROWS]), _most(lengths))


def _most(found: torch.Tensor) -> int:
    return int(found.max()) if found.numel() else 0


# ---- Which rows of a block have one length, and how many there are at least.
#
# All rows that one operation takes have one length, which its rows have, too; the front end has
# the instance program check that before. So the rows of a block fall into groups, whatever
# instances are.


trial: Any = _python_dispatch._disable_current_modes  # pyright: ignore[reportPrivateUsage]
"""Operators that are called within are no part of the program that is being made."""


def length_groups(block: Block) -> dict[int, int]:
    """For each value that is rows, the first value whose length it has."""
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


def least_lengths(block: Block) -> dict[int, int]:
    """For groups that are never shorter, their least length: an operation of theirs raises where
    there are fewer rows, so an instance with fewer has ended before."""
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


def short_errors(operation: Operation, types: Sequence[Type]) -> tuple[Exception, ...]:
    """What an operation raises where its rows are 0, 1, ... rows, up to the least number for which
    it returns; none where it raises for each that is tried. It is called on real tensors, since
    fake ones do not raise all that real ones do."""
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


def _example(type_: Type, length: int) -> Any:
    match type_:
        case TensorType(dtype, shape):
            return torch.zeros(shape, dtype=dtype.torch)
        case RowsType(row):
            return torch.zeros((length, *row.shape), dtype=row.dtype.torch)
        case Scalar.FLOAT:
            return 1.0
        case Scalar.BOOL:
            return True
        case _:
            return 1
