"""Finds places of a printed program where a barrier is missing, on any way that a run may take.

Nothing is executed, so loops that a run does not come to, branches that it does not take and params
that may be one piece of memory count, too. What statements touch is what the printer knows of them
(`printer/accesses.py`); whether that is right is seen by running programs under the race check.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from stretto.device.program import DeviceProgram
from stretto.machines import statements as code
from stretto.machines.cuda.printer.barriers import Barriers
from stretto.machines.cuda.printer.function import TeamPrinter
from stretto.machines.cuda.printer.parts import ModuleParts
from stretto.machines.cuda.printer.scalar import BARRIER
from stretto.machines.cuda.printer.states import StateMachine
from stretto.machines.cuda.printer.touched import STACK_READ, Touched

Bodies = dict[str, code.Block]
"""The statements of each function."""


@dataclass(slots=True)
class Checker(Barriers):
    """Follows what is touched through statements as they are. missing: those that may meet what
    another thread of the unit has touched before."""

    missing: list[code.Statement | str] = field(default_factory=list[code.Statement | str])

    def placed(self, block: code.Block, before: Touched, units: int) -> tuple[code.Block, Touched]:
        for statement in block:
            if statement == BARRIER:
                before = before.without(units)
                continue
            here = units & (statement.units if isinstance(statement, code.Run) else code.EVERY)
            if self.meet(before, map(before.seen, self.first_accesses(statement)), here):
                self.missing.append(statement)
            _, before = self.through(statement, before, units)
        return block, before

    def check(self, name: str, block: code.Block) -> None:
        every = self.accessed.every
        before = self.accessed.entries.get(name, Touched())
        _, touched = self.placed(block, before, every)
        if name == "main":
            return
        if self.meet(touched, (STACK_READ,), every):
            self.missing.append(f"the return from {name}")
        self.accessed.add(self.accessed.exits, name, touched.plus((STACK_READ,), every))


@dataclass(slots=True)
class Printed:
    """A program before its functions are cut into pieces: the statements with barriers."""

    program: DeviceProgram
    printers: dict[str, TeamPrinter] = field(init=False)
    bodies: Bodies = field(init=False)

    def __post_init__(self) -> None:
        parts = ModuleParts(self.program, inline=False, warps=4, kept=())
        if parts.recursive:
            machine = StateMachine(parts)
            self.bodies = machine.bodies()
            self.printers = {name: r.printer for name, r in machine.routines.items()}
        else:
            main = TeamPrinter(parts, self.program.tree.main)
            main.whole()
            self.printers, self.bodies = {"main": main}, {"main": main.finished()}

    def missing(self, bodies: Bodies) -> list[code.Statement | str]:
        """Where a barrier is missing in these statements of the functions."""
        placers = {name: printer.barriers() for name, printer in self.printers.items()}
        accessed = next(iter(placers.values())).accessed
        accessed.entries.clear()
        accessed.exits.clear()
        while True:
            accessed.changed = False
            found: list[code.Statement | str] = []
            for name, block in bodies.items():
                one = placers[name]
                checker = Checker(one.accessed, one.sharing, one.buffers, one.registers)
                checker.check(name, block)
                found += checker.missing
            if not accessed.changed:
                return found

    def removals(self) -> Iterator[tuple[str, Bodies]]:
        """The functions without one barrier, for each of them, and what stands behind it."""
        for name, body in self.bodies.items():
            for place, changed in _without_one(body):
                yield f"{name}: {place}", {**self.bodies, name: changed}


def _without_one(block: code.Block) -> Iterator[tuple[str, code.Block]]:
    for place, statement in enumerate(block):
        before, behind = block[:place], block[place + 1 :]
        if statement == BARRIER:
            yield str(behind[0] if behind else "the end"), (*before, *behind)
            continue
        for changed_place, changed in _inside(statement):
            yield changed_place, (*before, changed, *behind)


def _inside(statement: code.Statement) -> Iterator[tuple[str, code.Statement]]:
    match statement:
        case code.If(_, then, orelse):
            yield from ((at, replace(statement, then=one)) for at, one in _without_one(then))
            yield from ((at, replace(statement, orelse=one)) for at, one in _without_one(orelse))
        case code.Loop(_, head, body):
            yield from ((at, replace(statement, head=one)) for at, one in _without_one(head))
            yield from ((at, replace(statement, body=one)) for at, one in _without_one(body))
        case code.For(body=body) | code.Section(body=body):
            yield from ((at, replace(statement, body=one)) for at, one in _without_one(body))
        case _:
            pass
