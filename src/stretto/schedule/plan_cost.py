"""Simulated seconds of a plan: its launches one after the other, or one captured graph.

Nothing is measured here; every time comes from the simulator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stretto.device import tree
from stretto.device.costs import CostModel
from stretto.device.launch_graph import Arrangement, LaunchGraph
from stretto.device.plan import Action, Launch, Library, Plan, arms, is_unlikely
from stretto.device.verifier.plans import Marks, as_program, verify_arrangement, verify_graph
from stretto.schedule.launch_graph import Opara, arranged, opara_streams, plan_graph
from stretto.simulator import graph_run
from stretto.simulator.devices import BlockNeeds, Device
from stretto.simulator.launches import read_seconds
from stretto.simulator.run_path import Choices, DefaultChoices, leaf_numbers
from stretto.simulator.simulate import simulate
from stretto.simulator.work import Kept, kept_in_loops

Frequencies = Mapping[str, float]
"""Share of runs (0 to 1) in which a branch takes its first arm, by the name of its condition."""


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
    """Return the seconds of a simulated run of a plan: its launches in order, and the values that
    the host reads between them. Loops keep weights on chip as far as the loop is inside a
    launch. Raise ScheduleError if the run is too long to simulate."""
    if captured and not plan.is_whole:
        given = profiled(plan, device, costs, captured=True, frequencies=frequencies)
        return given.enqueued_by_opara().run.seconds
    marks = Marks()
    program = as_program(plan, marks)
    if kept is None:
        loops = (kept_in_loops(launch.program, device, costs) for _, launch in plan.launches)
        kept = {kernel: part for found in loops for kernel, part in found.items()}
    run = simulate(program, device, choices or DefaultChoices(costs.unknown_trips), costs, kept)
    numbers, _ = leaf_numbers(program)
    begun = sum(run.runs[numbers[id(mark)]] for mark in marks.begins)
    read = sum(run.runs[numbers[id(mark)]] for mark in marks.reads)
    # The simulated program has a barrier where a launch begins; do not count its wait twice.
    waited = device.wait_seconds if program.units > 1 else 0.0
    between = (begun - 1) * (device.next_launch_seconds - waited)
    return run.seconds + between + read * read_seconds(device)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A way to enqueue a graph, and a simulated run of it. captured: as one graph, else as launches
    on streams."""

    name: str
    arrangement: Arrangement
    run: graph_run.GraphRun
    captured: bool = True


