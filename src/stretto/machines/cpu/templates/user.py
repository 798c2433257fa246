"""Kernels of users: the source is part of the program, and a stage calls its function for the part
of the result that a task computes. The header tile.h has what it is given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

from stretto.device.expr import Access, Apply, Extent, Index, Load
from stretto.device.operator import Combine, Operator, Stage
from stretto.device.user_kernels import Region, UserKernel, kernel_of
from stretto.kernels.groups import Member
from stretto.machines.cpu.printer.expr import MEMORY_TYPES, ScalarPrinter, iteration
from stretto.machines.cpu.printer.nest import NestPrinter
from stretto.machines.cpu.template import Candidate, CpuTemplate, Family, Request
from stretto.machines.cpu.templates.loops import contiguous_multiples
from stretto.machines.cpu.user_source import definition, namespace
from stretto.machines.statements import If, Raw, Statement
from stretto.machines.terms import Term, call, infix, joined, literal, separated, total, variable


@dataclass(frozen=True, slots=True)
class User(CpuTemplate):
    """A call of the user's function for each place along the leading dims."""

    name: ClassVar[str] = "user"
    header: ClassVar[str] = "tile.h"
    kernel: UserKernel

    @classmethod
    def facts(cls, operator: Operator) -> dict[str, object]:
        return {"kernel": kernel_of(operator)}

    def definitions(self, stage: Stage) -> tuple[str, ...]:
        return (definition(self.kernel),)

    def write(self, nest: NestPrinter) -> None:
        leads = len(nest.operator.dims) - len(self.kernel.write.parts)
        nest.nest(list(range(leads)), _Call(self.kernel, nest, leads).write)


@dataclass(frozen=True, slots=True)
class _Call:
    """Prints the call for one place along the leading dims, of which there are `leads`."""

    kernel: UserKernel
    nest: NestPrinter
    leads: int

    def write(self) -> None:
        kernel, nest, operator = self.kernel, self.nest, self.nest.operator
        assert isinstance(operator.value, Apply)
        arguments = iter(operator.value.args)
        loads = [next(arguments) for _ in kernel.reads]
        printer = ScalarPrinter(nest.names, nest.out)
        numbers = [printer.expr(next(arguments)) for _ in kernel.numbers]
        windows = count(len(operator.dims))
        given: list[Term] = []
        for region, load in zip(kernel.reads, loads, strict=True):
            assert isinstance(load, Load)
            sizes = [printer.expr(next(arguments)) for _ in region.parts]
            steps = self._steps(region, load.access, windows)
            given.append(self._view(region, load.access, sizes, steps, "const "))
        given += numbers
        dims = range(self.leads, len(operator.dims))
        steps = [self._step(operator.out, dim, 1) for dim in dims]
        sizes = [nest.extent(operator.dims[dim]) for dim in dims]
        given.append(self._view(kernel.write, operator.out, sizes, steps, ""))
        ranges = list(self._ranges())
        spans = [joined("stretto::Range{", first, ", ", last, "}") for first, last in ranges]
        function = f"{namespace(kernel)}::{kernel.entry}"
        run = joined("[&]() __attribute__((flatten)) { ", call(function, *spans, *given), "; }();")
        done: Statement = Raw(run)
        for first, last in ranges:
            done = If(infix(first, "<", last), (done,))
        nest.out.add(done)

    def _ranges(self) -> Iterator[tuple[Term, Term]]:
        """The bounds of each index in the task."""
        for dim, part in enumerate(self.kernel.write.parts, self.leads):
            if part.start is not None:
                yield self.nest.bounds(self.nest.stage.box[dim])

    # ---- views -------------------------------------------------------------------------------
    def _view(
        self,
        region: Region,
        access: Access,
        sizes: Sequence[Term],
        steps: Sequence[Term],
        qualifier: str,
    ) -> Term:
        """A variable that holds a tensor, without its leading dims."""
        rank, name = len(region.parts), variable(f"view_{region.tensor}")
        kind = f"stretto::View<{qualifier}{MEMORY_TYPES[access.buffer.dtype]}, {rank}>"
        dims = (separated(sizes), separated(steps)) if rank else (literal(1), literal(0))
        start = self._start(region, access, steps)
        held = joined("{", start, ", {", dims[0], "}, {", dims[1], "}};")
        self.nest.out.add(Raw(joined(f"const {kind} ", name, held), name))
        return name

    def _start(self, region: Region, access: Access, steps: Sequence[Term]) -> Term:
        """The first element: the access at 0, less what the region adds to the indices."""
        fixed = {n: iteration(n) for n in range(self.leads)}
        start = self.nest.pointer(access, fixed)
        for part, step in zip(region.parts, steps, strict=True):
            if part.start is not None and part.start.const and part.start.terms:
                start = start - step * part.start.const
        return start

    def _steps(self, region: Region, access: Access, windows: Iterator[int]) -> list[Term]:
        """The strides of a tensor that is read."""
        found: list[Term] = []
        for part in region.parts:
            window = None if part.start is not None and part.length == 1 else next(windows)
            if window is not None:
                found.append(self._step(access, window, 1))
            elif part.start is not None and part.start.terms:
                (index, factor), *_ = part.start.terms
                found.append(self._step(access, self._variable(index), factor))
            else:
                found.append(literal(0))
        return found

    def _variable(self, index: str) -> int:
        parts = enumerate(self.kernel.write.parts, self.leads)
        return next(n for n, part in parts if part.start is not None and part.start.name == index)

    def _step(self, access: Access, variable: int, factor: int) -> Term:
        """How far it is to the next element, where `factor` of these are one step of a variable."""
        terms: list[Term] = []
        for atom, times in access.offset.terms:
            if variable in Index.of(atom).vars():
                step = self.nest.part(atom, {variable: literal(1)})
                assert step is not None
                known = step.text == "1"
                terms.append(
                    literal(times // factor) if known else infix(step * times, "/", factor)
                )
        return total(*terms) or literal(0)


# ---- where it applies ----------------------------------------------------------------------------


def computes_whole_dims(member: Member, grid: tuple[Extent, ...]) -> bool:
    """Whether tasks compute the whole of each dim of the result that has no index."""
    operator = member.operator
    parts = kernel_of(operator).write.parts
    leads = len(operator.dims) - len(parts)
    spans = (
        (box[dim], operator.dims[dim])
        for box in member.boxes
        for dim, part in enumerate(parts, leads)
        if part.start is None
    )
    return all(
        span.offset == 0 and (span.extent if span.grid is None else grid[span.grid]) == extent
        for span, extent in spans
    )


def _candidate(request: Request) -> Candidate | None:
    operator, costs = request.operator, request.costs
    if operator.combine is not Combine.KERNEL:
        return None
    kernel = kernel_of(operator)
    parts = kernel.write.parts
    leads = len(operator.dims) - len(parts)
    wanted = dict(kernel.multiples)
    multiples = list(contiguous_multiples(operator, costs.vector))
    for dim, part in enumerate(parts, leads):
        name = part.start.name if part.start is not None else None
        multiples[dim] = 0 if name is None else wanted.get(name, multiples[dim])
    nbytes = kernel.nbytes
    if nbytes is None:
        found = {load.access.buffer for load in operator.reads()} | {operator.out.buffer}
        nbytes = sum(buffer.dtype.itemsize for buffer in found)
    each = max(kernel.operations * costs.element_seconds, nbytes / costs.bandwidth)
    return Candidate(User(kernel), tuple(multiples), costs.points(operator.dims) * each)


FAMILY = Family((User,), _candidate)
