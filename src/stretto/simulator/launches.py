"""Estimate of a program with one launch per kernel, to compare it with the program as one launch.

In one launch, units wait for the units that they need, and control flow is in the launch. With a
launch per kernel, kernels have all units at once, and nothing waits inside them; but each begins
only after the previous one has ended entirely, delayed by the gap between launches, and the host
first reads the values that decide control. (Rammer, section 2, calls these costs of scheduling in
two layers; Cocktailer, section 2, those of control flow on the host.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stretto.device.costs import HOST_COSTS, CostModel
from stretto.device.program import DeviceProgram, Item, Run, Schedule, Signal, Wait
from stretto.device.tree import Leaf, map_tree
from stretto.simulator.devices import Device
from stretto.simulator.result import Simulation
from stretto.simulator.run_path import Choices, CountingChoices, DefaultChoices, leaf_numbers
from stretto.simulator.simulate import simulate

LEAST_GAIN = 0.05
"""Least part of a stretch's time that a launch per kernel must save."""

Ways = tuple[float, float]
"""Seconds in one launch, and with a launch per kernel."""


@dataclass(frozen=True, slots=True)
class Launches:
    """A run with a launch per kernel. seconds: of the run. count: of the launches. reads:
    decisions that the host waits for. stretches: seconds that each leaf adds, by its title."""

    seconds: float
    count: int
    reads: int
    stretches: Mapping[str, float]

    def faster(self, whole: Simulation, device: Device) -> dict[str, Ways]:
        """Return the leaves that run once and would take less time with a launch per kernel, by
        title. Such a stretch needs one more launch before it and one after it."""
        more = 2 * device.next_launch_seconds
        found: dict[str, Ways] = {}
        for stretch in whole.stretches:
            apart = self.stretches.get(stretch.title, stretch.seconds) + more
            if stretch.runs == 1 and apart < (1 - LEAST_GAIN) * stretch.seconds:
                found[stretch.title] = stretch.seconds, apart
        return found


def launch_per_kernel(
    program: DeviceProgram,
    device: Device,
    choices: Choices | None = None,
    costs: CostModel = HOST_COSTS,
) -> Launches:
    """Simulate a run of a verified program in which each kernel is a launch. Arguments are those
    of `simulate`."""
    chosen = CountingChoices(choices or DefaultChoices(costs.unknown_trips))
    gap = max(device.next_launch_seconds - device.stage_seconds, 0.0)
    run = simulate(by_kernel(program), replace(device, wait_seconds=gap), chosen, costs)
    kernels = _kernels(program)
    count = sum(runs * kernels[leaf] for leaf, runs in enumerate(run.runs))
    seconds = run.seconds + chosen.count * read_seconds(device)
    return Launches(seconds, count, chosen.count, {s.title: s.seconds for s in run.stretches})


def read_seconds(device: Device) -> float:
    """Return the time until the host has read a number from the device and launched the next
    kernel."""
    return 2 * device.launch_seconds


def by_kernel(program: DeviceProgram) -> DeviceProgram:
    """Return the program with the tasks of each kernel shared among all units, and a barrier of all
    units after it. It is only for simulation: buffers may share memory that is still needed."""
    return replace(program, tree=map_tree(program.tree, _by_kernel))


def _by_kernel(leaf: Schedule) -> Schedule:
    first: dict[str, int] = {}
    for items in leaf.units:
        for place, item in enumerate(items):
            if isinstance(item, Run):
                first[item.kernel] = min(first.get(item.kernel, place), place)
    order = sorted(first, key=lambda name: (first[name], name))
    units = len(leaf.units)

    def items_of(unit: int) -> tuple[Item, ...]:
        items: list[Item] = list(leaf.statements)
        for step, name in enumerate(order, 1):
            items += (Run(name, unit, None, units), Signal(step), Wait(0, step, units))
        return tuple(items)

    return Schedule(tuple(map(items_of, range(units))), len(order) + 1)


def _kernels(program: DeviceProgram) -> list[int]:
    """Return the number of kernels of each leaf, in the order of `leaf_numbers`."""
    found: dict[int, int] = {}
    numbers, titles = leaf_numbers(program)
    for node in program.tree.walk():
        if isinstance(node, Leaf):
            found[numbers[id(node)]] = len(node.body.kernels)
    return [found.get(number, 0) for number in range(len(titles))]
