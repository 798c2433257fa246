"""Inserts the waits into a function that the team policy has planned.

The tree is walked as in `synchronize`: a loop until the state at its head no longer grows, both
arms of a branch from one state. Before a loop the units wait for what its body may touch, before a
call and at the end of a function for everything; they do so at the end of the leaf that stands
there, if one does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from stretto.kernels.expr import Buffer
from stretto.kernels.regions import Region
from stretto.kernels.tree import Call, For, If, Leaf, Node, Seq, While, leaves, trip_count, walk
from stretto.schedule.boxes import Mask
from stretto.schedule.footprint import Footprint, Footprints
from stretto.schedule.later import Names, later_names
from stretto.schedule.program import Schedule
from stretto.schedule.team_leaf import Pending, TeamLeaf, Touch, TouchKey
from stretto.schedule.wavefront import LeafPlan, plan_regions

Walked = tuple[Node[Schedule], Pending]
Matters = Callable[[Footprint], bool]
PendingKey = frozenset[tuple[TouchKey, bytes]]

NO_LEAF = -1
"""The number of a leaf that only waits, and so touches nothing."""


class TeamSynchronizer:
    """Walks one function. `relevant`: can a region take part in a conflict at all?

    `implied` maps each planned leaf (by `id`) to the number of its conflicts that needed no wait.
    """

    def __init__(
        self,
        is_main: bool,
        units: int,
        footprints: Footprints,
        relevant: Callable[[Region], bool],
    ) -> None:
        self._is_main = is_main
        self._units = units
        self._footprints = footprints
        self._relevant = relevant
        self.implied: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._later: Callable[[LeafPlan], Names | None] = lambda plan: None
        self._walked: dict[tuple[int, PendingKey], Walked] = {}
        self._renamed: dict[tuple[int, str], tuple[Footprint, Footprint]] = {}

    def function(self, body: Node[LeafPlan]) -> Node[Schedule]:
        """The body with waits. When a function other than `main` returns, nothing is pending."""
        self._later = later_names(body, _plan_names, returns=not self._is_main)
        node, _ = self._body(body, {}, None if self._is_main else _everything)
        return node

    def _body(self, body: Node[LeafPlan], pending: Pending, settle: Matters | None) -> Walked:
        """A function, an arm or the body of a loop. `settle`: what must be over at its end."""
        children = body.children if isinstance(body, Seq) else (body,)
        asked = [*(self._asked_by(child) for child in children), settle]
        nodes, pending = self._barrier(pending, asked[0])
        for child, following in zip(children, asked[1:], strict=True):
            walked, pending = self._node(child, pending, following)
            barrier, pending = self._barrier(pending, following)
            nodes += [walked, *barrier]
        return (nodes[0] if len(nodes) == 1 else Seq(tuple(nodes))), pending

    def _node(self, node: Node[LeafPlan], pending: Pending, settle: Matters | None) -> Walked:
        """A leaf sees itself to what must be over after it."""
        match node:
            case Leaf(plan):
                return self._leaf(plan, pending, settle)
            case Seq():
                return self._body(node, pending, settle)
            case For() | While():
                return self._loop(node, pending)
            case If(condition, then, orelse):
                first, end = self._body(then, pending, None)
                second, other_end = self._body(orelse, pending, None)
                return If(condition, first, second), _merge(end, other_end)
            case Call(function, registers, tensors, results):
                return Call(function, registers, tensors, results), {}

    def _leaf(self, plan: LeafPlan, pending: Pending, settle: Matters | None) -> Walked:
        number = self._numbers.setdefault(id(plan), len(self._numbers))
        leaf = TeamLeaf(number, pending, self._units, self._footprints)
        for placed in (placed for wave in plan.waves for placed in wave):
            footprints = self._footprints.of(placed.item, placed.parts)
            relevant = tuple(f for f in footprints if self._relevant(f.sample))
            leaf.append(placed.item, placed.parts, relevant)
        if settle is not None:
            leaf.settle(settle)
        self.implied[id(plan)] = leaf.implied
        names = self._later(plan)
        schedule, after = leaf.finish(lambda name: names is None or name in names)
        return Leaf(schedule), after

    def _barrier(
        self, pending: Pending, matters: Matters | None
    ) -> tuple[list[Node[Schedule]], Pending]:
        """A leaf that waits for what matters, if something is pending."""
        if matters is None:
            return [], pending
        leaf = TeamLeaf(NO_LEAF, pending, self._units, self._footprints)
        leaf.settle(matters)
        schedule, after = leaf.finish(lambda name: True)
        return ([Leaf(schedule)] if any(schedule.units) else []), after

    def _loop(self, node: For[LeafPlan] | While[LeafPlan], start: Pending) -> Walked:
        """Walks the body until what is pending at its start no longer grows."""
        key = id(node), _key(start)
        while key not in self._walked:
            match node:
                case For(index, first, stop, step, body, rotate):
                    walked, end = self._body(body, start, None)
                    end = self._rotate(end, rotate)
                    loop: Node[Schedule] = For(index, first, stop, step, walked, rotate)
                    after = end if trip_count(node) else _merge(start, end)
                case While(head, condition, body, rotate):
                    tested, after = self._body(head, start, None)
                    walked, end = self._body(body, after, None)
                    end = self._rotate(end, rotate)
                    loop = While(tested, condition, walked, rotate)
            joined = _merge(start, end)
            if _key(joined) == _key(start):
                self._walked[key] = loop, after
            start = joined
        return self._walked[key]

    def _rotate(self, pending: Pending, pairs: Iterable[tuple[Buffer, Buffer]]) -> Pending:
        """After the buffers of each pair have traded places."""
        names: dict[str, Buffer] = {}
        for current, following in pairs:
            names |= {current.name: following, following.name: current}
        turned: dict[TouchKey, tuple[Touch, Mask]] = {}
        for touch, seen in pending.values():
            buffer = names.get(touch.footprint.buffer.name)
            if buffer is not None:
                touch = replace(touch, footprint=self._under(touch.footprint, buffer))
            turned[touch.key] = touch, seen
        return turned

    def _under(self, footprint: Footprint, buffer: Buffer) -> Footprint:
        """The same footprint each time, for what it conflicts with is remembered."""
        key = id(footprint), buffer.name
        if key not in self._renamed:
            self._renamed[key] = footprint, footprint.under(buffer)
        return self._renamed[key][1]

    def _asked_by(self, node: Node[LeafPlan]) -> Matters | None:
        """What must be over before a call, and before a loop, whose body then need not wait."""
        match node:
            case Call():
                return _everything
            case For() | While():
                return self._touched_by(node)
            case _:
                return None

    def _touched_by(self, loop: For[LeafPlan] | While[LeafPlan]) -> Matters:
        """May an access outside of the loop conflict with one inside?"""
        nodes = list(walk(loop))
        if any(isinstance(node, Call) for node in nodes):
            return _everything
        writes = {
            buffer.name
            for node in nodes
            if isinstance(node, For | While)
            for pair in node.rotate
            for buffer in pair
        }
        reads: set[str] = set()
        for region in (region for plan in leaves(loop) for region in plan_regions(plan)):
            (writes if region.write else reads).add(region.buffer.name)

        def matters(footprint: Footprint) -> bool:
            name = footprint.buffer.name
            return name in writes or (footprint.write and name in reads)

        return matters


def _everything(_: Footprint) -> bool:
    return True


def _key(pending: Pending) -> PendingKey:
    return frozenset((key, seen.tobytes()) for key, (_, seen) in pending.items())


def _merge(a: Pending, b: Pending) -> Pending:
    """What holds when either may be true."""
    merged = dict(a)
    for key, (touch, seen) in b.items():
        merged[key] = (touch, seen & merged[key][1]) if key in merged else (touch, seen)
    return merged


def _plan_names(plan: LeafPlan) -> frozenset[str]:
    return frozenset(region.buffer.name for region in plan_regions(plan))
