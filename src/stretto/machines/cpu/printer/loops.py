"""Prints map, reduction and scan stages as loop nests that the C++ compiler vectorises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stretto.ir.types import DType
from stretto.kernels.contraction import stride
from stretto.kernels.groups import divisible
from stretto.machines.cpu.printer.expr import VALUE_TYPES, literal, wrapping_type
from stretto.machines.cpu.printer.nest import NestPrinter

VECTOR_BLOCK = 64
"""Columns reduced side by side when the reduced dim is not the contiguous one."""
SUM_CHUNK = 4096
"""Elements summed in f32 before the partial sum goes to an f64 total."""


@dataclass(slots=True)
class LoopPrinter(NestPrinter):
    """Any operator as plain loops."""

    def loops(self) -> None:
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
        operator = self.operator
        dims = list(range(len(operator.dims)))
        inner = (
            next((n for n in reversed(dims) if stride(operator.out, n) == 1), None)
            if divisible(operator)
            else None
        )
        if inner is not None and operator.dims[inner] != 1:
            dims.remove(inner)
            dims.append(inner)
        simd = inner is not None and dims[-1:] == [inner] and self.vectorisable()
        if not dims:
            self.store()
            return

        def innermost() -> None:
            first, last = self.bounds(self.stage.box[dims[-1]])
            self.open_loop(dims[-1], first, last, "#pragma omp simd" if simd else "")
            with self.out.block():
                self.store()

        self.nest(dims[:-1], innermost)

    # ---- reductions --------------------------------------------------------------------------
    def vector_dim(self) -> int | None:
        """A parallel dim to vectorise over, when loads run along it and not along the last reduced
        dim.
        """
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
        return dim if self.vectorisable() else None

    @property
    def accumulator(self) -> str:
        return VALUE_TYPES[self.operator.value.dtype]

    @property
    def total(self) -> str:
        """The type of a running result: sums and products of integers wrap around."""
        dtype = self.operator.value.dtype
        if dtype.is_integer and self.operator.combine in ("sum", "prod", "cumsum", "cumprod"):
            return wrapping_type(dtype)
        return self.accumulator

    def initial(self) -> str:
        dtype = self.operator.value.dtype
        match self.operator.combine:
            case "sum" | "any":
                return literal(0, dtype)
            case "prod" | "all":
                return literal(1, dtype)
            case "max" | "argmax":
                return lowest(dtype)
            case _:
                return highest(dtype)

    def combined(self, total: str, text: str) -> str:
        match self.operator.combine:
            case "sum" | "cumsum":
                return f"{total} + {text}"
            case "prod" | "cumprod":
                return f"{total} * {text}"
            case "any":
                return f"{total} | {text}"
            case "all":
                return f"{total} & {text}"
            case "max":
                return f"stretto::maximum({total}, {text})"
            case _:
                return f"stretto::minimum({total}, {text})"

    def simd_clause(self) -> str:
        """The OpenMP line for reducing the innermost loop in vector lanes; empty when it must stay
        in order.
        """
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
        return (
            f"#pragma omp simd reduction({name} : total)"
            if name and dtype is not DType.BOOL
            else ""
        )

    def reduce(self) -> None:
        """One result: all reduced dims in loops around an accumulator."""
        count = len(self.operator.reduce)
        first = len(self.operator.dims)
        double = self.operator.combine == "sum" and self.accumulator == "float"
        kind = "double" if double else self.total
        self.out.write(f"{kind} sum = {self.initial()};")
        self.reduce_nest(first, first + count - 1, double)
        self.assign(f"{self.accumulator}(sum)")

    def reduce_nest(self, var: int, last: int, double: bool) -> None:
        if var > last:
            self.out.write(f"sum = {self.combined('sum', self.value())};")
            return
        extent = self.extent(self.operator.reduce[var - len(self.operator.dims)])
        if var < last:
            self.open_loop(var, "0", extent)
            with self.out.block():
                self.reduce_nest(var + 1, last, double)
            return
        self.out.write(f"for (int64_t chunk = 0; chunk < {extent}; chunk += {SUM_CHUNK})")
        with self.out.block():
            end = f"chunk + {SUM_CHUNK}"
            self.out.write(f"const int64_t stop = {end} < {extent} ? {end} : {extent};")
            self.out.write(f"{self.total} total = {self.initial()};")
            self.open_loop(var, "chunk", "stop", self.simd_clause())
            with self.out.block():
                self.out.write(f"total = {self.combined('total', self.value())};")
            self.out.write(f"sum = {self.combined('sum', 'total')};")

    def reduce_columns(self, dim: int) -> None:
        """Many results side by side: the reduced dims outside, a block of contiguous results
        inside.
        """
        first, last = self.bounds(self.stage.box[dim])
        name = self.names.var(dim)
        kind = (
            "double"
            if self.operator.combine == "sum" and self.accumulator == "float" and self.long_sum()
            else self.total
        )
        self.out.write(f"for (int64_t block = {first}; block < {last}; block += {VECTOR_BLOCK})")
        with self.out.block():
            end = f"block + {VECTOR_BLOCK}"
            self.out.write(f"const int64_t stop = {end} < {last} ? {end} : {last};")
            self.out.write(f"{kind} totals[{VECTOR_BLOCK}];")
            self.out.write(
                f"for (int64_t n = 0; n < {VECTOR_BLOCK}; ++n) totals[n] = {self.initial()};"
            )
            base = len(self.operator.dims)
            self.column_nest(base, base + len(self.operator.reduce) - 1, dim)
            self.open_loop(dim, "block", "stop")
            with self.out.block():
                self.assign(f"{self.accumulator}(totals[{name} - block])")

    def long_sum(self) -> bool:
        """Sums so long that f32 would lose digits."""
        total = 1
        for extent in self.operator.reduce:
            total *= extent if isinstance(extent, int) else SUM_CHUNK
        return total >= SUM_CHUNK

    def column_nest(self, var: int, last: int, dim: int) -> None:
        if var <= last:
            self.open_loop(
                var, "0", self.extent(self.operator.reduce[var - len(self.operator.dims)])
            )
            with self.out.block():
                self.column_nest(var + 1, last, dim)
            return
        name = self.names.var(dim)
        self.open_loop(dim, "block", "stop", "#pragma omp simd")
        with self.out.block():
            total = f"totals[{name} - block]"
            self.out.write(f"{total} = {self.combined(total, self.value())};")

    def arg_reduce(self) -> None:
        """The best value first, in vector lanes, then its first position (NaN counts as best)."""
        greatest = self.operator.combine == "argmax"
        first = len(self.operator.dims)
        kind = self.accumulator
        dtype = self.operator.value.dtype
        self.out.write(f"{kind} total = {lowest(dtype) if greatest else highest(dtype)};")
        clause = ""
        if kind == "float" and self.vectorisable():
            clause = (
                f"#pragma omp simd reduction(stretto::nan_{'max' if greatest else 'min'} : total)"
            )
        best = "stretto::maximum" if greatest else "stretto::minimum"
        self.arg_nest(
            first, clause, lambda: self.out.write(f"total = {best}(total, {self.value()});")
        )
        self.out.write("int64_t found = -1, position = 0;")

        def look() -> None:
            self.out.write(f"const {kind} here = {self.value()};")
            self.out.write("if (found < 0 && (here == total || here != here)) found = position;")
            self.out.write("++position;")

        self.arg_nest(first, "", look, stop_when="found >= 0")
        self.assign("(found < 0 ? int64_t(0) : found)")

    def arg_nest(
        self, var: int, clause: str, body: Callable[[], None], stop_when: str = ""
    ) -> None:
        last = len(self.operator.dims) + len(self.operator.reduce) - 1
        if var > last:
            body()
            return
        extent = self.extent(self.operator.reduce[var - len(self.operator.dims)])
        if stop_when:
            extent = f"{extent} && !({stop_when})"
        self.open_loop(var, "0", extent, clause if var == last else "")
        with self.out.block():
            self.arg_nest(var + 1, clause, body, stop_when)

    def scan(self) -> None:
        """A running sum or product along the one reduced dim, stored at each step."""
        kind = "double" if self.accumulator in ("float", "double") else self.total
        start = "0" if self.operator.combine == "cumsum" else "1"
        self.out.write(f"{kind} total = {start};")
        var = len(self.operator.dims)
        self.open_loop(var, "0", self.extent(self.operator.reduce[0]))
        with self.out.block():
            self.out.write(f"total = {self.combined('total', self.value())};")
            self.assign(f"{self.accumulator}(total)")


def lowest(dtype: DType) -> str:
    kind = VALUE_TYPES[dtype]
    if dtype.is_float:
        return f"-stretto::Limits<{kind}>::infinity()"
    return f"stretto::Limits<{kind}>::least()"


def highest(dtype: DType) -> str:
    kind = VALUE_TYPES[dtype]
    name = "infinity" if dtype.is_float else "most"
    return f"stretto::Limits<{kind}>::{name}()"
