"""From a tree of kernels to a DeviceProgram: plan leaves, place memory, insert waits."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import cast

from stretto.device.costs import HOST_COSTS, CostModel
from stretto.device.normalize import normalize
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram, FrameLayout, Schedule, Signal, Wait
from stretto.device.regions import Body
from stretto.device.runs import apart_functions, tree_seconds
from stretto.device.tree import (
    Call,
    Leaf,
    Node,
    Tree,
    TreeFunction,
    children,
    is_parallel,
    leaves,
    map_leaves,
    rebuilt,
    rotation,
)
from stretto.errors import ScheduleError
from stretto.ir.sizes import Size
from stretto.remarks import Remarks
from stretto.schedule.call_threads import has_shares
from stretto.schedule.footprint import Footprints
from stretto.schedule.leaf_waits import SyncSetting
from stretto.schedule.memory import FramePlan, frames_side_by_side, plan_frame
from stretto.schedule.own_lists import NO_LISTS, own_lists
from stretto.schedule.policies import POLICIES
from stretto.schedule.policies.list import ListPolicy
from stretto.schedule.policy import (
    FunctionPlanner,
    LeafPlan,
    Placed,
    Policy,
    kernel_seconds,
)
from stretto.schedule.synchronize import Synchronizer
from stretto.schedule.work import small_calls
from stretto.schedule.written import ordered_buffers
from stretto.text import seconds_text

MOST_SHARE = 0.8
"""Several units must take less of the time of one, without waking them, to be of use for a call."""


@dataclass(frozen=True, slots=True)
class Report:
    """What `explain()` says of a schedule.

    seconds: the estimated time of a launch, without waking workers; alone: the same on one unit.
    waits, signals: items in the text, of all units. frame_bytes: of all functions; separate_bytes:
    if nothing were shared; sized_bytes: what the sizes of a call add to the frames, in so many
    `slots` for so many `sized` buffers.
    """

    units: int
    policy: str
    seconds: float
    alone: float
    leaves: int
    waves: int
    waits: int
    signals: int
    frame_bytes: int
    separate_bytes: int
    sized_bytes: int | Size
    slots: int
    sized: int


def schedule(
    tree: Tree[Body], units: int, costs: CostModel | None = None, policy: Policy | None = None
) -> DeviceProgram:
    """A program for `units` units, or for one where several would not gain what waking them costs.

    Where the units are uniform it is always for all of them. policy: plans it; None is the one of
    the smallest estimate among those that suit the machine.

    Raises ScheduleError for a tree that cannot be scheduled (a local buffer of dynamic size).
    """
    return schedule_with_report(tree, units, costs, policy=policy)[0]


def schedule_with_report(
    tree: Tree[Body],
    units: int,
    costs: CostModel | None = None,
    remarks: Remarks | None = None,
    policy: Policy | None = None,
) -> tuple[DeviceProgram, Report]:
    """As `schedule`, with what it decided; `remarks` takes what it declined, and why."""
    costs = costs or HOST_COSTS
    tree = normalize(tree)
    alone = tree_seconds(
        tree.functions, lambda body: sum(kernel_seconds(item, costs) for item in body), costs
    )
    plan = _shared_out(tree, units, costs, alone, remarks or Remarks(), policy)
    if plan is None:
        plan = _plan(tree, 1, costs, policy or _by_planning(tree, 1, costs)[0][1])
    program, frames = _realised(tree, plan, costs)
    if plan.units > 1 and alone > 0 and not costs.uniform and costs.wake_seconds > 0:
        share = min(plan.seconds / alone, MOST_SHARE)
        program = replace(program, small=small_calls(tree, program.symbols, share, costs))
    schedules = [leaf for function in program.tree.functions for leaf in leaves(function.body)]
    items = [item for leaf in schedules for unit in leaf.units for item in unit]
    report = Report(
        units=plan.units,
        policy=plan.policy.name,
        seconds=plan.seconds,
        alone=alone,
        leaves=len(schedules),
        waves=sum(leaf.steps for leaf in schedules),
        waits=sum(isinstance(item, Wait) for item in items),
        signals=sum(isinstance(item, Signal) for item in items),
        frame_bytes=sum(memory.frame.nbytes * memory.frame.copies for memory in frames),
        separate_bytes=sum(memory.separate for memory in frames),
        sized_bytes=_sized_bytes(memory.frame for memory in frames),
        slots=sum(len(memory.frame.slots) for memory in frames),
        sized=sum(len(memory.frame.sized) for memory in frames),
    )
    return program, report


def _sized_bytes(frames: Iterable[FrameLayout]) -> int | Size:
    slots = (Size.of(slot) for frame in frames for slot in frame.slots)
    return sum(slots, start=Size()).dim


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """Every function with planned leaves, and the estimated time of `main`."""

    policy: Policy
    units: int
    functions: tuple[TreeFunction[LeafPlan], ...]
    seconds: float
    footprints: Footprints


def _shared_out(
    tree: Tree[Body],
    units: int,
    costs: CostModel,
    alone: float,
    remarks: Remarks,
    policy: Policy | None,
) -> ProgramPlan | None:
    """The best plan for several units; None where it does not gain what waking them costs.

    No plan can be faster than all units at work all the time: a policy is asked where it could gain
    more over the best plan so far than its planning costs.
    """
    ideal = alone / units
    best: ProgramPlan | None = None
    # Where sizes decide how much there is to do, each call finds out whether it wakes other units.
    sized = alone > 0 and any(b.is_input and b.is_sized for b in tree.externals)
    wake = alone * (1 - MOST_SHARE) if sized else costs.wake_seconds
    if costs.uniform or (units > 1 and ideal + wake <= alone):
        asked = [(0.0, policy)] if policy else _by_planning(tree, units, costs)
        for price, one in asked:
            if best is not None and ideal + price >= best.seconds:
                reason = "it could not gain what planning with it takes"
                remarks.decline("schedule", f"policy {one.name}", reason)
                continue
            plan = _plan(tree, units, costs, one)
            if best is None or plan.seconds + price < best.seconds:
                best, plan = plan, best
            if plan is not None:
                reason = f"estimated at {seconds_text(plan.seconds)}"
                remarks.decline("schedule", f"policy {plan.policy.name}", reason)
    gains = best is not None and best.seconds + wake <= alone
    if costs.uniform or gains or units == 1:
        return best
    reason = f"waking {units} units would take longer than they could gain"
    remarks.decline("schedule", "several units", reason)
    return None


def _by_planning(tree: Tree[Body], units: int, costs: CostModel) -> list[tuple[float, Policy]]:
    """The policies that fit, and what their planning costs, the cheapest first. Shares of library
    calls are found along the critical path, which the list policy follows."""
    shares = has_shares(tree)
    items = sum(len(body) for function in tree.functions for body in leaves(function.body))
    look = items * costs.planning_seconds * costs.planning_share
    prices = [
        (look * policy.planning_work(units), policy)
        for policy in POLICIES.values()
        if policy.fits(units, costs) or (shares and isinstance(policy, ListPolicy))
    ]
    return sorted(prices, key=lambda pair: pair[0])


def _plan(tree: Tree[Body], units: int, costs: CostModel, policy: Policy) -> ProgramPlan:
    footprints = Footprints(units)
    alone = policy.planner(1, costs, Footprints(1))
    apart = apart_functions(tree)

    def planned(function: TreeFunction[Body]) -> Node[LeafPlan]:
        if function.name in apart:
            return map_leaves(function.body, lambda body: _by_each(alone.plan(body), units))
        return _planned(function.body, policy.planner(units, costs, footprints), alone, units)

    functions = tuple(function.with_body(planned(function)) for function in tree.functions)
    seconds = tree_seconds(functions, lambda plan: plan.seconds, costs, units)
    return ProgramPlan(policy, units, functions, seconds, footprints)


def _planned(
    node: Node[Body], planner: FunctionPlanner, alone: FunctionPlanner, units: int
) -> Node[LeafPlan]:
    """`alone`: plans leaves for a single unit."""
    if is_parallel(node):
        return map_leaves(node, lambda body: _by_each(alone.plan(body), units))
    match node:
        case Leaf(body):
            return Leaf(planner.plan(body))
        case Call():
            return cast("Call[LeafPlan]", node)
        case _:
            inner = [_planned(child, planner, alone, units) for child in children(node)]
            planner.rotate(rotation(node))
            return rebuilt(node, inner)


def _by_each(plan: LeafPlan, units: int) -> LeafPlan:
    """What one unit does, done by each of the units."""

    def everyone(placed: Placed) -> Placed:
        parts = (replace(part, unit=unit) for unit in range(units) for part in placed.parts)
        return replace(placed, parts=tuple(parts))

    return LeafPlan(tuple(tuple(map(everyone, wave)) for wave in plan.waves), plan.seconds)


def _realised(
    tree: Tree[Body], plan: ProgramPlan, costs: CostModel
) -> tuple[DeviceProgram, list[FramePlan]]:
    """The program of a plan, with its memory and its waits."""
    kernels = _kernels(tree)
    ordered = ordered_buffers(tree)
    # Memory that is used again is one more reason to wait, and widens the ranges.
    ranges = costs.uniform or plan.policy.ranges
    share_bytes = sys.maxsize if ranges else costs.share_bytes
    functions: list[TreeFunction[Schedule]] = []
    frames: list[FramePlan] = []
    apart = apart_functions(tree)
    own = own_lists(plan.functions) if plan.units > 1 else NO_LISTS
    for function in plan.functions:
        memory = plan_frame(function, plan.units, share_bytes)
        setting = SyncSetting(plan.units, plan.footprints, memory.map, ranges)
        is_main = function.name == "main"
        walker = Synchronizer(is_main, setting, ordered(function.name), own)
        walked = walker.apart if function.name in apart else walker.function
        functions.append(function.with_body(walked(function.body)))
        frames.append(memory)
    names = [function.name for function in functions]
    frames = frames_side_by_side(names, frames, apart, plan.units)
    program = DeviceProgram(
        plan.units,
        Tree(tuple(functions), tree.externals),
        kernels,
        tuple(zip(names, (memory.frame for memory in frames), strict=True)),
        tuple(buffer for buffer in tree.externals if buffer.kind == "list"),
    )
    return program, frames


def _kernels(tree: Tree[Body]) -> tuple[Kernel, ...]:
    """All kernels, in the order of the text; one that is named twice must be one kernel."""
    found: dict[str, Kernel] = {}
    for function in tree.functions:
        for kernel in (item for body in leaves(function.body) for item in body):
            if isinstance(kernel, Kernel) and found.setdefault(kernel.name, kernel) != kernel:
                raise ScheduleError(f"two different kernels have the name {kernel.name}")
    return tuple(found.values())
