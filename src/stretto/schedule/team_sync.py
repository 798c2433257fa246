"""Inserts the waits into a function that the team policy has planned.

The tree is walked as in `synchronize`: a loop until the state at its head no longer grows, both
arms of a branch from one state. Before a loop the units wait for what its body may touch, before a
call and at the end of a function for everything; they do so at the end of the leaf that stands
there, if one does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

from stretto.device.boxes import Mask
from stretto.device.expr import Buffer
from stretto.device.flow import Flow, Loop
from stretto.device.later import Names, later_names
from stretto.device.program import Schedule
from stretto.device.regions import Region
from stretto.device.tree import Call, For, Leaf, Node, Rotation, Seq, While, joined, swaps
from stretto.schedule.footprint import Footprint, Footprints
from stretto.schedule.synchronize import loop_accesses
from stretto.schedule.team_leaf import Pending, TeamLeaf, Touch, TouchKey
from stretto.schedule.wavefront import LeafPlan, plan_regions

Walked = tuple[Node[Schedule], Pending]
Matters = Callable[[Footprint], bool]

NO_LEAF = -1
"""The number of a leaf that only waits, and so touches nothing."""


class TeamSynchronizer(Flow[LeafPlan, Schedule, Pending]):
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
        super().__init__()
        self._is_main = is_main
        self._units = units
        self._footprints = footprints
        self._relevant = relevant
        self.implied: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._later: Callable[[LeafPlan], Names | None] = lambda plan: None
        self._renamed: dict[tuple[int, str], tuple[Footprint, Footprint]] = {}
        self._settle: Matters | None = None

    def function(self, body: Node[LeafPlan]) -> Node[Schedule]:
        """The body with waits. When a function other than `main` returns, nothing is pending."""
        self._later = later_names(body, _plan_names, returns=not self._is_main)
        return self._settled(body, {}, None if self._is_main else _everything)[0]

    def visit(self, node: Node[LeafPlan], state: Pending) -> Walked:
        """An arm, or the body of a loop."""
        return self._settled(node, state, None)

    def _settled(self, body: Node[LeafPlan], pending: Pending, settle: Matters | None) -> Walked:
        """`settle`: what must be over at the end. A leaf sees itself to what must be over after
        it."""
        children = body.children if isinstance(body, Seq) else (body,)
        asked = [*(self._asked_by(child) for child in children), settle]
        nodes, pending = self._barrier(pending, asked[0])
        for child, following in zip(children, asked[1:], strict=True):
            self._settle = following
            walked, pending = super().visit(child, pending)
            barrier, pending = self._barrier(pending, following)
            nodes += [walked, *barrier]
        return joined(nodes), pending

    def leaf(self, body: LeafPlan, state: Pending) -> tuple[Schedule, Pending]:
        number = self._numbers.setdefault(id(body), len(self._numbers))
        leaf = TeamLeaf(number, state, self._units, self._footprints)
        for placed in (placed for wave in body.waves for placed in wave):
            footprints = self._footprints.of(placed.item, placed.parts)
            relevant = tuple(f for f in footprints if self._relevant(f.sample))
            leaf.append(placed.item, placed.parts, relevant)
        if self._settle is not None:
            leaf.settle(self._settle)
        self.implied[id(body)] = leaf.implied
        names = self._later(body)
        return leaf.finish(lambda name: names is None or name in names)

    def call(self, call: Call[LeafPlan], state: Pending) -> Walked:
        return super().call(call, state)[0], {}

    def key(self, state: Pending) -> Hashable:
        return frozenset((key, seen.tobytes()) for key, (_, seen) in state.items())

    def same(self, a: Pending, b: Pending) -> bool:
        return self.key(a) == self.key(b)

    def merge(self, a: Pending, b: Pending) -> Pending:
        merged = dict(a)
        for key, (touch, seen) in b.items():
            merged[key] = (touch, seen & merged[key][1]) if key in merged else (touch, seen)
        return merged

    def rotate(self, state: Pending, pairs: Rotation) -> Pending:
        names = swaps(pairs)
        turned: dict[TouchKey, tuple[Touch, Mask]] = {}
        for touch, seen in state.values():
            buffer = names.get(touch.footprint.buffer.name)
            if buffer is not None:
                touch = replace(touch, footprint=self._under(touch.footprint, buffer))
            turned[touch.key] = touch, seen
        return turned

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

    def _touched_by(self, loop: Loop[LeafPlan]) -> Matters:
        """May an access outside of the loop conflict with one inside?"""
        found = loop_accesses(loop)
        if found is None:
            return _everything
        reads, writes = found

        def matters(footprint: Footprint) -> bool:
            name = footprint.buffer.name
            return name in writes or (footprint.write and name in reads)

        return matters


def _everything(_: Footprint) -> bool:
    return True


def _plan_names(plan: LeafPlan) -> frozenset[str]:
    return frozenset(region.buffer.name for region in plan_regions(plan))
