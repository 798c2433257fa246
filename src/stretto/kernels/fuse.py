"""Vertical fusion: operators of one leaf are grouped into kernels.

A consumer joins the groups of its producers when each task can compute, in its own tile, all that
it reads from them, and nothing is computed twice: the columns of four gates feed one tile of an
LSTM cell, a row maximum and a row sum feed the row of a softmax. The stages of a task hand over
through the same buffers as ever; that only the task itself reads what it wrote is what removes the
wait. (Rammer, section 4, schedules rTasks of different operators next to each other; here they
become one task when their dependence is tile by tile.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from stretto.device.costs import CostModel
from stretto.device.expr import Buffer, Reg, Var, expr_regs, limit_register, loads
from stretto.device.forms import Items
from stretto.device.operator import LibraryCall, Operator
from stretto.device.regions import call_buffers
from stretto.device.tree import Check, Let
from stretto.kernels.channels_last import pixel_convolution_of
from stretto.kernels.contraction import contraction_of
from stretto.kernels.groups import Group, Grouped, single
from stretto.kernels.join import join
from stretto.remarks import Remarks

Judge = Callable[[list[Group], Operator, Group], str | None]
"""`judge(groups, operator, joined)`: why the operator is better in a kernel of its own than in one
with its producers, or None."""


def fuse(items: Items, judge: Judge, remarks: Remarks) -> tuple[Grouped, ...]:
    """Groups the operators of a leaf, in an order that keeps every dependence."""
    done: list[_Placed] = []
    for item in items:
        if isinstance(item, Operator):
            _add(done, item, judge, remarks)
        else:
            done.append(_Placed.of(item))
    return tuple(placed.item for placed in done)


def split(items: Items) -> tuple[Grouped, ...]:
    """Each operator a kernel of its own (fusion switched off)."""
    return tuple(single(item) if isinstance(item, Operator) else item for item in items)


@dataclass(frozen=True, slots=True)
class _Placed:
    """An item at its place in the order, with what it reads and writes."""

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
    """May the chosen groups move down to `place`, and the consumer up to it?"""
    for number in chosen:
        between = [done[n] for n in range(number + 1, place) if n not in chosen]
        if not all(done[number].is_independent_of(other) for other in between):
            return False
    return all(done[n].is_independent_of(consumer) for n in range(place + 1, len(done)))


def independent(a: Grouped, b: Grouped) -> bool:
    """True when the order of two items does not matter.

    A check counts as writing the registers it tests: what uses them stays behind it. What touches
    a list that grows uses the register of its capacity.
    """
    return _Placed.of(a).is_independent_of(_Placed.of(b))


def _effects(item: Grouped) -> tuple[set[Buffer | Reg], set[Buffer | Reg]]:
    """(what an item reads, what it writes): buffers and registers."""
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
    """How many tasks a group could give.

    Along the contiguous dim of the operator that does most of the work a vector counts as one. A
    task of a convolution of images whose channels are contiguous has whole rows.
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
    """The dims of the grid along which a convolution would be cut within a row."""
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
    """Joining must leave the bulk of the work enough tasks for all units, unless it is small.

    An argmax behind a large product would pull the product into its one task.
    """
    parts = [(group, sum(costs.work(m.operator) for m in group.members)) for group in groups]
    parts.append((single(operator), costs.work(operator)))
    total = sum(size for _, size in parts)
    if total <= costs.small_work:
        return None
    if _shares_an_operand(operator, joined):
        return "each task would read all of an operand, and tiles of its own read it less often"
    before = max(parallelism(group, costs) for group, size in parts if 10 * size >= total)
    tasks, wanted = parallelism(joined, costs), min(before, 4 * units)
    return None if tasks >= wanted else f"one kernel would have {tasks} tasks instead of {wanted}"


def _shares_an_operand(operator: Operator, joined: Group) -> bool:
    """Would every task of a contraction read all of an operand that does not depend on the tile?

    Then its own tiles, by columns that stay in a unit's cache, beat those of its producers. Heads
    of an attention have operands of their own.
    """
    found = contraction_of(operator)
    if found is None:
        return False
    (box,) = joined.members[-1].boxes
    return any(span.grid is not None and dim not in found.batch for dim, span in enumerate(box))
