"""Which lists one unit alone accesses in the functions that are called.

Of these something may be pending when a function is called or returns: only `main` can race with
it. `races` looks at what it does behind the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stretto.device.program import DeviceProgram, Schedule
from stretto.device.regions import Region
from stretto.device.runs import called, reached
from stretto.device.tree import Call, Node, leaves, rotation, swaps, walk
from stretto.device.verifier.touched import Touched

Relevant = Callable[[Region], bool]


def own_lists(program: DeviceProgram, touched: Touched) -> frozenset[str]:
    """The names of the lists that in all functions but `main` one unit accesses, always the same,
    and by this name only."""
    units: dict[str, set[int]] = {}
    shared: set[str] = set()
    for function in program.tree.functions:
        shared.update(_renamed(function.body))
        if function.name != "main":
            for schedule in leaves(function.body):
                for name, unit in _accesses(schedule, touched):
                    units.setdefault(name, set()).add(unit)
    return frozenset(name for name, own in units.items() if len(own) == 1) - shared


@dataclass(frozen=True, slots=True)
class OwnListCalls:
    """What is pending behind a call from `main`: what the functions that it comes to do to the
    lists of the names `own`."""

    program: DeviceProgram
    own: frozenset[str]

    def schedules(self, function: str) -> Iterator[Schedule]:
        """The leaves that a call of a function may come to."""
        functions = self.program.tree.functions
        callees = {one.name: called(one.body) for one in functions}
        names = {function, *reached(function, callees)}
        for one in functions:
            if one.name in names:
                yield from leaves(one.body)


def apart_from(own: frozenset[str], relevant: Relevant) -> Relevant:
    """The regions that are relevant and not of the lists of these names."""
    return lambda region: region.buffer.name not in own and relevant(region)


def _accesses(schedule: Schedule, touched: Touched) -> set[tuple[str, int]]:
    return {
        (region.buffer.name, unit)
        for unit, items in enumerate(schedule.units)
        for item in items
        for region in touched.regions(item)
        if region.buffer.kind == "list"
    }


def _renamed(body: Node[Schedule]) -> set[str]:
    """Buffers that are bound to parameters, or trade places."""
    found: set[str] = set()
    for node in walk(body):
        found.update(swaps(rotation(node)))
        if isinstance(node, Call):
            found.update(access.buffer.name for _, access in node.tensors)
    return found
