"""From a tree of kernels to a DeviceProgram: plan leaves, place memory, insert waits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from stretto.device.normalize import normalize
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram, Item, Schedule, Signal, Wait
from stretto.device.regions import Body, Region
from stretto.device.tree import (
    Call,
    Leaf,
    Node,
    Tree,
    TreeFunction,
    children,
    leaves,
    rebuilt,
    rotation,
)
from stretto.device.verifier.writes import relevance
from stretto.errors import ScheduleError
from stretto.schedule.costs import MachineCosts
from stretto.schedule.estimate import tree_seconds
from stretto.schedule.footprint import Footprints
from stretto.schedule.memory import FramePlan, plan_frame
from stretto.schedule.synchronize import Synchronizer
from stretto.schedule.team import TeamPolicy
from stretto.schedule.team_sync import TeamSynchronizer
from stretto.schedule.wavefront import LeafPlan, WavefrontPolicy

MOST_SINGLE_UNITS = 8
"""More units than this are scheduled as a team.

The estimated times are the same from here on, but looking at every task and unit takes 1.5 s at 16
units and 112 s at 132 (BlockDrop's network), where a team takes 0.3 s.
"""


@dataclass(frozen=True, slots=True)
class Report:
    """What `explain()` says of a schedule.

    seconds: the estimated time of a launch, without waking workers; alone: the same on one unit.
    waits, signals: items in the text, of all units; implied: conflicts between units that needed
    no wait of their own. frame_bytes: of all functions; separate_bytes: if nothing were shared.
    """

    units: int
    seconds: float
    alone: float
    leaves: int
    waves: int
    waits: int
    implied: int
    signals: int
    frame_bytes: int
    separate_bytes: int


def schedule(tree: Tree[Body], units: int, costs: MachineCosts | None = None) -> DeviceProgram:
    """A program for `units` units, or for one where several would not gain what waking them costs.

    Where `costs` ask for a team it is always for all units.

    Raises ScheduleError for a tree that cannot be scheduled (a local buffer of dynamic size).
    """
    return schedule_with_report(tree, units, costs)[0]


def schedule_with_report(
    tree: Tree[Body], units: int, costs: MachineCosts | None = None
) -> tuple[DeviceProgram, Report]:
    """As `schedule`, with what it decided."""
    costs = costs or MachineCosts()
    tree = normalize(tree)
    alone = _Plan.of(tree, 1, costs)
    chosen = alone
    if costs.team:
        chosen = _Plan.of(tree, units, costs, Footprints(units))
    elif units > 1:
        footprints = Footprints(units) if units > MOST_SINGLE_UNITS else None
        many = _Plan.of(tree, units, costs, footprints)
        if many.seconds + costs.wake_seconds <= alone.seconds:
            chosen = many
    return _realise(tree, chosen, costs, alone.seconds)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Every function's body with planned leaves, and the estimated time of `main`.

    `footprints` are those of a team's plan.
    """

    units: int
    bodies: dict[str, Node[LeafPlan]]
    seconds: float
    footprints: Footprints | None

    @staticmethod
    def of(
        tree: Tree[Body], units: int, costs: MachineCosts, footprints: Footprints | None = None
    ) -> _Plan:
        bodies: dict[str, Node[LeafPlan]] = {}
        for function in tree.functions:
            policy = WavefrontPolicy(units, costs)
            if footprints is not None:
                policy = TeamPolicy(units, costs, footprints)
            bodies[function.name] = _plan_node(function.body, policy)
        return _Plan(units, bodies, tree_seconds(bodies, costs), footprints)

    def separate(self, costs: MachineCosts) -> int:
        """Buffers of fewer bytes share no memory."""
        return costs.share_bytes if self.footprints is None else sys.maxsize

    def synchronized(
        self, function: TreeFunction[Body], memory: FramePlan, relevant: Callable[[Region], bool]
    ) -> tuple[Node[Schedule], int]:
        """The function's body with waits, and the number of conflicts that needed none."""
        is_main = function.name == "main"
        if self.footprints is None:
            walker = Synchronizer(is_main, self.units, memory.layout, relevant)
        else:
            walker = TeamSynchronizer(is_main, self.units, self.footprints, relevant)
        body = walker.function(self.bodies[function.name])
        return body, sum(walker.implied.values())


def _plan_node(node: Node[Body], policy: WavefrontPolicy | TeamPolicy) -> Node[LeafPlan]:
    match node:
        case Leaf(body):
            return Leaf(policy.plan(body))
        case Call():
            return cast("Call[LeafPlan]", node)
        case _:
            planned = rebuilt(node, [_plan_node(child, policy) for child in children(node)])
            policy.rotate(rotation(node))
            return planned


def _realise(
    tree: Tree[Body], plan: _Plan, costs: MachineCosts, alone: float
) -> tuple[DeviceProgram, Report]:
    kernels = _kernels(tree)
    relevant = relevance(tree, kernels)
    functions: list[TreeFunction[Schedule]] = []
    frames: list[tuple[str, FramePlan]] = []
    implied = 0
    for function in tree.functions:
        planned = plan.bodies[function.name]
        memory = plan_frame(function, planned, plan.units, plan.separate(costs))
        frames.append((function.name, memory))
        body, more = plan.synchronized(function, memory, relevant(function))
        functions.append(function.with_body(body))
        implied += more
    program = DeviceProgram(
        plan.units,
        Tree(tuple(functions), tree.externals),
        kernels,
        tuple((name, memory.frame) for name, memory in frames),
        tuple(buffer for buffer in tree.externals if buffer.kind == "list"),
    )
    schedules = [leaf for function in functions for leaf in leaves(function.body)]
    items = [item for leaf in schedules for unit in leaf.units for item in unit]
    report = Report(
        plan.units,
        plan.seconds,
        alone,
        len(schedules),
        sum(leaf.steps for leaf in schedules),
        _number_of(Wait, items),
        implied,
        _number_of(Signal, items),
        sum(memory.frame.nbytes for _, memory in frames),
        sum(memory.separate for _, memory in frames),
    )
    return program, report


def _number_of(kind: type[Item], items: list[Item]) -> int:
    return sum(isinstance(item, kind) for item in items)


def _kernels(tree: Tree[Body]) -> tuple[Kernel, ...]:
    """All kernels, in the order of the text; one that is named twice must be one kernel."""
    found: dict[str, Kernel] = {}
    for kernel in _kernel_items(tree):
        if found.setdefault(kernel.name, kernel) != kernel:
            raise ScheduleError(f"two different kernels have the name {kernel.name}")
    return tuple(found.values())


def _kernel_items(tree: Tree[Body]) -> Iterator[Kernel]:
    for function in tree.functions:
        for body in leaves(function.body):
            yield from (item for item in body if isinstance(item, Kernel))
