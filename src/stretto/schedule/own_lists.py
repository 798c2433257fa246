"""Lists that one unit alone accesses in all functions but `main`.

What it does to them need not be over when one of these functions is called or returns: nobody else
asks before `main` goes on. So a recursion that pushes to lists in every activation waits once,
behind the call from `main`, and not at the end of each activation.

The verifier decides the same by a rule of its own (`device/verifier/assignment.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stretto.device.operator import Kernel
from stretto.device.regions import item_regions
from stretto.device.runs import called, reached
from stretto.device.tree import Call, TreeFunction, leaves, rotation, swaps, walk
from stretto.schedule.policy import LeafPlan, Placed

EVERYONE = -1
"""In place of a unit: more than one, or another way to come to the list."""


@dataclass(frozen=True, slots=True)
class OwnLists:
    """unit_of: who alone accesses a list, by its name. callees: what functions call."""

    unit_of: Mapping[str, int]
    accessed: Mapping[str, frozenset[str]]
    callees: Mapping[str, set[str]]

    def pending_behind(self, function: str) -> frozenset[int]:
        """The units whose accesses may not be over when a call from `main` returns."""
        if not self.unit_of:
            return frozenset()
        names = {
            name
            for one in (function, *reached(function, self.callees))
            for name in self.accessed[one]
        }
        return frozenset(self.unit_of[name] for name in names if name in self.unit_of)


NO_LISTS = OwnLists({}, {}, {})


def own_lists(functions: Sequence[TreeFunction[LeafPlan]]) -> OwnLists:
    """The lists of a planned program."""
    found: dict[str, int] = {}
    accessed: dict[str, frozenset[str]] = {}
    for function in functions:
        pairs = set(_accesses(function))
        accessed[function.name] = frozenset(name for name, _ in pairs)
        for name, unit in pairs if function.name != "main" else ():
            found[name] = unit if found.get(name, unit) == unit else EVERYONE
    for function in functions:
        for name in _other_names(function):
            found[name] = EVERYONE
    unit_of = {name: unit for name, unit in found.items() if unit != EVERYONE}
    return OwnLists(unit_of, accessed, {f.name: called(f.body) for f in functions})


def _accesses(function: TreeFunction[LeafPlan]) -> Iterator[tuple[str, int]]:
    """Each list that a function accesses, with the unit."""
    for plan in leaves(function.body):
        for placed in plan.placed:
            names = [r.buffer.name for r in item_regions(placed.item) if r.buffer.kind == "list"]
            units = _units(placed) if names else set[int]()
            yield from ((name, unit) for name in names for unit in units)


def _units(placed: Placed) -> set[int]:
    if isinstance(placed.item, Kernel):
        return {part.unit for part in placed.parts}
    return {EVERYONE}


def _other_names(function: TreeFunction[LeafPlan]) -> Iterator[str]:
    """The lists that have another name for a while."""
    for node in walk(function.body):
        if isinstance(node, Call):
            yield from (access.buffer.name for _, access in node.tensors)
        yield from swaps(rotation(node))
