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

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from stretto.batching.program import Block
from stretto.batching.types import RowsType, Scalar, TensorType

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
