"""Products of matrices on the tensor cores (implicit GEMM), by `rows` x `columns` x `depth`.

The two factors may be any expressions: rows, columns and depth are each a number of dims laid out
along an axis, so a convolution, whose image is read under a mask, is one more product of matrices.
Dims that both factors depend on are a batch, walked one by one. Factors of f32 are multiplied with
the accuracy of f32; those that hold f16 or bf16 numbers go in as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, prod
from typing import ClassVar

from stretto.device.expr import Apply, Const, Expr, Load
from stretto.device.operator import Operator
from stretto.ir.types import DType
from stretto.kernels.products import Product
from stretto.machines.cuda.printer.expr import Coordinate, LanePrinter
from stretto.machines.cuda.printer.scalar import MEMORY_TYPES, cast_term
from stretto.machines.cuda.printer.stage_nest import BoxDim, NestPrinter
from stretto.machines.cuda.stencil import Stencil, block_product, power, waste
from stretto.machines.cuda.template import Choice, CudaTemplate, Family, Parts
from stretto.machines.expressions import HALVES
from stretto.machines.terms import Term, call, literal

DOT_BLOCK = 8192
"""Results of a block of a product; a quarter where positions take registers, as in convolutions."""


@dataclass(frozen=True, slots=True)
class Dot(CudaTemplate):
    name: ClassVar[str] = "dot"
    has_epilogue: ClassVar[bool] = True
    rows: int
    columns: int
    depth: int
    product: Product

    @classmethod
    def facts(cls, operator: Operator) -> dict[str, object]:
        product = block_product(operator)
        if product is None:
            raise ValueError("the operator is no product")
        return {"product": product}

    def printer(self, parts: Parts) -> NestPrinter:
        return DotPrinter(*parts, template=self)


def _choice(stencil: Stencil, sizes: tuple[int, ...]) -> Choice | None:
    """Where a box has enough rows and columns and lies within one piece of each dim."""
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
    room = DOT_BLOCK if plain else DOT_BLOCK // 4
    high = min(max(power(rows), 16), 64)
    wide = min(max(power(columns), 16), room // high, 128)
    high = min(max(power(rows), 16), room // wide, 128)
    item = 2 if half else 4
    deep = min(max(power(depth), 16), _step_depth(high, wide, half))
    batch = prod((sizes[n] for n in (*product.batch, *product.free)), start=1)
    blocks = batch * ceil(rows / high) * ceil(columns / wide)
    steps = ceil(depth / deep)
    flops = 2.0 * high * wide * deep * steps
    full = min(1.0, (high * wide / 4096) ** 0.5)
    spoilt = max((waste(load.access, stencil, sizes) for load, _ in stencil.loads), default=1.0)
    bytes_ = (high + wide) * deep * steps * item * spoilt
    bytes_ += high * wide * stencil.operator.out.buffer.dtype.itemsize
    rate = (costs.half_flops if half else costs.tensor_flops) * full
    block = flops / rate + bytes_ / costs.bandwidth + steps * costs.depth_seconds
    seconds = costs.latency_seconds + blocks * (block + costs.latency_seconds / 2)
    return Choice(Dot(high, wide, deep, product), seconds, seconds)


def _step_depth(high: int, wide: int, half: bool) -> int:
    """How deep a step is: more of small blocks, as far as registers allow."""
    small = high + wide <= 64
    if half:
        return 128 if small else 64
    return 64 if high + wide <= 32 else 32


def block_dtype(pair: tuple[Expr, Expr]) -> DType | None:
    """The dtype in which both factors go to the tensor cores as they are; None for f32."""
    kinds = {narrow_dtype(factor) for factor in pair}
    return kinds.pop() if len(kinds) == 1 else None


def narrow_dtype(expr: Expr) -> DType | None:
    """f16 or bf16 where every value of an expression of f32 is one of that dtype."""
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
    """The load that a factor is, maybe converted from f16 or bf16."""
    match expr:
        case Load():
            return expr
        case Apply("cast", (Load() as load,), DType.F32) if load.dtype in HALVES:
            return load
        case _:
            return None


def is_plain(factor: Expr) -> bool:
    """Is a factor an element at a position that is a sum of variables, maybe converted?"""
    while isinstance(factor, Apply) and factor.function == "cast":
        (factor,) = factor.args
    return isinstance(factor, Load) and factor.access.offset.is_affine


FAMILY = Family(Dot, _choice)


# ---- printing --------------------------------------------------------------------------------


@dataclass(slots=True)
class DotPrinter(NestPrinter):
    """Products of matrices, in blocks of `rows` x `columns` x `depth`."""

    template: Dot = field(kw_only=True)

    def print(self) -> None:
        """Operators beside it are computed block by block."""
        found = self.template.product
        self.dims = self.join_roles(found)
        rows = [d for d in self.dims if d.number in found.rows]
        columns = [d for d in self.dims if d.number in found.columns]
        batch = [d for d in self.dims if d not in rows and d not in columns]
        self.depths = self.join(self.depths)
        with self.each(self.scalars, batch) as outer:
            self.blocks(found, outer, rows, columns)

    def join_roles(self, found: Product) -> list[BoxDim]:
        """Joins rows among themselves, and columns."""
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
        self, found: Product, outer: LanePrinter, rows: list[BoxDim], columns: list[BoxDim]
    ) -> None:
        high, wide, deep = self.template.rows, self.template.columns, self.template.depth
        with self.loop(rows, high) as row, self.loop(columns, wide) as column:
            lefts = self.printer(outer, (high, deep))
            rights = self.printer(outer, (deep, wide))
            outs = self.printer(outer, (high, wide))
            for printer in (lefts, outs):
                self.place(printer, rows, 0, row)
            for printer in (rights, outs):
                self.place(printer, columns, 1, column)
            for dim in (*rows, *columns):
                # A tile lies within a piece, so any of its places tells which.
                span = None if dim.limit is None else (dim.low, max(dim.limit, dim.low + 1))
                whole = Coordinate(dim.first or literal(0), None, span)
                (rights if dim in rows else lefts).variables[dim.number] = whole
            total = outs.name(outs.zeros(3, "tl.float32"), "a")
            with self.loop(self.depths, deep) as depth:
                inner = lefts.inner(), rights.inner()
                self.place(inner[0], self.depths, 1, depth)
                self.place(inner[1], self.depths, 0, depth)
                self.multiply(found, *inner, total)
            outs.store(self.operator.out, total, DType.F32)
            self.epilogue(outs, total)

    def epilogue(self, outs: LanePrinter, total: Term) -> None:
        """Each result is at hand for the operators behind, as memory would give it."""
        made = {self.operator.out.buffer: self.rounded(outs, total, DType.F32, self.operator)}
        for operator in self.beside:
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

    def printer(self, outer: LanePrinter, shape: tuple[int, int]) -> LanePrinter:
        printer = self.block(*shape)
        printer.variables |= outer.variables
        return printer

    def multiply(
        self, found: Product, lefts: LanePrinter, rights: LanePrinter, total: Term
    ) -> None:
        pair = found.factors(self.operator)
        kind = block_dtype(pair)
        left = self.factor(lefts, pair[0], lefts.masks.get(1), kind)
        right = self.factor(rights, pair[1], rights.masks.get(0), kind)
        self.out.assign(total, call("stretto_dot", left, right, total))

    def factor(
        self, printer: LanePrinter, expr: Expr, mask: Term | None, kind: DType | None
    ) -> Term:
        """A block of a factor, 0 behind the end of the depth."""
        load = plain_load(expr)
        if load is not None:
            value = printer.load(load, other="0.0" if mask else None)
        else:
            value = printer.expr(expr)
            if mask:
                value = call("tl.where", mask, value, "0.0").along(3)
        if value.axes != 3:
            value = call("tl.broadcast_to", value, str(list(printer.shape))).along(3)
        return printer.name(value.to(MEMORY_TYPES[kind]) if kind else value, "f")
