"""When each local buffer of a planned function is in use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from stretto.device.expr import Buffer
from stretto.device.operator import Kernel
from stretto.device.regions import Statement, item_regions
from stretto.device.tree import Call, For, If, Leaf, Node, Seq, While
from stretto.device.verifier.touched import stores_all
from stretto.schedule.policy import LeafPlan


@dataclass(frozen=True, slots=True)
class Event:
    """An access: where in the text, in which leaf and wave, by which units (a bit set).

    Control nodes count as leaves of one wave. `fresh`: it writes before it reads.
    """

    position: int
    leaf: int
    wave: int
    units: int
    fresh: bool


@dataclass(frozen=True, slots=True)
class Life:
    """From the first to the last event; the waves and units of the first and of the last leaf."""

    first: Event
    last: Event
    first_wave: int
    first_units: int
    last_wave: int
    last_units: int

    @staticmethod
    def of(events: tuple[Event, ...]) -> Life:
        ordered = sorted(events, key=lambda event: event.position)
        first, last = ordered[0], ordered[-1]
        head = [event for event in ordered if event.leaf == first.leaf]
        tail = [event for event in ordered if event.leaf == last.leaf]
        return Life(
            first,
            last,
            min(event.wave for event in head),
            _union(head),
            max(event.wave for event in tail),
            _union(tail),
        )

    def before(self, other: Life) -> bool:
        """Is every access of this one surely over, after waits, when the other begins?

        Inside one leaf a unit waits only for earlier waves; on one unit the order is its own.
        """
        if self.last.position >= other.first.position:
            return False
        if self.last.leaf != other.first.leaf or self.last_wave < other.first_wave:
            return True
        units = self.last_units | other.first_units
        return units & (units - 1) == 0


@dataclass(slots=True)
class _Loop:
    """A loop from its first to its last event.

    written: names of buffers that the part of a round walked so far writes, surely or in the arm
    that is walked. exposed: those that some way through a round reads or adds to before that.
    """

    start: Event
    end: Event
    written: set[str] = field(default_factory=set[str])
    exposed: set[str] = field(default_factory=set[str])


@dataclass(slots=True)
class Liveness:
    """Events by buffer name, and the pairs of buffers that rotate."""

    events: dict[str, list[Event]]
    pairs: list[tuple[Buffer, Buffer]]


def liveness(body: Node[LeafPlan], units: int) -> Liveness:
    """What a function accesses, lives of buffers extended over the loops that they must survive."""
    timeline = _Timeline(units)
    timeline.visit(body)
    for loop in timeline.loops:
        for name, events in timeline.events.items():
            _extend(name, events, loop)
    return Liveness(timeline.events, timeline.pairs)


def _union(events: list[Event]) -> int:
    units = 0
    for event in events:
        units |= event.units
    return units


def _extend(name: str, events: list[Event], loop: _Loop) -> None:
    """Over the whole loop if the buffer is used outside of it, or read before it is written."""
    start, end = loop.start, loop.end
    inside = [event for event in events if start.position < event.position < end.position]
    if not inside:
        return
    first = min(inside, key=lambda event: event.position)
    if len(inside) < len(events) or not first.fresh or name in loop.exposed:
        events.extend((start, end))


class _Timeline:
    """Walks a planned function in the order of its text and notes who accesses what."""

    def __init__(self, units: int) -> None:
        self._everyone = (1 << units) - 1
        self._clock = 0
        self._leaf = 0
        self.events: dict[str, list[Event]] = {}
        self.pairs: list[tuple[Buffer, Buffer]] = []
        self.loops: list[_Loop] = []
        self._open: list[_Loop] = []

    def visit(self, node: Node[LeafPlan]) -> None:
        match node:
            case Leaf(plan):
                self._visit_leaf(plan)
            case Seq(children):
                for child in children:
                    self.visit(child)
            case For():
                self._visit_loop((node.body,), node.rotate)
            case While():
                self._visit_loop((node.head, node.body), node.rotate)
            case If():
                before = [loop.written.copy() for loop in self._open]
                self.visit(node.then)
                then = [loop.written for loop in self._open]
                for loop, written in zip(self._open, before, strict=True):
                    loop.written = written
                self.visit(node.orelse)
                for loop, written in zip(self._open, then, strict=True):
                    loop.written |= written
            case Call(_, _, tensors, _):
                event = self._control()
                for _, access in tensors:
                    self._note(access.buffer.name, event)

    def _visit_leaf(self, plan: LeafPlan) -> None:
        self._leaf += 1
        for wave, items in enumerate(plan.waves):
            for placed in items:
                self._clock += 1
                units = sum({1 << part.unit for part in placed.parts}) or self._everyone
                for name, fresh in _accesses(placed.item):
                    self._note(name, Event(self._clock, self._leaf, wave, units, fresh))

    def _visit_loop(
        self, parts: tuple[Node[LeafPlan], ...], rotate: tuple[tuple[Buffer, Buffer], ...]
    ) -> None:
        start = self._control()
        loop = _Loop(start, start)
        self._open.append(loop)
        for part in parts:
            self.visit(part)
        self._open.pop()
        loop.end = end = self._control()
        self.loops.append(loop)
        self.pairs.extend(rotate)
        for pair in rotate:
            for buffer in pair:
                self._note(buffer.name, start)
                self._note(buffer.name, end)

    def _control(self) -> Event:
        self._leaf += 1
        self._clock += 1
        return Event(self._clock, self._leaf, 0, self._everyone, fresh=False)

    def _note(self, name: str, event: Event) -> None:
        self.events.setdefault(name, []).append(event)
        for loop in self._open:
            if event.fresh:
                loop.written.add(name)
            elif name not in loop.written:
                loop.exposed.add(name)


def _accesses(item: Statement) -> Iterator[tuple[str, bool]]:
    """Names of the buffers that an item touches; is the first access of each a write?"""
    if isinstance(item, Kernel) and item.call is None:
        fresh: dict[str, bool] = {}
        for stage in item.stages:
            operator = stage.operator
            for load in operator.reads():
                fresh.setdefault(load.access.buffer.name, False)
            # A push to a list keeps the items of earlier iterations, a copy of a list the rest.
            writes_all = stores_all(stage) and not operator.accumulate
            fresh.setdefault(operator.out.buffer.name, writes_all)
        yield from fresh.items()
    else:
        regions = item_regions(item)
        reads = {region.buffer.name for region in regions if not region.write}
        yield from ((name, False) for name in reads)
        yield from ((name, True) for name in {r.buffer.name for r in regions} - reads)
