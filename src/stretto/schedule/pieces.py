"""Pieces that a plan cuts a program into: what of a leaf's waits they need, and their registers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from stretto.device.expr import Reg
from stretto.device.flow import Backward, Loop
from stretto.device.operator import Kernel
from stretto.device.program import Item, Run, Schedule, Signal, Wait
from stretto.device.regions import kernel_reads, statement_reads
from stretto.device.tree import Call, Check, For, If, Leaf, Let, Node, reads, walk
from stretto.schedule.merge import Step


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

    def needed(wait: Wait, own: int) -> Iterator[Wait]:
        others = wait.others(own)
        units = [unit for unit in others if is_here(unit, wait.step)]
        if len(units) == len(others):
            yield wait
            return
        if not begins:
            yield Wait(wait.unit, 0, wait.count)
        yield from (Wait(unit, wait.step) for unit in units)

    def kept(own: int, items: list[Item]) -> Iterator[Item]:
        for item in items:
            if isinstance(item, Wait):
                yield from needed(item, own)
            else:
                yield item

    return Schedule(
        tuple(tuple(kept(own, items)) for own, items in enumerate(lists)), schedule.steps
    )


def _signalled(units: Sequence[Sequence[Item]]) -> set[tuple[int, int]]:
    """Units and the steps that they signal."""
    return {
        (unit, item.step)
        for unit, items in enumerate(units)
        for item in items
        if isinstance(item, Signal)
    }


def piece_registers(
    body: Node[Schedule], kernels: Mapping[str, Kernel]
) -> tuple[frozenset[Reg], frozenset[Reg]]:
    """The registers that a piece takes, and those that it assigns.

    It takes what is live before it when all that it assigns is live after it: what it may read
    before it has assigned it, and what it assigns on some ways only.
    """
    assigned = frozenset(_assigned(body))
    return _LiveRegisters(kernels).visit(body, assigned), assigned


class _LiveRegisters(Backward[Schedule, frozenset[Reg]]):
    """The registers that may be read before they are assigned again."""

    def __init__(self, kernels: Mapping[str, Kernel]) -> None:
        self._kernels = kernels

    def leaf(self, body: Schedule, after: frozenset[Reg]) -> frozenset[Reg]:
        # Every unit has the same assignments.
        return frozenset[Reg]().union(*(self._before(items, after) for items in body.units))

    def _before(self, items: Sequence[Item], live: frozenset[Reg]) -> frozenset[Reg]:
        for item in reversed(items):
            match item:
                case Run(kernel=name):
                    live |= kernel_reads(self._kernels[name])
                case Let(reg=reg):
                    live = live - {reg} | statement_reads(item)
                case Check():
                    live |= statement_reads(item)
                case _:
                    pass
        return live

    def call(self, call: Call[Schedule], after: frozenset[Reg]) -> frozenset[Reg]:
        return after - {mine for mine, _ in call.results} | reads(call)

    def merge(self, a: frozenset[Reg], b: frozenset[Reg]) -> frozenset[Reg]:
        return a | b

    def decide(self, node: Loop[Schedule] | If[Schedule], after: frozenset[Reg]) -> frozenset[Reg]:
        return after | reads(node)

    def begin(self, node: For[Schedule], after: frozenset[Reg]) -> frozenset[Reg]:
        return after - {node.index}


def _assigned(body: Node[Schedule]) -> Iterator[Reg]:
    for node in walk(body):
        match node:
            case Leaf(schedule):
                yield from (item.reg for item in schedule.statements if isinstance(item, Let))
            case For(index=index):
                yield index
            case Call(results=results):
                yield from (mine for mine, _ in results)
            case _:
                pass
