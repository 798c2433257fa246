"""From a tree of kernels to a DeviceProgram: plan leaves, place memory, insert waits."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import cast

from stretto.components import reachable
from stretto.device.costs import HOST_COSTS, CostModel
from stretto.device.expr import Buffer, Expr, Extent, Position, Reg, constant
from stretto.device.normalize import normalize, tree_kernels
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram, FrameLayout, Schedule, Signal, Small, Wait
from stretto.device.regions import Body, Statement, written_buffers
from stretto.device.runs import functions_in_parallel_loops, tree_seconds
from stretto.device.tree import (
    Call,
    For,
    If,
    Leaf,
    Node,
    Tree,
    TreeFunction,
    calls,
    children,
    is_loop,
    is_parallel,
    leaves,
    map_leaves,
    rebuilt,
    rotation,
)
from stretto.errors import ScheduleError
from stretto.ir.size_bounds import maximum
from stretto.ir.sizes import Size, Symbol, usual_value
from stretto.remarks import Remarks
from stretto.schedule.footprint import Footprints
from stretto.schedule.frame_layout import FramePlan, frames_side_by_side, plan_frame
from stretto.schedule.leaf_waits import SyncSetting
from stretto.schedule.policies import POLICIES
from stretto.schedule.policy import FunctionPlanner, LeafPlan, Placed, Policy, kernel_seconds
from stretto.schedule.synchronize import NO_LISTS, Synchronizer, own_lists
from stretto.text import seconds_text

# ---- Memory that a tree of kernels writes; accesses to other memory need no waits.
#
# The verifier decides the same by separate rules (`device/verifier/assignment.py`): it uses the
# written params that each function declares, and checks the declarations.


Key = tuple[str, str]
"""A function and the name of one of its params; for a buffer of the argument block the function is
""."""

LOCAL: Key = "", ""
"""Key of all local memory, which is always written."""


def ordered_buffers(tree: Tree[Body]) -> Callable[[str], Callable[[Buffer], bool]]:
    """Return a predicate for each function: True if the order of its accesses to a buffer can
    matter.

    For a param it can if the function writes it or passes it to one that does, or if a caller binds
    it to memory that is written.
    """
    callers, callees = defaultdict[Key, set[Key]](set), defaultdict[Key, set[Key]](set)
    for caller, callee in _bindings(tree):
        callers[callee].add(caller)
        callees[caller].add(callee)
    written = reachable(reachable({LOCAL, *_written(tree)}, callers), callees)
    return lambda function: lambda buffer: _key(function, buffer) in written


def _key(function: str, buffer: Buffer) -> Key:
    match buffer.kind:
        case "local" | "items":
            return LOCAL
        case "param":
            return function, buffer.name
        case _:
            return "", buffer.name


def _written(tree: Tree[Body]) -> Iterator[Key]:
    for function in tree.functions:
        for item in (item for body in leaves(function.body) for item in body):
            if isinstance(item, Kernel):
                yield from (_key(function.name, buffer) for buffer in written_buffers(item))


def _bindings(tree: Tree[Body]) -> Iterator[tuple[Key, Key]]:
    """Yield what callers bind, with the params of the callees."""
    for function in tree.functions:
        for call in calls(function.body):
            for param, access in call.tensors:
                yield _key(function.name, access.buffer), (call.function, param.name)


# ---- Time of a call on one unit, as a formula over its sizes.
#
# The estimates of kernels are for usual sizes. The time of a kernel is taken to be proportional to
# the elements of its largest operator, that of a loop to its trip count.


PICOSECONDS = 1e12


def small_calls(
    tree: Tree[Body], symbols: tuple[Symbol, ...], share: float, costs: CostModel
) -> Small | None:
    """Return the work of a call as a formula of its sizes, with the limit below which several
    units gain nothing if they take `share` of the time of one; None if the work does not depend
    on the sizes."""
    work = _Work(tree, frozenset(symbols), costs).function("main")
    if work.is_const:
        return None
    return Small(work, round(costs.wake_seconds / (1 - share) * PICOSECONDS))


class _Work:
    """Picoseconds of functions and nodes; recursion and loops whose trip count data decide take
    the usual time."""

    def __init__(self, tree: Tree[Body], symbols: frozenset[Symbol], costs: CostModel) -> None:
        self._bodies = {function.name: function.body for function in tree.functions}
        self._symbols = symbols
        self._costs = costs
        self._active: set[str] = set()

    def function(self, name: str) -> Size:
        """Return the picoseconds of a function; 0 for a recursive call."""
        if name in self._active:
            return Size()
        self._active.add(name)
        work = self._node(self._bodies[name])
        self._active.remove(name)
        return work

    def _node(self, node: Node[Body]) -> Size:
        match node:
            case Leaf(body):
                return sum(map(self._item, body), start=Size())
            case Call(function=name):
                return self.function(name)
            case If(then=then, orelse=orelse):
                return maximum(self._node(then), self._node(orelse))
            case _:
                below = sum(map(self._node, children(node)), start=Size())
                return below * self._trips(node)

    def _trips(self, node: Node[Body]) -> int | Size:
        """Return the trip count of a loop node, usual if data decide it; 1 for other nodes."""
        match node:
            case For(start=start, stop=stop, step=step):
                first, last = self._bound(start), self._bound(stop)
                if first is None or last is None:
                    return self._costs.unknown_trips
                return (last - first) * (1 if step > 0 else -1) // abs(step)
            case _:
                return self._costs.unknown_trips if is_loop(node) else 1

    def _bound(self, expr: Expr) -> Size | None:
        """Return the bound of a loop if it is a number or a size of the call, else None."""
        number = constant(expr)
        if number is not None:
            return Size(const=number)
        if isinstance(expr, Position) and self._is_given(expr.index):
            return expr.index
        return None

    def _is_given(self, size: Size) -> bool:
        """True if the size depends only on the sizes of the call."""
        if size.may_wrap or size.vars() or any(isinstance(atom, Reg) for atom in size.atoms()):
            return False
        return set(size.symbols) <= self._symbols

    def _item(self, item: Statement) -> Size:
        """Return the picoseconds of an item, proportional to its largest operator."""
        picoseconds = kernel_seconds(item, self._costs) * PICOSECONDS
        if not isinstance(item, Kernel) or not item.stages:
            return Size(const=round(picoseconds))
        extents = max(
            ((*s.operator.dims, *s.operator.reduce) for s in item.stages), key=self._costs.points
        )
        sizes = [self._size(extent) for extent in extents]
        usual = prod(
            self._costs.size(extent)
            for extent, size in zip(extents, sizes, strict=True)
            if isinstance(size, Size)
        )
        work = Size(const=max(round(picoseconds / usual), 1))
        for size in sizes:
            work = work * size if isinstance(size, Size) else work
        return work

    def _size(self, extent: Extent) -> int | Size:
        """Return an extent as a size of the call, or the usual number if it is none."""
        if not isinstance(extent, Size):
            return self._costs.size(extent)
        return extent if set(extent.symbols) <= self._symbols else usual_value(extent)


MOST_SHARE = 0.8
"""Largest share of the time of one unit, without waking, that several units may take to be useful
for a call."""


@dataclass(frozen=True, slots=True)
class Report:
    """Data on a schedule that `explain()` prints.

    seconds: the estimated time of a launch, without waking workers; alone: the same on one unit.
    waits, signals: items in the text, of all units. frame_bytes: of all functions; separate_bytes:
    the same if nothing were shared; sized_bytes: what the sizes of a call add to the frames, in
    `slots` slots for `sized` buffers.
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
    """Return a program for `units` units, or for one if several would not gain what waking them
    costs.

    If the units are uniform, the program is always for all of them. `policy` plans it; None takes
    the one with the smallest estimate among those that suit the machine. Raise ScheduleError for a
    tree that cannot be scheduled (a local buffer of dynamic size).
    """
    return schedule_with_report(tree, units, costs, policy=policy)[0]


