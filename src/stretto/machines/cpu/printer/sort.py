"""Prints stages that sort as calls of the templates in sort.h."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.machines.cpu.printer.expr import VALUE_TYPES, element, iteration
from stretto.machines.cpu.printer.nest import ZERO, NestPrinter
from stretto.machines.statements import Do, If, Raw, Return, Store
from stretto.machines.terms import call, filled, literal, variable

STACK = 4096
"""Bytes of working memory that a task takes from its stack."""


@dataclass(slots=True)
class SortPrinter(NestPrinter):
    """The positions of the first elements of a sorted dim."""

    def sort(self) -> None:
        length, keep = (self.extent(extent) for extent in self.operator.reduce)
        descending = self.operator.combine == "argsort_descending"
        key = f"stretto::sort_key<{str(descending).lower()}>"
        element_type = VALUE_TYPES[self.operator.value.dtype]
        sorter = variable("sorter")
        self.out.add(
            Raw(literal(f"alignas(64) char small[{STACK}];"), variable("small")),
            Raw(literal(f"using Key = decltype({key}({element_type}()));")),
            Raw(
                filled(f"stretto::Sorter<Key> sorter({{}}, {{}}, small, {STACK});", length, keep),
                sorter,
            ),
            If(
                filled("{}.failed", sorter),
                (Do(call("stretto::fail", "ctx", "stretto::NO_MEMORY", 0)), Return()),
            ),
        )
        source = len(self.operator.dims)

        def row() -> None:
            simd = "#pragma omp simd" if self.vectorisable() else ""
            with self.loop(iteration(source), ZERO, length, simd):
                place = element(filled("{}.keys", sorter), iteration(source))
                self.out.add(Store(None, place, call(key, self.value())))
            self.out.add(Do(filled("{}.sort()", sorter)))
            with self.loop(iteration(source + 1), ZERO, keep):
                self.store(element(filled("{}.order", sorter), iteration(source + 1)))

        self.nest(list(range(source)), row)
