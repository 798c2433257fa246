"""Proves that no two conflicting accesses are unordered, on every way through a function's tree.

An access that some unit may not know to be over is *pending*, with the set of units that know. The
pending accesses are carried through the tree: around loops until nothing new comes, through both
arms of a branch. Each access in a leaf is compared with the pending ones and with the other units'
in the leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from stretto.errors import VerifyError
from stretto.kernels.expr import Buffer
from stretto.kernels.operator import Kernel
from stretto.kernels.regions import Region, block_regions, overlap, statement_regions, task_regions
from stretto.kernels.tree import Call, Check, For, If, Leaf, Let, Node, Seq, While, trip_count
from stretto.schedule.ordering import LeafOrder, order_leaf
from stretto.schedule.places import Places
from stretto.schedule.program import Item, Run, Schedule


@dataclass(frozen=True, slots=True)
class Access:
    """What `unit` does to memory, by kernel or statement `what`."""

    unit: int
    what: str
    region: Region


Pending = dict[Access, int]
"""Accesses, each with the bit set of units that know it to be over."""


@dataclass(frozen=True, slots=True)
class _LeafFacts:
    order: LeafOrder
    accesses: tuple[tuple[Access, int], ...]
    """With the index of the item in its unit's list."""


def item_regions(item: Item, kernels: Mapping[str, Kernel]) -> tuple[Region, ...]:
    """What an item touches."""
    match item:
        case Run(name, first, count, stride):
            kernel = kernels[name]
            if count is None or stride == 1:
                return block_regions(kernel, first, count or 1)
            tasks = range(first, kernel.tasks, stride)[:count]
            return tuple(region for task in tasks for region in task_regions(kernel, task))
        case Let() | Check():
            return statement_regions(item)
        case _:
            return ()


