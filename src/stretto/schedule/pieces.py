"""Pieces that a plan cuts a program into: what of a leaf's waits they need, and their registers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto.kernels.expr import Buffer, Position, Reg, expr_regs
from stretto.kernels.operator import Kernel
from stretto.kernels.regions import kernel_regs
from stretto.kernels.tree import Call, Check, For, If, Leaf, Let, Node, Seq, While, walk
from stretto.schedule.merge import Step
from stretto.schedule.program import Item, Run, Schedule, Signal, Wait


def rotating(node: Node[Any]) -> set[Buffer]:
    """The buffers that loops let trade places."""
    return {
        buffer
        for item in walk(node)
        if isinstance(item, For | While)
        for pair in item.rotate
        for buffer in pair
    }


def piece(steps: Iterable[Step], schedule: Schedule, begins: bool) -> Schedule:
    """A leaf of some steps.

    A wait for what stands before the piece, in another one or before the whole leaf, becomes a wait
    for the piece's beginning; where a launch `begins` with the piece it is left out, for all that
    came before has ended.
    """
    lists: list[list[Item]] = [[] for _ in schedule.units]
    for step in steps:
        for unit, items in step.items(len(lists)):
            lists[unit] += items
    here, anywhere = _signalled(lists), _signalled(schedule.units)

    def is_here(unit: int, step: int) -> bool:
        """The end of a piece publishes what a unit does last, without a signal."""
        return (unit, step) in here or bool(
            step > 0 and lists[unit] and (unit, step) not in anywhere
        )

    def needed(wait: Wait) -> Iterator[Wait]:
        everyone = range(wait.unit, wait.unit + wait.count)
        units = [unit for unit in everyone if is_here(unit, wait.step)]
        if len(units) == wait.count:
            yield wait
            return
        if not begins:
            yield Wait(wait.unit, 0, wait.count)
        yield from (Wait(unit, wait.step) for unit in units)

    def kept(items: list[Item]) -> Iterator[Item]:
        for item in items:
            if isinstance(item, Wait):
                yield from needed(item)
            else:
                yield item

    return Schedule(tuple(tuple(kept(items)) for items in lists), schedule.steps)


def _signalled(units: Sequence[Sequence[Item]]) -> set[tuple[int, int]]:
    """Units and the steps that they signal."""
    return {
        (unit, item.step)
        for unit, items in enumerate(units)
        for item in items
        if isinstance(item, Signal)
    }


@dataclass(slots=True)
class PieceRegisters:
    """Registers of a piece: `read` before the piece has surely assigned them, and `assigned`."""

    kernels: dict[str, Kernel]
    limits: frozenset[Reg]
    read: set[Reg] = field(default_factory=set[Reg])
    assigned: set[Reg] = field(default_factory=set[Reg])

    def use(self, regs: Iterable[Reg], sure: frozenset[Reg]) -> None:
        self.read |= {reg for reg in regs if reg not in sure and reg not in self.limits}

    def visit(self, node: Node[Schedule], sure: frozenset[Reg]) -> frozenset[Reg]:
        """`sure`: what is assigned on every way to the node; gives the same after it."""
        match node:
            case Leaf(schedule):
                ends = [self.items(items, sure) for items in dict.fromkeys(schedule.units)]
                return ends[0] if ends else sure
            case Seq(children):
                for child in children:
                    sure = self.visit(child, sure)
                return sure
            case For(index, start, stop, _, body, _):
                self.use(expr_regs(start) | expr_regs(stop), sure)
                self.assigned.add(index)
                self.visit(body, sure | {index})
                return sure
            case While(head, condition, body, _):
                tested = self.visit(head, sure)
                self.use((condition,), tested)
                self.visit(body, tested)
                return tested
            case If(condition, then, orelse):
                self.use((condition,), sure)
                return self.visit(then, sure) & self.visit(orelse, sure)
            case Call(_, registers, tensors, results):
                for _, expr in registers:
                    self.use(expr_regs(expr), sure)
                for _, access in tensors:
                    self.use(expr_regs(Position(access.offset)), sure)
                mine = frozenset(reg for reg, _ in results)
                self.assigned |= mine
                return sure | mine

    def items(self, items: Iterable[Item], sure: frozenset[Reg]) -> frozenset[Reg]:
        for item in items:
            match item:
                case Let(reg, value):
                    self.use(expr_regs(value), sure)
                    self.assigned.add(reg)
                    sure |= {reg}
                case Check():
                    for expr in item.exprs:
                        self.use(expr_regs(expr), sure)
                case Run(kernel=name):
                    self.use(kernel_regs(self.kernels[name]), sure)
                case _:
                    pass
        return sure
