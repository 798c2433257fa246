"""What all stage printers share: bounds of a task's box, loops over it, values and stores."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from stretto.device.expr import Access, Apply, Dynamic, Expr, Extent, Index, Load, Reg, Var
from stretto.device.operator import Operator, Span, Stage
from stretto.machines.cpu.printer.expr import (
    VALUE_TYPES,
    ScalarPrinter,
    iteration,
    stored_term,
    wrapped,
)
from stretto.machines.expressions import HALVES
from stretto.machines.parameters import Naming
from stretto.machines.statements import Builder, Do, For, Store
from stretto.machines.symbols import fixed
from stretto.machines.terms import Operand, Term, call, literal, total

ZERO = literal(0)


@dataclass(slots=True)
class NestPrinter:
    """Makes the statements of one stage; `grid` are the bounds (first, last) of the grid dims."""

    out: Builder
    names: Naming
    stage: Stage
    grid: tuple[tuple[Term, Term], ...]

    @property
    def operator(self) -> Operator:
        return self.stage.operator

    def bounds(self, span: Span) -> tuple[Term, Term]:
        """First and one past the last value of a span."""
        if span.grid is None:
            first, last = Index(const=span.offset), Index.of(span.extent) + span.offset
            return self.index(first), self.index(last)
        first, last = self.grid[span.grid]
        return (first + span.offset, last + span.offset) if span.offset else (first, last)

    def index(self, index: Index) -> Term:
        return ScalarPrinter(self.names, self.out).index(index)

    def extent(self, extent: Extent) -> Term:
        extent = fixed(extent)
        return self.names.reg(extent) if isinstance(extent, Reg) else literal(extent)

    @contextmanager
    def loop(
        self, variable: Term, first: Term, last: Term, pragma: str = "", step: int = 1
    ) -> Generator[None]:
        with self.out.within(For(variable, first, last, literal(step), pragma=pragma)):
            yield

    def nest(self, dims: list[int], body: Callable[[], None]) -> None:
        """Loops over parallel dims, then `body`."""
        if not dims:
            body()
            return
        with self.loop(iteration(dims[0]), *self.bounds(self.stage.box[dims[0]])):
            self.nest(dims[1:], body)

    def pointer(self, access: Access, fixed: dict[int, Term]) -> Term:
        """Pointer to the element at the given values of variables, 0 for the others."""
        terms: list[Term] = [self.names.buffer(access.buffer)]
        offset = access.offset
        for atom, factor in offset.terms:
            if isinstance(atom, Var):
                if atom.number in fixed and fixed[atom.number].text != "0":
                    terms.append(fixed[atom.number] * factor)
            elif isinstance(atom, Reg):
                terms.append(self.names.reg(atom) * factor)
        if offset.const:
            terms.append(literal(offset.const))
        return total(*terms) or ZERO

    def call(self, template: str, *arguments: Operand) -> None:
        """A call of a function template of namespace stretto that does not add to what is there."""
        self.out.add(Do(call(f"stretto::{template}", *arguments, "false")))

    def vectorisable(self) -> bool:
        """False when iterations of the inner loop may not be done side by side."""
        return not self.operator.accumulate and not any(
            apply.function == "checked" for apply in applies(self.operator)
        )

    def value(self) -> Term:
        return ScalarPrinter(self.names, self.out).expr(self.operator.value)

    def store(self, value: Term) -> None:
        """Stores a value at the output position of the current variables."""
        out = self.operator.out
        place = ScalarPrinter(self.names, self.out, inline=1).address(out)
        dtype = out.buffer.dtype
        if self.operator.accumulate:
            if dtype in HALVES:
                value = call("stretto::to_float", place) + value
            elif dtype.is_integer:
                value = wrapped(dtype, place, "+", value)
            else:
                value = call(VALUE_TYPES[dtype], place + value)
        self.out.add(Store(out.buffer, place, stored_term(value, dtype)))


def applies(operator: Operator) -> list[Apply]:
    """Every function application of an operator's value and positions."""
    found: list[Apply] = []

    def visit(expr: Expr) -> None:
        if isinstance(expr, Apply):
            found.append(expr)
            for arg in expr.args:
                visit(arg)
        elif isinstance(expr, Load):
            for index in expr.access.index:
                visit_index(index)

    def visit_index(index: Index) -> None:
        for atom in index.atoms():
            if isinstance(atom, Dynamic):
                visit(atom.value)

    visit(operator.value)
    for index in operator.out.index:
        visit_index(index)
    return found