class RaceFinder:
    """`relevant`: can a region take part in a race at all? (What nobody writes cannot.)"""

    def __init__(
        self,
        units: int,
        kernels: Mapping[str, Kernel],
        places: Places,
        relevant: Callable[[Region], bool],
    ) -> None:
        self._everyone = (1 << units) - 1
        self._units = units
        self._kernels = kernels
        self._places = places
        self._relevant = relevant
        self._facts: dict[int, _LeafFacts] = {}

    def check(self, body: Node[Schedule], name: str) -> None:
        """Raises VerifyError for a race; nothing may be pending when a function returns."""
        pending = self._visit(body, {})
        if name != "main":
            self._require_quiet(pending, f"function {name} returns")

    def _visit(self, node: Node[Schedule], pending: Pending) -> Pending:
        match node:
            case Leaf(schedule):
                return self._leaf(schedule, pending)
            case Seq(children):
                for child in children:
                    pending = self._visit(child, pending)
                return pending
            case For(body=body, rotate=rotate):
                while True:
                    end = _rotate(self._visit(body, pending), rotate)
                    around = _merge(pending, end)
                    if around == pending:
                        return end if trip_count(node) else pending
                    pending = around
            case While(head=head, body=body, rotate=rotate):
                while True:
                    tested = self._visit(head, pending)
                    around = _merge(pending, _rotate(self._visit(body, tested), rotate))
                    if around == pending:
                        return tested
                    pending = around
            case If(then=then, orelse=orelse):
                return _merge(self._visit(then, pending), self._visit(orelse, dict(pending)))
            case Call(function=name):
                self._require_quiet(pending, f"function {name} is called")
                return {}

    def _require_quiet(self, pending: Pending, when: str) -> None:
        for access in pending:
            raise VerifyError(
                f"{access.what} of unit {access.unit} may still access "
                f"{access.region.buffer.name} when {when}"
            )

    def _leaf(self, schedule: Schedule, pending: Pending) -> Pending:
        if id(schedule) not in self._facts:
            facts = self._leaf_facts(schedule)
            self._facts[id(schedule)] = facts
            self._check_inside(facts)
        facts = self._facts[id(schedule)]
        self._check_against(facts, pending)
        end = facts.order.end
        after: Pending = {}
        for access, seen in pending.items():
            knows = sum(1 << u for u in range(self._units) if end[u].start & seen)
            self._keep(after, access, seen | knows)
        for access, index in facts.accesses:
            knows = sum(1 << u for u in range(self._units) if end[u].done[access.unit] > index)
            self._keep(after, access, knows | 1 << access.unit)
        return after

    def _keep(self, pending: Pending, access: Access, seen: int) -> None:
        if seen != self._everyone:
            pending[access] = pending.get(access, seen) & seen

    def _leaf_facts(self, schedule: Schedule) -> _LeafFacts:
        accesses = tuple(
            (Access(unit, _name(item), region), index)
            for unit, items in enumerate(schedule.units)
            for index, item in enumerate(items)
            for region in item_regions(item, self._kernels)
            if self._relevant(region)
        )
        return _LeafFacts(order_leaf(schedule), accesses)

    def _check_inside(self, facts: _LeafFacts) -> None:
        """The accesses of one leaf against each other; tasks of one kernel are independent."""
        groups: dict[str, list[tuple[Access, int]]] = {}
        for access, index in facts.accesses:
            for name in self._places.near(access.region.buffer.name):
                for other, position in groups.get(name, ()):
                    if other.unit == access.unit or other.what == access.what:
                        continue
                    first = facts.order.before[access.unit][index].done[other.unit] > position
                    second = facts.order.before[other.unit][position].done[access.unit] > index
                    if not first and not second and self._conflict(access.region, other.region):
                        raise _race(access, other)
            groups.setdefault(access.region.buffer.name, []).append((access, index))

    def _check_against(self, facts: _LeafFacts, pending: Pending) -> None:
        """The accesses of a leaf against what is pending from before it."""
        groups: dict[str, list[tuple[Access, int]]] = {}
        for access, seen in pending.items():
            groups.setdefault(access.region.buffer.name, []).append((access, seen))
        for access, index in facts.accesses:
            start = facts.order.before[access.unit][index].start
            for name in self._places.near(access.region.buffer.name):
                for other, seen in groups.get(name, ()):
                    if other.unit == access.unit or start & seen:
                        continue
                    if self._conflict(access.region, other.region):
                        raise _race(access, other)

    def _conflict(self, a: Region, b: Region) -> bool:
        if not (a.write or b.write):
            return False
        if a.buffer.name == b.buffer.name:
            return overlap(a, b)
        return self._places.share(a, b)


def _name(item: Item) -> str:
    match item:
        case Run(kernel=name):
            return f"kernel {name}"
        case Let(reg=register):
            return f"let {register.name}"
        case _:
            return "a check"


def _race(a: Access, b: Access) -> VerifyError:
    names = dict.fromkeys((b.region.buffer.name, a.region.buffer.name))
    return VerifyError(
        f"race on {' and '.join(names)}: nothing orders {b.what} on unit {b.unit} "
        f"and {a.what} on unit {a.unit}"
    )


def _merge(a: Pending, b: Pending) -> Pending:
    merged = dict(a)
    for access, seen in b.items():
        merged[access] = merged.get(access, seen) & seen
    return merged


def _rotate(pending: Pending, pairs: tuple[tuple[Buffer, Buffer], ...]) -> Pending:
    """The accesses under the names that their buffers have in the next iteration."""
    names = dict(_swaps(pairs))
    turned: Pending = {}
    for access, seen in pending.items():
        region = access.region
        if region.buffer.name in names:
            region = Region(names[region.buffer.name], region.shape, region.box, region.write)
            access = Access(access.unit, access.what, region)
        turned[access] = turned.get(access, seen) & seen
    return turned


def _swaps(pairs: tuple[tuple[Buffer, Buffer], ...]) -> Iterator[tuple[str, Buffer]]:
    for current, following in pairs:
        yield current.name, following
        yield following.name, current
