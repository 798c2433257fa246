"""Inserts the waits into a planned function.

The function is walked with the state of pending accesses. A loop is walked until the state at its
head no longer grows, so that waits between iterations are found; the arms of a branch start from
one state and their ends are merged. At the entry of a loop the units wait for what its body may
touch (so that the body need not in every iteration), and before a call and at the end of a function
for everything: what comes then may touch anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from stretto.kernels.operator import Kernel
from stretto.kernels.regions import Region
from stretto.kernels.tree import (
    Call,
    For,
    If,
    Leaf,
    Node,
    Seq,
    While,
    leaves,
    trip_count,
    walk,
)
from stretto.schedule.builder import LeafBuilder
from stretto.schedule.hazards import Layout, State, Touch
from stretto.schedule.program import Schedule, Wait
from stretto.schedule.wavefront import LeafPlan, plan_regions

Walked = tuple[Node[Schedule], State]


class Synchronizer:
    """Walks one function. `relevant`: can a region take part in a conflict at all?

    `implied` maps each planned leaf (by `id`) to the number of its conflicts that needed no wait.
    """

    def __init__(
        self, is_main: bool, units: int, layout: Layout, relevant: Callable[[Region], bool]
    ) -> None:
        self._units = units
        self._layout = layout
        self._is_main = is_main
        self._relevant = relevant
        self.implied: dict[int, int] = {}
        # Loops inside loops are walked from the same state many times.
        self._walked: dict[tuple[int, frozenset[tuple[Touch, int]]], Walked] = {}

    def function(self, body: Node[LeafPlan]) -> Node[Schedule]:
        """The body with waits. When a function other than `main` returns, nothing is pending."""
        node, state = self._node(body, State())
        if self._is_main:
            return node
        barrier, _ = self._everything(state)
        return _sequence([node, *barrier])

    def _node(self, node: Node[LeafPlan], state: State) -> Walked:
        match node:
            case Leaf(plan):
                return self._leaf(plan, state)
            case Seq(children):
                nodes: list[Node[Schedule]] = []
                for child in children:
                    walked, state = self._node(child, state)
                    nodes.append(walked)
                return _sequence(nodes), state
            case For() | While():
                key = id(node), frozenset(state.pending.items())
                if key not in self._walked:
                    self._walked[key] = self._loop(node, state)
                return self._walked[key]
            case If(condition, then, orelse):
                first, end = self._node(then, state)
                second, other_end = self._node(orelse, state)
                return If(condition, first, second), state.join(end, other_end)
            case Call(function, registers, tensors, results):
                barrier, _ = self._everything(state)
                call: Node[Schedule] = Call(function, registers, tensors, results)
                return _sequence([*barrier, call]), State()

    def _leaf(self, plan: LeafPlan, state: State) -> Walked:
        builder = LeafBuilder(state, self._units, self._layout, self._is_relevant)
        for wave in plan.waves:
            for placed in wave:
                if isinstance(placed.item, Kernel):
                    builder.append(placed.item, placed.parts)
                else:
                    builder.state(placed.item)
            builder.close_wave()
        schedule, after = builder.finish()
        self.implied[id(plan)] = builder.implied
        return Leaf(schedule), after

    def _loop(self, node: For[LeafPlan] | While[LeafPlan], state: State) -> Walked:
        """A loop, after those waits that would otherwise stand in its body."""
        matters = self._touched_by(node)
        waits = {unit: state.unseen(unit, matters) for unit in range(self._units)}
        if not any(waits.values()):
            return self._turns(node, state)
        barrier, quiet = self._barrier(state, waits)
        loop, after = self._turns(node, quiet)
        # Waits that the body makes in every iteration anyway need not be made before the loop.
        more = _wait_pairs(self._turns(node, state)[0]) - _wait_pairs(loop)
        fewer = {u: tuple(v for v in others if more[u, v]) for u, others in waits.items()}
        if fewer != waits:
            some, less_quiet = self._barrier(state, fewer)
            same, later = self._turns(node, less_quiet)
            if same == loop:
                return _sequence([*some, same]), later
        return _sequence([*barrier, loop]), after

    def _turns(self, node: For[LeafPlan] | While[LeafPlan], start: State) -> Walked:
        """Walks the body until the state at its start no longer grows."""
        while True:
            match node:
                case For(index, first, stop, step, body, rotate):
                    walked, end = self._node(body, start)
                    end = end.rotate(rotate)
                    loop: Node[Schedule] = For(index, first, stop, step, walked, rotate)
                    after = end if trip_count(node) else start.merge(end)
                case While(head, condition, body, rotate):
                    tested, after = self._node(head, start)
                    walked, end = self._node(body, after)
                    end = end.rotate(rotate)
                    loop = While(tested, condition, walked, rotate)
            joined = start.merge(end)
            if joined == start:
                return loop, after
            start = joined

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

    def _touched_by(self, loop: For[LeafPlan] | While[LeafPlan]) -> Callable[[Region], bool]:
        """May an access outside of the loop conflict with one inside?"""
        nodes = list(walk(loop))
        if any(isinstance(node, Call) for node in nodes):
            return lambda region: True
        writes = {
            buffer.name
            for node in nodes
            if isinstance(node, For | While)
            for pair in node.rotate
            for buffer in pair
        }
        reads: set[str] = set()
        for plan in leaves(loop):
            for region in plan_regions(plan):
                (writes if region.write else reads).add(region.buffer.name)

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


def _sequence(nodes: list[Node[Schedule]]) -> Node[Schedule]:
    flat: list[Node[Schedule]] = []
    for node in nodes:
        flat.extend(node.children if isinstance(node, Seq) else (node,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))
