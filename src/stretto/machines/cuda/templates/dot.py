"""Matrix products on the tensor cores (implicit GEMM), in blocks of `rows` x `columns` x `depth`.

The two factors may be any expressions: rows, columns and depth are each a number of dims laid out
along an axis, so a convolution, whose image is read under a mask, is also a matrix product. Dims
that both factors depend on are batch dims, computed one by one. Factors of f32 are multiplied with
the accuracy of f32; those that hold f16 or bf16 numbers are passed as they are.

The depth is computed in steps that are powers of two: whole steps first, then the rest in smaller
ones, so that the taps of a convolution fill all lanes: 3 x 3 taps of 16 channels are steps of 128
and 16. If a block has few results, the warps share the depth of a step, in `parts`, and sum their
totals at the end, within the thread block.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import reduce
from math import ceil, prod
from operator import add
from typing import ClassVar

from stretto.device.expr import Apply, Const, Expr, Load, Var
from stretto.device.operator import Operator
from stretto.ir.types import DType
from stretto.kernels.contraction import MatrixProduct
from stretto.machines.cuda.printer.scalar import MEMORY_TYPES, cast_term
from stretto.machines.cuda.printer.stage_nest import BoxDim, TritonNestPrinter, total_size
from stretto.machines.cuda.printer.triton_terms import Coordinate, LanePrinter
from stretto.machines.cuda.template import (
    CudaTemplate,
    CudaTemplateFamily,
    Parts,
    Stencil,
    TemplateChoice,
    block_product,
    power,
    waste,
)
from stretto.machines.expression_printer import HALVES
from stretto.machines.statements import CountedLoop
from stretto.machines.terms import Term, call, literal

# ---- The depth of a product on tensor cores, in steps that are powers of two.


LEAST_DEPTH = 16
"""Smallest depth that tensor cores multiply."""
MOST_REST = 64
"""Deepest step that warps do not share: each of them holds all of a factor in registers."""


def floor_power(value: int) -> int:
    """Return the largest power of two up to `value`."""
    return 1 << (value.bit_length() - 1)


@dataclass(frozen=True, slots=True)
class DepthStep:
    """`count` consecutive pieces of the depth, from `start` on, each with `parts` parts of `deep`
    numbers."""

    start: int
    parts: int
    deep: int
    count: int = 1

    @property
    def size(self) -> int:
        return self.parts * self.deep


def steps_of(depth: int, deep: int, parts: int) -> list[DepthStep]:
    """Return the whole steps of a depth, then the rest in powers of two, of which only the last
    may have lanes without an element."""
    whole, rest = divmod(depth, deep)
    found = [DepthStep(0, parts, deep // parts, whole)] if whole else []
    start, most = whole * deep, deep if parts == 1 else MOST_REST
    while rest > 0:
        size = min(max(power(rest), LEAST_DEPTH), most)
        if size - rest >= max(LEAST_DEPTH, size // 4):
            size = max(floor_power(rest), LEAST_DEPTH)
        found.append(DepthStep(start, 1, size))
        start, rest = start + size, rest - size
    return found


DOT_BLOCK = 8192
"""Results of a product's block; a quarter if positions take registers, as in convolutions, and an
eighth if each number of a block has its own position."""
PARTS = 4
"""Parts of a step: at most the number of warps."""
SMALL_BLOCK = 1024
"""Results of a block up to which four warps would multiply a few each, or the same ones."""
CHAIN, HALF_CHAIN = 32, 128
"""Depths of f32, and of 16-bit numbers, whose dependent products take `depth_seconds`."""
FEW_STEPS = 2
"""Steps up to which all are printed without a loop, so that all of their loads are in flight at
once."""


@dataclass(frozen=True, slots=True)
class Dot(CudaTemplate):
    """A product on tensor cores. depth: of a step, in `parts` equal parts that different warps
    multiply."""

    name: ClassVar[str] = "dot"
    has_epilogue: ClassVar[bool] = True
    rows: int
    columns: int
    depth: int
    product: MatrixProduct
    parts: int = 1

    @classmethod
    def facts(cls, operator: Operator) -> dict[str, object]:
        product = block_product(operator)
        if product is None:
            raise ValueError("the operator is no product")
        return {"product": product}

    def printer(self, parts: Parts) -> TritonNestPrinter:
        return DotPrinter(*parts, template=self)


def _choice(stencil: Stencil, sizes: tuple[int, ...]) -> TemplateChoice | None:
    """Return the choice for a box with enough rows and columns that is within one piece of each
    dim; else None."""
    product = stencil.product
    if product is None or not stencil.is_matrix:
        return None
    if any(size % sizes[n] for n, size in product.pieces):
        return None
    rows, columns = (prod(sizes[n] for n in side) for side in (product.rows, product.columns))
    pair = product.factors(stencil.operator)
    half = block_dtype(pair) is not None
    depth, costs = prod(stencil.depths), stencil.costs
    plain = all(is_plain(factor) for factor in pair)
    scattered = not plain and not reads_vectors(stencil)
    room = DOT_BLOCK if plain else DOT_BLOCK // (8 if scattered else 4)
    high = min(max(power(rows), 16), 64)
    wide = min(max(power(columns), 16), room // high, 128)
    high = min(max(power(rows), 16), room // wide, 128)
    item = 2 if half else 4
    parts, deep = _step(high, wide, depth, half, scattered)
    batch = prod((sizes[n] for n in (*product.batch, *product.free)), start=1)
    blocks = batch * ceil(rows / high) * ceil(columns / wide)
    steps = steps_of(depth, deep, parts)
    padded = sum(step.count * step.size for step in steps)
    flops = 2.0 * high * wide * padded
    full = min(1.0, (high * wide * parts / 4096) ** 0.5)
    spoilt = max((waste(load.access, stencil, sizes) for load in numbers_of(stencil)), default=1.0)
    bytes_ = (high + wide) * padded * item * spoilt
    bytes_ += high * wide * stencil.operator.out.buffer.dtype.itemsize
    rate = (costs.half_flops if half else costs.tensor_flops) * full
    chain = sum(step.count * step.deep for step in steps) / (HALF_CHAIN if half else CHAIN)
    block = flops / rate + bytes_ / costs.bandwidth + max(chain, 1.0) * costs.depth_seconds
    block += costs.stage_seconds if parts > 1 else 0.0
    seconds = costs.latency_seconds + blocks * (block + costs.latency_seconds / 2)
    return TemplateChoice(Dot(high, wide, deep, product, parts), seconds, seconds)


def numbers_of(stencil: Stencil) -> list[Load]:
    """Return the loads of the factors, without those in positions and conditions."""
    return [load for load, _ in stencil.loads if load.dtype.is_float]


def reads_vectors(stencil: Stencil) -> bool:
    """Return True if all loads are contiguous along the innermost reduced dim, in vectors of 16
    bytes."""
    operator = stencil.operator
    inner = max(n for n, extent in enumerate(operator.reduce) if extent != 1)
    found = numbers_of(stencil)
    numbers = 16 // max((load.dtype.itemsize for load in found), default=4)
    depth = Var(len(operator.dims) + inner)
    steps = {load.access.offset.coefficient(depth) for load in found}
    return steps == {1} and stencil.depths[inner] % numbers == 0


def _step(high: int, wide: int, depth: int, half: bool, scattered: bool) -> tuple[int, int]:
    """Return the number of parts of a step, and its depth: more for small blocks, as far as
    registers allow. scattered: each number of a factor needs an address, which takes the
    registers."""
    small = high * wide <= SMALL_BLOCK
    if small and not scattered and depth >= PARTS * LEAST_DEPTH:
        most = PARTS * (64 if half or high + wide <= 32 else 32) // (1 if half else 2)
        return PARTS, min(floor_power(depth), most)
    if half:
        return 1, min(max(power(depth), LEAST_DEPTH), 128 if high + wide <= 64 else 64)
    return 1, min(max(power(depth), LEAST_DEPTH), 64 if high + wide <= 32 else 32)


def block_dtype(pair: tuple[Expr, Expr]) -> DType | None:
    """Return the 16-bit dtype in which both factors go to the tensor cores; None for f32."""
    kinds = {narrow_dtype(factor) for factor in pair}
    return kinds.pop() if len(kinds) == 1 else None


def narrow_dtype(expr: Expr) -> DType | None:
    """Return f16 or bf16 if all values of an f32 expression are exact in it; else None."""
    match expr:
        case Load():
            return expr.dtype if expr.dtype in HALVES else None
        case Apply("cast", (argument,), dtype):
            if dtype in HALVES:
                return dtype
            return narrow_dtype(argument) if dtype is DType.F32 else None
        case Apply("where", (_, Const(value, _), other), _) if value == 0:
            return narrow_dtype(other)
        case Apply("where", (_, other, Const(value, _)), _) if value == 0:
            return narrow_dtype(other)
        case _:
            return None


def plain_load(expr: Expr) -> Load | None:
    """Return the load that a factor is, optionally converted from f16 or bf16; else None."""
    match expr:
        case Load():
            return expr
        case Apply("cast", (Load() as load,), DType.F32) if load.dtype in HALVES:
            return load
        case _:
            return None


@dataclass(frozen=True, slots=True)
class PaddedLoad:
    """A load if all conditions hold, and 0 otherwise."""

    load: Load
    conditions: tuple[Expr, ...] = ()


def padded_load(expr: Expr) -> PaddedLoad | None:
    """Return the load that a factor is, optionally of a padded image, optionally converted from
    f16 or bf16; else None."""
    load = plain_load(expr)
    if load is not None:
        return PaddedLoad(load)
    match expr:
        case Apply("cast", (inner,), DType.F32) if inner.dtype in HALVES:
            return padded_load(inner)
        case Apply("where", (condition, inner, Const(value, _)), _) if value == 0:
            found = padded_load(inner)
            return found and replace(found, conditions=(condition, *found.conditions))
        case _:
            return None


def is_plain(factor: Expr) -> bool:
    """Return True for an element (or its conversion) at a position that is a sum of variables."""
    while isinstance(factor, Apply) and factor.function == "cast":
        (factor,) = factor.args
    return isinstance(factor, Load) and factor.access.offset.is_affine


FAMILY = CudaTemplateFamily(Dot, _choice)


# ---- printing --------------------------------------------------------------------------------


@dataclass(slots=True)
class DotPrinter(TritonNestPrinter):
    """Prints matrix products, in blocks of `rows` x `columns` x `depth`."""

    template: Dot = field(kw_only=True)

    def print(self) -> None:
        """Print the stage; epilogue operators are computed block by block."""
        found = self.template.product
        self.dims = self.join_roles(found)
        rows = [d for d in self.dims if d.number in found.rows]
        columns = [d for d in self.dims if d.number in found.columns]
        batch = [d for d in self.dims if d not in rows and d not in columns]
        self.depths = self.join(self.depths)
        with self.each(self.scalars, batch) as outer:
            self.blocks(found, outer, rows, columns)

    def join_roles(self, found: MatrixProduct) -> list[BoxDim]:
        """Join rows among themselves, and columns."""
        offset = self.operator.out.offset
        rows = [d for d in self.dims if d.number in found.rows]
        columns = [d for d in self.dims if d.number in found.columns]
        rest = [d for d in self.dims if d not in rows and d not in columns]
        return [
            *rest,
            *self.join(self.by_stride(rows, offset)),
            *self.join(self.by_stride(columns, offset)),
        ]

    def blocks(
        self, found: MatrixProduct, outer: LanePrinter, rows: list[BoxDim], columns: list[BoxDim]
    ) -> None:
        high, wide = self.template.rows, self.template.columns
        with self.loop(rows, high) as row, self.loop(columns, wide) as column:
            outs = self.printer(outer, (high, wide))
            self.place(outs, rows, 0, row)
            self.place(outs, columns, 1, column)
            sides = Sides(rows, columns, row, column)
            totals: dict[int, Term] = {}
            for step, start in self.steps():
                if step.parts not in totals:
                    shape = (high, wide) if step.parts == 1 else (step.parts, high, wide)
                    zeros = call("tl.zeros", str(list(shape)), "tl.float32")
                    totals[step.parts] = outs.name(zeros.along(3), "a")
                with start as place:
                    pair = self.pair(outer, sides, step, place)
                    self.multiply(found, *pair, totals[step.parts])
            total = outs.name(reduce(add, [_combined(*item) for item in totals.items()]), "a")
            outs.store(self.operator.out, total, DType.F32)
            self.epilogue(outs, total)

    def steps(self) -> Iterator[tuple[DepthStep, AbstractContextManager[Term | int | None]]]:
        """Yield the steps of the depth in order, each with its context: a loop, whose variable is
        the start of the step, or nothing."""
        depth, deep = total_size(self.depths), self.template.depth
        if not isinstance(depth, int):
            deep = min(deep, MOST_REST)
            yield DepthStep(0, 1, deep), self.loop(self.depths, deep)
            return
        for step in steps_of(depth, deep, self.template.parts):
            if step.count > FEW_STEPS:
                yield step, self.stepping(step)
                continue
            for number in range(step.count):
                yield step, nullcontext(step.start + number * step.size)

    @contextmanager
    def stepping(self, step: DepthStep) -> Generator[Term]:
        start = self.scalars.fresh("c")
        end = step.start + step.count * step.size
        with self.out.within(
            CountedLoop(start, literal(step.start), literal(end), literal(step.size))
        ):
            yield start

    def pair(
        self, outer: LanePrinter, sides: Sides, step: DepthStep, start: Term | int | None
    ) -> tuple[Factor, Factor]:
        """Return printers for the blocks of the two factors at a step, and the axes of their
        depth; with several parts, axis 0 numbers those."""
        parts, deep, axis = step.parts, step.deep, int(step.parts > 1)
        outermost = (parts,) if axis else ()
        lefts = self.printer(outer, (*outermost, self.template.rows, deep))
        rights = self.printer(outer, (*outermost, deep, self.template.columns))
        self.place(lefts, sides.rows, axis, sides.row)
        self.place(rights, sides.columns, axis + 1, sides.column)
        for dim in (*sides.rows, *sides.columns):
            # A tile is within one piece, so any of its positions identifies the piece.
            span = None if dim.limit is None else (dim.low, max(dim.limit, dim.low + 1))
            whole = Coordinate(dim.first or literal(0), None, span)
            (rights if dim in sides.rows else lefts).variables[dim.number] = whole
        for printer, depth in ((lefts, axis + 1), (rights, axis)):
            lanes = None
            if axis:
                numbers = printer.numbers(0) * deep + printer.numbers(depth)
                lanes = numbers.along(1 | 1 << depth)
            self.place(printer, self.depths, depth, start, lanes, step.size if axis else 0)
        return Factor(lefts, axis + 1), Factor(rights, axis)

    def epilogue(self, outs: LanePrinter, total: Term) -> None:
        """Compute the operators after the product; they read each result with the rounding of its
        buffer."""
        made = {self.operator.out.buffer: self.rounded(outs, total, DType.F32, self.operator)}
        for operator in self.epilogue_operators:
            inside = outs.inner()
            for load in operator.reads():
                if load.access.buffer in made:
                    inside.known[(), load] = made[load.access.buffer]
            dtype = operator.value.dtype
            value = inside.expr(operator.value)
            inside.store(operator.out, value, dtype)
            made[operator.out.buffer] = self.rounded(inside, value, dtype, operator)

    def rounded(self, printer: LanePrinter, value: Term, dtype: DType, operator: Operator) -> Term:
        stored = operator.out.buffer.dtype
        if stored is dtype and stored not in HALVES:
            return value
        return printer.name(cast_term(value, dtype, stored))

    def printer(self, outer: LanePrinter, shape: tuple[int, ...]) -> LanePrinter:
        printer = self.block(*shape)
        printer.variables |= outer.variables
        return printer

    def multiply(self, found: MatrixProduct, lefts: Factor, rights: Factor, total: Term) -> None:
        pair = found.factors(self.operator)
        kind = block_dtype(pair)
        left, right = lefts.block(pair[0], kind), rights.block(pair[1], kind)
        self.out.assign(total, call("stretto_dot", left, right, total))


@dataclass(frozen=True, slots=True)
class Sides:
    """Rows and columns of a block, and their starts."""

    rows: list[BoxDim]
    columns: list[BoxDim]
    row: Term | None
    column: Term | None


@dataclass(frozen=True, slots=True)
class Factor:
    """Printer of a block of a factor; `depth` is the axis that is summed."""

    printer: LanePrinter
    depth: int

    def block(self, expr: Expr, kind: DType | None) -> Term:
        """Return a block of a factor, 0 past the end of the depth."""
        printer, mask = self.printer, self.printer.masks.get(self.depth)
        everywhere = (1 << len(printer.shape)) - 1
        found = padded_load(expr)
        if found is None:
            value = printer.expr(expr)
        else:
            for condition in found.conditions:
                printer.conditions = (*printer.conditions, printer.expr(condition))
            value = printer.load(found.load, other="0.0")
            printer.conditions = ()
        if mask is not None and (found is None or mask.axes & ~value.axes):
            value = call("tl.where", mask, value, "0.0").along(everywhere)
        if value.axes != everywhere:
            value = call("tl.broadcast_to", value, str(list(printer.shape))).along(everywhere)
        return printer.name(value.to(MEMORY_TYPES[kind]) if kind else value, "f")


def _combined(parts: int, total: Term) -> Term:
    return total if parts == 1 else call("tl.sum", total, 0).along(3)
