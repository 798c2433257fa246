"""Products of 16-bit numbers, summed in f32, and of bytes, summed in i32.

They use the CPU's instructions for pairs of bf16 and for four bytes if it has them. The header
narrow.h has the code, and says what errors it makes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.device.expr import Access
from stretto.device.operator import Operator, Stage
from stretto.ir.types import DType
from stretto.kernels.contraction import Contraction, stride
from stretto.kernels.panels import PanelRead, PanelTemplate
from stretto.machines.cpu.printer.cpp_terms import MEMORY_TYPES
from stretto.machines.cpu.printer.nest import CppNestPrinter
from stretto.machines.cpu.template import (
    CpuTemplate,
    CpuTemplateFamily,
    Shared,
    TemplateCandidate,
    TemplateRequest,
    required,
)
from stretto.machines.cpu.templates.contraction import (
    Panels,
    TaskProduct,
    blocks,
    contraction_of_kind,
    multiples,
    packed_candidate,
    panel_read,
)
from stretto.machines.terms import Operand

HEIGHTS = {64: 6, 16: 6}
"""Rows of a register tile, by its columns."""
GROUPS = {DType.BF16: 2, DType.F16: 1, DType.I8: 4}
"""Number of values of a column that are adjacent in a panel."""
SHARES = {DType.BF16: 0.5, DType.I8: 0.25}
"""Time of a product of several rows, as a share of that of one in f32."""
WIDENED = 1.2
"""The same if each tile widens the right operand."""


@dataclass(frozen=True, slots=True)
class NarrowPacked(PanelTemplate, CpuTemplate):
    """The right operand is a constant, packed as panels of `columns` columns."""

    name: ClassVar[str] = "narrow_packed"
    header: ClassVar[str] = "narrow.h"
    rows: int
    columns: int
    contraction: Contraction

    @classmethod
    def facts(cls, operator: Operator) -> dict[str, object]:
        found = contraction_of_kind(operator, narrow=True)
        return {"contraction": required(found, "contraction of narrow numbers")}

    def read(self, operator: Operator) -> PanelRead:
        group = GROUPS[self.contraction.dtype]
        return panel_read(operator, self.panels, self.contraction, group)

    def shared(self, stage: Stage) -> tuple[Shared, ...]:
        return (Shared(self.header, "STRETTO_NARROW_PACKED", self._arguments()),)

    def _arguments(self) -> tuple[str, ...]:
        # The instance for several rows also contains a tile for a single row.
        height = HEIGHTS[self.columns]
        return MEMORY_TYPES[self.contraction.dtype], str(height), str(self.columns)

    def write(self, nest: CppNestPrinter) -> None:
        found, packed = self.contraction, self.panels
        start = Access(packed, (packed.elements,), (self.read(nest.operator).panel,))

        def emit(block: TaskProduct) -> None:
            left = block.left, block.left_row, nest.number(found.left_depth)
            panels = nest.pointer(start, block.fixed)
            ends = *block.result, nest.number(found.depth), block.columns
            nest.call(f"narrow_packed<{', '.join(self._arguments())}>", *left, panels, *ends)

        blocks(nest, found, emit)


@dataclass(frozen=True, slots=True)
class NarrowUnpacked(CpuTemplate):
    """The right operand is read from its place in memory."""

    header: ClassVar[str] = "narrow.h"
    rows: int
    columns: int
    contraction: Contraction

    @classmethod
    def facts(cls, operator: Operator) -> dict[str, object]:
        found = contraction_of_kind(operator, narrow=True)
        return {"contraction": required(found, "contraction of narrow numbers")}

    def shared(self, stage: Stage) -> tuple[Shared, ...]:
        return (Shared(self.header, f"STRETTO_{self.name.upper()}", self._arguments()),)

    def _arguments(self) -> tuple[str, ...]:
        return MEMORY_TYPES[self.contraction.dtype], str(self.rows), str(self.columns)

    def _write(self, nest: CppNestPrinter, left: tuple[Operand, ...], apart: Operand) -> None:
        """Write the call. `left`: further strides of the left operand; `apart`: distance between
        rows of the right one."""
        found, function = self.contraction, f"{self.name}<{', '.join(self._arguments())}>"
        _, right = found.operands(nest.operator)

        def emit(block: TaskProduct) -> None:
            matrix = nest.pointer(right, block.fixed), apart
            ends = *block.result, nest.number(found.depth), block.columns
            nest.call(function, block.left, block.left_row, *left, *matrix, *ends)

        blocks(nest, found, emit)


@dataclass(frozen=True, slots=True)
class NarrowRows(NarrowUnpacked):
    """The right operand has contiguous rows."""

    name: ClassVar[str] = "narrow_rows"

    def write(self, nest: CppNestPrinter) -> None:
        found = self.contraction
        assert found.right_depth is not None
        self._write(nest, (nest.number(found.left_depth),), nest.number(found.right_depth))


@dataclass(frozen=True, slots=True)
class NarrowDots(NarrowUnpacked):
    """Both operands are contiguous along the depth."""

    name: ClassVar[str] = "narrow_dots"

    def write(self, nest: CppNestPrinter) -> None:
        _, right = self.contraction.operands(nest.operator)
        self._write(nest, (), nest.number(stride(right, self.contraction.column)))


def _candidate(request: TemplateRequest) -> TemplateCandidate | None:
    operator, costs, seconds = request.operator, request.costs, request.product_seconds
    found = contraction_of_kind(operator, narrow=True)
    if found is None:
        return None
    _, right = found.operands(operator)
    several = costs.points(operator.dims[n] for n in found.rows) > 1
    joined = seconds * (SHARES.get(found.dtype, WIDENED) if several else WIDENED)
    wanted = Panels(
        HEIGHTS,
        lambda panels, height, lanes: NarrowPacked(panels, height, lanes, found),
        GROUPS[found.dtype],
    )
    packed = packed_candidate(request, found, wanted, joined)
    if packed is not None or found.right_depth is None or found.dtype is DType.I8:
        return packed
    if stride(right, found.column) == 1:
        tiles = multiples(operator, found, costs.vector)
        return TemplateCandidate(NarrowRows(6, 64, found), tiles, seconds * WIDENED)
    if found.right_depth == 1 and found.left_depth == 1:
        tiles = multiples(operator, found, 8)
        return TemplateCandidate(NarrowDots(2, 8, found), tiles, joined * costs.dots_factor)
    return None


FAMILY = CpuTemplateFamily((NarrowPacked, NarrowRows, NarrowDots), _candidate)
