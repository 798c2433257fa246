"""The search policy: local moves on the best plan of the other policies, decided by simulation.

The search is over the order in which the items of a leaf are placed, and over the parts
into which each kernel is divided. It begins with the plan that is fastest in simulation. A
move takes one item to another place of the order, as far as dependences allow, or divides
one kernel in another way; it is kept if the leaf is not slower. So no plan is slower than
the best of the others, in simulation, and the result measures what the others miss. The
moves that are tried depend on the seed and on their number alone, unless the time runs out
before.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from stretto.device.costs import CostModel
from stretto.device.operator import Kernel
from stretto.device.regions import Body
from stretto.device.tree import Rotation
from stretto.schedule.choice import RegionTime
from stretto.schedule.footprint import Footprints, Node, Parts, UnitTasks, leaf_nodes
from stretto.schedule.policies.list import ListPolicy
from stretto.schedule.policies.team import TeamPolicy
from stretto.schedule.policies.wavefront import WavefrontPolicy
from stretto.schedule.policy import (
    FunctionPlanner,
    LeafPlan,
    Policy,
    Timeline,
    Writers,
    equal_blocks,
    only_parts,
)

FEW_UNITS = 16
"""Number of units up to which the wavefront policy is tried; its time grows with their square."""


@dataclass(frozen=True, slots=True)
class SearchPolicy:
    """Parameters of the search. steps: number of moves tried for each leaf. seconds: time for all
    leaves of a function together, after which no move is tried; None is no limit. seed: of the
    random moves."""

    steps: int = 200
    seconds: float | None = None
    seed: int = 0
    name: str = "search"
    ranges: bool = False

    def fits(self, units: int, costs: CostModel) -> bool:
        return False

    def planning_work(self, units: int) -> float:
        return (self.steps + 3) * (100 + 8 * units)

    def planner(self, units: int, costs: CostModel, footprints: Footprints) -> SearchPlanner:
        begins: list[Policy] = [ListPolicy(), TeamPolicy()]
        if units <= FEW_UNITS:
            begins.insert(0, WavefrontPolicy())
        planners = [(policy, policy.planner(units, costs, footprints)) for policy in begins]
        return SearchPlanner(self, RegionTime(units, costs, footprints), planners)


@dataclass(frozen=True, slots=True)
class _State:
    """The indices of a leaf's items in the order of their placement, and the parts of each item."""

    order: tuple[int, ...]
    parts: tuple[Parts, ...]


