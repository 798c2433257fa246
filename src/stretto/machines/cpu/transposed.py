"""Operands that lie across the result: contiguous along another dim than the result is.

A loop along the contiguous dim of the result would read one element of each line of the cache. Such
operands are transposed a block at a time, through vector registers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from stretto.device.expr import Apply, Expr, Load
from stretto.device.operator import Operator
from stretto.kernels.contraction import stride
from stretto.kernels.groups import divisible

ALONG, ACROSS = 64, 16
"""Elements of a block along the result's contiguous dim, and along the operands'."""
LEAST = 4
"""Dims of fewer elements are not worth it."""
MOST = 4
"""Operands of a stage that are transposed; each takes up to 8 KiB of the stack."""


@dataclass(frozen=True, slots=True)
class Transposed:
    """`loads` are contiguous along dim `across`, and neither constant nor contiguous along dim
    `along`, where the result is contiguous."""

    along: int
    across: int
    loads: tuple[Load, ...]


def transposed_operands(operator: Operator) -> Transposed | None:
    """The operands of an operator without reduction that lie across its result; where they lie in
    several ways, the first `MOST` of the most frequent one. None where there are none."""
    if operator.combine or operator.accumulate or not divisible(operator):
        return None
    dims = [n for n, dim in enumerate(operator.dims) if not isinstance(dim, int) or dim >= LEAST]
    along = next((n for n in reversed(dims) if stride(operator.out, n) == 1), None)
    if along is None:
        return None
    found: dict[Load, int] = {}
    for load in dict.fromkeys(_computed_loads(operator.value)):
        if load.access.offset.is_affine and stride(load.access, along) not in (0, 1):
            across = next((n for n in dims if n != along and stride(load.access, n) == 1), None)
            if across is not None:
                found[load] = across
    if not found:
        return None
    across = Counter(found.values()).most_common(1)[0][0]
    chosen = tuple(load for load, dim in found.items() if dim == across)
    return Transposed(along, across, chosen[:MOST])


def _computed_loads(expr: Expr) -> Iterator[Load]:
    """The loads that are computed whenever the expression is: not those in an arm of `where`."""
    match expr:
        case Load():
            yield expr
        case Apply("where", (condition, *_), _):
            yield from _computed_loads(condition)
        case Apply(_, args, _):
            for arg in args:
                yield from _computed_loads(arg)
        case _:
            pass
