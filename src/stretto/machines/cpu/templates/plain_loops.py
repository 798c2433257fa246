"""Loops over the elements, for operators without a better template."""

from __future__ import annotations

from stretto.device.costs import count_applies, count_expensive
from stretto.device.expr import loads
from stretto.device.operator import Loops, Operator
from stretto.kernels.contraction import stride
from stretto.machines.cpu.template import (
    CpuTemplateFamily,
    TemplateCandidate,
    TemplateRequest,
    transposed_operands,
)


def _candidate(request: TemplateRequest) -> TemplateCandidate:
    operator, costs = request.operator, request.costs
    out, depth = costs.points(operator.dims), costs.points(operator.reduce)
    item = operator.out.buffer.dtype.itemsize
    long = count_expensive(operator.value)
    cheap = 1 + count_applies(operator.value) - long
    scale = (cheap * costs.element_seconds + long * costs.expensive_seconds) * (item / 4)
    count = len(set(loads(operator.value)))
    seconds = out * depth * scale + count * out * costs.load_seconds
    return TemplateCandidate(Loops(), contiguous_multiples(operator, costs.vector), seconds)


def contiguous_multiples(operator: Operator, lanes: int) -> tuple[int, ...]:
    """Return tile multiples that keep vectors whole, of the contiguous dim and of that of operands
    across it."""
    crossing = transposed_operands(operator)
    across = None if crossing is None else crossing.across
    return tuple(
        lanes
        if (stride(operator.out, n) == 1 or n == across) and isinstance(d, int) and d >= lanes
        else 1
        for n, d in enumerate(operator.dims)
    )


FAMILY = CpuTemplateFamily((Loops,), _candidate, rank=9)
