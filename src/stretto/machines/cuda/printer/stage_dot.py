"""Prints contractions as products of blocks on the tensor cores (implicit GEMM).

The two factors may be any expressions: rows, columns and depth are each a number of dims laid out
along an axis, so a convolution, whose image is read under a mask, is one more product of matrices.
Dims that both factors depend on are a batch, walked one by one. Factors of f32 are multiplied with
the accuracy of f32; those that hold f16 or bf16 numbers go in as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.device.expr import Expr
from stretto.device.operator import Operator
from stretto.ir.types import DType
from stretto.kernels.products import Product
from stretto.machines.cuda.printer.expr import Coordinate, LanePrinter
from stretto.machines.cuda.printer.scalar import MEMORY_TYPES, cast_term
from stretto.machines.cuda.printer.stage_nest import BoxDim, NestPrinter
from stretto.machines.cuda.templates.dot import Dot, block_dtype, plain_load
from stretto.machines.expressions import HALVES
from stretto.machines.terms import Term, call, literal


@dataclass(slots=True)
class DotPrinter(NestPrinter):
    """Products of matrices, in blocks of `rows` x `columns` x `depth`."""

    def dot(self, behind: tuple[Operator, ...] = ()) -> None:
        """behind: pointwise operators over the same box, computed block by block."""
        self.beside = behind
        found = self.template.product
        self.dims = self.join_roles(found)
        rows = [d for d in self.dims if d.number in found.rows]
        columns = [d for d in self.dims if d.number in found.columns]
        batch = [d for d in self.dims if d not in rows and d not in columns]
        self.depths = self.join(self.depths)
        with self.each(self.scalars, batch) as outer:
            self.blocks(found, outer, rows, columns)

    @property
    def template(self) -> Dot:
        assert isinstance(self.stage.template, Dot)
        return self.stage.template

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
