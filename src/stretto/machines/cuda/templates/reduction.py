"""Reductions and scans: `rows` results at a time, by `depth` lanes each."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import ClassVar

from stretto.device.expr import Var
from stretto.device.operator import Template
from stretto.ir.types import DType
from stretto.machines.cuda.templates.stencil import (
    UNROLL,
    Choice,
    Stencil,
    power,
    traffic,
)

REDUCE_BLOCK = 8192
"""Lanes of a block: enough loads in flight that one unit has its share of the bandwidth."""


@dataclass(frozen=True, slots=True)
class Reduce(Template):
    """Dims of the bit set `unroll` have totals of their own, so that few rows of a product read
    their weights once."""

    name: ClassVar[str] = "reduce"
    rows: int
    depth: int
    unroll: int = 0


def reduce_choice(stencil: Stencil, sizes: tuple[int, ...]) -> Choice:
    operator, costs = stencil.operator, stencil.costs
    unrolled = _unrolled(stencil, sizes)
    copies = prod((sizes[n] for n in unrolled), start=1)
    points = prod(sizes) // max(copies, 1)
    depth = prod(stencil.depths)
    wide = operator.value.dtype in (DType.F64, DType.I64)
    block = REDUCE_BLOCK // max(power(copies) // 2, 2 if wide else 1)
    if operator.combine in ("argmax", "argmin", "cumsum", "cumprod"):
        block = REDUCE_BLOCK // 4
    rows, lanes = _shape(stencil, points, depth, block)
    chunks = ceil(points / rows) * ceil(depth / lanes)
    work = points * copies * depth * stencil.applies
    rate = costs.double_flops if operator.value.dtype is DType.F64 else costs.flops
    busy = max(traffic(stencil, sizes) / costs.bandwidth, work / rate)
    template = Reduce(rows, lanes, sum(1 << n for n in unrolled))
    seconds = (
        costs.latency_seconds + max(busy, chunks * costs.latency_seconds) + costs.stage_seconds
    )
    return Choice(template, seconds, seconds if chunks > 1 else busy)


def _unrolled(stencil: Stencil, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The rows of a product, or else its columns, where they are the few: the others' loads, which
    are many, are then shared.
    """
    product = stencil.product
    if product is None or product.pieces:
        return ()
    dims, costs = stencil.operator.dims, stencil.costs
    few, many = sorted(
        (product.rows, product.columns), key=lambda side: costs.points(dims[n] for n in side)
    )
    static = all(isinstance(dims[n], int) for n in few)
    return few if many and static and 1 < prod(sizes[n] for n in few) <= UNROLL else ()


def _shape(stencil: Stencil, points: int, depth: int, block: int) -> tuple[int, int]:
    """Rows and lanes of a block: long along the dim that the largest operand is contiguous in."""
    high, deep = power(max(points, 1)), power(max(depth, 1))
    if _along_depth(stencil):
        lanes = min(deep, 1024 if high > 1 else block)
        rows = min(high, max(block // lanes, 1))
        return rows, min(deep, max(block // rows, 1))
    rows = min(high, 128)
    lanes = min(deep, max(block // rows, 1))
    return min(high, max(block // lanes, 1)), lanes


def _along_depth(stencil: Stencil) -> bool:
    """Does the largest load run along the last reduced dim?"""
    operator = stencil.operator
    last = len(operator.dims) + len(operator.reduce) - 1
    extents = [stencil.costs.size(extent) for extent in (*operator.dims, *operator.reduce)]
    while last >= len(operator.dims) and extents[last] == 1:
        last -= 1
    if last < len(operator.dims) or not stencil.loads:
        return True
    largest, _ = max(stencil.loads, key=lambda item: prod(extents[n] for n in item[1]))
    offset = largest.access.offset
    steps = {
        n: abs(offset.coefficient(Var(n)))
        for n in range(len(extents))
        if extents[n] > 1 and offset.coefficient(Var(n))
    }
    return not steps or steps.get(last, 1 << 62) == min(steps.values())
