"""Cut the rows of a task into register blocks without unused rows.

The rows of a block are divided among warps, and each warp has a power of two of them. 20 rows on 8
warps would take 4 per warp, a block of 32 rows; cut into 16 and 4 they take 3. A task with fewer
rows than warps leaves warps idle: a block with fewer rows would get a layout in which results pass
through shared memory.

The kernel is printed once per piece, as the task of a smaller tile: tasks are independent wherever
the grid is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from stretto.device.operator import Kernel, Stage, Template
from stretto.machines.cuda.printer.stage_nest import GridBound
from stretto.machines.cuda.template import power
from stretto.machines.cuda.templates.pointwise import Map
from stretto.machines.cuda.templates.reduction import Reduce
from stretto.machines.statements import StatementBuilder
from stretto.machines.terms import call, literal, total, variable


@dataclass(frozen=True, slots=True)
class RowPiece:
    """The stages for some rows of a task, and their bounds in each grid dim."""

    stages: tuple[Stage, ...]
    grid: tuple[GridBound, ...]


def row_pieces(
    kernel: Kernel, grid: tuple[GridBound, ...], warps: int, out: StatementBuilder
) -> Iterator[RowPiece]:
    """Yield the pieces of a task in order; the whole task if it is not cut.

    grid: the bounds of the task. Before a piece is yielded, its bounds are computed into `out`.
    """
    dim = _row_dim(kernel)
    tile = grid[dim].tile if dim is not None else 0
    each = _counts(ceil(tile / warps)) if isinstance(tile, int) else []
    if dim is None or not isinstance(tile, int) or (len(each) <= 1 and tile >= warps):
        yield RowPiece(kernel.stages, grid)
        return
    start = 0
    for number, count in enumerate(each):
        rows = min(count * warps, tile - start)
        bound = _bound(grid[dim], dim, start, rows, number, out)
        stages = tuple(_of_rows(stage, count * warps) for stage in kernel.stages)
        yield RowPiece(stages, (*grid[:dim], bound, *grid[dim + 1 :]))
        start += rows


def _row_dim(kernel: Kernel) -> int | None:
    """Return the grid dim whose tiles are the rows of all stages, each row belonging to one warp;
    None if there is no such dim."""
    templates = [stage.template for stage in kernel.stages]
    if not all(isinstance(template, Map) or _has_dealt_rows(template) for template in templates):
        return None
    if not any(_has_dealt_rows(template) for template in templates):
        return None
    found = {dim for stage in kernel.stages for dim in _long_dims(kernel, stage)}
    each = all(len(_long_dims(kernel, stage)) == 1 for stage in kernel.stages)
    return found.pop() if each and len(found) == 1 else None


def _has_dealt_rows(template: Template | None) -> bool:
    return isinstance(template, Reduce) and template.holds_rows and not template.unroll


def _long_dims(kernel: Kernel, stage: Stage) -> list[int | None]:
    """Return the grid dims of a stage's dims that have more than one value in a task."""
    return [
        span.grid
        for span in stage.box
        if (span.extent if span.grid is None else kernel.grid[span.grid].tile) != 1
    ]


def _counts(rows: int) -> list[int]:
    """Return one power of two that holds `rows`, or two of them if they sum to less; more pieces
    would not be worth their code size."""
    if rows <= 1:
        return [1]
    first = power(rows) // 2
    second = power(rows - first)
    return [first, second] if second < first else [2 * first]


def _bound(
    whole: GridBound, dim: int, start: int, rows: int, number: int, out: StatementBuilder
) -> GridBound:
    """Return the bounds of some rows of a tile."""
    first = total(whole.first, literal(start) if start else None)
    if first is not None and start:
        name = variable(f"g{dim}_{number}")
        out.assign(name, first)
        first = name
    count = literal(1) if rows == 1 else None
    if whole.count is not None:
        count = variable(f"e{dim}_{number}")
        out.assign(count, call("tl.minimum", whole.count - start, rows))
    # A tile of 1 would have no lanes at all, but the row is one of a block.
    return GridBound(first, max(rows, 2), count, whole.extent)


def _of_rows(stage: Stage, rows: int) -> Stage:
    if isinstance(stage.template, Reduce):
        return replace(stage, template=replace(stage.template, rows=rows))
    return stage
