"""Live ranges of the local buffers of a planned function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stretto.device.expr import Buffer, Var, is_known
from stretto.device.flow import Backward
from stretto.device.operator import Kernel, Operator
from stretto.device.regions import Statement, item_regions
from stretto.device.tree import Call, Leaf, Node, Seq, children, is_loop, rotation, swaps
from stretto.schedule.policy import LeafPlan


@dataclass(frozen=True, slots=True)
class AccessEvent:
    """An access: its position in the text, its leaf and wave, and its units (a bit set).

    Control nodes count as leaves of one wave. `fresh`: it writes before it reads.
    """

    position: int
    leaf: int
    wave: int
    units: int
    fresh: bool


@dataclass(frozen=True, slots=True)
class LiveRange:
    """Range from the first to the last event of a buffer, with the first wave and the units of its
    first leaf, and the last wave and the units of its last leaf."""

    first: AccessEvent
    last: AccessEvent
    first_wave: int
    first_units: int
    last_wave: int
    last_units: int

    @staticmethod
    def of(events: tuple[AccessEvent, ...]) -> LiveRange:
        """Return the live range of a buffer with these events."""
        ordered = sorted(events, key=lambda event: event.position)
        first, last = ordered[0], ordered[-1]
        head = [event for event in ordered if event.leaf == first.leaf]
        tail = [event for event in ordered if event.leaf == last.leaf]
        return LiveRange(
            first,
            last,
            min(event.wave for event in head),
            _union(head),
            max(event.wave for event in tail),
            _union(tail),
        )

    def before(self, other: LiveRange) -> bool:
        """True if every access in this range is certain to be over, after waits, when the other
        range begins.

        Inside one leaf a unit waits only for earlier waves; items of one unit run in order.
        """
        if self.last.position >= other.first.position:
            return False
        if self.last.leaf != other.first.leaf or self.last_wave < other.first_wave:
            return True
        units = self.last_units | other.first_units
        return units & (units - 1) == 0


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop from its first to its last event. `exposed`: names of the buffers that an iteration
    may read, or add to, before it has written them."""

    start: AccessEvent
    end: AccessEvent
    exposed: frozenset[str]


@dataclass(frozen=True, slots=True)
class Liveness:
    """Events by buffer name, and the pairs of buffers that rotate."""

    events: dict[str, list[AccessEvent]]
    pairs: list[tuple[Buffer, Buffer]]


def liveness(body: Node[LeafPlan], units: int) -> Liveness:
    """Return the events of a function. Live ranges are extended over the loops that they must
    survive."""
    timeline = _Timeline(units)
    timeline.visit(body)
    for loop in timeline.loops:
        for name, events in timeline.events.items():
            _extend(name, events, loop)
    return Liveness(timeline.events, timeline.pairs)


def _union(events: list[AccessEvent]) -> int:
    """Return the units of all events, as a bit set."""
    units = 0
    for event in events:
        units |= event.units
    return units


def _extend(name: str, events: list[AccessEvent], loop: _Loop) -> None:
    """Extend a range over the whole loop if the buffer is used outside it, or read before it is
    written."""
    start, end = loop.start, loop.end
    inside = [event for event in events if start.position < event.position < end.position]
    if not inside:
        return
    first = min(inside, key=lambda event: event.position)
    if len(inside) < len(events) or not first.fresh or name in loop.exposed:
        events.extend((start, end))


