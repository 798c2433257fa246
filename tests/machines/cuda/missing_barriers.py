"""Finds places of a printed program where a barrier is missing, on any way that a run may take.

Nothing is executed, so loops that a run does not come to, branches that it does not take and params
that may be one piece of memory count, too. What steps touch is what the printer knows of them
(`device/accesses.py`); whether that is right is seen by running programs under the race check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from stretto.device.accesses import BufferAccess, TouchedMemory
from stretto.device.program import DeviceProgram
from stretto.device.tree import Leaf, Node, children, rebuilt
from stretto.machines.cuda.printer.parts import ModuleParts
from stretto.schedule.barriers import (
    BARRIER_STEP,
    BarrierInsertion,
    Functions,
    LeafSteps,
    ProgramAccesses,
)


class Checker(BarrierInsertion):
    """Follows what is touched through steps as they are. missing: those that may meet what another
    thread of the unit has touched before."""

    missing: list[object]

    def placed(self, name: str) -> Node[LeafSteps]:
        self.missing = []
        return super().placed(name)

    def ordered(
        self, touched: TouchedMemory, accesses: Iterable[BufferAccess], units: int, what: object
    ) -> tuple[tuple[Leaf[LeafSteps], ...], TouchedMemory]:
        if self.meet(touched, map(touched.in_known_terms, accesses), units):
            self.missing.append(what)
        return (), touched


@dataclass(slots=True)
class Printed:
    """The functions of a program with barriers, as they are printed."""

    program: DeviceProgram
    parts: ModuleParts = field(init=False)

    def __post_init__(self) -> None:
        self.parts = ModuleParts(self.program, inline=False, warps=4, kept=())

    @property
    def functions(self) -> Functions:
        return self.parts.functions

    def missing(self, functions: Functions) -> list[object]:
        """Where a barrier is missing in these functions."""
        phases = {name: text.phases for name, text in self.parts.texts.items()}
        accessed = ProgramAccesses(self.program, phases)
        checkers = {name: Checker(accessed, one) for name, one in functions.items()}
        accessed.followed(checkers)
        return [what for checker in checkers.values() for what in checker.missing]

    def removals(self) -> Iterator[tuple[str, Functions]]:
        """The functions without one barrier, for each of them, and what stands behind it."""
        for name, function in self.functions.items():
            for place, changed in _without_one(function.body):
                yield f"{name}: {place}", {**self.functions, name: function.with_body(changed)}


def _without_one(node: Node[LeafSteps]) -> Iterator[tuple[str, Node[LeafSteps]]]:
    if isinstance(node, Leaf):
        items = node.body.items
        for place, step in enumerate(items):
            if step == BARRIER_STEP:
                behind = items[place + 1 :]
                what = str(behind[0] if behind else "the end")
                yield what, Leaf(LeafSteps((*items[:place], *behind)))
        return
    inner = children(node)
    for place, child in enumerate(inner):
        for what, changed in _without_one(child):
            yield what, rebuilt(node, (*inner[:place], changed, *inner[place + 1 :]))
