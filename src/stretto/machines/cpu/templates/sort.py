"""Sorts along a dim. The header sort.h has the code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.device.operator import SORTS, Combine
from stretto.machines.cpu.printer.cpp_terms import VALUE_TYPES, element, iteration
from stretto.machines.cpu.printer.nest import ZERO, CppNestPrinter
from stretto.machines.cpu.template import (
    CpuTemplate,
    CpuTemplateFamily,
    TemplateCandidate,
    TemplateRequest,
)
from stretto.machines.cpu.templates.plain_loops import contiguous_multiples
from stretto.machines.statements import Branch, Do, Raw, Return, Store
from stretto.machines.terms import call, filled, literal, variable

STACK = 4096
"""Bytes of working memory that a task takes from its stack."""


@dataclass(frozen=True, slots=True)
class Sort(CpuTemplate):
    """Positions of the first elements of a sorted dim."""

    name: ClassVar[str] = "sort"
    header: ClassVar[str] = "sort.h"

    def write(self, nest: CppNestPrinter) -> None:
        length, keep = (nest.extent(extent) for extent in nest.operator.reduce)
        descending = nest.operator.combine is Combine.ARGSORT_DESCENDING
        key = f"stretto::sort_key<{str(descending).lower()}>"
        element_type = VALUE_TYPES[nest.operator.value.dtype]
        sorter = variable("sorter")
        nest.out.add(
            Raw(literal(f"alignas(64) char small[{STACK}];"), variable("small")),
            Raw(literal(f"using Key = decltype({key}({element_type}()));")),
            Raw(
                filled(f"stretto::Sorter<Key> sorter({{}}, {{}}, small, {STACK});", length, keep),
                sorter,
            ),
            Branch(
                filled("{}.failed", sorter),
                (Do(call("stretto::fail", "ctx", "stretto::NO_MEMORY", 0)), Return()),
            ),
        )
        source = len(nest.operator.dims)

        def row() -> None:
            simd = "#pragma omp simd" if nest.vectorisable() else ""
            with nest.loop(iteration(source), ZERO, length, simd):
                place = element(filled("{}.keys", sorter), iteration(source))
                nest.out.add(Store(None, place, call(key, nest.value())))
            nest.out.add(Do(filled("{}.sort()", sorter)))
            with nest.loop(iteration(source + 1), ZERO, keep):
                nest.store(element(filled("{}.order", sorter), iteration(source + 1)))

        nest.nest(list(range(source)), row)


def _candidate(request: TemplateRequest) -> TemplateCandidate | None:
    operator, costs = request.operator, request.costs
    if operator.combine not in SORTS:
        return None
    seconds = costs.work(operator) * costs.element_seconds
    return TemplateCandidate(Sort(), contiguous_multiples(operator, costs.vector), seconds)


FAMILY = CpuTemplateFamily((Sort,), _candidate)
