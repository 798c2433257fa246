"""Printing of map, reduction and scan stages as loop nests that the C++ compiler vectorises."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, prod

from stretto.device.expr import Expr, Load
from stretto.ir.types import DType
from stretto.kernels.contraction import stride
from stretto.kernels.groups import divisible
from stretto.machines.cpu.printer.cpp_terms import (
    MEMORY_TYPES,
    VALUE_TYPES,
    constant,
    element,
    iteration,
    wrapping_type,
)
from stretto.machines.cpu.printer.nest import ZERO, CppNestPrinter
from stretto.machines.cpu.template import ACROSS, ALONG, Transposed, transposed_operands
from stretto.machines.expression_printer import HALVES
from stretto.machines.statements import Assign, Branch, Do, Raw, Store
from stretto.machines.terms import Term, call, filled, infix, joined, literal, variable

SIMD = "#pragma omp simd"
VECTOR_BLOCK = 64
"""Number of columns reduced side by side if the reduced dim is not the contiguous one."""
SUM_CHUNK = 4096
"""Number of elements summed in f32 before the partial sum is added to an f64 total."""
ARG_BLOCK = 128
"""Number of elements that are searched for the best value at once."""
ACROSS_BLOCK, ACROSS_STOP = variable("across"), variable("across_stop")
SUM, TOTAL, CHUNK, BLOCK, STOP, END, TOTALS, PART, FOUND, HERE = map(
    variable,
    ("sum", "total", "chunk", "block", "stop", "end", "totals", "part", "found", "here"),
)


@dataclass(slots=True)
class LoopPrinter(CppNestPrinter):
    """Printer of any operator as plain loops."""

    def loops(self) -> None:
        """Print the operator, by its kind of combination."""
        operator = self.operator
        if operator.combine in ("cumsum", "cumprod"):
            self.nest(list(range(len(operator.dims))), self.scan)
        elif not operator.combine:
            self.map()
        elif operator.combine in ("argmax", "argmin"):
            self.nest(list(range(len(operator.dims))), self.arg_reduce)
        else:
            vector = self.vector_dim()
            if vector is None:
                self.nest(list(range(len(operator.dims))), self.reduce)
            else:
                rest = [n for n in range(len(operator.dims)) if n != vector]
                self.nest(rest, lambda: self.reduce_columns(vector))

    def map(self) -> None:
        """Print an operator without reduction, vectorised along its contiguous dim if possible."""
        operator = self.operator
        dims = list(range(len(operator.dims)))
        crossing = transposed_operands(operator)
        if crossing is not None and self.vectorisable(crossing.along):
            rest = [n for n in dims if n not in (crossing.along, crossing.across)]
            self.nest(rest, lambda: self.blocks(crossing))
            return
        inner = (
            next((n for n in reversed(dims) if stride(operator.out, n) == 1), None)
            if divisible(operator)
            else None
        )
        if inner is not None and operator.dims[inner] != 1:
            dims.remove(inner)
            dims.append(inner)
        simd = inner is not None and dims[-1:] == [inner] and self.vectorisable(inner)
        if not dims:
            self.store(self.value())
            return

        def innermost() -> None:
            first, last = self.bounds(self.stage.box[dims[-1]])
            known = self.before(dims[-1])
            with self.loop(iteration(dims[-1]), first, last, SIMD if simd else ""):
                self.store(self.value(known))

        self.nest(dims[:-1], innermost)

    def blocks(self, crossing: Transposed) -> None:
        """Print both dims in blocks; blocks of operands that are contiguous across the result are
        transposed."""
        along, across = crossing.along, crossing.across
        first, last = self.bounds(self.stage.box[across])
        with self.loop(ACROSS_BLOCK, first, last, step=ACROSS):
            self.chunk(ACROSS_BLOCK, ACROSS, last, ACROSS_STOP)
            first, last = self.bounds(self.stage.box[along])
            with self.loop(BLOCK, first, last, step=ALONG):
                self.chunk(BLOCK, ALONG, last)
                turned: dict[Expr, Term] = {
                    load: self.turned(number, load, crossing)
                    for number, load in enumerate(crossing.loads)
                }
                with self.loop(iteration(across), ACROSS_BLOCK, ACROSS_STOP):
                    known = self.before(along)
                    known.known.update(turned)
                    with self.loop(iteration(along), BLOCK, STOP, SIMD):
                        self.store(self.value(known))

    def turned(self, number: int, load: Load, crossing: Transposed) -> Term:
        """Transpose the block of an operand; return its element at the current variables."""
        tile, kind = variable(f"turned{number}"), MEMORY_TYPES[load.dtype]
        self.out.add(Raw(joined(f"{kind} ", tile, f"[{ACROSS * ALONG}];"), tile))
        at = {n: iteration(n) for n in range(len(self.operator.dims))}
        at |= {crossing.along: BLOCK, crossing.across: ACROSS_BLOCK}
        source = self.pointer(load.access, at)
        row = self.number(stride(load.access, crossing.along))
        counts = (filled("int({})", STOP - BLOCK), filled("int({})", ACROSS_STOP - ACROSS_BLOCK))
        self.out.add(Do(call(f"stretto::transpose<{kind}>", tile, ALONG, source, row, *counts)))
        place = (iteration(crossing.across) - ACROSS_BLOCK) * ALONG
        value = element(tile, place + (iteration(crossing.along) - BLOCK))
        return call("stretto::to_float", value) if load.dtype in HALVES else value

    # ---- Reductions --------------------------------------------------------------------------
    def vector_dim(self) -> int | None:
        """Return a parallel dim to vectorise over if loads are contiguous along it and not along
        the last reduced dim, else None."""
        operator = self.operator
        if not operator.reduce or not divisible(operator):
            return None
        last = len(operator.dims) + len(operator.reduce) - 1
        candidates = [
            n for n, d in enumerate(operator.dims) if d != 1 and stride(operator.out, n) == 1
        ]
        if not candidates:
            return None
        dim = candidates[-1]
        along = [
            stride(load.access, dim) for load in operator.reads() if load.access.offset.is_affine
        ]
        across = [
            stride(load.access, last) for load in operator.reads() if load.access.offset.is_affine
        ]
        if any(s == 1 for s in across) or not any(s == 1 for s in along):
            return None
        return dim if self.vectorisable(dim) else None

    @property
    def accumulator(self) -> str:
        """The C++ type of the operator's values."""
        return VALUE_TYPES[self.operator.value.dtype]

    @property
    def total(self) -> str:
        """The type of a running result: sums and products of integers wrap around."""
        dtype = self.operator.value.dtype
        if dtype.is_integer and self.operator.combine in ("sum", "prod", "cumsum", "cumprod"):
            return wrapping_type(dtype)
        return self.accumulator

    def initial(self) -> Term:
        """Return the neutral element of the combination."""
        dtype = self.operator.value.dtype
        match self.operator.combine:
            case "sum" | "any":
                return constant(0, dtype)
            case "prod" | "all":
                return constant(1, dtype)
            case "max" | "argmax":
                return literal(lowest(dtype))
            case _:
                return literal(highest(dtype))

    def combined(self, total: Term, value: Term) -> Term:
        """Return the combination of a running result with a value."""
        match self.operator.combine:
            case "sum" | "cumsum":
                return total + value
            case "prod" | "cumprod":
                return total * value
            case "any":
                return infix(total, "|", value)
            case "all":
                return infix(total, "&", value)
            case "max":
                return call("stretto::maximum", total, value)
            case _:
                return call("stretto::minimum", total, value)

    def add(self, total: Term, value: Term) -> None:
        """Add a value to a running result, by the operator's combine function."""
        self.out.assign(total, self.combined(total, value))

    def simd_clause(self) -> str:
        """Return the OpenMP line that reduces the innermost loop in vector lanes; empty if it must
        stay in order."""
        if not self.vectorisable():
            return ""
        symbol = {
            "sum": "+",
            "prod": "*",
            "any": "|",
            "all": "&",
            "max": "stretto::nan_max",
            "min": "stretto::nan_min",
        }
        dtype = self.operator.value.dtype
        name = symbol.get(self.operator.combine, "")
        if self.operator.combine in ("max", "min") and VALUE_TYPES[dtype] != "float":
            return ""
        return f"{SIMD} reduction({name} : total)" if name and dtype is not DType.BOOL else ""

    def reduce(self) -> None:
        """Print one result: all reduced dims in loops around an accumulator."""
        count = len(self.operator.reduce)
        first = len(self.operator.dims)
        double = self.operator.combine == "sum" and self.accumulator == "float"
        self.out.assign(SUM, self.initial(), "double" if double else self.total)
        if double and self.has_short_runs():
            self.run_nest(first, first + count - 1)
        else:
            self.reduce_nest(first, first + count - 1)
        self.store(call(self.accumulator, SUM))

    # Sums of many short runs, such as the channels of a group in each pixel, have one total per
    # element of a run: whole vectors are added, and lanes are summed only once at the end.

    def has_short_runs(self) -> bool:
        """True for a sum over several dims whose innermost one is short (at most VECTOR_BLOCK) and
        contiguous."""
        *outer, inner = self.operator.reduce or (1,)
        if not outer or not isinstance(inner, int) or not 1 < inner <= VECTOR_BLOCK:
            return False
        last = len(self.operator.dims) + len(outer)
        steps = (stride(a.access, last) for a in self.operator.reads() if a.access.offset.is_affine)
        return divisible(self.operator) and any(s == 1 for s in steps) and self.vectorisable(last)

    def run_nest(self, var: int, last: int) -> None:
        """Print loops over the reduced dims from `var` on, until the rest has few enough runs for
        f32 to sum them without losing digits."""
        extents = self.operator.reduce[var - len(self.operator.dims) : -1]
        if prod(e if isinstance(e, int) else inf for e in extents) <= SUM_CHUNK:
            with self.lane_totals(last):
                self.run_loops(var, last)
        elif var < last - 1:
            with self.loop(iteration(var), ZERO, self.reduced(var)):
                self.run_nest(var + 1, last)
        else:
            extent = self.reduced(var)
            with self.loop(CHUNK, ZERO, extent, step=SUM_CHUNK):
                self.chunk(CHUNK, SUM_CHUNK, extent)
                with self.lane_totals(last), self.loop(iteration(var), CHUNK, STOP):
                    self.run_loops(last, last)

    @contextmanager
    def lane_totals(self, last: int) -> Generator[None]:
        """Zero a total for each element of a run; at the end add the totals to the sum."""
        run = self.operator.reduce[-1]
        assert isinstance(run, int)
        self.columns(TOTALS, self.total, run)
        yield
        with self.loop(iteration(last), ZERO, self.reduced(last)):
            self.add(SUM, element(TOTALS, iteration(last)))

    def run_loops(self, var: int, last: int) -> None:
        """Add runs to the totals of their elements."""
        if var < last:
            with self.loop(iteration(var), ZERO, self.reduced(var)):
                self.run_loops(var + 1, last)
            return
        place = element(TOTALS, iteration(last))
        known = self.before(last)
        with self.loop(iteration(last), ZERO, self.reduced(last), SIMD):
            self.out.add(Store(None, place, self.combined(place, self.value(known))))

    def reduced(self, var: int) -> Term:
        """Return the size of a reduced dim."""
        return self.extent(self.operator.reduce[var - len(self.operator.dims)])

    def chunk(self, start: Term, size: int, end: Term, name: Term = STOP) -> None:
        """Assign the end of a chunk to `name`."""
        following = start + size
        stop = filled("{} < {} ? {} : {}", following, end, following, end)
        self.out.assign(name, stop, "const int64_t")

    def reduce_nest(self, var: int, last: int) -> None:
        """Print loops over the reduced dims from `var` to `last`, the innermost in chunks of
        SUM_CHUNK."""
        if var > last:
            self.add(SUM, self.value())
            return
        extent = self.reduced(var)
        if var < last:
            with self.loop(iteration(var), ZERO, extent):
                self.reduce_nest(var + 1, last)
            return
        with self.loop(CHUNK, ZERO, extent, step=SUM_CHUNK):
            self.chunk(CHUNK, SUM_CHUNK, extent)
            self.out.assign(TOTAL, self.initial(), self.total)
            with self.loop(iteration(var), CHUNK, STOP, self.simd_clause()):
                self.add(TOTAL, self.value())
            self.add(SUM, TOTAL)

    def reduce_columns(self, dim: int) -> None:
        """Print many results side by side: the reduced dims outside, a block of contiguous results
        inside."""
        first, last = self.bounds(self.stage.box[dim])
        long = self.operator.combine == "sum" and self.accumulator == "float" and self.long_sum()
        kind = "double" if long else self.total
        place = element(TOTALS, iteration(dim) - BLOCK)
        with self.loop(BLOCK, first, last, step=VECTOR_BLOCK):
            self.chunk(BLOCK, VECTOR_BLOCK, last)
            self.columns(TOTALS, kind)
            base = len(self.operator.dims)
            self.column_nest(base, base + len(self.operator.reduce) - 1, dim, place)
            with self.loop(iteration(dim), BLOCK, STOP):
                self.store(call(self.accumulator, place))

    def columns(self, name: Term, kind: str, count: int = VECTOR_BLOCK) -> None:
        """Declare and initialise the accumulators of a block of columns."""
        self.out.add(Raw(joined(f"{kind} ", name, f"[{count}];"), name))
        with self.loop(variable("n"), ZERO, literal(count)):
            self.out.add(Store(None, element(name, variable("n")), self.initial()))

    def long_sum(self) -> bool:
        """True for sums so long that f32 would lose digits."""
        sizes = (n if isinstance(n, int) else SUM_CHUNK for n in self.operator.reduce)
        return prod(sizes) >= SUM_CHUNK

    def column_nest(self, var: int, last: int, dim: int, place: Term) -> None:
        """As `reduce_nest`, for a block of columns along `dim` with accumulators at `place`."""
        if var > last:
            known = self.before(dim)
            with self.loop(iteration(dim), BLOCK, STOP, SIMD):
                self.out.add(Store(None, place, self.combined(place, self.value(known))))
        elif var == last and self.may_be_long():
            self.column_chunks(last, dim, place)
        else:
            with self.loop(iteration(var), ZERO, self.reduced(var)):
                self.column_nest(var + 1, last, dim, place)

    def may_be_long(self) -> bool:
        """True for sums whose length, and so the loss of digits in f32, only the run decides."""
        extents = self.operator.reduce
        is_float = self.operator.combine == "sum" and self.accumulator == "float"
        return is_float and not all(isinstance(extent, int) for extent in extents)

    def column_chunks(self, var: int, dim: int, place: Term) -> None:
        """Print sums of as many elements in f32 as lose no digits, which are added to the f64
        totals."""
        extent = self.reduced(var)
        part = element(PART, iteration(dim) - BLOCK)
        with self.loop(CHUNK, ZERO, extent, step=SUM_CHUNK):
            self.chunk(CHUNK, SUM_CHUNK, extent, END)
            self.columns(PART, self.total)
            with self.loop(iteration(var), CHUNK, END):
                self.column_nest(var + 1, var, dim, part)
            with self.loop(iteration(dim), BLOCK, STOP, SIMD):
                self.out.add(Store(None, place, place + part))

    def arg_reduce(self) -> None:
        """Print the search for the best value, in vector lanes, then for its first position (NaN
        counts as best)."""
        greatest = self.operator.combine == "argmax"
        first = len(self.operator.dims)
        kind = self.accumulator
        dtype = self.operator.value.dtype
        self.out.assign(TOTAL, lowest(dtype) if greatest else highest(dtype), kind)
        clause = ""
        if kind == "float" and self.vectorisable():
            clause = f"{SIMD} reduction(stretto::nan_{'max' if greatest else 'min'} : total)"
        best = "stretto::maximum" if greatest else "stretto::minimum"
        self.arg_nest(
            first, clause, lambda: self.out.assign(TOTAL, call(best, TOTAL, self.value()))
        )
        self.out.assign(FOUND, -1, "int64_t")
        if clause and len(self.operator.reduce) == 1:
            self.first_of_lanes(first)
        else:
            self.first_in_order(first)
        self.store(filled("({} < 0 ? int64_t(0) : {})", FOUND, FOUND))

    def first_in_order(self, first: int) -> None:
        """Print the search for the best value, position by position."""
        position = variable("position")
        self.out.assign(position, 0, "int64_t")

        def look() -> None:
            self.out.assign(HERE, self.value(), f"const {self.accumulator}")
            test = filled("{} < 0 && ({} == {} || {} != {})", FOUND, HERE, TOTAL, HERE, HERE)
            self.out.add(Branch(test, (Assign(FOUND, position),)))
            self.out.assign(position, 1, operator="+=")

        self.arg_nest(first, "", look, stop_when=FOUND)

    def first_of_lanes(self, var: int) -> None:
        """Print the search for the best value, block by block, in vector lanes."""
        lane, position = variable("lane"), iteration(var)
        extent = self.reduced(var)
        going_on = filled("{} && {} < 0", extent, FOUND)
        with self.loop(CHUNK, ZERO, going_on, step=ARG_BLOCK):
            self.chunk(CHUNK, ARG_BLOCK, extent)
            self.out.assign(lane, ARG_BLOCK, "int32_t")
            with self.loop(position, CHUNK, STOP, f"{SIMD} reduction(min : lane)"):
                self.out.assign(HERE, self.value(), f"const {self.accumulator}")
                here = filled("int32_t({})", position - CHUNK)
                is_best = filled("({} == {} || {} != {})", HERE, TOTAL, HERE, HERE)
                self.out.assign(
                    lane, filled("{} && {} < {} ? {} : {}", is_best, here, lane, here, lane)
                )
            self.out.add(Branch(filled("{} < {}", lane, ARG_BLOCK), (Assign(FOUND, CHUNK + lane),)))

    def arg_nest(
        self, var: int, clause: str, body: Callable[[], None], stop_when: Term | None = None
    ) -> None:
        """Open loops over the reduced dims, which end when `stop_when` is no longer negative."""
        last = len(self.operator.dims) + len(self.operator.reduce) - 1
        if var > last:
            body()
            return
        extent = self.reduced(var)
        if stop_when is not None:
            extent = filled("{} && {} < 0", extent, stop_when)
        with self.loop(iteration(var), ZERO, extent, clause if var == last else ""):
            self.arg_nest(var + 1, clause, body, stop_when)

    def scan(self) -> None:
        """Print a running sum or product along the one reduced dim, stored at each step."""
        kind = "double" if self.accumulator in ("float", "double") else self.total
        self.out.assign(TOTAL, 0 if self.operator.combine == "cumsum" else 1, kind)
        var = len(self.operator.dims)
        with self.loop(iteration(var), ZERO, self.reduced(var)):
            self.add(TOTAL, self.value())
            self.store(call(self.accumulator, TOTAL))


def lowest(dtype: DType) -> str:
    """Return the smallest value of a dtype as a C++ constant."""
    kind = VALUE_TYPES[dtype]
    if dtype.is_float:
        return f"-stretto::Limits<{kind}>::infinity()"
    return f"stretto::Limits<{kind}>::least()"


def highest(dtype: DType) -> str:
    """Return the largest value of a dtype as a C++ constant."""
    kind = VALUE_TYPES[dtype]
    name = "infinity" if dtype.is_float else "most"
    return f"stretto::Limits<{kind}>::{name}()"
