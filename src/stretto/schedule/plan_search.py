"""Chooses a plan: which nodes of main the host enqueues by themselves, and what executes branches.

A leaf becomes one launch or a launch per kernel; a loop or branch is executed by the units, inside
of a launch, or by the host, between launches (Cocktailer, section 3, places the evaluation of
control flow by cost, too). In a captured graph a branch that the units do not execute is a pair of
*conditional* nodes, one for each arm, or *predicated*: its launches are nodes of the graph around
it (Grape, section 4.3.2, leaves that to the programmer); or *unlikely*: one arm is the host's.

The search begins with the plan that the options force, and takes one change after the other whose
plan is faster in simulation by `LEAST_GAIN`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from stretto.device.costs import CostModel
from stretto.device.plan import Plan
from stretto.device.program import DeviceProgram, Schedule
from stretto.device.tree import (
    Branching,
    Call,
    If,
    Leaf,
    Node,
    Seq,
    children,
    flattened,
    is_empty,
    is_loop,
    is_parallel,
    leaves,
    title,
    walk,
)
from stretto.errors import ScheduleError
from stretto.options import Options
from stretto.schedule.launch_graph import with_own_memory
from stretto.schedule.plan import cannot_be_captured, host_branches, make_plan
from stretto.schedule.plan_cost import Frequencies, plan_seconds
from stretto.simulator.devices import Device, device_for
from stretto.simulator.launches import LEAST_GAIN, launch_per_kernel
from stretto.simulator.run_path import DefaultChoices, leaf_numbers
from stretto.simulator.simulate import simulate
from stretto.simulator.work import kept_in_loops
from stretto.text import seconds_text

MOST_BRANCHES = 12
"""Number of branches that are examined individually; if there are more, all or none are
predicated."""


@dataclass(frozen=True, slots=True)
class ChosenBranch:
    """Decision about one branch of main: the name of its condition, how the branch is executed
    (`execution`), and the reason (`reason`)."""

    condition: str
    execution: str
    reason: str


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """Arguments of `make_plan` for one program. seconds: of the plan in simulation, if it was
    simulated. branches: how branches are executed that were compared one by one, and why."""

    cuts: frozenset[int] = frozenset()
    seconds: float | None = None
    predicated: frozenset[int] = frozenset()
    unlikely: Mapping[int, Branching] = field(default_factory=dict[int, Branching])
    branches: tuple[ChosenBranch, ...] = ()

    def plan(self, program: DeviceProgram, *, captured: bool) -> Plan:
        """The plan of a verified program; for a captured graph, memory is passed by address."""
        return make_plan(
            program,
            cuts=self.cuts,
            by_address=captured,
            predicated=self.predicated,
            unlikely=self.unlikely,
        )

    def __or__(self, other: PlanChoice) -> PlanChoice:
        """The changes of both; not simulated yet."""
        cuts, predicated = self.cuts | other.cuts, self.predicated | other.predicated
        return replace(self, cuts=cuts, predicated=predicated, seconds=None)


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """A plan; whether it is enqueued as captured graphs, and how its branches are executed."""

    plan: Plan
    captured: bool
    branches: tuple[ChosenBranch, ...] = ()


def choose_plan(
    program: DeviceProgram,
    costs: CostModel,
    options: Options,
    frequencies: Frequencies | None = None,
) -> ChosenPlan:
    """Choose the plan of a verified program. Returns it; True if it is enqueued as captured graphs
    (`Options.enqueue`; "auto" takes the faster one in simulation); and how its branches are
    executed, where that was chosen. frequencies: as for `choose_graph`."""
    debug, plan = options.debug, None
    if options.enqueue in ("auto", "stream"):
        found = search_plan(program, costs, debug.launches, debug.control)
        everything = frozenset(map(id, walk(program.tree.main.body)))
        if debug.branches == "predicated":
            found = replace(found, predicated=everything)
        plan = found.plan(program, captured=False)
        if options.enqueue == "stream":
            return ChosenPlan(plan, captured=False)
    apart = with_own_memory(program)
    asked = (debug.launches, debug.control, debug.branches)
    found = search_plan(apart, costs, *asked, captured=True, frequencies=frequencies)
    graph = found.plan(apart, captured=True)
    if plan is None:
        return ChosenPlan(graph, not graph.is_whole, found.branches)
    device = device_for(costs, program.units)
    try:
        seconds = plan_seconds(graph, device, costs, captured=True, frequencies=frequencies)
        faster = seconds < plan_seconds(plan, device, costs)
    except ScheduleError:  # the run is too long to be simulated
        faster = False
    if faster and not graph.is_whole:
        return ChosenPlan(graph, captured=True, branches=found.branches)
    return ChosenPlan(plan, captured=False)


def search_plan(
    program: DeviceProgram,
    costs: CostModel,
    launches: str = "auto",
    control: str = "auto",
    branches: str = "auto",
    device: Device | None = None,
    *,
    captured: bool = False,
    frequencies: Frequencies | None = None,
) -> PlanChoice:
    """Choose the plan of a verified program, as launches or as a captured graph.

    launches, control, branches: as in `Debug`; branches concerns graphs alone. program: for a graph
    with separate memory for each buffer (`launch_graph.with_own_memory`). device: the one that
    plans are simulated on; by default the one that `costs` are of.
    """
    main = program.tree.main.body
    forced = hosted(main) if control == "host" else set[int]()
    if captured and branches == "predicated" and control == "auto":
        forced |= set(map(id, outer_branches(main)))
    outer = list(outer_leaves(main, forced))
    if launches == "per_kernel":
        forced |= {id(leaf) for leaf in outer}
    device = device or device_for(costs, program.units)
    search = _PlanSearch(program, device, costs, captured, frequencies or {})
    choice = PlanChoice(frozenset(forced))
    if not captured:
        if "auto" not in (launches, control):
            return choice
        try:
            return search.improved(choice, search.promising(choice, launches, control))
        except ScheduleError:  # The run is too long to simulate: cut only what is forced.
            return choice
    if branches == "predicated":
        everything = frozenset(id(node) for node in walk(main) if isinstance(node, If))
        choice = replace(choice, predicated=everything)
    if branches in ("auto", "unlikely"):
        choice = _with_unlikely(program, choice, frequencies or {}, asked=branches == "unlikely")
    try:
        if launches == "auto":
            several = (leaf for leaf in outer if len(leaf.body.kernels) > 1)
            changes = (PlanChoice(frozenset({id(leaf)})) for leaf in several)
            choice = search.timed(search.improved(choice, changes))
        if branches == "auto":
            choice = _Branches(search, launches, control == "auto").chosen(choice)
    except ScheduleError:  # a run too long to be simulated
        pass
    return replace(choice, branches=choice.branches + _others(program, choice))


@dataclass(frozen=True, slots=True)
class _PlanSearch:
    """Compares plans of one program in simulation."""

    program: DeviceProgram
    device: Device
    costs: CostModel
    captured: bool
    frequencies: Frequencies

    def timed(self, choice: PlanChoice) -> PlanChoice:
        """The choice with its seconds."""
        if choice.seconds is not None:
            return choice
        plan = choice.plan(self.program, captured=self.captured)
        seconds = plan_seconds(
            plan,
            self.device,
            self.costs,
            captured=self.captured,
            frequencies=self.frequencies,
        )
        return replace(choice, seconds=seconds)

    def better(
        self, best: PlanChoice, more: PlanChoice, gain: float
    ) -> tuple[PlanChoice, PlanChoice, bool]:
        """The best choice so far, the one with the changes of `more` too, and whether the second is
        faster by more than this fraction."""
        best, other = self.timed(best), self.timed(best | more)
        assert best.seconds is not None and other.seconds is not None
        return best, other, other.seconds < (1 - gain) * best.seconds

    def improved(self, best: PlanChoice, changes: Iterable[PlanChoice]) -> PlanChoice:
        """The choice with each of the changes, in order, that gains enough."""
        for change in changes:
            best, other, faster = self.better(best, change, LEAST_GAIN)
            best = other if faster else best
        return best

    def promising(self, choice: PlanChoice, launches: str, control: str) -> Iterator[PlanChoice]:
        """Leaves and control nodes that would take less time as launches, by an estimate: what
        each leaf takes with a launch per kernel (`simulator/launches.py`)."""
        program, device, costs = self.program, self.device, self.costs
        kept = kept_in_loops(program, device, costs)
        whole = simulate(program, device, DefaultChoices(costs.unknown_trips), costs, kept)
        apart = launch_per_kernel(program, device, costs=costs)
        numbers, titles = leaf_numbers(program)
        main = program.tree.main.body
        if launches == "auto":
            faster = apart.faster(whole, device)
            for leaf in outer_leaves(main, choice.cuts):
                if titles[numbers[id(leaf)]] in faster:
                    yield PlanChoice(frozenset({id(leaf)}))
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
                    yield PlanChoice(frozenset({id(node), *taken}))


Candidate = tuple[If[Schedule], PlanChoice, str]
"""A branch, the additions to a choice that predicate it, and what executes it otherwise."""


@dataclass(frozen=True, slots=True)
class _Branches:
    """Chooser for each branch. `from_units`: branches that the units execute may be predicated,
    too."""

    search: _PlanSearch
    launches: str
    from_units: bool

    def chosen(self, best: PlanChoice) -> PlanChoice:
        """Return `best` with a decision for each candidate branch."""
        candidates = list(self.candidates(best))
        if len(candidates) > MOST_BRANCHES:
            return self.together(best, candidates)
        for candidate in candidates:
            if id(candidate[0]) not in best.predicated:
                best = self.compared(best, [candidate])
        return best

    def candidates(self, best: PlanChoice) -> Iterator[Candidate]:
        """Yield the candidates, outer branches before the branches inside them."""
        program = self.search.program
        apart = host_branches(program, best.cuts)
        for branch, why in apart:
            if why is None and id(branch) not in best.unlikely:
                inside = frozenset(id(node) for node in walk(branch) if isinstance(node, If))
                yield branch, PlanChoice(predicated=inside), "conditional"
        known = {id(branch) for branch, _ in apart}
        for branch in outer_branches(program.tree.main.body) if self.from_units else ():
            cuts = {id(branch)}
            if self.launches != "one":
                cuts |= {id(leaf) for arm in children(branch) for leaf in outer_leaves(arm, known)}
            reasons = host_branches(program, best.cuts | cuts)
            if id(branch) not in known and any(b is branch and w is None for b, w in reasons):
                added = PlanChoice(frozenset(cuts), predicated=frozenset({id(branch)}))
                yield branch, added, "units"

    def together(self, best: PlanChoice, candidates: list[Candidate]) -> PlanChoice:
        """Choose for many branches at once: those of each kind are all predicated, or none."""
        for kind in ("conditional", "units"):
            if alike := [one for one in candidates if one[2] == kind]:
                best = self.compared(best, alike)
        return best

    def compared(self, best: PlanChoice, candidates: list[Candidate]) -> PlanChoice:
        """Return the choice with these branches predicated if that is faster, else `best`."""
        otherwise = candidates[0][2]
        more = PlanChoice(
            frozenset[int]().union(*(added.cuts for _, added, _ in candidates)),
            predicated=frozenset[int]().union(*(added.predicated for _, added, _ in candidates)),
        )
        # Predicating a branch of the units adds launches; a conditional one has them already.
        gain = LEAST_GAIN if otherwise == "units" else 0.0
        before, after, faster = self.search.better(best, more, gain)
        why = (
            f"{seconds_text(after.seconds or 0)} predicated, {seconds_text(before.seconds or 0)} "
            f"{_OTHERWISE[otherwise]}, simulated"
        )
        if self.search.frequencies:
            why += ", with the ways that were counted"
        way = "predicated" if faster else otherwise
        found = [ChosenBranch(branch.condition.name, way, why) for branch, _, _ in candidates]
        return replace(after if faster else before, branches=(*best.branches, *found))


def _with_unlikely(
    program: DeviceProgram, chosen: PlanChoice, frequencies: Frequencies, asked: bool
) -> PlanChoice:
    """Mark an unlikely arm for each branch that is taken apart if `asked`; else for those with one
    arm that cannot be captured, which would end the graph before them."""
    unlikely: dict[int, Branching] = {}
    found: list[ChosenBranch] = []
    known: set[int] = set()
    loops = filter(is_loop, walk(program.tree.main.body))
    heads = (head for loop in loops for head in children(loop)[:-1])
    in_heads = {id(node) for head in heads for node in walk(head)}
    branches = (branch for branch, _ in host_branches(program, chosen.cuts))
    apart = [branch for branch in branches if id(branch) not in in_heads]
    for branch in reversed(apart):  # Inner ones first: outer ones skip their unlikely arms.
        share = frequencies.get(branch.condition.name)
        refused = [cannot_be_captured(program, arm, known) for arm in children(branch)]
        if asked:
            first = (not is_empty(branch.then)) if share is None else share <= 0.5
            why = "as Debug.branches says"
        elif refused[0] != refused[1]:
            first = refused[0]
            why = f"its {'first' if first else 'second'} arm cannot be captured"
            if share is not None and (share if first else 1 - share) > 0.5:
                continue  # Most runs would leave the graph for the host.
        else:
            continue
        unlikely[id(branch)] = Branching.UNLIKELY_THEN if first else Branching.UNLIKELY_ELSE
        known.add(id(branch.then if first else branch.orelse))
        if share is not None:
            why += f"; the first one was taken in {100 * share:.0f} % of all times"
        found.append(ChosenBranch(branch.condition.name, "unlikely", why))
    return replace(chosen, unlikely=unlikely, branches=tuple(reversed(found)))


_OTHERWISE = {"conditional": "as conditional nodes", "units": "by the units"}


def _others(program: DeviceProgram, chosen: PlanChoice) -> tuple[ChosenBranch, ...]:
    """Return the branches that are taken apart and were not compared."""
    known = {branch.condition for branch in chosen.branches}
    found: list[ChosenBranch] = []
    for branch, why in host_branches(program, chosen.cuts):
        name, asked = branch.condition.name, id(branch) in chosen.predicated
        if name not in known:
            way = "predicated" if asked and why is None else "conditional"
            found.append(ChosenBranch(name, way, why or "as Debug.branches says"))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class PlacementComparison:
    """Comparison for a loop or branch of main: seconds of the plan if the units execute it, and if
    the host does. `on_host` tells which one the plan uses."""

    title: str
    on_host: bool
    units_seconds: float
    host_seconds: float


def placements(
    program: DeviceProgram, costs: CostModel, cuts: frozenset[int]
) -> tuple[PlacementComparison, ...]:
    """Return the outermost loops and branches of main, with the seconds of the plan for each
    placement (units or host). Raise ScheduleError if a run is too long to simulate."""
    device = device_for(costs, program.units)
    kernels = {kernel.name: kernel for kernel in program.kernels}
    found: list[PlacementComparison] = []
    for node in _control(program.tree.main.body):
        inside = frozenset(map(id, walk(node)))
        without, own = cuts - inside, cuts & inside
        forced = any(kernels[name].call for leaf in leaves(node) for name in leaf.kernels)
        units, host = (
            plan_seconds(make_plan(program, cuts=made), device, costs)
            for made in (without, without | (own or {id(node)}))
        )
        found.append(PlacementComparison(title(node), bool(own) or forced, units, host))
    return tuple(found)


def hosted(main: Node[Schedule]) -> set[int]:
    """Return the `id`s of all loops and branches that the host could execute."""
    apart = {id(node) for loop in walk(main) if is_parallel(loop) for node in walk(loop)}
    return {id(node) for node in walk(main) if _is_host_control(node) and id(node) not in apart}


def outer_leaves(
    node: Node[Schedule], hosted: set[int] | frozenset[int]
) -> Iterator[Leaf[Schedule]]:
    """Yield the leaves of main that are inside no control node except those in `hosted`."""
    parts = flattened(node, lambda node: id(node) in hosted)
    return (part for part in parts if isinstance(part, Leaf))


def _control(node: Node[Schedule]) -> Iterator[Node[Schedule]]:
    """The loops and branches that are in no other."""
    return filter(_is_host_control, flattened(node))


def _outside_parallel(node: Node[Schedule]) -> Iterator[Node[Schedule]]:
    """Yield the node and its descendants, without parallel loops."""
    if not is_parallel(node):
        yield node
        for child in children(node):
            yield from _outside_parallel(child)


def _is_host_control(node: Node[Schedule]) -> bool:
    """True for a loop or branch that the host could execute. A parallel loop is not: each unit
    runs its own iterations."""
    return not isinstance(node, Leaf | Seq | Call) and not is_parallel(node)


def outer_branches(main: Node[Schedule]) -> Iterator[If[Schedule]]:
    """Yield the branches of main that are inside no loop and no other branch."""
    return (node for node in flattened(main) if isinstance(node, If))
