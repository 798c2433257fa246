"""The items of a leaf and what must come before what."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.device.operator import Kernel
from stretto.device.regions import (
    Body,
    Region,
    Statement,
    item_regions,
    kernel_reads,
    overlap,
    statement_reads,
)
from stretto.device.tree import Check, Let


@dataclass(frozen=True, slots=True)
class Node:
    """An item of a leaf. `before`: indices of items that must come first; `depth`: its level."""

    index: int
    item: Statement
    regions: tuple[Region, ...]
    before: tuple[int, ...]
    depth: int


def leaf_nodes(body: Body) -> tuple[Node, ...]:
    """The dependence graph of straight-line code, in program order.

    An item depends on earlier ones that access the same memory (one of them writing), that assign
    or read the registers at hand, and on every earlier check: what follows a check may rely on it.
    """
    nodes: list[Node] = []
    finder = _Finder()
    for index, item in enumerate(body):
        regions = item_regions(item)
        before = finder.before(index, item, regions)
        depth = 1 + max((nodes[other].depth for other in before), default=-1)
        nodes.append(Node(index, item, regions, tuple(sorted(before)), depth))
    return tuple(nodes)


class _Finder:
    """What earlier items of the leaf have accessed."""

    def __init__(self) -> None:
        self._reads: dict[str, list[tuple[int, Region]]] = {}
        self._writes: dict[str, list[tuple[int, Region]]] = {}
        self._assigned: dict[str, int] = {}
        self._readers: dict[str, list[int]] = {}
        self._statement: int | None = None
        self._check: int | None = None

    def before(self, index: int, item: Statement, regions: tuple[Region, ...]) -> set[int]:
        """The items that must come before this one, which is then taken in."""
        found = {other for region in regions for other in self._conflicts(region)}
        if self._check is not None:
            found.add(self._check)
        if isinstance(item, Kernel):
            reads = kernel_reads(item)
        else:
            reads = statement_reads(item)
            # Every unit has the statements in one order.
            if self._statement is not None:
                found.add(self._statement)
            self._statement = index
            if isinstance(item, Check):
                self._check = index
        names = {reg.name for reg in reads}
        found |= {self._assigned[name] for name in names if name in self._assigned}
        for name in names:
            self._readers.setdefault(name, []).append(index)
        if isinstance(item, Let):
            found |= set(self._readers.pop(item.reg.name, ())) - {index}
            self._assigned[item.reg.name] = index
        for region in regions:
            accesses = self._writes if region.write else self._reads
            accesses.setdefault(region.buffer.name, []).append((index, region))
        return found

    def _conflicts(self, region: Region) -> set[int]:
        found = self._writes.get(region.buffer.name, [])
        if region.write:
            found = found + self._reads.get(region.buffer.name, [])
        return {other for other, earlier in found if conflict(earlier, region)}


def conflict(a: Region, b: Region) -> bool:
    """May the order of two accesses to the memory of one buffer matter?"""
    return (a.write or b.write) and a.buffer.name == b.buffer.name and overlap(a, b)