@dataclass(slots=True)
class SearchPlanner:
    """Plans the leaves of one function, in the order of the function's text."""

    policy: SearchPolicy
    time: RegionTime
    planners: Sequence[tuple[Policy, FunctionPlanner]]
    writers: Writers = field(default_factory=Writers)
    draws: random.Random = field(init=False)
    ends: float | None = field(init=False)

    def __post_init__(self) -> None:
        self.draws = random.Random(self.policy.seed)
        limit = self.policy.seconds
        self.ends = None if limit is None else time.monotonic() + limit

    def plan(self, body: Body) -> LeafPlan:
        nodes = leaf_nodes(body)
        plans = [planner.plan(body) for _, planner in self.planners]
        states = [_state(nodes, plan) for plan in plans]
        if self.time.units == 1 or len(nodes) == 0:
            self._note(nodes, states[0])
            return plans[0]
        seconds, state = min(
            ((self._seconds(nodes, state), state) for state in states), key=lambda pair: pair[0]
        )
        return self._note(nodes, self._searched(nodes, state, seconds))

    def rotate(self, pairs: Rotation) -> None:
        self.writers.rotate(pairs)
        for _, planner in self.planners:
            planner.rotate(pairs)

    # ---- the search ------------------------------------------------------------------------
    def _searched(self, nodes: Sequence[Node], state: _State, best: float) -> _State:
        for _ in range(self.policy.steps):
            if self.ends is not None and time.monotonic() >= self.ends:
                break
            moved = self._moved(nodes, state)
            if moved is None or moved == state:
                continue
            seconds = self._seconds(nodes, moved)
            if seconds <= best:
                best, state = seconds, moved
        return state

    def _moved(self, nodes: Sequence[Node], state: _State) -> _State | None:
        """Return the state after one random move; None if it changes nothing."""
        place = self.draws.randrange(len(state.order))
        if self.draws.random() < 0.5:
            return self._reordered(nodes, state, place)
        node = nodes[state.order[place]]
        ways = list(self._ways(node))
        if not ways:
            return None
        parts = list(state.parts)
        parts[node.index] = self.draws.choice(ways)
        return _State(state.order, tuple(parts))

    def _reordered(self, nodes: Sequence[Node], state: _State, place: int) -> _State:
        """Move an item to a random place after all items that it needs and before all that need
        it."""
        order = list(state.order)
        index = order.pop(place)
        before = set(nodes[index].before)
        low = max((n + 1 for n, other in enumerate(order) if other in before), default=0)
        behind = (n for n, other in enumerate(order) if index in nodes[other].before)
        high = min(behind, default=len(order))
        order.insert(self.draws.randint(low, high), index)
        return _State(tuple(order), state.parts)

    def _ways(self, node: Node) -> Iterator[Parts]:
        """Yield other parts for a kernel: all tasks on one unit, or blocks on adjacent units."""
        kernel, units = node.item, self.time.units
        if not isinstance(kernel, Kernel) or only_parts(kernel, units) is not None:
            return
        yield (UnitTasks(self.draws.randrange(units), 0, kernel.tasks),)
        if kernel.tasks > 1:
            count = self.draws.randint(2, min(units, kernel.tasks))
            first = self.draws.randrange(units)
            blocks = equal_blocks(kernel.tasks, count)
            yield tuple(UnitTasks((first + p.unit) % units, p.first, p.count) for p in blocks)
            yield equal_blocks(kernel.tasks, units)

    # ---- the time of a state ---------------------------------------------------------------
    def _timeline(self, nodes: Sequence[Node], state: _State) -> Timeline:
        made = Timeline(self.time.units, self.time.costs, self.time.footprints, self.writers)
        for index in state.order:
            made.place(made.fitted(nodes[index], state.parts[index]))
        return made

    def _seconds(self, nodes: Sequence[Node], state: _State) -> float:
        return self.time.of(self._timeline(nodes, state).plan(), self.policy)

    def _note(self, nodes: Sequence[Node], state: _State) -> LeafPlan:
        timeline = self._timeline(nodes, state)
        for step in timeline.placed:
            self.writers.note(step)
        return timeline.plan()


def _state(nodes: Sequence[Node], plan: LeafPlan) -> _State:
    """Convert a plan to a state. Its items have the order of the plan's waves, but each after all
    that it depends on: with other parts, items that the plan left unordered may touch the same
    data."""
    places: dict[int, list[int]] = {}
    for node in nodes:
        places.setdefault(id(node.item), []).append(node.index)
    wanted: dict[int, int] = {}
    parts: list[Parts] = [() for _ in nodes]
    for placed in plan.placed:
        index = places[id(placed.item)].pop(0)
        wanted[index] = len(wanted)
        parts[index] = placed.parts
    return _State(tuple(_sorted(nodes, wanted)), tuple(parts))


def _sorted(nodes: Sequence[Node], wanted: dict[int, int]) -> Iterator[int]:
    """Yield the indices of nodes in the wanted order, as far as dependences allow."""
    missing = {index: sum(one in wanted for one in nodes[index].before) for index in wanted}
    behind: dict[int, list[int]] = {index: [] for index in wanted}
    for index in wanted:
        for one in nodes[index].before:
            if one in behind:
                behind[one].append(index)
    ready = [(wanted[index], index) for index, count in missing.items() if not count]
    heapify(ready)
    while ready:
        _, index = heappop(ready)
        yield index
        for one in behind[index]:
            missing[one] -= 1
            if not missing[one]:
                heappush(ready, (wanted[one], one))
