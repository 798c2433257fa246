"""Vertical fusion: the operators of one leaf are grouped into kernels.

A consumer joins the groups of its producers if each task can compute, in its own tile, all that
it reads from them, and nothing is computed twice: the columns of four gates feed one tile of an
LSTM cell; a row maximum and a row sum feed the row of a softmax. The stages of a task still
communicate through the same buffers; no wait is needed because only the task itself reads what
it wrote. (Rammer, section 4, schedules rTasks of different operators next to each other; here
they become one task if their dependence is tile by tile.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from math import prod

from stretto.device.costs import CostModel
from stretto.device.expr import (
    Access,
    Buffer,
    Extent,
    Index,
    Load,
    Reg,
    Var,
    expr_regs,
    is_known,
    limit_register,
    loads,
    strides,
)
from stretto.device.forms import Items
from stretto.device.operator import LibraryCall, Operator, Span
from stretto.device.regions import call_buffers, lies_before
from stretto.device.tree import Check, Let
from stretto.device.user_kernels import whole_dims
from stretto.ir.sizes import Size
from stretto.kernels.channels_last import pixel_convolution_of
from stretto.kernels.contraction import contraction_of, is_linear
from stretto.kernels.groups import Box, Group, Grouped, Member, divisible, single, tiled
from stretto.remarks import Remarks

# ---- Joining a consumer with its producers, if tasks stay independent -------------------------
#
# Every task must compute, in its own tile, all that it reads of the producers, and every element
# of a producer must be computed by exactly one task. The consumer's loads determine what a tile
# needs: ranges of the producers' grid dims, either fixed or tied to the tile of a consumer dim.


@dataclass(frozen=True, slots=True)
class TileRange:
    """The values offset .. offset + extent, tied to the tile of consumer dim `dim` unless that is
    None."""

    dim: int | None
    offset: int
    extent: Extent


MOST_SLICES = 16
"""Most slices of one dim that a task computes one by one. Two decisions next to 256 values of a
state would be 129 slices, each a product of two columns."""

Assignment = tuple[TileRange, ...]
"""The range that the consumer's tile needs of each grid dim of a producer's group."""


def join(groups: list[Group], operator: Operator) -> Group | None:
    """Return the consumer and its producer groups as one group; None if tasks would not be
    independent."""
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
    return tiled(operator, kept, members)


def _writes_apart(groups: list[Group], operator: Operator) -> bool:
    """True if no task writes what another task of the kernel reads."""
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
    """True if a group reads of the operator's output only rows before those that the operator
    writes."""
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
    """Return the ranges of the producer's grid that the consumer's tile needs for one load and one
    of the producer's boxes; None if they cannot be tied to the grid."""
    wanted = producer_positions(producer, load.access)
    if wanted is None:
        return None
    ranges: list[TileRange | None] = [None] * len(group.grid)
    for span, position in zip(box, wanted, strict=True):
        found = _range_of(position, consumer)
        if span.grid is None:
            if not _inside(found, span):
                return None
            continue
        if found is None:
            found = TileRange(None, span.offset, group.grid[span.grid])
        shifted = TileRange(found.dim, found.offset - span.offset, found.extent)
        if ranges[span.grid] not in (None, shifted):
            return None
        ranges[span.grid] = shifted
    if any(r is None or not _within(r, e) for r, e in zip(ranges, group.grid, strict=True)):
        return None
    dims = [r.dim for r in ranges if r is not None and r.dim is not None]
    if len(dims) != len(set(dims)):
        return None
    return tuple(r for r in ranges if r is not None)


def _within(found: TileRange, extent: Extent) -> bool:
    if isinstance(found.extent, int) and isinstance(extent, int):
        return found.offset >= 0 and found.offset + found.extent <= extent
    return found.extent == extent and found.offset == 0


