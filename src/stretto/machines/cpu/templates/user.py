"""Kernels of users: C++ source inside the program, called for the part of the result of each task.

The header tile.h has the types of the function's arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.device.expr import Access, Index
from stretto.device.operator import Combine, Operator, Stage
from stretto.device.user_kernels import UserKernel, index_multiples, kernel_of
from stretto.extending.cpp_source import definition, namespace
from stretto.extending.kernel_tensors import UserCall, UserView
from stretto.machines.cpu.printer.cpp_terms import MEMORY_TYPES, ScalarPrinter
from stretto.machines.cpu.printer.nest import CppNestPrinter
from stretto.machines.cpu.template import (
    CpuTemplate,
    CpuTemplateFamily,
    TemplateCandidate,
    TemplateRequest,
)
from stretto.machines.cpu.templates.plain_loops import contiguous_multiples
from stretto.machines.statements import Branch, Raw, Statement, element_of
from stretto.machines.terms import Term, call, infix, joined, literal, separated, total, variable


@dataclass(frozen=True, slots=True)
class CpuUserKernel(CpuTemplate):
    """A call of the user's function for each place along the leading dims."""

    name: ClassVar[str] = "user"
    header: ClassVar[str] = "tile.h"
    kernel: UserKernel

    @classmethod
    def facts(cls, operator: Operator) -> dict[str, object]:
        return {"kernel": kernel_of(operator)}

    def definitions(self, stage: Stage) -> tuple[str, ...]:
        return (definition(self.kernel),)

    def write(self, nest: CppNestPrinter) -> None:
        found = UserCall.of(nest.operator)
        nest.nest(list(range(found.leads)), _Call(found, nest).write)


@dataclass(frozen=True, slots=True)
class _Call:
    """Printer of the call for one place along the leading dims."""

    call: UserCall
    nest: CppNestPrinter

    def write(self) -> None:
        found, nest = self.call, self.nest
        printer = ScalarPrinter(nest.names, nest.out)
        numbers = [printer.expr(number) for number in found.numbers]
        views = [self._view(view, printer, "const ") for view in found.reads]
        result = self._view(found.result, printer, "")
        ranges = [nest.bounds(nest.stage.box[dim]) for dim in found.indices]
        spans = [joined("stretto::Range{", first, ", ", last, "}") for first, last in ranges]
        function = f"{namespace(found.kernel)}::{found.kernel.entry}"
        run = call(function, *spans, *views, *numbers, result)
        done: Statement = Raw(joined("[&]() __attribute__((flatten)) { ", run, "; }();"))
        for first, last in ranges:
            done = Branch(infix(first, "<", last), (done,))
        nest.out.add(done)

    def _view(self, view: UserView, printer: ScalarPrinter, qualifier: str) -> Term:
        """Assign a variable that holds a tensor, without its leading dims."""
        nest, rank, name = self.nest, len(view.sizes), variable(f"view_{view.name}")
        kind = f"stretto::View<{qualifier}{MEMORY_TYPES[view.buffer.dtype]}, {rank}>"
        sizes = separated([printer.expr(size) for size in view.sizes] or [literal(1)])
        steps = separated([nest.index(step) for step in view.steps] or [literal(0)])
        access = Access(view.buffer, (1,), (view.start,))  # Treats the buffer as one long dim.
        start, offset = element_of(nest.names, access)
        place = total(start, None if offset == Index() else nest.index(offset))
        held = joined("{", place or start, ", {", sizes, "}, {", steps, "}};")
        nest.out.add(Raw(joined(f"const {kind} ", name, held), name))
        return name


# ---- Selection -----------------------------------------------------------------------------------


def _candidate(request: TemplateRequest) -> TemplateCandidate | None:
    operator, costs = request.operator, request.costs
    if operator.combine is not Combine.KERNEL:
        return None
    wanted = index_multiples(operator)
    found = enumerate(contiguous_multiples(operator, costs.vector))
    multiples = tuple(wanted.get(dim, multiple) for dim, multiple in found)
    seconds = costs.points(operator.dims) * costs.user_seconds(operator)
    return TemplateCandidate(CpuUserKernel(kernel_of(operator)), multiples, seconds)


FAMILY = CpuTemplateFamily((CpuUserKernel,), _candidate)