def schedule_with_report(
    tree: Tree[Body],
    units: int,
    costs: CostModel | None = None,
    remarks: Remarks | None = None,
    policy: Policy | None = None,
) -> tuple[DeviceProgram, Report]:
    """As `schedule`, with a report of the decisions; `remarks` receives what was declined, and
    why."""
    costs = costs or HOST_COSTS
    tree = normalize(tree)
    alone = tree_seconds(
        tree.functions, lambda body: sum(kernel_seconds(item, costs) for item in body), costs
    )
    plan = _best_parallel_plan(tree, units, costs, alone, remarks or Remarks(), policy)
    if plan is None:
        plan = _plan(tree, 1, costs, policy or _by_planning(tree, 1, costs)[0][1])
    program, frames = _device_program(tree, plan, costs)
    if plan.units > 1 and alone > 0 and not costs.uniform and costs.wake_seconds > 0:
        share = min(plan.seconds / alone, MOST_SHARE)
        program = replace(program, small=small_calls(tree, program.symbols, share, costs))
    schedules = list(program.tree.leaves())
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
    """Functions with planned leaves, and the estimated time of `main` in seconds."""

    policy: Policy
    units: int
    functions: tuple[TreeFunction[LeafPlan], ...]
    seconds: float
    footprints: Footprints


