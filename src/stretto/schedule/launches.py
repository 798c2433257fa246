"""Chooses which nodes of main a plan takes apart: leaves into a launch per kernel, control nodes
into steps of the host, where a simulated run of the plan is faster so.

Cocktailer (section 3) places the evaluation of control flow by cost; here it is placed with the
launches, since the host can decide only between two of them. An estimate comes first, what each
leaf takes as launches (`simulator/launches.py`). Where it promises a gain, the real plan is made
and simulated, and it is taken where it is at least `LEAST_GAIN` faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stretto.device.costs import CostModel
from stretto.device.plan import Plan
from stretto.device.program import DeviceProgram, Schedule
from stretto.device.tree import (
    Branching,
    Call,
    Leaf,
    Node,
    Seq,
    children,
    is_parallel,
    leaves,
    title,
    walk,
)
from stretto.device.verifier.plans import Marks, as_program
from stretto.errors import ScheduleError
from stretto.schedule.plan import make_plan
from stretto.simulator.control import Assumed, Choices, leaf_numbers
from stretto.simulator.devices import Device, device_for
from stretto.simulator.launches import LEAST_GAIN, launch_per_kernel, read_seconds
from stretto.simulator.on_chip import kept_in_loops
from stretto.simulator.simulate import simulate
from stretto.simulator.work import KeptPart


@dataclass(frozen=True, slots=True)
class ChosenBranch:
    """A branch of main, by the name of its condition; what executes it, and the reason."""

    condition: str
    way: str
    why: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """cuts, predicated, unlikely: of `make_plan`. seconds: of the plan in simulation, where it was
    simulated. branches: what was chosen for branches that were looked at one by one, and why."""

    cuts: frozenset[int] = frozenset()
    seconds: float | None = None
    predicated: frozenset[int] = frozenset()
    unlikely: Mapping[int, Branching] = field(default_factory=dict[int, Branching])
    branches: tuple[ChosenBranch, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """A loop or branch of main, and what the plan takes with it executed by the units and by the
    host. on_host: where the plan has it."""

    title: str
    on_host: bool
    units_seconds: float
    host_seconds: float


def choose_launches(
    program: DeviceProgram,
    costs: CostModel,
    launches: str = "auto",
    control: str = "auto",
    device: Device | None = None,
) -> Chosen:
    """The cuts of a verified program, as `Debug.launches` and `Debug.control` say. device: the
    one that plans are simulated on; by default the one that `costs` are of."""
    main = program.tree.main.body
    forced: set[int] = set()
    if control == "host":
        forced |= hosted(main)
    if launches == "per_kernel":
        forced |= {id(leaf) for leaf in outer_leaves(main, forced)}
    if "auto" not in (launches, control):
        return Chosen(frozenset(forced))
    device = device or device_for(costs, program.units)
    try:
        return _cheapest(program, costs, device, frozenset(forced), launches, control)
    except ScheduleError:  # a run too long to be simulated; one launch is the usual case
        return Chosen(frozenset(forced))


def plan_seconds(
    plan: Plan, device: Device, costs: CostModel, choices: Choices | None = None
) -> float:
    """A simulated run of a plan: its launches one after the other, with what the host reads between
    them. Loops keep weights on chip as far as they are inside of a launch. Raises ScheduleError
    for a run that is too long."""
    marks = Marks()
    program = as_program(plan, marks)
    kept: dict[str, KeptPart] = {}
    for _, launch in plan.launches:
        kept |= kept_in_loops(launch.program, device, costs)
    run = simulate(program, device, choices or Assumed(costs.unknown_trips), costs, kept)
    numbers, _ = leaf_numbers(program)
    begun = sum(run.runs[numbers[id(mark)]] for mark in marks.begins)
    read = sum(run.runs[numbers[id(mark)]] for mark in marks.reads)
    # A launch waits for all units of the one before, which the barrier in its place does too.
    waited = device.wait_seconds if program.units > 1 else 0.0
    between = (begun - 1) * (device.next_launch_seconds - waited)
    return run.seconds + between + read * read_seconds(device)


def placements(
    program: DeviceProgram, costs: CostModel, cuts: frozenset[int]
) -> tuple[Placement, ...]:
    """The loops and branches of main that are in no other, with the time of both ways. Raises
    ScheduleError for a run that is too long."""
    device = device_for(costs, program.units)
    kernels = {kernel.name: kernel for kernel in program.kernels}
    found: list[Placement] = []
    for node in _control(program.tree.main.body):
        inside = frozenset(map(id, walk(node)))
        without, own = cuts - inside, cuts & inside
        forced = any(kernels[name].call for leaf in leaves(node) for name in leaf.kernels)
        units, host = (
            plan_seconds(make_plan(program, cuts=made), device, costs)
            for made in (without, without | (own or {id(node)}))
        )
        found.append(Placement(title(node), bool(own) or forced, units, host))
    return tuple(found)


def _cheapest(
    program: DeviceProgram,
    costs: CostModel,
    device: Device,
    cuts: frozenset[int],
    launches: str,
    control: str,
) -> Chosen:
    kept = kept_in_loops(program, device, costs)
    whole = simulate(program, device, Assumed(costs.unknown_trips), costs, kept)
    apart = launch_per_kernel(program, device, costs=costs)
    candidates: list[frozenset[int]] = []
    numbers, titles = leaf_numbers(program)
    main = program.tree.main.body
    if launches == "auto":
        faster = apart.faster(whole, device)
        outer = [leaf for leaf in outer_leaves(main, cuts) if titles[numbers[id(leaf)]] in faster]
        candidates += [frozenset({id(leaf)}) for leaf in outer]
    if control == "auto" and launches != "one":
        seconds = {stretch.title: stretch.seconds for stretch in whole.stretches}
        runs = {stretch.title: stretch.runs for stretch in whole.stretches}
        for node in _control(main):
            inner = [leaf for leaf in _outside_parallel(node) if isinstance(leaf, Leaf)]
            names = {id(leaf): titles[numbers[id(leaf)]] for leaf in inner}
            gains = {
                leaf: seconds[name]
                - apart.stretches.get(name, seconds[name])
                - runs[name] * device.next_launch_seconds
                for leaf, name in names.items()
                if name in seconds
            }
            if sum(max(gain, 0.0) for gain in gains.values()) > LEAST_GAIN * whole.seconds:
                taken = {leaf for leaf, gain in gains.items() if gain > 0}
                candidates.append(frozenset({id(node), *taken}))
    if not candidates:
        return Chosen(cuts)
    best = plan_seconds(make_plan(program, cuts=cuts), device, costs)
    for candidate in candidates:
        seconds = plan_seconds(make_plan(program, cuts=cuts | candidate), device, costs)
        if seconds < (1 - LEAST_GAIN) * best:
            cuts, best = cuts | candidate, seconds
    return Chosen(cuts, best)


def hosted(main: Node[Schedule]) -> set[int]:
    """All loops and branches that the host could execute."""
    apart = {id(node) for loop in walk(main) if is_parallel(loop) for node in walk(loop)}
    return {id(node) for node in walk(main) if _decides(node) and id(node) not in apart}


def outer_leaves(
    node: Node[Schedule], hosted: set[int] | frozenset[int]
) -> Iterator[Leaf[Schedule]]:
    """The leaves of main that are in no control node but those of the host."""
    if isinstance(node, Leaf):
        yield node
    elif isinstance(node, Seq) or id(node) in hosted:
        for child in children(node):
            yield from outer_leaves(child, hosted)


def _control(node: Node[Schedule]) -> Iterator[Node[Schedule]]:
    """The loops and branches that are in no other."""
    if isinstance(node, Seq):
        for child in node.children:
            yield from _control(child)
    elif _decides(node):
        yield node


def _outside_parallel(node: Node[Schedule]) -> Iterator[Node[Schedule]]:
    """The node and what is below it, without what units do each by itself."""
    if not is_parallel(node):
        yield node
        for child in children(node):
            yield from _outside_parallel(child)


def _decides(node: Node[Schedule]) -> bool:
    """Whether it is a loop or a branch that the host could execute: of a parallel loop each unit
    has iterations of its own."""
    return not isinstance(node, Leaf | Seq | Call) and not is_parallel(node)
