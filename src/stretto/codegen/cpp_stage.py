"""Prints the stages of a task as C++: loop nests, reductions, scans, and calls of the contraction templates."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.codegen.cpp_expr import VALUE_TYPES, ExprPrinter, Names, literal, stored_text
from stretto.ir.types import DType
from stretto.kernels.contraction import (
    Contraction,
    Convolution,
    analyse,
    analyse_convolution,
    stride,
)
from stretto.kernels.expr import Access, Apply, Extent, Index, Reg, Var
from stretto.kernels.fuse import divisible
from stretto.kernels.operator import Operator, Span, Stage
from stretto.text import Writer

VECTOR_BLOCK = 64
"""Columns reduced side by side when the reduced dim is not the contiguous one."""
SUM_CHUNK = 4096
"""Elements summed in f32 before the partial sum goes to an f64 total."""


@dataclass(slots=True)
class StagePrinter:
    """Prints one stage into `out`. `grid` names the bounds of grid dims as (first, last) pairs of texts."""

    out: Writer
    names: Names
    stage: Stage
    grid: tuple[tuple[str, str], ...]

    @property
    def operator(self) -> Operator:
        return self.stage.operator

    def print(self) -> None:
        with self.out.block():
            match self.stage.method.template:
                case "packed" | "rows" | "dots":
                    found = analyse(self.operator)
                    assert found is not None
                    self.contraction(found)
                case "conv" | "depthwise":
                    image = analyse_convolution(self.operator)
                    assert image is not None
                    self.convolution(image)
                case _:
                    self.loops()

    # ---- bounds ------------------------------------------------------------------------------
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

    # ---- generic loops -----------------------------------------------------------------------
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

    def nest(self, dims: list[int], body) -> None:  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
        """Loops over parallel dims, then `body`."""
        if not dims:
            body()
            return
        dim = dims[0]
        first, last = self.bounds(self.stage.box[dim])
        self.open_loop(dim, first, last)
        with self.out.block():
            self.nest(dims[1:], body)

    def map(self) -> None:
        operator = self.operator
        dims = [n for n, d in enumerate(operator.dims)]
        inner = next((n for n in reversed(dims) if stride(operator.out, n) == 1), None) if divisible(operator) else None
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

    def vectorisable(self) -> bool:
        """False when iterations of the inner loop may not be done side by side."""
        return not self.operator.accumulate and not any(
            isinstance(a, Apply) and a.function == "checked" for a in applies(self.operator)
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
            else:
                text = f"{VALUE_TYPES[dtype]}({target} + {text})"
        self.out.write(f"{target} = {stored_text(text, dtype)};")

    # ---- reductions --------------------------------------------------------------------------
    def vector_dim(self) -> int | None:
        """A parallel dim to vectorise over, when loads run along it and not along the last reduced dim."""
        operator = self.operator
        if not operator.reduce or not divisible(operator):
            return None
        last = len(operator.dims) + len(operator.reduce) - 1
        candidates = [n for n, d in enumerate(operator.dims) if d != 1 and stride(operator.out, n) == 1]
        if not candidates:
            return None
        dim = candidates[-1]
        along = [stride(load.access, dim) for load in operator.reads() if load.access.offset.is_affine]
        across = [stride(load.access, last) for load in operator.reads() if load.access.offset.is_affine]
        if any(s == 1 for s in across) or not any(s == 1 for s in along):
            return None
        return dim if self.vectorisable() else None

    @property
    def accumulator(self) -> str:
        return VALUE_TYPES[self.operator.value.dtype]

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
        """The OpenMP line for reducing the innermost loop in vector lanes; empty when it must stay in order."""
        if not self.vectorisable():
            return ""
        symbol = {"sum": "+", "prod": "*", "any": "|", "all": "&", "max": "stretto::nan_max", "min": "stretto::nan_min"}
        dtype = self.operator.value.dtype
        name = symbol.get(self.operator.combine, "")
        if self.operator.combine in ("max", "min") and VALUE_TYPES[dtype] != "float":
            return ""
        return f"#pragma omp simd reduction({name} : total)" if name and dtype is not DType.BOOL else ""

    def reduce(self) -> None:
        """One result: all reduced dims in loops around an accumulator."""
        count = len(self.operator.reduce)
        first = len(self.operator.dims)
        double = self.operator.combine == "sum" and self.accumulator == "float"
        kind = "double" if double else self.accumulator
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
        name = self.names.var(var)
        self.out.write(f"for (int64_t chunk = 0; chunk < {extent}; chunk += {SUM_CHUNK})")
        with self.out.block():
            self.out.write(f"const int64_t stop = chunk + {SUM_CHUNK} < {extent} ? chunk + {SUM_CHUNK} : {extent};")
            self.out.write(f"{self.accumulator} total = {self.initial()};")
            self.open_loop(var, "chunk", "stop", self.simd_clause())
            with self.out.block():
                self.out.write(f"total = {self.combined('total', self.value())};")
            self.out.write(f"sum = {self.combined('sum', 'total')};")
        del name

    def reduce_columns(self, dim: int) -> None:
        """Many results side by side: the reduced dims outside, a block of contiguous results inside."""
        first, last = self.bounds(self.stage.box[dim])
        name = self.names.var(dim)
        kind = "double" if self.operator.combine == "sum" and self.accumulator == "float" and self.long_sum() else self.accumulator
        self.out.write(f"for (int64_t block = {first}; block < {last}; block += {VECTOR_BLOCK})")
        with self.out.block():
            self.out.write(f"const int64_t stop = block + {VECTOR_BLOCK} < {last} ? block + {VECTOR_BLOCK} : {last};")
            self.out.write(f"{kind} totals[{VECTOR_BLOCK}];")
            self.out.write(f"for (int64_t n = 0; n < {VECTOR_BLOCK}; ++n) totals[n] = {self.initial()};")
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
            self.open_loop(var, "0", self.extent(self.operator.reduce[var - len(self.operator.dims)]))
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
        self.out.write(f"{kind} total = {lowest(self.operator.value.dtype) if greatest else highest(self.operator.value.dtype)};")
        clause = ""
        if kind == "float" and self.vectorisable():
            clause = f"#pragma omp simd reduction(stretto::nan_{'max' if greatest else 'min'} : total)"
        best = "stretto::maximum" if greatest else "stretto::minimum"
        self.arg_nest(first, clause, lambda: self.out.write(f"total = {best}(total, {self.value()});"))
        self.out.write("int64_t found = -1, position = 0;")

        def look() -> None:
            self.out.write(f"const {kind} here = {self.value()};")
            self.out.write("if (found < 0 && (here == total || here != here)) found = position;")
            self.out.write("++position;")

        self.arg_nest(first, "", look, stop_when="found >= 0")
        self.assign("(found < 0 ? int64_t(0) : found)")

    def arg_nest(self, var: int, clause: str, body, stop_when: str = "") -> None:  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
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
        kind = "double" if self.accumulator in ("float", "double") else self.accumulator
        start = "0" if self.operator.combine == "cumsum" else "1"
        self.out.write(f"{kind} total = {start};")
        var = len(self.operator.dims)
        self.open_loop(var, "0", self.extent(self.operator.reduce[0]))
        with self.out.block():
            self.out.write(f"total = {self.combined('total', self.value())};")
            self.assign(f"{self.accumulator}(total)")

    # ---- contractions ------------------------------------------------------------------------
    def base(self, access: Access, fixed: dict[int, str]) -> str:
        """Pointer to the element at the given values of variables, 0 for the others."""
        terms: list[str] = []
        offset = access.offset
        for atom, factor in offset.terms:
            if isinstance(atom, Var):
                if atom.number in fixed and fixed[atom.number] != "0":
                    terms.append(f"({fixed[atom.number]}) * {factor}")
            elif isinstance(atom, Reg):
                terms.append(f"{self.names.reg(atom)} * {factor}")
        if offset.const:
            terms.append(str(offset.const))
        name = self.names.buffer(access.buffer)
        return f"{name} + {' + '.join(terms)}" if terms else name

    def contraction(self, found: Contraction) -> None:
        operator = self.operator
        outer = [n for n in found.batch] + [n for n in found.rows[:-1]]
        inner = found.rows[-1] if found.rows else None
        units = {n: self.bounds(self.stage.box[n])[0] for n, d in enumerate(operator.dims) if d == 1}
        self.nest(outer, lambda: self.contract_call(found, inner, outer, units))

    def contract_call(self, found: Contraction, inner: int | None, outer: list[int], units: dict[int, str]) -> None:
        operator, method = self.operator, self.stage.method
        first, last = self.bounds(self.stage.box[found.column])
        row_first, row_last = ("0", "1") if inner is None else self.bounds(self.stage.box[inner])
        fixed = {**units, **{n: self.names.var(n) for n in outer}, found.column: first}
        if inner is not None:
            fixed[inner] = row_first
        rows = f"int(({row_last}) - ({row_first}))"
        columns = f"int(({last}) - ({first}))"
        left = self.base(found.left, fixed)
        out = self.base(operator.out, fixed)
        am = 0 if inner is None else stride(found.left, inner)
        ldc = 0 if inner is None else stride(operator.out, inner)
        kind = VALUE_TYPES[operator.out.buffer.dtype]
        depth = found.depth
        match method.template:
            case "packed":
                panels = self.panels(found, fixed, first)
                self.out.write(
                    f"stretto::contract_packed_many<{kind}, {method['mr']}, {method['nr']}>({left}, {am}, {found.left_depth}, "
                    f"{panels}, {out}, {ldc}, {rows}, {depth}, {columns}, false);"
                )
            case "rows":
                right = self.base(found.right, fixed)
                self.out.write(
                    f"stretto::contract_rows<{kind}, {method['mr']}, {method['nr']}>({left}, {am}, {found.left_depth}, "
                    f"{right}, {found.right_depth}, {out}, {ldc}, {rows}, {columns}, {depth}, false);"
                )
            case _:
                right = self.base(found.right, fixed)
                self.out.write(
                    f"stretto::contract_dots<{kind}, {method['mb']}, {method['nb']}>({left}, {am}, "
                    f"{right}, {stride(found.right, found.column)}, {out}, {ldc}, {rows}, {columns}, {depth}, false);"
                )

    def panels(self, found: Contraction, fixed: dict[int, str], first: str) -> str:
        """Where the panels of the task's columns start in the packed constant."""
        packed = self.stage.method.packed
        assert packed is not None
        *batch, panels, depth, lanes = (int(d) for d in packed.shape if isinstance(d, int))
        terms = [f"({first}) * {depth}"] if first != "0" else []
        step = panels * depth * lanes
        for dim, size in zip(reversed(found.batch), reversed(batch), strict=True):
            terms.append(f"({fixed[dim]}) * {step}")
            step *= size
        return f"{self.names.buffer(packed)} + {' + '.join(terms)}" if terms else self.names.buffer(packed)

    # ---- convolution -------------------------------------------------------------------------
    def convolution(self, found: Convolution) -> None:
        method = self.stage.method
        operator = self.operator
        kind = VALUE_TYPES[operator.out.buffer.dtype]
        channels = 1 if method.template == "depthwise" else method["c"]
        sizes = [method[k] for k in ("h", "w", "kh", "kw", "sh", "sw", "ph", "pw", "dh", "dw")]
        self.out.write(f"using S = stretto::Conv<{channels}, {', '.join(str(s) for s in sizes)}>;")
        batch_first, batch_last = self.bounds(self.stage.box[0])
        first, last = self.bounds(self.stage.box[1])
        if len(operator.dims) == 4:
            top, bottom = self.bounds(self.stage.box[2])
        else:
            top, bottom = "0", "1"
        self.open_loop(0, batch_first, batch_last)
        with self.out.block():
            image = f"{self.names.buffer(found.image)} + ({self.text(found.image_start)})"
            if method.template == "depthwise":
                self.depthwise(found, kind, image, first, last, top, bottom)
            else:
                self.dense(found, kind, image, first, last, top, bottom)

    def out_pointer(self, channel: str, pixel: str) -> str:
        out = self.operator.out
        offset = Access(out.buffer, out.shape, tuple(
            index if index.vars() <= {0} else index + Index.of(Var(next(iter(index.vars())))) * -1 for index in out.index
        ))  # fmt: skip
        return f"{self.base(offset, {0: self.names.var(0)})} + ({channel}) * S::pixels + {pixel}"

    def dense(self, found: Convolution, kind: str, image: str, first: str, last: str, top: str, bottom: str) -> None:
        method = self.stage.method
        packed = method.packed
        assert packed is not None
        weights = self.names.buffer(packed)
        height, lanes = method["mr"], method["nr"]
        self.out.write(f"alignas(64) {kind} scratch[stretto::conv_scratch<{kind}, S, {lanes}> + 1];")
        per_group = found.out_channels // found.groups
        slabs = -(-per_group // height) * height
        if found.groups == 1:
            self.out.write(f"const int64_t c0 = {first}, c1 = {last};")
            self.pixel_loop(top, bottom, lanes)
            self.out.write(
                f"  stretto::conv_tile<{kind}, S, {height}, {lanes}>({image}, {weights} + c0 * S::K, scratch, "
                f"{self.out_pointer('c0', 'p')}, S::pixels, int(c1 - c0), int(p), false);"
            )
            return
        self.out.write(f"for (int64_t g = ({first}) / {per_group}; g < ({last}) / {per_group}; ++g)")
        with self.out.block():
            self.pixel_loop(top, bottom, lanes)
            self.out.write(
                f"  stretto::conv_tile<{kind}, S, {height}, {lanes}>({image} + g * (S::C * S::H * S::W), "
                f"{weights} + g * ({slabs} * S::K), scratch, {self.out_pointer(f'g * {per_group}', 'p')}, "
                f"S::pixels, {per_group}, int(p), false);"
            )

    def pixel_loop(self, top: str, bottom: str, lanes: int) -> None:
        self.out.write(f"for (int64_t p = ({top}) * S::OW; p < ({bottom}) * S::OW; p += {lanes})")

    def depthwise(self, found: Convolution, kind: str, image: str, first: str, last: str, top: str, bottom: str) -> None:
        self.out.write(f"for (int64_t c = {first}; c < {last}; ++c)")
        weights = self.names.buffer(found.weight.buffer)
        start = found.weight.offset.const
        self.out.write(
            f"  stretto::conv_depthwise<{kind}, S>({image} + c * (S::H * S::W), {weights} + ({start} + c * S::taps), "
            f"{self.out_pointer('c', f'({top}) * S::OW')}, int({top}), int(({bottom}) - ({top})), false);"
        )


def applies(operator: Operator) -> list[Apply]:
    """Every function application of an operator's value and positions."""
    from stretto.kernels.expr import Dynamic, Expr, Load

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


def lowest(dtype: DType) -> str:
    kind = VALUE_TYPES[dtype]
    if dtype.is_float:
        return f"-std::numeric_limits<{kind}>::infinity()"
    return f"std::numeric_limits<{kind}>::min()"


def highest(dtype: DType) -> str:
    kind = VALUE_TYPES[dtype]
    name = "infinity" if dtype.is_float else "max"
    return f"std::numeric_limits<{kind}>::{name}()"


