"""Parts that all stage printers share: bounds of a task's box, loops over it, values and stores."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import mul

from stretto.device.expr import (
    Access,
    Apply,
    ComputedPosition,
    Const,
    Expr,
    Extent,
    Index,
    Load,
    Position,
    checks,
    expr_atoms,
    parts,
)
from stretto.device.operator import Operator, Span, Stage
from stretto.ir.sizes import Atom, Product, Size, Var
from stretto.machines.cpu.printer.cpp_terms import (
    VALUE_TYPES,
    ScalarPrinter,
    iteration,
    stored_term,
    wrapped,
)
from stretto.machines.expression_printer import HALVES
from stretto.machines.statements import CountedLoop, Do, Naming, StatementBuilder, Store, element_of
from stretto.machines.terms import Operand, Term, call, literal, total, variable

ZERO = literal(0)


@dataclass(slots=True)
class CppNestPrinter:
    """Printer of the statements of one stage.

    grid: the bounds (first, last) of the grid dims. back: a variable that is true if this run of
    the task reads its constants from the last to the first; None if there is no choice.
    """

    out: StatementBuilder
    names: Naming
    stage: Stage
    grid: tuple[tuple[Term, Term], ...]
    back: Term | None = None
    sizes: int = 0

    @property
    def operator(self) -> Operator:
        return self.stage.operator

    def bounds(self, span: Span) -> tuple[Term, Term]:
        """Return the first, and one past the last value of a span."""
        if span.grid is None:
            first, last = Index(const=span.offset), Index.of(span.extent) + span.offset
            return self.index(first), self.named(last)
        first, last = self.grid[span.grid]
        return (first + span.offset, last + span.offset) if span.offset else (first, last)

    def index(self, index: Index) -> Term:
        return ScalarPrinter(self.names, self.out).index(index)

    def number(self, size: int | Size) -> Operand:
        """Return a size as an operand."""
        return size if isinstance(size, int) else self.index(size)

    def extent(self, extent: Extent) -> Term:
        return self.named(Index.of(extent))

    def named(self, size: Index) -> Term:
        """Return a size, for the end of a loop; a formula is assigned to a constant."""
        value = self.index(size)
        if value.is_name or size.is_const or not size.symbols:
            return value
        name = variable(f"size{self.sizes}")
        self.sizes += 1
        self.out.assign(name, value, "const int64_t")
        return name

    @contextmanager
    def loop(
        self, variable: Term, first: Term, last: Term, pragma: str = "", step: int = 1
    ) -> Generator[None]:
        with self.out.within(CountedLoop(variable, first, last, literal(step), pragma=pragma)):
            yield

    def nest(self, dims: list[int], body: Callable[[], None]) -> None:
        """Open loops over parallel dims, and call `body` inside."""
        if not dims:
            body()
            return
        with self.loop(iteration(dims[0]), *self.bounds(self.stage.box[dims[0]])):
            self.nest(dims[1:], body)

    def pointer(self, access: Access, fixed: dict[int, Term]) -> Term:
        """Return a pointer to the element at the given values of variables, 0 for the others."""
        start, offset = element_of(self.names, access)
        terms: list[Term] = [start]
        for atom, factor in offset.terms:
            value = self.part(atom, fixed)
            if value is not None:
                terms.append(value * factor)
        if offset.const:
            terms.append(literal(offset.const))
        return total(*terms) or ZERO

    def part(self, atom: Atom, fixed: dict[int, Term]) -> Term | None:
        """Return a part of a position at the given values of variables; None if it is 0."""
        match atom:
            case Var(number):
                return None if number not in fixed or fixed[number].text == "0" else fixed[number]
            case Product(factors):
                values = [self.part(factor, fixed) for factor in factors]
                known = [value for value in values if value is not None]
                return reduce(mul, known) if len(known) == len(values) else None
            case _:
                assert not Index.of(atom).vars()
                return self.index(Index.of(atom))

    def call(self, template: str, *arguments: Operand, last: tuple[Operand, ...] = ()) -> None:
        """Add a call of a function template of namespace stretto that overwrites its result
        instead of adding to it."""
        self.out.add(Do(call(f"stretto::{template}", *arguments, "false", *last)))

    def vectorisable(self, inner: int | None = None) -> bool:
        """False if iterations of the loop over variable `inner` must not run side by side."""
        steady = [] if inner is None else self.steady(inner)
        before = checks(part for value in steady for part in parts(value))
        return not self.operator.accumulate and all(
            apply.function != "checked" or apply in before for apply in applies(self.operator)
        )

    def steady(self, inner: int) -> list[Expr]:
        """Return the positions read from memory that are the same in all iterations of the loop
        over variable `inner`, and that each iteration computes: the row of a table, for the
        columns of a look-up.

        A loop that may have no iterations would read none of them, so it has none.
        """
        if not isinstance((*self.operator.dims, *self.operator.reduce)[inner], int):
            return []
        positions = computed_positions(self.operator.value)
        return [v for v in dict.fromkeys(positions) if Var(inner) not in expr_atoms(v)]

    def before(self, inner: int) -> ScalarPrinter:
        """Compute these positions before the loop; return the printer that knows them, for the
        values inside."""
        printer = ScalarPrinter(self.names, self.out)
        for value in self.steady(inner):
            printer.expr(value)
        return printer

    def value(self, known: ScalarPrinter | None = None) -> Term:
        """Return the value of the operator. `known`: printer of what was computed before the
        current loop."""
        names = {} if known is None else dict(known.known)
        return ScalarPrinter(self.names, self.out, names).expr(self.operator.value)

    def store(self, value: Term) -> None:
        """Store a value at the output position of the current variables."""
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


def computed_positions(expr: Expr) -> Iterator[Expr]:
    """Yield the positions of loads that are computed whenever the expression is: not those in an
    arm of `where`, and not those inside other positions."""
    match expr:
        case Apply("where", (condition, *_), _):
            yield from computed_positions(condition)
        case Apply(_, args, _):
            for arg in args:
                yield from computed_positions(arg)
        case Load(access):
            for index in access.index:
                yield from (a.value for a, _ in index.terms if isinstance(a, ComputedPosition))
        case Position() | Const():
            pass


def applies(operator: Operator) -> list[Apply]:
    """Return every function application in an operator's value and positions."""
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
            if isinstance(atom, ComputedPosition):
                visit(atom.value)

    visit(operator.value)
    for index in operator.out.index:
        visit_index(index)
    return found
