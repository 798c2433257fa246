"""Reductions and scans: `rows` results down a block, the reduced elements across it in `depth`
lanes.

Every lane accumulates its own total over the chunks of the reduction; the lanes of a row are
combined once, at the end. If operands are contiguous along the reduction, a row belongs to one
warp, whose lanes combine their totals without the others, and all compute what follows for the row
(blocks.py). Dims that the template unrolls have separate totals, which share the loads that do not
depend on them: the rows of a product with few rows read their weights once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from math import ceil, prod
from typing import ClassVar

from stretto.device.expr import Expr, Index, Var, substitute_vars
from stretto.device.operator import SCANS
from stretto.ir.types import DType
from stretto.machines.cuda.costs import WARP
from stretto.machines.cuda.printer.scalar import VALUE_TYPES
from stretto.machines.cuda.printer.stage_frame import ResultFrame
from stretto.machines.cuda.printer.stage_nest import BoxDim, TritonNestPrinter, total_size
from stretto.machines.cuda.printer.triton_terms import Coordinate, LanePrinter
from stretto.machines.cuda.template import (
    UNROLL,
    CudaTemplate,
    CudaTemplateFamily,
    Parts,
    Stencil,
    TemplateChoice,
    power,
    traffic,
)
from stretto.machines.statements import CountedLoop
from stretto.machines.terms import Term, call, infix, literal, variable

FAR, FAR_OF_INT64 = 2**31 - 1, 2**63 - 1
"""Positions of a lane that has seen no element, as 32 and 64 bits."""
OWN = 1000
"""Variables of unrolled points are numbered from multiples of this on."""
COMBINED = {"sum": "+", "prod": "*", "any": "|", "all": "&"}
REDUCE_BLOCK = 8192
"""Lanes of a block: enough loads in flight that one unit has its share of the bandwidth."""
MOST_WIDE_APPLIES = 4
"""Function applications per 8-byte element above which intermediate values take so many registers
that blocks are smaller."""
LEAST_ROWS = 4
"""Number of rows below which several warps share a row."""
MOST_ROWS = 1024
"""Rows of a block whose depth is read element by element."""
MOST_PIECES = 16
"""Chunks of a row up to which they are printed without a loop."""


@dataclass(frozen=True, slots=True)
class Reduce(CudaTemplate):
    """Dims of the bit set `unroll` have separate totals, so that few rows of a product read their
    weights once. chunk: elements of a row that its warp reads at a time; 0 lets Triton choose
    the threads that read it."""

    name: ClassVar[str] = "reduce"
    rows: int
    depth: int
    unroll: int = 0
    chunk: int = 0

    @property
    def holds_rows(self) -> bool:
        return self.chunk > 0

    def printer(self, parts: Parts) -> TritonNestPrinter:
        return ReducePrinter(*parts, template=self)


def _choice(stencil: Stencil, sizes: tuple[int, ...]) -> TemplateChoice:
    operator, costs = stencil.operator, stencil.costs
    unrolled = _unrolled(stencil, sizes)
    copies = prod((sizes[n] for n in unrolled), start=1)
    points = prod(sizes) // max(copies, 1)
    depth = prod(stencil.depths)
    wide = operator.value.dtype in (DType.F64, DType.I64)
    block = REDUCE_BLOCK // max(power(copies) // 2, 2 if wide else 1)
    if wide and stencil.applies > MOST_WIDE_APPLIES:
        block //= 4
    if operator.combine in ("argmax", "argmin", "cumsum", "cumprod"):
        block = REDUCE_BLOCK // 4
    rows, lanes = _shape(stencil, points, depth, block)
    chunk = _chunk(stencil, lanes) if rows >= LEAST_ROWS else 0
    chunks = ceil(points / rows) * (1 if lanes == 1 else ceil(depth / lanes))
    work = points * copies * depth * stencil.applies
    rate = costs.double_flops if operator.value.dtype is DType.F64 else costs.flops
    busy = max(traffic(stencil, sizes) / costs.bandwidth, work / rate)
    template = Reduce(rows, lanes, sum(1 << n for n in unrolled), chunk)
    combined = costs.shuffle_seconds if chunk else costs.stage_seconds
    seconds = costs.latency_seconds + max(busy, chunks * costs.latency_seconds) + combined
    return TemplateChoice(template, seconds, seconds if chunks > 1 else busy + combined)


def _unrolled(stencil: Stencil, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the rows of a product, or its columns, if they are few: the loads of the other side,
    which are many, are then shared."""
    product = stencil.product
    if product is None or product.pieces:
        return ()
    dims, costs = stencil.operator.dims, stencil.costs
    few, many = sorted(
        (product.rows, product.columns), key=lambda side: costs.points(dims[n] for n in side)
    )
    static = all(isinstance(dims[n], int) for n in few)
    return few if many and static and 1 < prod(sizes[n] for n in few) <= UNROLL else ()


