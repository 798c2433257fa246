"""What is computed element by element: loops, and sorts of the rows of a dim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.device.expr import loads
from stretto.device.operator import SORTS, Loops, Operator, Template
from stretto.kernels.contraction import stride
from stretto.kernels.fuse import work
from stretto.lowering.expense import count_applies
from stretto.machines.cpu import costs
from stretto.machines.cpu.templates.candidate import Candidate, Request, points

LANES = 16
"""The f32 numbers of a vector."""


@dataclass(frozen=True, slots=True)
class Sort(Template):
    """The positions of the first elements of a sorted dim. The header sort.h has the code."""

    name: ClassVar[str] = "sort"


def sort_candidate(request: Request) -> Candidate | None:
    operator = request.operator
    if operator.combine not in SORTS:
        return None
    return Candidate(Sort(), _multiples(operator), work(operator) * costs.ELEMENT)


def loop_candidate(request: Request) -> Candidate:
    operator = request.operator
    out, depth = points(operator.dims), points(operator.reduce)
    item = operator.out.buffer.dtype.itemsize
    scale = costs.ELEMENT * (1 + count_applies(operator.value)) * (item / 4)
    seconds = out * depth * scale + sum(1 for _ in loads(operator.value)) * out * 1e-10
    return Candidate(Loops(), _multiples(operator), seconds)


def _multiples(operator: Operator) -> tuple[int, ...]:
    """Vectors of the contiguous dim stay whole."""
    return tuple(
        LANES if stride(operator.out, n) == 1 and isinstance(d, int) and d >= LANES else 1
        for n, d in enumerate(operator.dims)
    )
