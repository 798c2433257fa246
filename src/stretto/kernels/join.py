"""Joins a consumer with its producers into one group, when tasks stay independent.

Every task must compute, in its own tile, all that it reads of the producers, and every element of
a producer must be computed by exactly one task. The consumer's loads tell what a tile needs: ranges
of the producers' grid dims, tied to the tile of a consumer dim or fixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import prod

from stretto.device.expr import Access, Extent, Index, Load, Var, is_known, strides
from stretto.device.operator import Operator, Span
from stretto.device.regions import lies_before
from stretto.device.user_kernels import whole_dims
from stretto.ir.sizes import Size
from stretto.kernels.contraction import is_linear
from stretto.kernels.groups import Box, Group, Member, divisible


@dataclass(frozen=True, slots=True)
class Range:
    """The values offset .. offset + extent, tied to the tile of consumer dim `dim` unless that is
    None.
    """

    dim: int | None
    offset: int
    extent: Extent


MOST_SLICES = 16
"""Slices of one dim that a task takes one by one. Two decisions beside 256 values of a state are
129 of them, each a product of two columns."""

Assignment = tuple[Range, ...]
"""For each grid dim of a producer's group the range that the consumer's tile needs."""


def join(groups: list[Group], operator: Operator) -> Group | None:
    """The consumer and its producer groups as one group; None when a task would lack something."""
    if not divisible(operator) or operator.accumulate:
        return None
    if not _writes_apart(groups, operator):
        return None
    needed: list[set[Assignment]] = []
    for group in groups:
        assignments = _assignments(group, operator)
        if assignments is None:
            return None
        needed.append(assignments)
    kept = _kept_dims(needed, operator)
    members: list[Member] = []
    for group, assignments in zip(groups, needed, strict=True):
        fixed = _complete(group, sorted({_fix(a, kept) for a in assignments}, key=repr))
        if not _covers(group, fixed, operator):
            return None
        members.extend(_rebase(group, fixed, kept))
    box = tuple(
        Span(extent, kept.index(n), 0) if n in kept else Span(extent)
        for n, extent in enumerate(operator.dims)
    )
    return Group(tuple(operator.dims[n] for n in kept), (*members, Member(operator, (box,))))


def _writes_apart(groups: list[Group], operator: Operator) -> bool:
    """No task may write what another task of the kernel reads."""
    out = operator.out
    for load in operator.reads():
        if load.access.buffer == out.buffer and load.access != out:
            return False
    written = out.buffer
    if any(written in group.written for group in groups):
        return False
    if any(written in group.read and not _reads_before(group, operator) for group in groups):
        return False
    for a in groups:
        for b in groups:
            if a is not b and (a.written & (b.read | b.written)):
                return False
    return True


def _reads_before(group: Group, operator: Operator) -> bool:
    """Does a group read what an operator writes only before the rows that it writes?"""
    return all(
        lies_before(load.access, operator)
        for member in group.members
        for load in member.operator.reads()
        if load.access.buffer == operator.out.buffer
    )


def _assignments(group: Group, operator: Operator) -> set[Assignment] | None:
    found: set[Assignment] = set()
    for load in operator.reads():
        for member in group.members:
            if member.operator.out.buffer != load.access.buffer:
                continue
            options = [_assign(group, member.operator, box, load, operator) for box in member.boxes]
            usable = [option for option in options if option is not None]
            if not usable:
                return None
            found.add(usable[0])
    return found or None


def _assign(
    group: Group, producer: Operator, box: Box, load: Load, consumer: Operator
) -> Assignment | None:
    """What the consumer's tile asks of the producer's grid through one load, taken from one of its
    boxes.
    """
    wanted = producer_positions(producer, load.access)
    if wanted is None:
        return None
    ranges: list[Range | None] = [None] * len(group.grid)
    for span, position in zip(box, wanted, strict=True):
        found = _range_of(position, consumer)
        if span.grid is None:
            if not _inside(found, span):
                return None
            continue
        if found is None:
            found = Range(None, span.offset, group.grid[span.grid])
        shifted = Range(found.dim, found.offset - span.offset, found.extent)
        if ranges[span.grid] not in (None, shifted):
            return None
        ranges[span.grid] = shifted
    if any(r is None or not _within(r, e) for r, e in zip(ranges, group.grid, strict=True)):
        return None
    dims = [r.dim for r in ranges if r is not None and r.dim is not None]
    if len(dims) != len(set(dims)):
        return None
    return tuple(r for r in ranges if r is not None)


def _within(found: Range, extent: Extent) -> bool:
    if isinstance(found.extent, int) and isinstance(extent, int):
        return found.offset >= 0 and found.offset + found.extent <= extent
    return found.extent == extent and found.offset == 0


def _complete(group: Group, assignments: list[Assignment]) -> list[Assignment]:
    """Adds the parts that only a later consumer needs, where the wanted ones are equal slices of
    one dim.

    The cell state of an LSTM wants three of four gates; the fourth belongs into the same task.
    """
    first = assignments[0]
    for place, extent in enumerate(group.grid):
        size = first[place].extent
        if not isinstance(extent, int) or not isinstance(size, int) or size == extent:
            continue
        same = all(
            (a[:place], a[place + 1 :], a[place].dim, a[place].extent)
            == (first[:place], first[place + 1 :], first[place].dim, size)
            for a in assignments
        )
        if (
            not same
            or size == 1
            or extent % size
            or extent // size > MOST_SLICES
            or any(a[place].offset % size for a in assignments)
        ):
            return assignments
        ranges = [Range(first[place].dim, offset, size) for offset in range(0, extent, size)]
        return [(*first[:place], r, *first[place + 1 :]) for r in ranges]
    return assignments


def _inside(found: Range | None, span: Span) -> bool:
    if found is None:
        return span.offset == 0
    return _within(Range(found.dim, found.offset - span.offset, found.extent), span.extent)


def _range_of(index: Index, consumer: Operator) -> Range | None:
    """const, or one variable + const, as a range; None for anything else: the whole dim."""
    if index.is_const:
        return Range(None, index.const, 1)
    if len(index.terms) == 1:
        atom, factor = index.terms[0]
        if isinstance(atom, Var) and factor == 1:
            if atom.number < len(consumer.dims):
                return Range(atom.number, index.const, consumer.dims[atom.number])
            return Range(None, index.const, consumer.reduce[atom.number - len(consumer.dims)])
    return None


def producer_positions(producer: Operator, access: Access) -> tuple[Index, ...] | None:
    """Which element of the producer's parallel dims wrote the element that `access` reads."""
    out = producer.out
    index = access.index if access.shape == out.shape else reindex(access, out.shape)
    if index is None:
        return None
    wanted: list[Index | None] = [None] * len(producer.dims)
    for stored, asked in zip(out.index, index, strict=True):
        if not stored.vars():
            if stored != asked:
                return None
            continue
        if not stored.is_affine or len(stored.vars()) != 1:
            return None
        (number,) = stored.vars()
        if stored.coefficient(Var(number)) != 1 or number >= len(producer.dims):
            return None
        rest = stored + Index.of(Var(number)) * -1
        wanted[number] = asked + rest * -1
    full = [
        Index() if w is None and d == 1 else w for w, d in zip(wanted, producer.dims, strict=True)
    ]
    return None if any(w is None for w in full) else tuple(w for w in full if w is not None)


