"""Prints stages that sort as calls of the templates in sort.h."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.machines.cpu.printer.expr import VALUE_TYPES
from stretto.machines.cpu.printer.nest import NestPrinter

STACK = 4096
"""Bytes of working memory that a task takes from its stack."""


@dataclass(slots=True)
class SortPrinter(NestPrinter):
    """The positions of the first elements of a sorted dim."""

    def sort(self) -> None:
        length, keep = (self.extent(extent) for extent in self.operator.reduce)
        descending = self.operator.combine == "argsort_descending"
        key = f"stretto::sort_key<{str(descending).lower()}>"
        element = VALUE_TYPES[self.operator.value.dtype]
        self.out.write(f"alignas(64) char small[{STACK}];")
        self.out.write(f"using Key = decltype({key}({element}()));")
        self.out.write(f"stretto::Sorter<Key> sorter({length}, {keep}, small, {STACK});")
        self.out.write("if (sorter.failed)")
        with self.out.block():
            self.out.write("stretto::fail(ctx, stretto::NO_MEMORY, 0);")
            self.out.write("return;")
        source = len(self.operator.dims)

        def row() -> None:
            simd = "#pragma omp simd" if self.vectorisable() else ""
            self.open_loop(source, "0", length, simd)
            with self.out.block():
                self.out.write(f"sorter.keys[{self.names.var(source)}] = {key}({self.value()});")
            self.out.write("sorter.sort();")
            self.open_loop(source + 1, "0", keep)
            with self.out.block():
                self.assign(f"sorter.order[{self.names.var(source + 1)}]")

        self.nest(list(range(source)), row)
