"""Choice of one variant per kernel, made for whole leaves.

A kernel cut into many small tasks finishes early on units that would otherwise be idle, but costs
more unit time in total: task starts, and data that is read twice. So the fastest variants suit a
wave that leaves units idle, and the most efficient ones a wave that fills them (Rammer, section
3.3). `holistic` starts with the fastest variant of every kernel, goes through the waves from the
longest to the shortest, and keeps each change that makes the simulated leaf faster: first the most
efficient variants of a whole wave, then other variants of one kernel at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod

from stretto.device.costs import CostModel
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram, FrameLayout
from stretto.device.regions import Body
from stretto.device.tree import Leaf, Tree, TreeFunction, map_tree
from stretto.kernels.variants import (
    Chooser,
    OpenBody,
    OpenKernel,
    Variant,
    cheapest,
    cheapest_of,
    closed,
)
from stretto.schedule.footprint import Footprints, MemoryMap, leaf_nodes
from stretto.schedule.leaf_waits import SyncSetting
from stretto.schedule.policies import POLICIES
from stretto.schedule.policy import LeafPlan, Policy
from stretto.schedule.synchronize import Synchronizer
from stretto.simulator.devices import Device, device_for
from stretto.simulator.run_path import DefaultChoices
from stretto.simulator.simulate import Simulator
from stretto.simulator.work import Works

# ---- Simulated time of a planned leaf, by which the plans are compared.


@dataclass(slots=True)
class RegionTime:
    """Simulator of single leaves on `units` units.

    Each leaf is a program by itself: all buffers have separate memory, and every unit begins at
    once. Kernels with equal names must be equal. `device` is the device that `costs` describes.
    """

    units: int
    costs: CostModel
    footprints: Footprints
    device: Device = field(init=False)
    _works: Works = field(init=False)

    def __post_init__(self) -> None:
        self.device = device_for(self.costs, self.units)
        self._works = Works((), self.device, self.costs)

    def of(self, plan: LeafPlan, policy: Policy) -> float:
        """Return the seconds from the first task of a plan to the end of its last."""
        ranges = self.costs.uniform or policy.ranges
        setting = SyncSetting(self.units, self.footprints, MemoryMap(), ranges)
        body = Synchronizer(True, setting, lambda buffer: True).function(Leaf(plan))
        kernels = {p.item.name: p.item for p in plan.placed if isinstance(p.item, Kernel)}
        self._works.add(kernels.values())
        program = DeviceProgram(
            self.units,
            Tree((TreeFunction("main", (), (), (), (), (), body),), ()),
            tuple(kernels.values()),
            (("main", FrameLayout(0, ())),),
        )
        choices = DefaultChoices(self.costs.unknown_trips)
        result = Simulator(program, self.device, choices, self.costs, self._works).run()
        return result.seconds - self.device.launch_seconds - self.device.wake_seconds

    def planned(self, body: Body, policy: Policy) -> float:
        """Return the seconds of a leaf as `policy` plans it without knowledge of other leaves."""
        plan = policy.planner(self.units, self.costs, self.footprints).plan(body)
        return self.of(plan, policy)


MOST_TRIALS = 64
"""Limit on the simulations of one leaf."""
MOST_TASKS = 40_000
"""Limit on the simulated tasks of one leaf, over all its trials."""
MOST_VARIANTS = 4
"""Number of variants of a kernel that are tried one at a time."""
GAIN = 1.005
"""Factor by which a change must make the leaf faster to be accepted."""


def chooser(kernels: str, units: int, policy: Policy | None = None) -> Chooser:
    """Return the chooser that `Debug.kernels` names: "fastest", "efficient" or "holistic". `policy`
    plans the simulated leaves; None takes the policy for this machine whose planning is fastest."""
    match kernels:
        case "efficient":
            return efficient
        case "holistic":
            return lambda tree, costs: holistic(tree, costs, units, policy)
        case _:
            return cheapest


def efficient(tree: Tree[OpenBody], costs: CostModel) -> Tree[Body]:
    """Choose for every kernel the variant with the least total task time."""
    return map_tree(tree, lambda items: closed(items, partial(efficient_of, costs=costs)))


def efficient_of(variants: Iterable[Variant], costs: CostModel) -> Variant:
    """Return the variant with the least total task time; the first one of equals."""
    return min(variants, key=lambda variant: round(total_seconds(variant, costs), 12))


def total_seconds(variant: Variant, costs: CostModel) -> float:
    """Return the seconds of all tasks of a variant, one after the other."""
    return task_count(variant, costs) * variant.task_seconds


def task_count(variant: Variant, costs: CostModel) -> int:
    """Return the number of tasks of a variant, at the usual sizes."""
    counts = (dim.parts or -(-costs.size(dim.extent) // dim.tile) for dim in variant.grid)
    return prod(counts, start=1)


def holistic(
    tree: Tree[OpenBody], costs: CostModel, units: int, policy: Policy | None = None
) -> Tree[Body]:
    """Choose for every leaf the variants that make the whole leaf fastest in simulation."""
    policy = policy or planning_policy(units, costs)
    return map_tree(tree, lambda items: _LeafChoice(items, costs, units, policy).chosen())


def planning_policy(units: int, costs: CostModel) -> Policy:
    """Return the policy whose planning is fastest, among those that suit the machine."""
    found = (policy for policy in POLICIES.values() if policy.fits(units, costs))
    return min(found, key=lambda policy: policy.planning_work(units))


class _LeafChoice:
    """Search for the variants of one leaf. Places are indices of its items."""

    def __init__(self, items: OpenBody, costs: CostModel, units: int, policy: Policy) -> None:
        self._items = items
        self._costs = costs
        self._policy = policy
        self._time = RegionTime(units, costs, Footprints(units))
        self._units = units
        self._open = {n: item for n, item in enumerate(items) if isinstance(item, OpenKernel)}
        self._now = {n: cheapest_of(item.variants, costs) for n, item in self._open.items()}
        self._trials: dict[tuple[int, Variant], Kernel] = {}

    def chosen(self) -> Body:
        """Return the leaf with the chosen variants."""
        if any(len(item.variants) > 1 for item in self._open.values()):
            self._improve()
        return tuple(
            item.closed(self._now[n]) if isinstance(item, OpenKernel) else item
            for n, item in enumerate(self._items)
        )

    def _improve(self) -> None:
        """Try the changes until the limit on trials, and keep each that makes the leaf faster."""
        tasks = sum(task_count(variant, self._costs) for variant in self._now.values())
        trials = min(MOST_TRIALS, MOST_TASKS // max(tasks, 1))
        if trials < 2:
            return
        best = self._seconds(self._now)
        for change in self._changes():
            trials -= 1
            if trials <= 0:
                return
            tried = self._now | change
            if tried == self._now:
                continue
            seconds = self._seconds(tried)
            if seconds * GAIN < best:
                best, self._now = seconds, tried

    def _changes(self) -> Iterator[dict[int, Variant]]:
        """Yield variants by place: for each wave its most efficient variants, then other variants
        of each kernel, the kernels with the most work first."""
        for wave in self._waves():
            yield {n: self._efficient(n) for n in wave}
        for n in sorted(self._open, key=self._work, reverse=True):
            others = [one for one in self._open[n].variants if one != self._now[n]]
            others.sort(key=lambda one: one.seconds)
            for variant in others[:MOST_VARIANTS]:
                yield {n: variant}

    def _waves(self) -> Sequence[Sequence[int]]:
        """Return the places of kernels with a choice, grouped by dependence level (kernels of a
        level could run side by side), the groups with the most work first."""
        found: dict[int, list[int]] = defaultdict(list)
        for node in leaf_nodes(self._body(self._now)):
            if node.index in self._open and len(self._open[node.index].variants) > 1:
                found[node.depth].append(node.index)
        return sorted(found.values(), key=lambda wave: -sum(map(self._work, wave)))

    def _efficient(self, place: int) -> Variant:
        return efficient_of(self._open[place].variants, self._costs)

    def _work(self, place: int) -> float:
        return total_seconds(self._now[place], self._costs)

    def _seconds(self, variants: dict[int, Variant]) -> float:
        """Return the simulated seconds of the leaf with these variants."""
        return self._time.planned(self._body(variants), self._policy)

    def _body(self, variants: dict[int, Variant]) -> Body:
        return tuple(
            self._trial(n, variants[n]) if isinstance(item, OpenKernel) else item
            for n, item in enumerate(self._items)
        )

    def _trial(self, place: int, variant: Variant) -> Kernel:
        """Return a kernel in a variant, under a unique name, because footprints and simulated work
        are cached by kernel name."""
        key = place, variant
        if key not in self._trials:
            kernel = self._open[place].closed(variant)
            self._trials[key] = replace(kernel, name=f"{kernel.name}|{len(self._trials)}")
        return self._trials[key]