def _shape(stencil: Stencil, points: int, depth: int, block: int) -> tuple[int, int]:
    """Return the rows and lanes of a block: long along the dim in which the largest operand is
    contiguous."""
    high, deep = power(max(points, 1)), power(max(depth, 1))
    if _along_depth(stencil):
        lanes = min(deep, 1024 if high > 1 else block)
        rows = min(high, max(block // lanes, 1))
        return rows, min(deep, max(block // rows, 1))
    if depth <= MOST_PIECES and depth != deep and stencil.operator.combine not in SCANS:
        return min(high, MOST_ROWS), 1  # taps one by one: a block would have unused lanes
    rows = min(high, 128)
    lanes = min(deep, max(block // rows, 1))
    return min(high, max(block // lanes, 1)), lanes


def _chunk(stencil: Stencil, depth: int) -> int:
    """Return the elements that the lanes of a warp read of a row at a time, in vectors of 16
    bytes; 0 if a row should not belong to a warp."""
    operator = stencil.operator
    if operator.combine in SCANS or depth < WARP or not _along_depth(stencil):
        return 0
    widest = max((load.access.buffer.dtype.itemsize for load, _ in stencil.loads), default=4)
    return min(depth, WARP * max(16 // widest, 1))


def _along_depth(stencil: Stencil) -> bool:
    """Return True if the largest load is contiguous along the last reduced dim."""
    operator = stencil.operator
    last = len(operator.dims) + len(operator.reduce) - 1
    extents = [stencil.costs.size(extent) for extent in (*operator.dims, *operator.reduce)]
    while last >= len(operator.dims) and extents[last] == 1:
        last -= 1
    if last < len(operator.dims) or not stencil.loads:
        return True
    largest, _ = max(stencil.loads, key=lambda item: prod(extents[n] for n in item[1]))
    offset = largest.access.offset
    steps = {
        n: abs(offset.coefficient(Var(n)))
        for n in range(len(extents))
        if extents[n] > 1 and offset.coefficient(Var(n))
    }
    return not steps or steps.get(last, 1 << 62) == min(steps.values())


FAMILY = CudaTemplateFamily(Reduce, _choice, rank=2)


# ---- printing --------------------------------------------------------------------------------


@dataclass(slots=True)
class ReducePrinter(TritonNestPrinter):
    """Prints operators with a reduction, by rows of `rows` and chunks of `depth` lanes."""

    template: Reduce = field(kw_only=True)

    @property
    def combine(self) -> str:
        return self.operator.combine

    @property
    def dtype(self) -> DType:
        return self.operator.value.dtype

    def unrolled(self) -> list[BoxDim]:
        return [d for d in self.dims if self.template.unroll >> d.number & 1]

    def lane_dims(self) -> list[BoxDim]:
        rest = [d for d in self.dims if d not in self.unrolled()]
        return self.by_stride(rest, self.operator.out.offset)

    def fits(self, frame: ResultFrame) -> bool:
        signature = tuple((dim.grid, dim.size) for dim in self.lane_dims())
        return frame.is_like(ResultFrame(signature, self.template.rows, 2, self.row_warps))

    @property
    def row_warps(self) -> int:
        """Warps that the rows are divided among; 0 if a row does not belong to one warp. All lanes
        of a warp store a result, so none of them may read its buffer."""
        if not self.template.chunk or self.reads_result():
            return 0
        return min(self.warps, self.template.rows)

    def print(self) -> None:
        if self.combine in SCANS:
            self.scan()
        else:
            self.reduce()

    @property
    def is_one_block(self) -> bool:
        """True if one block has all rows."""
        total = total_size(self.lane_dims())
        return isinstance(total, int) and total <= self.template.rows

    def reduce(self) -> None:
        """Print the totals of the lanes, and combine them."""
        unrolled, known = self.unrolled(), self.loads_in_registers()
        rest = self.join(self.lane_dims())
        if self.combine not in ("argmax", "argmin"):
            self.depths = self.join(self.depths)
        rows, warps = self.template.rows, self.row_warps
        printer = self.block(rows, self.template.chunk or self.template.depth, warps=warps)
        printer.known |= {((), load): value for load, value in known.items()}
        with self.lanes(printer, rest, 0) as (inside, _, start):
            points = self.points(unrolled)
            copies = [self.copy(inside, unrolled, point) for point in points]
            totals = [self.start(inside) for _ in copies]
            with self.pieces(inside) as pieces:
                for inner, position in pieces:
                    for (printer, value), total in zip(copies, totals, strict=True):
                        inner.conditions = printer.conditions
                        inner.variables |= printer.variables | inner.variables
                        self.step(inner, value, total, position)
            outer = self.filled(rest, rows, warps, start) if warps else inside
            for point, total in zip(points, totals, strict=True):
                result = self.finish(total)
                printer, _ = self.copy(outer, unrolled, point)
                out = self.operator.out
                printer.store(out, result, self.result_dtype, self.operator.accumulate)
                if len(copies) == 1 and self.is_one_block:
                    self.record_result(result, rows, 2, warps)

    @contextmanager
    def pieces(self, printer: LanePrinter) -> Generator[Iterator[tuple[LanePrinter, Term]]]:
        """Yield the chunks of the depth: a printer for each, and the numbers of its lanes."""
        block, size = printer.shape[1], total_size(self.depths)
        count = ceil(size / block) if isinstance(size, int) else 0
        if count <= 1 or not (self.template.chunk or block == 1):
            with self.lanes(printer, self.depths, 1) as (inner, position, _):
                yield iter([(inner, position)])
            return
        together = count if count <= MOST_PIECES else self.template.depth // block
        together = next(n for n in range(together, 0, -1) if count % n == 0)
        if together == count:
            yield (self.piece(printer, place * block) for place in range(count))
            return
        start = self.scalars.fresh("c")
        with self.out.within(
            CountedLoop(start, literal(0), literal(size), literal(together * block))
        ):
            yield (self.piece(printer, start + place * block) for place in range(together))

    def piece(self, printer: LanePrinter, start: Term | int) -> tuple[LanePrinter, Term]:
        inner = printer.inner()
        return inner, self.place(inner, self.depths, 1, start)

    @property
    def result_dtype(self) -> DType:
        return DType.I64 if self.combine in ("argmax", "argmin") else self.dtype

    def points(self, unrolled: list[BoxDim]) -> list[tuple[int, ...]]:
        sizes = [range(dim.size) for dim in unrolled if isinstance(dim.size, int)]
        return list(product(*sizes))

    def copy(
        self, printer: LanePrinter, unrolled: list[BoxDim], point: tuple[int, ...]
    ) -> tuple[LanePrinter, Expr]:
        """Return a printer for one point of the unrolled dims, and the value with separate
        variables.

        Subexpressions that do not depend on those are the same expression at every point, and are
        printed once.
        """
        copy = printer.inner()
        own: dict[int, int] = {}
        for dim, place in zip(unrolled, point, strict=True):
            first = dim.first + place if dim.first else literal(place)
            span = (dim.low, dim.limit) if dim.limit is not None else None
            own[dim.number] = (place + 1) * OWN + dim.number
            copy.variables[dim.number] = Coordinate(first, None, span)
            copy.variables[own[dim.number]] = copy.variables[dim.number]
            if dim.count and place:
                copy.conditions = (
                    *copy.conditions,
                    copy.name(infix(literal(place), "<", dim.count)),
                )
        last = len(self.operator.dims) + len(self.operator.reduce)
        values = tuple(Index.of(Var(own.get(n, n))) for n in range(last))
        return copy, substitute_vars(self.operator.value, values)

    # ---- totals ------------------------------------------------------------------------------
    def start(self, printer: LanePrinter) -> tuple[Term, Term]:
        """Initialise a total and, for argmax and argmin, its position."""
        name = self.scalars.fresh("a", 3)
        found = variable(f"p{name.text[1:]}_", 3)
        shape = str(list(printer.sizes(3)))
        kind = self.key_type if self.combine in ("argmax", "argmin") else VALUE_TYPES[self.dtype]
        self.out.assign(name, call("tl.full", shape, self.identity(), kind))
        if self.combine in ("argmax", "argmin"):
            self.out.assign(found, call("tl.full", shape, self.far, self.position_type))
        return name, found

    @property
    def position_type(self) -> str:
        size = total_size(self.depths)
        return "tl.int32" if isinstance(size, int) and size <= FAR else "tl.int64"

    @property
    def far(self) -> int:
        """Position of lanes that have seen no element."""
        return FAR if self.position_type == "tl.int32" else FAR_OF_INT64

    @property
    def key_type(self) -> str:
        return "tl.int64" if self.dtype in (DType.F64, DType.I64) else "tl.int32"

    def identity(self) -> str:
        match self.combine:
            case "sum" | "any" | "argmax" | "argmin" | "cumsum":
                return "False" if self.dtype is DType.BOOL and self.combine == "any" else "0"
            case "prod" | "all" | "cumprod":
                return "True" if self.dtype is DType.BOOL else "1"
            case "max":
                return lowest(self.dtype)
            case _:
                return highest(self.dtype)

    def step(
        self, printer: LanePrinter, element: Expr, total: tuple[Term, Term], position: Term
    ) -> None:
        name, found = total
        value = printer.expr(element)
        mask = printer.masks.get(1)
        if self.combine in ("argmax", "argmin"):
            key = printer.name(call(f"stretto_{self.combine}_key", value))
            better = infix(infix(key, ">", name), "|", infix(found, "==", self.far))
            test = printer.name(better if mask is None else mask & better)
            self.out.assign(name, call("tl.where", test, key, name))
            self.out.assign(found, call("tl.where", test, position, found))
            return
        if mask is not None:
            value = call("tl.where", mask, value, self.neutral())
        self.out.assign(name, self.combined(name, value))

    def combined(self, total: Term, value: Term) -> Term:
        match self.combine:
            case "sum" | "prod" | "any" | "all":
                return infix(total, COMBINED[self.combine], value)
            case _:
                return call(f"stretto_{self.combine}imum", total, value)

    def finish(self, total: tuple[Term, Term]) -> Term:
        """Combine the lanes of each row."""
        name, found = total
        result = self.scalars.fresh("s", 1)
        if self.combine in ("argmax", "argmin"):
            self.out.assign(result, call("stretto_first_position", name, found))
        else:
            self.out.assign(result, call(f"stretto_row_{self.combine}", name))
        return result

    # ---- scans -------------------------------------------------------------------------------
    def scan(self) -> None:
        """Print a running sum or product along the one reduced dim, with a carry between chunks."""
        dims = self.join(self.by_stride(self.dims, self.operator.out.offset))
        printer = self.block(self.template.rows, self.template.depth)
        rows, depth = printer.shape
        sign = "+" if self.combine == "cumsum" else "*"
        with self.lanes(printer, dims, 0) as (inside, _, _):
            carry, kind = self.scalars.fresh("a", 1), VALUE_TYPES[self.dtype]
            self.out.assign(carry, call("tl.full", f"[{rows}, 1]", self.identity(), kind))
            with self.lanes(inside, self.depths, 1) as (inner, _, start):
                value = inner.expr(self.operator.value) + inner.zeros(3, kind)
                mask = inner.masks.get(1)
                if mask is not None:
                    value = call("tl.where", mask, value, self.neutral())
                scanned = infix(carry, sign, call(f"tl.{self.combine}", value, 1))
                scanned = inner.name(call("tl.cast", inner.name(scanned), kind))
                inner.store(self.operator.out, scanned, self.dtype)
                if start is not None:
                    last = f"tl.arange(0, {depth})[None, :] == {depth - 1}"
                    picked = call("tl.where", last, scanned, 0)
                    total = call("tl.sum", picked, 1, keep_dims="True")
                    self.out.assign(carry, call("tl.cast", total, kind))

    def neutral(self) -> Term:
        return call("tl.full", "[]", self.identity(), VALUE_TYPES[self.dtype])


def lowest(dtype: DType) -> str:
    if dtype.is_float:
        return 'float("-inf")'
    bits = 8 * dtype.itemsize
    return "False" if dtype is DType.BOOL else str(0 if dtype is DType.U8 else -(2 ** (bits - 1)))


def highest(dtype: DType) -> str:
    if dtype.is_float:
        return 'float("inf")'
    bits = 8 * dtype.itemsize
    return "True" if dtype is DType.BOOL else str(255 if dtype is DType.U8 else 2 ** (bits - 1) - 1)