def _best_parallel_plan(
    tree: Tree[Body],
    units: int,
    costs: CostModel,
    alone: float,
    remarks: Remarks,
    policy: Policy | None,
) -> ProgramPlan | None:
    """Return the best plan for several units; None if it does not gain what waking them costs.

    No plan can be faster than all units busy all the time, so a policy is tried only if it could
    gain more over the best plan so far than planning with it costs.
    """
    ideal = alone / units
    best: ProgramPlan | None = None
    # If sizes decide the amount of work, each call decides separately if it wakes other units.
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
    """Return the policies that fit, with the seconds their planning costs, the cheapest first."""
    items = sum(map(len, tree.leaves()))
    look = items * costs.planning_seconds * costs.planning_share
    prices = [
        (look * policy.planning_work(units), policy)
        for policy in POLICIES.values()
        if policy.fits(units, costs)
    ]
    return sorted(prices, key=lambda pair: pair[0])


def _plan(tree: Tree[Body], units: int, costs: CostModel, policy: Policy) -> ProgramPlan:
    """Plan all functions for `units` units with one policy."""
    footprints = Footprints(units)
    alone = policy.planner(1, costs, Footprints(1))
    apart = functions_in_parallel_loops(tree)

    def planned(function: TreeFunction[Body]) -> Node[LeafPlan]:
        if function.name in apart:
            return map_leaves(function.body, lambda body: _on_every_unit(alone.plan(body), units))
        return _planned(function.body, policy.planner(units, costs, footprints), alone, units)

    functions = tuple(function.with_body(planned(function)) for function in tree.functions)
    seconds = tree_seconds(functions, lambda plan: plan.seconds, costs, units)
    return ProgramPlan(policy, units, functions, seconds, footprints)


def _planned(
    node: Node[Body], planner: FunctionPlanner, alone: FunctionPlanner, units: int
) -> Node[LeafPlan]:
    """Plan the leaves below a node. `alone` plans leaves for a single unit."""
    if is_parallel(node):
        return map_leaves(node, lambda body: _on_every_unit(alone.plan(body), units))
    match node:
        case Leaf(body):
            return Leaf(planner.plan(body))
        case Call():
            return cast("Call[LeafPlan]", node)
        case _:
            inner = [_planned(child, planner, alone, units) for child in children(node)]
            planner.rotate(rotation(node))
            return rebuilt(node, inner)


def _on_every_unit(plan: LeafPlan, units: int) -> LeafPlan:
    """Return the plan of one unit, executed by each of the units."""

    def everyone(placed: Placed) -> Placed:
        parts = (replace(part, unit=unit) for unit in range(units) for part in placed.parts)
        return replace(placed, parts=tuple(parts))

    return LeafPlan(tuple(tuple(map(everyone, wave)) for wave in plan.waves), plan.seconds)


def _device_program(
    tree: Tree[Body], plan: ProgramPlan, costs: CostModel
) -> tuple[DeviceProgram, list[FramePlan]]:
    """Return the program of a plan, with its memory and its waits."""
    kernels = _kernels(tree)
    ordered = ordered_buffers(tree)
    # Reused memory causes further waits, and with ranges these cover more units.
    ranges = costs.uniform or plan.policy.ranges
    share_bytes = sys.maxsize if ranges else costs.share_bytes
    functions: list[TreeFunction[Schedule]] = []
    frames: list[FramePlan] = []
    apart = functions_in_parallel_loops(tree)
    own = own_lists(plan.functions) if plan.units > 1 else NO_LISTS
    for function in plan.functions:
        memory = plan_frame(function, plan.units, share_bytes)
        setting = SyncSetting(plan.units, plan.footprints, memory.map, ranges)
        is_main = function.name == "main"
        walker = Synchronizer(is_main, setting, ordered(function.name), own)
        walked = walker.per_unit_body if function.name in apart else walker.function
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
    """Return all kernels in order. Raise ScheduleError if different kernels share a name."""
    found: dict[str, Kernel] = {}
    for kernel in tree_kernels(tree):
        if found.setdefault(kernel.name, kernel) != kernel:
            raise ScheduleError(f"two different kernels have the name {kernel.name}")
    return tuple(found.values())
