"""Inserts the waits into a planned function.

The function is walked with the state of pending accesses. A loop is walked until the state at its
head no longer grows, so that waits between iterations are found; the arms of a branch start from
one state and their ends are merged. At the entry of a loop the units wait for what its body may
touch (so that the body need not in every iteration), and before a call and at the end of a function
for everything: what comes then may touch anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping

from stretto.device.flow import Flow, Loop
from stretto.device.operator import Kernel
from stretto.device.program import Schedule, Wait
from stretto.device.regions import Region
from stretto.device.tree import Call, Leaf, Node, Rotation, joined, leaves, rotation, swaps, walk
from stretto.schedule.builder import LeafBuilder
from stretto.schedule.hazards import Layout, State
from stretto.schedule.wavefront import LeafPlan, plan_regions

Walked = tuple[Node[Schedule], State]


class Synchronizer(Flow[LeafPlan, Schedule, State]):
    """Walks one function. `relevant`: can a region take part in a conflict at all?

    `implied` maps each planned leaf (by `id`) to the number of its conflicts that needed no wait.
    """

    def __init__(
        self, is_main: bool, units: int, layout: Layout, relevant: Callable[[Region], bool]
    ) -> None:
        super().__init__()
        self._units = units
        self._layout = layout
        self._is_main = is_main
        self._relevant = relevant
        self.implied: dict[int, int] = {}

    def function(self, body: Node[LeafPlan]) -> Node[Schedule]:
        """The body with waits. When a function other than `main` returns, nothing is pending."""
        node, state = self.visit(body, State())
        if self._is_main:
            return node
        barrier, _ = self._everything(state)
        return joined([node, *barrier])

    def leaf(self, body: LeafPlan, state: State) -> tuple[Schedule, State]:
        builder = LeafBuilder(state, self._units, self._layout, self._is_relevant)
        for wave in body.waves:
            for placed in wave:
                if isinstance(placed.item, Kernel):
                    builder.append(placed.item, placed.parts)
                else:
                    builder.state(placed.item)
            builder.close_wave()
        schedule, after = builder.finish()
        self.implied[id(body)] = builder.implied
        return schedule, after

    def call(self, call: Call[LeafPlan], state: State) -> Walked:
        barrier, _ = self._everything(state)
        return joined([*barrier, super().call(call, state)[0]]), State()

    def merge(self, a: State, b: State) -> State:
        return a.merge(b)

    def join(self, before: State, then: State, orelse: State) -> State:
        return before.join(then, orelse)

    def rotate(self, state: State, pairs: Rotation) -> State:
        return state.rotate(pairs)

    def key(self, state: State) -> Hashable:
        return frozenset(state.pending.items())

    def loop(self, node: Loop[LeafPlan], state: State) -> Walked:
        """A loop, after those waits that would otherwise stand in its body."""
        matters = self._touched_by(node)
        waits = {unit: state.unseen(unit, matters) for unit in range(self._units)}
        if not any(waits.values()):
            return super().loop(node, state)
        barrier, quiet = self._barrier(state, waits)
        loop, after = super().loop(node, quiet)
        # Waits that the body makes in every iteration anyway need not be made before the loop.
        more = _wait_pairs(super().loop(node, state)[0]) - _wait_pairs(loop)
        fewer = {u: tuple(v for v in others if more[u, v]) for u, others in waits.items()}
        if fewer != waits:
            some, less_quiet = self._barrier(state, fewer)
            same, later = super().loop(node, less_quiet)
            if same == loop:
                return joined([*some, same]), later
        return joined([*barrier, loop]), after

    def _everything(self, state: State) -> tuple[list[Node[Schedule]], State]:
        """A barrier for all that is pending."""
        units = range(self._units)
        return self._barrier(state, {u: state.unseen(u, lambda region: True) for u in units})

    def _barrier(
        self, state: State, waits: Mapping[int, tuple[int, ...]]
    ) -> tuple[list[Node[Schedule]], State]:
        """A leaf in which each unit waits for all that the given units have done (if there are)."""
        if not any(waits.values()):
            return [], state
        builder = LeafBuilder(state, self._units, self._layout, self._is_relevant)
        for unit, others in waits.items():
            for other in others:
                builder.wait(unit, other, 0)
        builder.close_wave()
        schedule, after = builder.finish()
        return [Leaf(schedule)], after

    def _touched_by(self, loop: Loop[LeafPlan]) -> Callable[[Region], bool]:
        """May an access outside of the loop conflict with one inside?"""
        found = loop_accesses(loop)
        if found is None:
            return lambda region: True
        reads, writes = found

        def matters(region: Region) -> bool:
            names = {region.buffer.name, *self._layout.sharing.get(region.buffer.name, ())}
            return bool(names & writes) or (region.write and bool(names & reads))

        return matters

    def _is_relevant(self, region: Region) -> bool:
        return self._units > 1 and self._relevant(region)


def _wait_pairs(node: Node[Schedule]) -> Counter[tuple[int, int]]:
    """How often (u, v): unit u waits for unit v, in the text."""
    return Counter(
        (unit, item.unit)
        for schedule in leaves(node)
        for unit, items in enumerate(schedule.units)
        for item in items
        if isinstance(item, Wait)
    )


def loop_accesses(loop: Loop[LeafPlan]) -> tuple[set[str], set[str]] | None:
    """Names of the buffers that a loop reads, and of those that it writes or lets trade places;
    None where it calls a function, which may access anything."""
    reads: set[str] = set()
    writes: set[str] = set()
    for node in walk(loop):
        if isinstance(node, Call):
            return None
        writes.update(swaps(rotation(node)))
    for region in (region for plan in leaves(loop) for region in plan_regions(plan)):
        (writes if region.write else reads).add(region.buffer.name)
    return reads, writes
