"""Pieces that a plan cuts a program into: what of a leaf's waits they need, and their registers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from stretto.device.expr import Reg
from stretto.device.operator import Kernel
from stretto.device.program import Item, Schedule, Signal, Wait
from stretto.device.regions import kernel_reads
from stretto.device.tree import Call, For, Leaf, Let, Node, walk
from stretto.device.verifier.assignment import Assigned, Assignment
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
    body: Node[Schedule], kernels: Mapping[str, Kernel], limits: frozenset[Reg]
) -> tuple[set[Reg], set[Reg]]:
    """The registers that a piece takes, and those that it assigns.

    It takes what it may read before it has assigned it, and what it assigns on some ways only.
    """
    taken: set[Reg] = set()

    def note(registers: Iterable[Reg], assigned: Assigned, _: str) -> None:
        taken.update(reg for reg in registers if reg.name not in assigned and reg not in limits)

    sure = Assignment(lambda name: kernel_reads(kernels[name]), note).end(body, frozenset())
    assigned = set(_assigned(body))
    return taken | {reg for reg in assigned if reg.name not in sure}, assigned


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
