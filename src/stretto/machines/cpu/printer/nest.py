"""What all stage printers share: bounds of a task's box, loops over it, values and stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stretto.device.expr import Apply, Dynamic, Expr, Extent, Index, Load, Reg
from stretto.device.operator import Operator, Span, Stage
from stretto.ir.types import DType
from stretto.machines.cpu.printer.expr import (
    VALUE_TYPES,
    ExprPrinter,
    Names,
    stored_text,
    wrapping_type,
)
from stretto.text import Writer


@dataclass(slots=True)
class NestPrinter:
    """Prints one stage into `out`; `grid` names the bounds of grid dims as pairs (first, last)."""

    out: Writer
    names: Names
    stage: Stage
    grid: tuple[tuple[str, str], ...]

    @property
    def operator(self) -> Operator:
        return self.stage.operator

    def bounds(self, span: Span) -> tuple[str, str]:
        """First and one past the last value of a span."""
        if span.grid is None:
            first = Index(const=span.offset)
            last = Index.of(span.extent) + span.offset
            return self.text(first), self.text(last)
        first_text, last_text = self.grid[span.grid]
        shift = f" + {span.offset}" if span.offset else ""
        return first_text + shift, last_text + shift

    def text(self, index: Index) -> str:
        return ExprPrinter(self.names).index(index)

    def extent(self, extent: Extent) -> str:
        return self.names.reg(extent) if isinstance(extent, Reg) else str(extent)

    def open_loop(self, var: int, first: str, last: str, simd: str = "") -> None:
        if simd:
            self.out.write(simd)
        name = self.names.var(var)
        self.out.write(f"for (int64_t {name} = {first}; {name} < {last}; ++{name})")

    def nest(self, dims: list[int], body: Callable[[], None]) -> None:
        """Loops over parallel dims, then `body`."""
        if not dims:
            body()
            return
        dim = dims[0]
        first, last = self.bounds(self.stage.box[dim])
        self.open_loop(dim, first, last)
        with self.out.block():
            self.nest(dims[1:], body)

    def vectorisable(self) -> bool:
        """False when iterations of the inner loop may not be done side by side."""
        return not self.operator.accumulate and not any(
            apply.function == "checked" for apply in applies(self.operator)
        )

    def value(self) -> str:
        printer = ExprPrinter(self.names)
        text = printer.expr(self.operator.value)
        for line in printer.lines:
            self.out.write(line)
        return text

    def store(self) -> None:
        self.assign(self.value())

    def assign(self, text: str) -> None:
        """Stores a value at the output position of the current variables."""
        operator = self.operator
        printer = ExprPrinter(self.names, inline=1)
        target = printer.address(operator.out)
        dtype = operator.out.buffer.dtype
        if operator.accumulate:
            if dtype in (DType.F16, DType.BF16):
                text = f"stretto::to_float({target}) + {text}"
            elif dtype.is_integer:
                unsigned = wrapping_type(dtype)
                text = f"{VALUE_TYPES[dtype]}({unsigned}({target}) + {unsigned}({text}))"
            else:
                text = f"{VALUE_TYPES[dtype]}({target} + {text})"
        self.out.write(f"{target} = {stored_text(text, dtype)};")


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
