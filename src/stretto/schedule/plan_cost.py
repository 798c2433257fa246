"""Simulated seconds of a plan: its launches one after the other, or one captured graph.

Nothing is measured here; every time comes from the simulator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stretto.device.costs import CostModel
from stretto.device.launch_graph import Arrangement, LaunchGraph
from stretto.device.plan import Action, Launch, Library, Plan, arms, is_unlikely
from stretto.device.tree import (
    Branching,
    Call,
    If,
    Leaf,
    Node,
    Seq,
    children,
    is_loop,
    is_predicated,
    iterations,
    reads,
)
from stretto.device.verifier.plans import Marks, as_program, verify_arrangement, verify_graph
from stretto.schedule.launch_graph import plan_graph
from stretto.schedule.launch_order import Opara, arranged, opara_streams
from stretto.simulator.control import Assumed, Choices, leaf_numbers
from stretto.simulator.devices import Device
from stretto.simulator.graph_run import (
    GraphCosts,
    GraphRun,
    Profile,
    Profiler,
    captured_costs,
    guarded,
    launched_costs,
    run_graph,
)
from stretto.simulator.launches import read_seconds
from stretto.simulator.occupancy import BlockNeeds
from stretto.simulator.on_chip import kept_in_loops
from stretto.simulator.simulate import simulate
from stretto.simulator.work import Kept

Frequencies = Mapping[str, float]
"""How often branches take their first arm, from 0 to 1, by the name of the condition."""


def plan_seconds(
    plan: Plan,
    device: Device,
    costs: CostModel,
    choices: Choices | None = None,
    *,
    captured: bool = False,
    frequencies: Frequencies | None = None,
    kept: Kept | None = None,
) -> float:
    """Simulate a run of a plan.

    captured: main is a captured graph, enqueued by Opara's algorithms, with branches taken as
    `profiled` has it; else launches follow each other, with what the host reads between them.
    choices: of loops and branches; by default the assumptions of `costs`. kept: constants that
    stay on chip, by kernel; by default an estimate for the loops inside of launches. Raises
    ScheduleError for a run that is too long.
    """
    if captured and not plan.is_whole:
        given = profiled(plan, device, costs, captured=True, frequencies=frequencies)
        return given.enqueued_by_opara().run.seconds
    marks = Marks()
    program = as_program(plan, marks)
    if kept is None:
        loops = (kept_in_loops(launch.program, device, costs) for _, launch in plan.launches)
        kept = {kernel: part for found in loops for kernel, part in found.items()}
    run = simulate(program, device, choices or Assumed(costs.unknown_trips), costs, kept)
    numbers, _ = leaf_numbers(program)
    begun = sum(run.runs[numbers[id(mark)]] for mark in marks.begins)
    read = sum(run.runs[numbers[id(mark)]] for mark in marks.reads)
    # A launch waits for all units of the one before, which the barrier in its place does too.
    waited = device.wait_seconds if program.units > 1 else 0.0
    between = (begun - 1) * (device.next_launch_seconds - waited)
    return run.seconds + between + read * read_seconds(device)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A way to enqueue a graph, and a simulated run of it. captured: as one graph, else as launches
    on streams."""

    name: str
    arrangement: Arrangement
    run: GraphRun
    captured: bool = True


@dataclass(frozen=True, slots=True)
class Profiled:
    """A graph with the profiles of its nodes on a device."""

    graph: LaunchGraph
    profiles: tuple[Profile, ...]
    device: Device

    def simulated(
        self, name: str, arrangement: Arrangement, costs: GraphCosts | None = None
    ) -> Enqueued:
        """Verifies an arrangement and simulates it; as a captured graph unless costs are given."""
        verify_arrangement(self.graph, arrangement)
        made = run_graph(
            self.profiles, arrangement, self.device, costs or captured_costs(self.device)
        )
        return Enqueued(name, arrangement, made, costs is None)

    def enqueued_by_opara(self) -> Enqueued:
        """On the streams and in the order of Opara's algorithms (section 3)."""
        before = self.graph.before
        order = Opara().order(before, self.profiles, self.device)
        return self.simulated("Opara", arranged(before, order, opara_streams(before)))


def profiled(
    plan: Plan,
    device: Device,
    costs: CostModel,
    needs: dict[int, BlockNeeds] | None = None,
    *,
    captured: bool = False,
    frequencies: Frequencies | None = None,
) -> Profiled:
    """The graph of main, verified. needs: of compiled launches, by the `id` of the launch.
    captured: loops and branches are conditional nodes, not the host's. frequencies: how often
    branches take their first arm; of others the slower arm counts."""
    graph = plan_graph(plan)
    verify_graph(graph)
    body = plan.tree.main.body
    made = profiles_of(plan, body, device, costs, needs, captured=captured, frequencies=frequencies)
    return Profiled(graph, made, device)