@dataclass(frozen=True, slots=True)
class Profiled:
    """A launch graph with the profiles of its nodes on a device."""

    graph: LaunchGraph
    profiles: tuple[graph_run.NodeProfile, ...]
    device: Device

    def simulated(
        self, name: str, arrangement: Arrangement, costs: graph_run.GraphCosts | None = None
    ) -> Enqueued:
        """Verify an arrangement and simulate it: as a captured graph, or with `costs` if they are
        given."""
        verify_arrangement(self.graph, arrangement)
        made = graph_run.run_graph(
            self.profiles, arrangement, self.device, costs or graph_run.captured_costs(self.device)
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
    """Return the verified launch graph of main with profiles.

    needs: resources of compiled launches, keyed by the `id` of the launch. captured: loops and
    branches are conditional nodes of the graph, not steps of the host. frequencies: how often
    branches take their first arm; for a branch without one the slower arm counts.
    """
    graph = plan_graph(plan)
    verify_graph(graph)
    body = plan.tree.main.body
    made = profiles_of(plan, body, device, costs, needs, captured=captured, frequencies=frequencies)
    return Profiled(graph, made, device)


def profiles_of(
    plan: Plan,
    body: tree.Node[Action],
    device: Device,
    costs: CostModel,
    needs: dict[int, BlockNeeds] | None = None,
    *,
    captured: bool = False,
    frequencies: Frequencies | None = None,
) -> tuple[graph_run.NodeProfile, ...]:
    """Return the profiles of the nodes of one stretch of a plan; the other arguments are as for
    `profiled`. Raise ScheduleError if the run is too long to simulate."""
    found = _Profiles(plan, device, costs, needs, captured, frequencies)
    return tuple(found.stretch(body))


def alone_seconds(profile: graph_run.NodeProfile, device: Device) -> float:
    """Return the seconds of a node that has the device to itself, without the gap before it."""
    costs = graph_run.GraphCosts(0.0, 0.0, 0.0, 0.0)
    return graph_run.run_graph((profile,), Arrangement((0,), (0,)), device, costs).seconds


class _Profiles:
    """Profiler of the actions and control nodes of a plan.

    The host executes control nodes, or the captured graph does. In a graph, a condition node runs
    before each iteration (**an estimate**: a launch with the gap before it), and the nodes of a
    body have the gaps of a graph.
    """

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
        apart = graph_run.captured_costs(device) if captured else graph_run.launched_costs(device)
        self._gap = apart.gap
        self._read = device.next_launch_seconds if captured else read_seconds(device)
        self._profiler = graph_run.NodeProfiler(plan.program, device, costs, needs)
        self._running: set[str] = set()

    def stretch(
        self, body: tree.Node[Action], taken: float = 1.0
    ) -> Iterator[graph_run.NodeProfile]:
        """Yield the profiles of the nodes of a stretch, in order. `taken`: share of runs that
        reach it."""
        for node in tree.flattened(body):
            if tree.is_predicated(node):
                for (_, arm), share in zip(arms(node), self._shares(node), strict=True):
                    yield from self.stretch(arm, taken * share)
            elif isinstance(node, tree.Leaf) and isinstance(node.body, Launch) and node.body.guards:
                yield graph_run.guarded(self.node(node), taken, self._device)
            else:
                yield self.node(node)

    def _shares(self, branch: tree.If[Action]) -> tuple[float, float]:
        """Return how often each arm is taken; if unknown, the slower arm always is."""
        first, second = (self._body(arm) for _, arm in arms(branch))
        return self._share(branch, first, second)

    def _share(self, branch: tree.If[Action], first: float, second: float) -> tuple[float, float]:
        """As `_shares`, for arms that take `first` and `second` seconds."""
        share = self._frequencies.get(branch.condition.name, float(first >= second))
        return share, 1.0 - share

    def node(self, node: tree.Node[Action]) -> graph_run.NodeProfile:
        match node:
            case tree.Leaf(Launch() as launch):
                return self._profiler.launch(launch)
            case tree.Leaf(Library() as library):
                return self._profiler.library(library)
            case _:
                return self._profiler.whole(self._control(node))

    def _control(self, node: tree.Node[Action]) -> float:
        """Return the seconds of a control node, with its iterations one after the other."""
        read = self._read if tree.reads(node) else 0.0
        match node:
            case _ if tree.is_loop(node):
                *heads, body = tree.children(node)
                known = tree.iterations(node)
                trips = self._costs.unknown_trips if known is None else known
                tests = trips + 1 if heads else 1
                return tests * (read + sum(map(self._body, heads))) + trips * self._body(body)
            case tree.If(then=then, orelse=orelse):
                first, second = self._body(then), self._body(orelse)
                share, other = self._share(node, first, second)
                if is_unlikely(node):
                    rare = share if node.branching is tree.Branching.UNLIKELY_THEN else other
                    read += read_seconds(self._device) * (1 + 2 * rare)
                return read + share * first + other * second
            case tree.Call(function=name) if name not in self._running:
                self._running.add(name)
                found = self._body(self._plan.tree.function(name).body)
                self._running.discard(name)
                return read + found
            case _:
                return read

    def _body(self, body: tree.Node[Action]) -> float:
        """Return the seconds of a stretch inside a control node, as launches on one stream."""
        seconds = (alone_seconds(part, self._device) for part in self.stretch(body))
        return sum(one + self._gap for one in seconds)
