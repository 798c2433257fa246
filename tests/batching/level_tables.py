"""The verifier of tables: what a level program takes for granted of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stretto.batching.levels.tables import (
    BASES,
    BLOCK,
    END,
    INDICES,
    NUMBERS,
    ROWS,
    TableLayout,
    Tables,
    length_groups,
    output_types,
    row_type,
    rows_inputs,
)
from stretto.errors import VerifyError
from stretto.ir.types import RowsType, Scalar


def check_tables(
    layout: TableLayout,
    tables: Tables,
    capacities: Sequence[int],
    known: Sequence[int | torch.Tensor],
) -> None:
    """Raises VerifyError where the tables are not in form, or a step reads rows that no earlier
    level has written, or writes rows that have been read or written.

    capacities: the rows of each pool. known: the rows of each pool that hold a tensor before the
    launch: how many, from the first one on, or which ones as a bool tensor [capacity].
    """
    if tables.steps.dim() != 2 or tables.steps.shape[1] != layout.width:
        found = list(tables.steps.shape)
        raise VerifyError(f"the steps have shape {found}, and should have {layout.width} columns")
    written = [_flags(count, rows) for count, rows in zip(capacities, known, strict=True)]
    checker = _Checker(layout, tables, written)
    steps: list[list[int]] = tables.steps.tolist()
    first = 0
    while first < len(steps):
        end = steps[first][END]
        if not first < end <= len(steps):
            raise VerifyError(f"the level of step {first} ends before step {end}")
        checker.level(first, steps[first:end])
        first = end


def _flags(capacity: int, known: int | torch.Tensor) -> torch.Tensor:
    if isinstance(known, torch.Tensor):
        return known.clone()
    return torch.arange(capacity) < known


class _Checker:
    """written: per pool, which rows hold a tensor. readable: those that did before the level."""

    def __init__(self, layout: TableLayout, tables: Tables, written: list[torch.Tensor]) -> None:
        self.layout = layout
        self.tables = tables
        self.written = written
        self.readable = [flags.clone() for flags in written]

    def level(self, first: int, steps: list[list[int]]) -> None:
        if len({step[BLOCK] for step in steps}) < len(steps):
            raise VerifyError(f"the level of step {first} has two steps of one block")
        for number, step in enumerate(steps, first):
            if step[END] != first + len(steps):
                raise VerifyError(f"step {number} is in two levels")
            self.step(number, step)
        for readable, written in zip(self.readable, self.written, strict=True):
            readable.copy_(written)

    def step(self, number: int, step: list[int]) -> None:
        if not 0 <= step[BLOCK] < len(self.layout.blocks):
            raise VerifyError(f"step {number}: there is no block {step[BLOCK]}")
        n, block = step[ROWS], self.layout.blocks[step[BLOCK]]
        where = f"step {number} of block {block.name}"
        if not 0 <= n <= self.tables.largest:
            raise VerifyError(
                f"{where}: {n} rows, and at most {self.tables.largest} were announced"
            )
        lengths = dict(zip(rows_inputs(block), step[self.layout.lengths :], strict=False))
        at = {False: step[INDICES], True: step[NUMBERS]}
        for place, type_ in enumerate(block.inputs):
            is_number = type_ is Scalar.FLOAT
            table = self.tables.numbers if is_number else self.tables.indices
            count = n * lengths.get(place, 1)
            first, at[is_number] = at[is_number], at[is_number] + count
            if not 0 <= lengths.get(place, 0) <= self.tables.longest:
                raise VerifyError(f"{where}: the length of operand {place} was not announced")
            if first < 0 or first + count > len(table):
                raise VerifyError(f"{where}: operand {place} is not in its table")
            if not isinstance(type_, Scalar):
                pool = self.layout.pools.index(row_type(type_))
                self.reads(where, place, pool, table[first : first + count])
        groups = length_groups(block)
        for place, length in lengths.items():
            if length != lengths[groups[place]]:
                raise VerifyError(f"{where}: operands {groups[place]} and {place} differ in length")
        for place, type_ in enumerate(output_types(block)):
            length = lengths[groups[block.outputs[place]]] if isinstance(type_, RowsType) else 1
            pool = self.layout.pools.index(row_type(type_))
            self.writes(where, place, pool, step[BASES + place], n * length)

    def reads(self, where: str, place: int, pool: int, rows: torch.Tensor) -> None:
        written = self.readable[pool]
        wrong = (rows < 0) | (rows >= len(written))
        if bool(wrong.any()):
            row = int(rows[wrong][0])
            raise VerifyError(f"{where}: operand {place} is row {row} of {len(written)} rows")
        missing = ~written[rows]
        if bool(missing.any()):
            row = int(rows[missing][0])
            raise VerifyError(f"{where}: operand {place} is row {row}, which nobody wrote before")

    def writes(self, where: str, place: int, pool: int, base: int, count: int) -> None:
        written = self.written[pool]
        if not 0 <= base <= len(written) - count:
            raise VerifyError(
                f"{where}: result {place} goes to rows {base} to {base + count}, and the pool has "
                f"{len(written)}"
            )
        if bool(written[base : base + count].any()):
            raise VerifyError(f"{where}: result {place} is written over rows that hold a tensor")
        written[base : base + count] = True