def profiles_of(
    plan: Plan,
    body: Node[Action],
    device: Device,
    costs: CostModel,
    needs: dict[int, BlockNeeds] | None = None,
    *,
    captured: bool = False,
    frequencies: Frequencies | None = None,
) -> tuple[Profile, ...]:
    """The profiles of the nodes of one stretch of a plan. The rest is as for `profiled`.
    Raises ScheduleError for a run that is too long to be simulated."""
    found = _Profiles(plan, device, costs, needs, captured, frequencies)
    return tuple(found.stretch(body))


def alone_seconds(profile: Profile, device: Device) -> float:
    """What a node takes that has the device to itself, without what comes before it."""
    costs = GraphCosts(0.0, 0.0, 0.0, 0.0)
    return run_graph((profile,), Arrangement((0,), (0,)), device, costs).seconds


class _Profiles:
    """Profiles of the actions of a plan, and of control nodes, which the host executes, or the
    graph itself. Then what decides is a node before each iteration (**an estimate**: a launch with
    the gap before it), and the nodes of a body are as far apart as those of a graph."""

    def __init__(
        self,
        plan: Plan,
        device: Device,
        costs: CostModel,
        needs: dict[int, BlockNeeds] | None,
        captured: bool,
        frequencies: Frequencies | None = None,
    ) -> None:
        self._frequencies = frequencies or {}
        self._plan, self._device, self._costs = plan, device, costs
        apart = captured_costs(device) if captured else launched_costs(device)
        self._gap = apart.gap
        self._read = device.next_launch_seconds if captured else read_seconds(device)
        self._profiler = Profiler(plan.program, device, costs, needs)
        self._running: set[str] = set()

    def stretch(self, body: Node[Action], taken: float = 1.0) -> Iterator[Profile]:
        """The profiles of the nodes of a stretch, in its order. taken: how often it is come to."""
        match body:
            case Seq(items):
                for item in items:
                    yield from self.stretch(item, taken)
            case If() if is_predicated(body):
                for (_, arm), share in zip(arms(body), self._shares(body), strict=True):
                    yield from self.stretch(arm, taken * share)
            case Leaf(Launch(guards=guards)) if guards:
                yield guarded(self.node(body), taken, self._device)
            case _:
                yield self.node(body)

    def _shares(self, branch: If[Action]) -> tuple[float, float]:
        """How often each arm is taken. Where that is not known it is the one that takes longer."""
        first, second = (self._body(arm) for _, arm in arms(branch))
        return self._share(branch, first, second)

    def _share(self, branch: If[Action], first: float, second: float) -> tuple[float, float]:
        """As `_shares`, of arms that take so long."""
        share = self._frequencies.get(branch.condition.name, float(first >= second))
        return share, 1.0 - share

    def node(self, node: Node[Action]) -> Profile:
        match node:
            case Leaf(Launch() as launch):
                return self._profiler.launch(launch)
            case Leaf(Library() as library):
                return self._profiler.library(library)
            case _:
                return self._profiler.whole(self._control(node))

    def _control(self, node: Node[Action]) -> float:
        """Seconds that a control node takes, one iteration after the other."""
        read = self._read if reads(node) else 0.0
        match node:
            case _ if is_loop(node):
                *heads, body = children(node)
                known = iterations(node)
                trips = self._costs.unknown_trips if known is None else known
                tests = trips + 1 if heads else 1
                return tests * (read + sum(map(self._body, heads))) + trips * self._body(body)
            case If(then=then, orelse=orelse):
                first, second = self._body(then), self._body(orelse)
                share, other = self._share(node, first, second)
                if is_unlikely(node):
                    rare = share if node.branching is Branching.UNLIKELY_THEN else other
                    read += read_seconds(self._device) * (1 + 2 * rare)
                return read + share * first + other * second
            case Call(function=name) if name not in self._running:
                self._running.add(name)
                found = self._body(self._plan.tree.function(name).body)
                self._running.discard(name)
                return read + found
            case _:
                return read

    def _body(self, body: Node[Action]) -> float:
        """A stretch of a control node, as launches on one stream."""
        seconds = (alone_seconds(part, self._device) for part in self.stretch(body))
        return sum(one + self._gap for one in seconds)
