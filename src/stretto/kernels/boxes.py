"""Equal slices of one dim as one more dim.

Joining gives an operator several boxes in a task: four gates of an LSTM are four ranges of columns,
each of which feeds the same tile of the cell. Where they are equally far apart, the dim becomes
two, (gate, column), and the boxes one: a block then computes all gates at once.
"""

from __future__ import annotations

from dataclasses import replace

from stretto.kernels.expr import Access, Extent, Index, Var, substitute_index, substitute_vars
from stretto.kernels.groups import Box, Group, Member
from stretto.kernels.operator import Operator, Span


def merge_boxes(group: Group) -> Group:
    """The same group with fewer boxes where that can be done."""
    return Group(group.grid, tuple(_merged(member, group.grid) for member in group.members))


def _merged(member: Member, grid: tuple[Extent, ...]) -> Member:
    found = _slices(member.boxes, grid)
    if found is None:
        return member
    dim, step = found
    boxes, operator = member.boxes, member.operator
    first, size = boxes[0][dim], grid[boxes[0][dim].grid or 0]
    box = (*boxes[0][:dim], Span(len(boxes)), Span(size, first.grid), *boxes[0][dim + 1 :])
    return Member(split_dim(operator, dim, len(boxes), step, size, first.offset), (box,))


def _slices(boxes: tuple[Box, ...], grid: tuple[Extent, ...]) -> tuple[int, int] | None:
    """The only dim in which the boxes differ, and their equal distance."""
    if len(boxes) < 2:
        return None
    different = [n for n, spans in enumerate(zip(*boxes, strict=True)) if len(set(spans)) > 1]
    if len(different) != 1:
        return None
    (dim,) = different
    spans = [box[dim] for box in boxes]
    if any(s.grid is None or (s.grid, s.extent) != (spans[0].grid, spans[0].extent) for s in spans):
        return None
    size = grid[spans[0].grid or 0]
    step = spans[1].offset - spans[0].offset
    if not isinstance(size, int) or step < size:
        return None
    if any(span.offset != spans[0].offset + n * step for n, span in enumerate(spans)):
        return None
    return dim, step


def split_dim(
    operator: Operator, dim: int, count: int, step: int, size: Extent, first: int
) -> Operator:
    """Parallel dim `dim` as two: its values first + n * step + m, n below count, m below size."""
    total = len(operator.dims) + len(operator.reduce)
    value = Index.of(Var(dim)) * step + Var(dim + 1) + first
    variables = [Index.of(Var(n if n < dim else n + 1)) for n in range(total)]
    variables[dim] = value

    def place(index: Index) -> Index:
        return substitute_index(
            index,
            lambda atom: variables[atom.number] if isinstance(atom, Var) else Index.of(atom),
        )

    out = operator.out
    return replace(
        operator,
        dims=(*operator.dims[:dim], count, size, *operator.dims[dim + 1 :]),
        value=substitute_vars(operator.value, tuple(variables)),
        out=Access(out.buffer, out.shape, tuple(place(index) for index in out.index)),
    )
