"""Runs a batch on the host program, and its tables one row at a time with eager PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stretto.batching.host.host_program import BatchRun, HostProgram
from stretto.batching.levels.tables import BASES, Tables
from stretto.ir.types import RowsType, Scalar, TensorType


class Executor:
    """Pools, and what tables do to them."""

    def __init__(self, host: HostProgram) -> None:
        self.host = host
        self.layout = host.layout
        self.pools = [torch.empty(0, *x.shape, dtype=x.dtype.torch) for x in self.layout.pools]
        self.steps = 0

    def grow(self, rows: Sequence[int]) -> None:
        for number, count in enumerate(rows):
            pool = self.pools[number]
            if len(pool) < count:
                # Memory that moves each time: what holds an old address fails.
                more = torch.full((count - len(pool), *pool.shape[1:]), 77).to(pool.dtype)
                self.pools[number] = torch.cat([pool, more])

    def __call__(self, columns: Sequence[Sequence[Any]]) -> list[Any]:
        return self.run(self.host.flatten(columns))

    def run(self, flat: Any) -> list[Any]:
        self.grow(flat.rows)
        self.host.write_shared(self.pools)
        flat.copy_into(self.pools)
        run = self.host.start(flat)
        while (tables := run.advance(self.pools)) is not None:
            self.execute(run, tables)
        return run.results(self.pools)

    def execute(self, run: BatchRun, tables: Tables) -> None:
        self.grow(run.needed_rows())
        for step in tables.steps.tolist():
            self.steps += 1
            self.step(step, tables)

    def step(self, step: list[int], tables: Tables) -> None:
        number, count, index, place, _ = step[:BASES]
        block = self.layout.blocks[number]
        outputs = BASES + self.layout.max_outputs
        lengths = iter(step[outputs:])
        columns = list[list[Any]]()
        for type_, pool in zip(block.inputs, block.pools, strict=True):
            match type_:
                case Scalar.FLOAT:
                    columns.append(tables.numbers[place : place + count].tolist())
                    place += count
                    continue
                case RowsType():
                    length = next(lengths)
                    assert pool is not None
                    rows = tables.indices[index : index + count * length].view(count, length)
                    columns.append([self.pools[pool][row].clone() for row in rows])
                    index += length * count
                case _:
                    values = tables.indices[index : index + count].tolist()
                    if isinstance(type_, TensorType):
                        assert pool is not None
                        columns.append([self.pools[pool][row].clone() for row in values])
                    else:
                        columns.append(list(map(bool, values)) if type_ is Scalar.BOOL else values)
                    index += count
        for n in range(count):
            with torch.no_grad():
                made = self.host.program.blocks[number](*(column[n] for column in columns))
            for k, (tensor, output) in enumerate(zip(made, block.outputs, strict=True)):
                several = tensor if output.length_of is not None else tensor[None]
                base = step[BASES + k] + n * len(several)
                self.pools[output.pool][base : base + len(several)] = several