def reindex(access: Access, shape: tuple[Extent, ...]) -> tuple[Index, ...] | None:
    """The same element seen with another shape of the same memory, when that stays affine.

    Each term of the linear offset goes to the dim with the largest stride that divides its factor.
    That no dim overflows is then checked by the caller's ranges.
    """
    if not all(map(is_known, (*shape[1:], *access.shape[1:]))):
        return None
    offset = access.offset
    if not is_linear(offset):
        return None
    steps = strides(shape)
    indices = [Index() for _ in shape]
    rest = offset.const
    for n, step in enumerate(steps):
        if shape[n] != 1 and isinstance(step, int) and step:
            indices[n] = indices[n] + rest // step
            rest %= step
    for atom, factor in offset.terms:
        term = Index(((atom, factor),))
        for n, step in enumerate(steps):
            if shape[n] != 1 and (found := _exact(term, step)) is not None:
                indices[n] = indices[n] + found
                break
        else:
            return None
    return tuple(indices)


def _exact(term: Index, step: int | Size) -> Index | None:
    """The term over the step, if nothing is left over."""
    if step == 0:
        return None
    found = term // step
    return found if found * step == term else None


def _kept_dims(needed: list[set[Assignment]], operator: Operator) -> list[int]:
    """Consumer dims that tile every producer: the others must be whole in each task."""
    kept = {n for n, extent in enumerate(operator.dims) if extent != 1} - whole_dims(operator)
    for assignments in needed:
        for assignment in assignments:
            kept &= {r.dim for r in assignment if r.dim is not None}
    return sorted(kept)


def _fix(assignment: Assignment, kept: list[int]) -> Assignment:
    return tuple(Range(r.dim if r.dim in kept else None, r.offset, r.extent) for r in assignment)


def _covers(group: Group, assignments: list[Assignment], consumer: Operator) -> bool:
    """Every element of the producers is computed exactly once over all tasks."""
    if not all(_within(r, e) for a in assignments for r, e in zip(a, group.grid, strict=True)):
        return False
    if not all(_disjoint(a, b) for a, b in combinations(assignments, 2)):
        return False
    if len(assignments) == 1 and all(
        r.extent == extent for r, extent in zip(assignments[0], group.grid, strict=True)
    ):
        return True
    known = [n for n, extent in enumerate(group.grid) if isinstance(extent, int)]
    if any(
        a[n].extent != e for a in assignments for n, e in enumerate(group.grid) if n not in known
    ):
        return False
    total = sum(prod(_fixed(a[n].extent) for n in known) for a in assignments)
    return total == prod(_fixed(group.grid[n]) for n in known)


def _fixed(extent: Extent) -> int:
    assert isinstance(extent, int)
    return extent


def _disjoint(a: Assignment, b: Assignment) -> bool:
    for x, y in zip(a, b, strict=True):
        if not isinstance(x.extent, int) or not isinstance(y.extent, int):
            continue
        if x.offset + x.extent <= y.offset or y.offset + y.extent <= x.offset:
            return True
    return False


def _rebase(group: Group, assignments: list[Assignment], kept: list[int]) -> list[Member]:
    """The members of a producer's group over the consumer's grid."""
    members: list[Member] = []
    for member in group.members:
        boxes: list[Box] = []
        for assignment in assignments:
            for box in member.boxes:
                moved = tuple(_rebase_span(span, assignment, kept) for span in box)
                if moved not in boxes:
                    boxes.append(moved)
        members.append(Member(member.operator, tuple(boxes)))
    return members


def _rebase_span(span: Span, assignment: Assignment, kept: list[int]) -> Span:
    if span.grid is None:
        return span
    wanted = assignment[span.grid]
    offset = span.offset + wanted.offset
    if wanted.dim is None:
        return Span(wanted.extent, None, offset)
    return Span(wanted.extent, kept.index(wanted.dim), offset)