def _complete(group: Group, assignments: list[Assignment]) -> list[Assignment]:
    """Add the slices that only a later consumer needs, if the wanted ones are equal slices of
    one dim.

    The cell state of an LSTM needs three of four gates; the fourth belongs in the same task.
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
        ranges = [TileRange(first[place].dim, offset, size) for offset in range(0, extent, size)]
        return [(*first[:place], r, *first[place + 1 :]) for r in ranges]
    return assignments


def _inside(found: TileRange | None, span: Span) -> bool:
    if found is None:
        return span.offset == 0
    return _within(TileRange(found.dim, found.offset - span.offset, found.extent), span.extent)


def _range_of(index: Index, consumer: Operator) -> TileRange | None:
    """Return a constant, or one variable plus a constant, as a range; None (the whole dim)
    otherwise."""
    if index.is_const:
        return TileRange(None, index.const, 1)
    if len(index.terms) == 1:
        atom, factor = index.terms[0]
        if isinstance(atom, Var) and factor == 1:
            if atom.number < len(consumer.dims):
                return TileRange(atom.number, index.const, consumer.dims[atom.number])
            return TileRange(None, index.const, consumer.reduce[atom.number - len(consumer.dims)])
    return None


def producer_positions(producer: Operator, access: Access) -> tuple[Index, ...] | None:
    """Return the position in the producer's parallel dims that wrote the element `access` reads,
    or None."""
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
    """Return the indices of the same element in another shape of the same memory; None if not
    affine.

    Each term of the linear offset goes to the dim with the largest stride that divides its
    factor. The caller's ranges then check that no dim overflows.
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
    """Return term / step if there is no remainder, else None."""
    if step == 0:
        return None
    found = term // step
    return found if found * step == term else None


def _kept_dims(needed: list[set[Assignment]], operator: Operator) -> list[int]:
    """Return the consumer dims that tile every producer; the others are whole in each task."""
    kept = {n for n, extent in enumerate(operator.dims) if extent != 1} - whole_dims(operator)
    for assignments in needed:
        for assignment in assignments:
            kept &= {r.dim for r in assignment if r.dim is not None}
    return sorted(kept)


def _fix(assignment: Assignment, kept: list[int]) -> Assignment:
    return tuple(
        TileRange(r.dim if r.dim in kept else None, r.offset, r.extent) for r in assignment
    )


def _covers(group: Group, assignments: list[Assignment], consumer: Operator) -> bool:
    """True if every element of the producers is computed exactly once over all tasks."""
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
    """Return the members of a producer's group over the consumer's grid."""
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


Judge = Callable[[list[Group], Operator, Group], str | None]
"""`judge(groups, operator, joined)` returns why the operator is better in a separate kernel than
in one with its producers, or None."""


def fuse(items: Items, judge: Judge, remarks: Remarks) -> tuple[Grouped, ...]:
    """Group the operators of a leaf, in an order that respects every dependence."""
    done: list[_Placed] = []
    for item in items:
        if isinstance(item, Operator):
            _add(done, item, judge, remarks)
        else:
            done.append(_Placed.of(item))
    return tuple(placed.item for placed in done)


def split(items: Items) -> tuple[Grouped, ...]:
    """Put each operator in a separate kernel (fusion switched off)."""
    return tuple(single(item) if isinstance(item, Operator) else item for item in items)


@dataclass(frozen=True, slots=True)
class _Placed:
    """An item of the new order, with the buffers and registers that it reads and writes."""

    item: Grouped
    reads: set[Buffer | Reg]
    writes: set[Buffer | Reg]

    @staticmethod
    def of(item: Grouped) -> _Placed:
        return _Placed(item, *_effects(item))

    def is_independent_of(self, other: _Placed) -> bool:
        return (
            self.writes.isdisjoint(other.writes)
            and self.writes.isdisjoint(other.reads)
            and self.reads.isdisjoint(other.writes)
        )


def _add(done: list[_Placed], operator: Operator, judge: Judge, remarks: Remarks) -> None:
    consumer = _Placed.of(single(operator))
    sources = {load.access.buffer for load in operator.reads()}
    producers = [
        n
        for n, placed in enumerate(done)
        if isinstance(placed.item, Group) and not placed.writes.isdisjoint(sources)
    ]
    chosen: list[int] = []
    merged: Group | None = None
    for number in reversed(producers):
        place = max([number, *chosen])
        items = [done[n].item for n in sorted([*chosen, number])]
        groups = [item for item in items if isinstance(item, Group)]
        candidate = None
        if not _can_gather(done, [*chosen, number], place, consumer):
            reason = "something between them must run after the producer and before the operator"
        elif (candidate := join(groups, operator)) is None:
            reason = "a task would need elements that other tasks compute"
        else:
            reason = judge(groups, operator, candidate)
        if reason is None:
            merged, chosen = candidate, [*chosen, number]
        else:
            producer = groups[0].members[-1].operator.name
            remarks.decline("fuse", f"{operator.name} with {producer}", reason, operator.source)
    if merged is None:
        done.append(consumer)
        return
    place = max(chosen)
    done[place] = _Placed.of(merged)
    for number in sorted(chosen, reverse=True):
        if number != place:
            del done[number]


