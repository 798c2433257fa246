"""Which variant each kernel gets, decided for whole leaves.

A kernel that is cut finely is done soon where units would idle, but spends more of them in all:
starts of tasks, data that is read twice. So the fastest variants are right for a wave that leaves
units idle, and the most efficient ones for a wave that fills them (Rammer, section 3.3). `holistic`
begins with the fastest variants of all kernels, goes through the waves, those that take longest
first, and takes what makes the simulated leaf faster: the most efficient variants of a whole wave,
then other variants of one kernel after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from stretto.device.costs import CostModel
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram, FrameLayout
from stretto.device.regions import Body
from stretto.device.tree import Leaf, Tree, TreeFunction, map_tree
from stretto.kernels.variants import Chooser, OpenBody, OpenKernel, Variant, cheapest, cheapest_of
from stretto.schedule.footprint import Footprints, leaf_nodes
from stretto.schedule.leaf_waits import SyncSetting
from stretto.schedule.memory_map import MemoryMap
from stretto.schedule.policies import POLICIES
from stretto.schedule.policy import LeafPlan, Policy
from stretto.schedule.synchronize import Synchronizer
from stretto.simulator.control import Assumed
from stretto.simulator.devices import Device, device_for
from stretto.simulator.simulate import Simulator
from stretto.simulator.work import Works

# ---- How long a planned leaf takes, by simulation: what choices between plans of it are decided
# by.


@dataclass(slots=True)
class RegionTime:
    """Simulates leaves on `units` units, as programs of their own: all buffers have memory of their
    own, and each leaf begins with every unit at once. Kernels of equal names must be equal.

    device: the one that the costs are those of.
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
        """Seconds from the first task of a plan to its last."""
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
        choices = Assumed(self.costs.unknown_trips)
        result = Simulator(program, self.device, choices, self.costs, self._works).run()
        return result.seconds - self.device.launch_seconds - self.device.wake_seconds

    def planned(self, body: Body, policy: Policy) -> float:
        """The same of a leaf as a policy plans it, knowing of no other leaf."""
        plan = policy.planner(self.units, self.costs, self.footprints).plan(body)
        return self.of(plan, policy)


MOST_TRIALS = 64
"""Simulations of one leaf."""
MOST_TASKS = 40_000
"""Tasks that are simulated for one leaf, in all its trials."""
MOST_VARIANTS = 4
"""Variants of a kernel that are tried alone."""
GAIN = 1.005
"""A change must make the leaf faster by this factor."""


_Choose = Callable[[Iterable[Variant], CostModel], Variant]


def chooser(kernels: str, units: int, policy: Policy | None = None) -> Chooser:
    """What `Options.kernels` names: "fastest", "efficient" or "holistic". policy: plans the leaves
    that are simulated; None is the one that plans fastest for the machine."""
    match kernels:
        case "efficient":
            return efficient
        case "holistic":
            return lambda tree, costs: holistic(tree, costs, units, policy)
        case _:
            return cheapest


def efficient(tree: Tree[OpenBody], costs: CostModel) -> Tree[Body]:
    """Every kernel in the variant whose tasks take least time one after the other."""
    return map_tree(tree, lambda items: _closed(items, efficient_of, costs))


def efficient_of(variants: Iterable[Variant], costs: CostModel) -> Variant:
    """The first of those that take least time of all units together."""
    return min(variants, key=lambda variant: round(total_seconds(variant, costs), 12))


def total_seconds(variant: Variant, costs: CostModel) -> float:
    """All tasks of a variant, one after the other."""
    return task_count(variant, costs) * variant.task_seconds


def task_count(variant: Variant, costs: CostModel) -> int:
    """The tasks of a variant, as many as there usually are."""
    counts = (dim.parts or -(-costs.size(dim.extent) // dim.tile) for dim in variant.grid)
    return prod(counts, start=1)


def holistic(
    tree: Tree[OpenBody], costs: CostModel, units: int, policy: Policy | None = None
) -> Tree[Body]:
    """Every leaf with the variants that make it fastest as a whole, in simulation."""
    policy = policy or planning_policy(units, costs)
    return map_tree(tree, lambda items: _LeafChoice(items, costs, units, policy).chosen())


def planning_policy(units: int, costs: CostModel) -> Policy:
    """The policy that plans fastest, of those that suit the machine."""
    found = (policy for policy in POLICIES.values() if policy.fits(units, costs))
    return min(found, key=lambda policy: policy.planning_work(units))


def _closed(items: OpenBody, choose: _Choose, costs: CostModel) -> Body:
    return tuple(
        item.closed(choose(item.variants, costs)) if isinstance(item, OpenKernel) else item
        for item in items
    )


@dataclass(frozen=True, slots=True)
class _Change:
    """Other variants for some kernels, by their places in the leaf."""

    variants: tuple[tuple[int, Variant], ...]


class _LeafChoice:
    """The variants of one leaf. Places are indices of its items."""

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
        if any(len(item.variants) > 1 for item in self._open.values()):
            self._improve()
        return tuple(
            item.closed(self._now[n]) if isinstance(item, OpenKernel) else item
            for n, item in enumerate(self._items)
        )

    def _improve(self) -> None:
        tasks = sum(task_count(variant, self._costs) for variant in self._now.values())
        trials = min(MOST_TRIALS, MOST_TASKS // max(tasks, 1))
        if trials < 2:
            return
        best = self._seconds(self._now)
        for change in self._changes():
            trials -= 1
            if trials <= 0:
                return
            tried = {**self._now, **dict(change.variants)}
            if tried == self._now:
                continue
            seconds = self._seconds(tried)
            if seconds * GAIN < best:
                best, self._now = seconds, tried

    def _changes(self) -> Iterator[_Change]:
        """For each wave its most efficient variants, then others of each of its kernels, those of
        the most work first."""
        for wave in self._waves():
            yield _Change(tuple((n, self._efficient(n)) for n in wave))
        for n in sorted(self._open, key=self._work, reverse=True):
            others = [one for one in self._open[n].variants if one != self._now[n]]
            others.sort(key=lambda one: one.seconds)
            for variant in others[:MOST_VARIANTS]:
                yield _Change(((n, variant),))

    def _waves(self) -> Sequence[Sequence[int]]:
        """The places of kernels that could run side by side, the longest waves first."""
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
        return self._time.planned(self._body(variants), self._policy)

    def _body(self, variants: dict[int, Variant]) -> Body:
        return tuple(
            self._trial(n, variants[n]) if isinstance(item, OpenKernel) else item
            for n, item in enumerate(self._items)
        )

    def _trial(self, place: int, variant: Variant) -> Kernel:
        """A kernel in a variant, of a name of its own: what is known of kernels goes by names."""
        key = place, variant
        if key not in self._trials:
            kernel = self._open[place].closed(variant)
            self._trials[key] = replace(kernel, name=f"{kernel.name}|{len(self._trials)}")
        return self._trials[key]
