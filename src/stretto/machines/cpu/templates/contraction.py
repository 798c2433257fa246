"""Products of matrices, by blocks of `rows` x `columns` results that stay in vector registers.

The header contract.h has the code. The layout of the right operand decides the template: constants
are packed, rows of a matrix are read in place, and an operand that is contiguous along the depth is
multiplied by dot products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from stretto.device.expr import Access, Buffer, Index, Var
from stretto.device.operator import Operator, Stage, Template, TileDim
from stretto.kernels.contraction import Contraction, contraction_of, stride
from stretto.kernels.groups import Member
from stretto.kernels.panels import PanelRead, PanelTemplate, constant_layout, static
from stretto.machines.cpu.costs import CpuCosts
from stretto.machines.cpu.printer.cpp_terms import VALUE_TYPES, iteration
from stretto.machines.cpu.printer.nest import CppNestPrinter
from stretto.machines.cpu.template import (
    CpuTemplate,
    CpuTemplateFamily,
    Shared,
    TemplateCandidate,
    TemplateRequest,
    required,
)
from stretto.machines.terms import Operand, Term, call, filled, variable

ROW, ROW_BLOCK = variable("row"), 240
"""Variable of a block of rows, and the size of the block if the number of rows is unknown: all
columns of a task are computed for one block. All heights divide it."""
HEIGHTS = {32: {64: 6, 32: 12, 16: 12}, 16: {16: 6}}
"""Rows of a register tile, by its columns, for each number of registers. With 16, all panels are
two vectors wide: a tile that skips over the columns of others has its lines in few sets of the
first-level cache, and reaches 93 of 104 GFLOP/s instead of 99 (Zen 3)."""
LARGE = 1 << 18
"""Number of multiplications from which an operator calls a shared instance."""
LEFT_AGAIN = 8
"""Number of columns that take as long as reading a left operand that fits in no cache."""
LARGE_ROW, DEEP = 1 << 11, 32
"""As LARGE: multiplications per row, if the call or the run decides the number of rows; and per
result, in any case."""


@dataclass(frozen=True, slots=True)
class PackedContraction(PanelTemplate, CpuTemplate):
    """The right operand is a constant, packed as panels of `columns` columns."""

    name: ClassVar[str] = "packed"
    header: ClassVar[str] = "contract.h"
    rows: int
    columns: int
    contraction: Contraction

    @classmethod
    def facts(cls, operator: Operator) -> dict[str, object]:
        found = contraction_of_kind(operator, narrow=False)
        return {"contraction": required(found, "contraction of floats without conversion")}

    def read(self, operator: Operator) -> PanelRead:
        return panel_read(operator, self.panels, self.contraction)

    def shared(self, stage: Stage) -> tuple[Shared, ...]:
        if not self._is_large(stage.operator):
            return ()
        return (Shared(self.header, "STRETTO_SHARED_PACKED", self._arguments(stage.operator)),)

    def _arguments(self, operator: Operator) -> tuple[str, ...]:
        """Return the template arguments of a shared instance."""
        unit = "true" if self.contraction.left_depth == 1 else "false"
        return _kind(operator), str(self.rows), str(self.columns), unit

    def _is_large(self, operator: Operator) -> bool:
        """True if the time of a call is negligible beside what it computes."""
        found = self.contraction
        depth, columns = found.depth, operator.dims[found.column]
        if self.rows == 1 or not isinstance(depth, int) or not isinstance(columns, int):
            return False
        rows = [operator.dims[n] for n in found.rows]
        if depth < DEEP:
            return False
        if not all(isinstance(count, int) for count in rows):
            return depth * columns >= LARGE_ROW
        return prod(count for count in rows if isinstance(count, int)) * depth * columns >= LARGE

    def streamed(self, stage: Stage, grid: Sequence[TileDim]) -> int:
        found, operator = self.contraction, stage.operator
        span = stage.box[found.column]
        columns = span.extent if span.grid is None else grid[span.grid].tile
        if self.rows > 1 or not isinstance(found.depth, int) or not isinstance(columns, int):
            return 0
        return found.depth * columns * operator.out.buffer.dtype.itemsize

    def write(self, nest: CppNestPrinter) -> None:
        found, packed = self.contraction, self.panels
        name = "packed_many" if nest.back is None else "packed_turn"
        function = _function(name, nest, self.rows, self.columns)
        order = () if nest.back is None else (nest.back,)
        if self._is_large(nest.operator):
            function = f"packed_shared<{', '.join(self._arguments(nest.operator))}>"
        start = Access(packed, (packed.elements,), (self.read(nest.operator).panel,))

        def emit(block: TaskProduct) -> None:
            panels = nest.pointer(start, block.fixed)
            left = block.left, block.left_row, nest.number(found.left_depth)
            ends = *block.result, nest.number(found.depth), block.columns
            nest.call(function, *left, panels, *ends, last=order)

        blocks(nest, found, emit)


@dataclass(frozen=True, slots=True)
class UnpackedContraction(CpuTemplate):
    """The right operand is read from its place in memory."""

    header: ClassVar[str] = "contract.h"
    rows: int
    columns: int
    contraction: Contraction

    @classmethod
    def facts(cls, operator: Operator) -> dict[str, object]:
        found = contraction_of_kind(operator, narrow=False)
        return {"contraction": required(found, "contraction of floats without conversion")}


@dataclass(frozen=True, slots=True)
class RowsContraction(UnpackedContraction):
    """The right operand has contiguous rows."""

    name: ClassVar[str] = "rows"

    def write(self, nest: CppNestPrinter) -> None:
        found = self.contraction
        _, right = found.operands(nest.operator)
        assert found.right_depth is not None
        depth = nest.number(found.right_depth)

        def emit(block: TaskProduct) -> None:
            left = block.left, block.left_row, nest.number(found.left_depth)
            ends = *block.result, block.columns, nest.number(found.depth)
            matrix = nest.pointer(right, block.fixed), depth
            nest.call(_function("rows", nest, self.rows, self.columns), *left, *matrix, *ends)

        blocks(nest, found, emit)


@dataclass(frozen=True, slots=True)
class Dots(UnpackedContraction):
    """Both operands are contiguous along the depth."""

    name: ClassVar[str] = "dots"

    def write(self, nest: CppNestPrinter) -> None:
        found = self.contraction
        _, right = found.operands(nest.operator)

        def emit(block: TaskProduct) -> None:
            ends = *block.result, block.columns, nest.number(found.depth)
            step = nest.number(stride(right, found.column))
            matrix = nest.pointer(right, block.fixed), step
            function = _function("dots", nest, self.rows, self.columns)
            nest.call(function, block.left, block.left_row, *matrix, *ends)

        blocks(nest, found, emit)


def contraction_of_kind(operator: Operator, *, narrow: bool) -> Contraction | None:
    """Return the contraction that an operator is, if its numbers are narrow, or are not. Else
    None."""
    found = contraction_of(operator)
    return found if found is not None and found.is_narrow == narrow else None


def _candidate(request: TemplateRequest) -> TemplateCandidate | None:
    operator, costs = request.operator, request.costs
    found = contraction_of_kind(operator, narrow=False)
    if found is None:
        return None
    rows = costs.points(operator.dims[n] for n in found.rows)
    several = rows > 1
    heights = HEIGHTS[costs.registers]
    wanted = Panels(
        heights, lambda panels, height, lanes: PackedContraction(panels, height, lanes, found)
    )
    packed = packed_candidate(request, found, wanted, request.product_seconds)
    if packed is not None or found.right_depth is None:
        return packed
    _, right = found.operands(operator)
    seconds = request.product_seconds
    if stride(right, found.column) == 1:
        template = RowsContraction(6 if several else 1, max(heights), found)
        return TemplateCandidate(template, multiples(operator, found, costs.vector), seconds)
    if found.right_depth == 1 and found.left_depth == 1:
        template = Dots(2 if several else 1, 8, found)
        return TemplateCandidate(
            template, multiples(operator, found, 8), seconds * request.costs.dots_factor
        )
    return None


def multiples(operator: Operator, found: Contraction, lanes: int) -> tuple[int, ...]:
    """Return the multiples of tiles: `lanes` columns, 1 in the other dims."""
    return tuple(
        1 if n != found.column else min(lanes, extent) if isinstance(extent, int) else lanes
        for n, extent in enumerate(operator.dims)
    )


def panel_read(operator: Operator, panels: Buffer, found: Contraction, group: int = 1) -> PanelRead:
    """Return where a contraction reads its right operand. group: as of `Panels`."""
    _, right = found.operands(operator)
    outer = tuple(Index.of(Var(dim)) for dim in found.batch)
    return PanelRead(operator, panels, right, outer, Index.of(Var(found.column)), group)


# ---- Packed constants ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Panels:
    """Panels of a template. `heights`: rows of a register tile by its columns. `group`: number of
    values of a column that are adjacent. `make`: the template for (panels, rows, columns)."""

    heights: Mapping[int, int]
    make: Callable[[Buffer, int, int], Template]
    group: int = 1


def packed_candidate(
    request: TemplateRequest, found: Contraction, wanted: Panels, seconds: float
) -> TemplateCandidate | None:
    """Return a template that reads the right operand as panels; None if that is no constant that
    can be packed. `seconds`: time of the multiplications."""
    operator, costs = request.operator, request.costs
    _, right = found.operands(operator)
    packed = (*(operator.dims[n] for n in (*found.batch, found.column)), *operator.reduce)
    if constant_layout(operator, right) is None or not all(isinstance(e, int) for e in packed):
        return None
    lanes = _panel_lanes(request.member, found, wanted.heights)
    if lanes is None:
        return None
    rows = costs.points(operator.dims[n] for n in found.rows)
    if rows <= 1:
        weights = costs.points(operator.dims) * costs.points(operator.reduce)
        seconds = max(seconds, weights * right.buffer.dtype.itemsize / costs.bandwidth)
    batch = tuple((static(operator.dims[n]), static(stride(right, n))) for n in found.batch)
    columns = (static(operator.dims[found.column]), static(stride(right, found.column)))
    panels = request.packings.add(operator, right, batch, columns, lanes, wanted.group)
    template = wanted.make(panels, wanted.heights[lanes] if rows > 1 else 1, lanes)
    steps = {found.column: lanes}
    if flat_rows(operator, found) and static(operator.dims[found.rows[-2]]) >= request.units:
        steps[found.rows[-1]] = 0
    tiles = tuple(steps.get(n, 1) for n in range(len(operator.dims)))
    first = found.column if rows <= costs.cached_rows else None
    size = packed_bytes(operator, found, costs)
    reading = costs.reading_seconds(size)
    left = rows * costs.points(operator.reduce) * found.dtype.itemsize
    last, again = (found.column, LEFT_AGAIN) if left > costs.cache_bytes else (None, 0)
    return TemplateCandidate(
        template, tiles, seconds, first, last, again, rows=found.rows, reading=reading
    )


def packed_bytes(operator: Operator, found: Contraction, costs: CpuCosts) -> float:
    """Return the bytes of the right operand of one product of a batch."""
    weights = operator.dims[found.column], *operator.reduce
    return costs.points(weights) * found.dtype.itemsize


def _panel_lanes(member: Member, found: Contraction, heights: Iterable[int]) -> int | None:
    """Return the width of the widest panel such that all boxes of the member begin at multiples of
    it, or None."""
    offsets = [box[found.column].offset for box in member.boxes]
    sizes = [e for box in member.boxes if isinstance(e := box[found.column].extent, int)]
    for lanes in heights:
        if all(offset % lanes == 0 for offset in offsets) and (min(sizes) >= lanes or lanes == 16):
            return lanes
    return None


FAMILY = CpuTemplateFamily((PackedContraction, RowsContraction, Dots), _candidate)


# ---- Printing --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskProduct:
    """The product that a task computes for one place in the batch.

    left: the start of the left operand; left_row: its stride along the rows. result: the start and
    the row stride of the results, and the number of rows. fixed: the values of variables at this
    place.
    """

    left: Term
    left_row: Operand
    result: tuple[Operand, Operand, Operand]
    columns: Term
    fixed: dict[int, Term]


def blocks(nest: CppNestPrinter, found: Contraction, emit: Callable[[TaskProduct], None]) -> None:
    """Open loops over the batch and all rows except the inner ones, and call `emit` for each
    block."""
    operator, box = nest.operator, nest.stage.box
    outer = [*found.batch, *found.rows[:-1]]
    inner = found.rows[-1] if found.rows else None
    around = _around(nest, found)
    units = {n: nest.bounds(box[n])[0] for n, extent in enumerate(operator.dims) if extent == 1}

    left_access, _ = found.operands(operator)
    strides: list[Operand] = [0, 0]
    if inner is not None:
        steps = stride(left_access, inner), stride(operator.out, inner)
        strides = [nest.number(step) for step in steps]

    def block(fixed: dict[int, Term], rows: Operand, first: Term, last: Term) -> None:
        start, columns = nest.pointer(left_access, fixed), call("int", last - first)
        result = nest.pointer(operator.out, fixed), strides[1], rows
        emit(TaskProduct(start, strides[0], result, columns, fixed))

    def body() -> None:
        first, last = nest.bounds(box[found.column])
        fixed = {**units, **{n: iteration(n) for n in outer}, found.column: first}
        if inner is None:
            block(fixed, 1, first, last)
            return
        begin, end = nest.bounds(box[inner])
        if around is not None:
            top, bottom = nest.bounds(box[around])
            rows = (bottom - top) * end
            block({**fixed, inner: begin, around: top}, call("int", rows), first, last)
            return
        if isinstance(operator.dims[inner], int):
            block({**fixed, inner: begin}, call("int", end - begin), first, last)
            return
        # Blocks of rows stay in the second-level cache, however many rows there are.
        with nest.loop(ROW, begin, end, step=ROW_BLOCK):
            rest = end - ROW
            rows = filled("{} < {} ? {} : {}", rest, ROW_BLOCK, rest, ROW_BLOCK)
            block({**fixed, inner: ROW}, call("int", rows), first, last)

    nest.nest([n for n in outer if n != around], body)


def _around(nest: CppNestPrinter, found: Contraction) -> int | None:
    """Return the dim of the rows around the inner ones, if a task has all of the inner ones and
    both are one dim in memory; else None."""
    if not flat_rows(nest.operator, found):
        return None
    begin, end = nest.bounds(nest.stage.box[found.rows[-1]])
    is_whole = (begin.text, end.text) == ("0", str(nest.operator.dims[found.rows[-1]]))
    return found.rows[-2] if is_whole else None


def flat_rows(operator: Operator, found: Contraction) -> bool:
    """True if the last two dims of the rows, such as those of an image, are one dim in memory."""
    if len(found.rows) < 2:
        return False
    *_, around, inner = found.rows
    extent, (left, _) = operator.dims[inner], found.operands(operator)
    if not isinstance(extent, int) or not isinstance(operator.dims[around], int):
        return False
    if extent == 1 or operator.dims[around] == 1:
        return False
    return all(stride(a, around) == stride(a, inner) * extent for a in (left, operator.out))


def _function(name: str, nest: CppNestPrinter, rows: int, columns: int) -> str:
    return f"contract_{name}<{_kind(nest.operator)}, {rows}, {columns}>"


def _kind(operator: Operator) -> str:
    return VALUE_TYPES[operator.out.buffer.dtype]