def _can_gather(done: list[_Placed], chosen: list[int], place: int, consumer: _Placed) -> bool:
    """True if the chosen groups can move down to `place`, and the consumer up to it."""
    for number in chosen:
        between = [done[n] for n in range(number + 1, place) if n not in chosen]
        if not all(done[number].is_independent_of(other) for other in between):
            return False
    return all(done[n].is_independent_of(consumer) for n in range(place + 1, len(done)))


def independent(a: Grouped, b: Grouped) -> bool:
    """True if the order of two items does not matter.

    A check counts as writing the registers it tests, so that their uses stay after it. An
    access to a list that grows counts as reading the register of its capacity.
    """
    return _Placed.of(a).is_independent_of(_Placed.of(b))


def _effects(item: Grouped) -> tuple[set[Buffer | Reg], set[Buffer | Reg]]:
    """Return the buffers and registers that an item reads, and those that it writes."""
    match item:
        case Group():
            reads: set[Buffer | Reg] = set(item.read)
            for member in item.members:
                reads |= _operator_regs(member.operator)
            growing = (b for b in item.read | item.written if b.kind == "list")
            return reads | {limit_register(b.slot) for b in growing}, set(item.written)
        case LibraryCall():
            registers = {operand for operand in item.operands if isinstance(operand, Reg)}
            return {*call_buffers(item), *registers}, {*item.outs}
        case Let(reg, value):
            return {*expr_regs(value), *(load.access.buffer for load in loads(value))}, {reg}
        case Check():
            regs = {reg for expr in item.exprs for reg in expr_regs(expr)}
            read = {load.access.buffer for expr in item.exprs for load in loads(expr)}
            return {*regs, *read}, {*regs}


def _operator_regs(operator: Operator) -> set[Buffer | Reg]:
    found: set[Buffer | Reg] = set(expr_regs(operator.value))
    found |= {
        atom for index in operator.out.index for atom in index.atoms() if isinstance(atom, Reg)
    }
    return found | {dim for dim in (*operator.dims, *operator.reduce) if isinstance(dim, Reg)}


# ---- profit ----------------------------------------------------------------------------------


def parallelism(group: Group, costs: CostModel) -> int:
    """Return the number of tasks that a group could have.

    Along the contiguous dim of the operator that does most of the work, a vector counts as one.
    A task of a convolution of channels-last images has whole rows.
    """
    sizes = [costs.parallelism(dim) for dim in group.grid]
    for grid in _columns(group):
        sizes[grid] = 1
    main = max(group.members, key=lambda member: costs.work(member.operator))
    offset = main.operator.out.offset
    vectors = {
        span.grid
        for box in main.boxes
        for dim, span in enumerate(box)
        if span.grid is not None and offset.coefficient(Var(dim)) == 1
    }
    return prod(
        (-(-size // costs.vector) if n in vectors else size for n, size in enumerate(sizes)),
        start=1,
    )


def _columns(group: Group) -> set[int]:
    """Return the grid dims along which tiles would cut a row of a channels-last convolution."""
    return {
        span.grid
        for member in group.members
        if len(member.operator.dims) == 4 and member.operator.dims[1] != 1
        if pixel_convolution_of(member.operator) is not None
        for box in member.boxes
        if (span := box[2]).grid is not None
    }


def apart_reason(
    groups: list[Group], operator: Operator, joined: Group, units: int, costs: CostModel
) -> str | None:
    """Return why the operator is better in a separate kernel, or None.

    Joining must leave the bulk of the work enough tasks for all units, unless there is little
    work. An argmax after a large product would pull the product into its one task.
    """
    parts = [(group, sum(costs.work(m.operator) for m in group.members)) for group in groups]
    parts.append((single(operator), costs.work(operator)))
    total = sum(size for _, size in parts)
    if total <= costs.small_work:
        return None
    if _shares_an_operand(operator, joined):
        return "each task would read all of an operand, which a separate kernel reads less often"
    before = max(parallelism(group, costs) for group, size in parts if 10 * size >= total)
    tasks, wanted = parallelism(joined, costs), min(before, 4 * units)
    return None if tasks >= wanted else f"one kernel would have {tasks} tasks instead of {wanted}"


def _shares_an_operand(operator: Operator, joined: Group) -> bool:
    """True if every task of a contraction would read all of an operand that does not depend on
    the tile.

    Then tiles of a separate kernel, by columns that stay in a unit's cache, are faster than
    those of its producers. Each head of an attention has separate operands.
    """
    found = contraction_of(operator)
    if found is None:
        return False
    (box,) = joined.members[-1].boxes
    return any(span.grid is not None and dim not in found.batch for dim, span in enumerate(box))
