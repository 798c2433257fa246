"""Prints pointwise stages: each lane of a block computes and stores one element."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.codegen.triton_expr import ExprPrinter, Text
from stretto.codegen.triton_stage_nest import BoxDim, NestPrinter
from stretto.ir.types import DType
from stretto.kernels.expr import Dynamic, Index, Var

ATOMIC = (DType.F32, DType.F64, DType.I32, DType.I64)
"""What memory can add to by itself."""


@dataclass(slots=True)
class MapPrinter(NestPrinter):
    """Operators without a reduction.

    Elements that may land on the same place are added by atomics, or else stored in order: dims
    that decide a computed position become loops, the others stay lanes.
    """

    def map(self) -> None:
        ordered = self.ordered_dims()
        if not ordered:
            self.dims = self.join(self.by_stride(self.dims, self.operator.out.offset))
            self.chunks(self.scalars, self.dims)
        elif self.operator.accumulate and self.operator.out.buffer.dtype in ATOMIC:
            self.chunks(self.scalars, self.dims, atomic=True)
        else:
            rest = [dim for dim in self.dims if dim not in ordered]
            with self.each(self.scalars, ordered) as inside:
                if self.operator.accumulate or self.reads_result():
                    self.out.write("tl.debug_barrier()")
                self.chunks(inside, rest)

    def ordered_dims(self) -> list[BoxDim]:
        """Dims along which two stores may hit one element."""
        computed: set[int] = set()
        for index in self.operator.out.index:
            for atom in index.atoms():
                if isinstance(atom, Dynamic):
                    computed |= Index.of(atom).vars()
        dynamic = any(
            isinstance(atom, Dynamic) for index in self.operator.out.index for atom in index.atoms()
        )
        if not dynamic and not self.operator.accumulate:
            return []
        offset = self.operator.out.offset
        return [
            dim
            for dim in self.dims
            if dim.number in computed or offset.coefficient(Var(dim.number)) == 0
        ]

    def reads_result(self) -> bool:
        buffer = self.operator.out.buffer
        return any(load.access.buffer == buffer for load in self.operator.reads())

    def chunks(self, outer: ExprPrinter, dims: list[BoxDim], atomic: bool = False) -> None:
        if not dims:
            self.store(outer.inner(), outer.expr(self.operator.value), atomic)
            return
        block = dict(self.stage.method.parameters).get("block", 1024)
        printer = self.block(block)
        printer.variables |= outer.variables
        with self.lanes(printer, dims, 0) as (inside, _, _):
            self.store(inside, inside.expr(self.operator.value), atomic)

    def store(self, printer: ExprPrinter, value: Text, atomic: bool) -> None:
        operator = self.operator
        dtype = operator.value.dtype
        if atomic:
            printer.add(operator.out, value, dtype)
        else:
            printer.store(operator.out, value, dtype, operator.accumulate)
