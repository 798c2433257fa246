"""What is computed element by element: loops, and sorts of the rows of a dim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.device.costs import count_applies
from stretto.device.expr import loads
from stretto.device.operator import SORTS, Loops, Operator, Template
from stretto.kernels.contraction import stride
from stretto.machines.cpu.templates.candidate import Candidate, Request


@dataclass(frozen=True, slots=True)
class Sort(Template):
    """The positions of the first elements of a sorted dim. The header sort.h has the code."""

    name: ClassVar[str] = "sort"


def sort_candidate(request: Request) -> Candidate | None:
    operator, costs = request.operator, request.costs
    if operator.combine not in SORTS:
        return None
    seconds = costs.work(operator) * costs.element_seconds
    return Candidate(Sort(), _multiples(operator, costs.vector), seconds)


def loop_candidate(request: Request) -> Candidate:
    operator, costs = request.operator, request.costs
    out, depth = costs.points(operator.dims), costs.points(operator.reduce)
    item = operator.out.buffer.dtype.itemsize
    scale = costs.element_seconds * (1 + count_applies(operator.value)) * (item / 4)
    count = sum(1 for _ in loads(operator.value))
    seconds = out * depth * scale + count * out * costs.load_seconds
    return Candidate(Loops(), _multiples(operator, costs.vector), seconds)


def _multiples(operator: Operator, lanes: int) -> tuple[int, ...]:
    """Vectors of the contiguous dim stay whole."""
    return tuple(
        lanes if stride(operator.out, n) == 1 and isinstance(d, int) and d >= lanes else 1
        for n, d in enumerate(operator.dims)
    )