class _Timeline:
    """Walk over a planned function in program order that records the accesses."""

    def __init__(self, units: int) -> None:
        self._everyone = (1 << units) - 1
        self._clock = 0
        self._leaf = 0
        self.events: dict[str, list[AccessEvent]] = {}
        self.pairs: list[tuple[Buffer, Buffer]] = []
        self.loops: list[_Loop] = []

    def visit(self, node: Node[LeafPlan]) -> None:
        match node:
            case Leaf(plan):
                self._visit_leaf(plan)
            case Call(tensors=tensors):
                self._note((access.buffer.name for _, access in tensors), self._control())
            case _ if is_loop(node):
                start = self._control()
                for child in children(node):
                    self.visit(child)
                end = self._control()
                iteration = Seq(children(node))
                exposed = _ExposedBuffers().visit(iteration, frozenset())
                self.loops.append(_Loop(start, end, frozenset(name for name, _ in exposed)))
                self.pairs += rotation(node)
                for event in (start, end):
                    self._note(swaps(rotation(node)), event)
            case _:
                for child in children(node):
                    self.visit(child)

    def _visit_leaf(self, plan: LeafPlan) -> None:
        self._leaf += 1
        for wave, items in enumerate(plan.waves):
            for placed in items:
                self._clock += 1
                units = sum({1 << part.unit for part in placed.parts}) or self._everyone
                for name, fresh in _accesses(placed.item):
                    self._note((name,), AccessEvent(self._clock, self._leaf, wave, units, fresh))

    def _control(self) -> AccessEvent:
        """Advance the clock, and return an event of all units for a control node."""
        self._leaf += 1
        self._clock += 1
        return AccessEvent(self._clock, self._leaf, 0, self._everyone, fresh=False)

    def _note(self, names: Iterable[str], event: AccessEvent) -> None:
        for name in names:
            self.events.setdefault(name, []).append(event)


Exposure = tuple[str, bool]
"""Name of a buffer that may be read before it is written, and True if it is a list whose read item
is known at run time only. Writing some items of the list does not end such an exposure."""


class _ExposedBuffers(Backward[LeafPlan, frozenset[Exposure]]):
    """Backward analysis of the buffers that may be read before they are written."""

    def leaf(self, body: LeafPlan, after: frozenset[Exposure]) -> frozenset[Exposure]:
        for placed in reversed(list(body.placed)):
            for name, fresh in _accesses(placed.item):
                after = after - {(name, False)} if fresh else after | {(name, False)}
            after |= {(name, True) for name in _any_items(placed.item)}
        return after

    def call(self, call: Call[LeafPlan], after: frozenset[Exposure]) -> frozenset[Exposure]:
        return after.union((access.buffer.name, False) for _, access in call.tensors)

    def merge(self, a: frozenset[Exposure], b: frozenset[Exposure]) -> frozenset[Exposure]:
        return a | b


def _any_items(item: Statement) -> Iterator[str]:
    """Yield the lists of which an item is read whose index is known at run time only. The length of
    a list decides which of its items are from an earlier iteration, and no verifier knows it."""
    if isinstance(item, Kernel) and item.call is None:
        reads = (load.access for stage in item.stages for load in stage.operator.reads())
        for access in reads:
            atoms = [atom for index in access.index for atom, _ in index.terms]
            if access.buffer.kind == "items" and not all(isinstance(atom, Var) for atom in atoms):
                yield access.buffer.name
    else:
        for region in item_regions(item):
            if region.buffer.kind == "items" and not region.write:
                yield region.buffer.name


def _accesses(item: Statement) -> Iterator[tuple[str, bool]]:
    """Yield the names of the buffers that an item touches, and True if its first access is a
    write."""
    if isinstance(item, Kernel) and item.call is None:
        fresh: dict[str, bool] = {}
        for stage in item.stages:
            operator = stage.operator
            for load in operator.reads():
                fresh.setdefault(load.access.buffer.name, False)
            # A push leaves the earlier items of a list, and a copy of a list leaves the rest.
            fresh.setdefault(operator.out.buffer.name, _overwrites(operator))
        yield from fresh.items()
    else:
        regions = item_regions(item)
        reads = {region.buffer.name for region in regions if not region.write}
        yield from ((name, False) for name in reads)
        yield from ((name, True) for name in {r.buffer.name for r in regions} - reads)


def _overwrites(operator: Operator) -> bool:
    """True if the operator is certain to write every element of its region, whatever was there.

    That holds if the place of an element depends on the operator's variables only, one per dim, and
    the number of elements is known. (The verifier has a separate rule, so that no mistake is made
    twice.)
    """
    variables = [term for index in operator.out.index for term in index.terms]
    plain = all(isinstance(atom, Var) and factor == 1 for atom, factor in variables)
    one_each = all(len(index.terms) <= 1 for index in operator.out.index)
    distinct = len({atom for atom, _ in variables}) == len(variables)
    static = all(map(is_known, (*operator.dims, *operator.reduce)))
    return plain and one_each and distinct and static and not operator.accumulate
