"""Chooses what a captured graph is made of: which leaves of main become a launch per kernel, so
that these run beside each other, and how each branch is executed.

A branch is the units' own, inside of a launch; a pair of *conditional* nodes, one for each arm; or
*predicated*: its launches are nodes of the graph around it. Grape (section 4.3.2) leaves that to
the programmer. Here each way is a plan, which is simulated; the fastest one is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from stretto.device.costs import CostModel
from stretto.device.plan import Plan
from stretto.device.program import DeviceProgram, Schedule
from stretto.device.tree import Branching, If, Node, Seq, children, is_loop, walk
from stretto.errors import ScheduleError
from stretto.schedule.alternatives import Frequencies, profiled
from stretto.schedule.launch_order import Opara, arranged, opara_streams
from stretto.schedule.launches import Chosen, ChosenBranch, hosted, outer_leaves
from stretto.schedule.plan import branches_apart, cannot_be_captured, make_plan
from stretto.simulator.control import Assumed
from stretto.simulator.devices import Device, device_for
from stretto.simulator.launches import LEAST_GAIN
from stretto.simulator.on_chip import kept_in_loops
from stretto.simulator.simulate import simulate
from stretto.text import seconds_text

MOST_BRANCHES = 12
"""Branches that are looked at one by one; of more, all are predicated or none."""


def choose_graph(
    program: DeviceProgram,
    costs: CostModel,
    launches: str = "auto",
    control: str = "auto",
    device: Device | None = None,
    branches: str = "auto",
    frequencies: Frequencies | None = None,
) -> Chosen:
    """As `choose_launches`, for a plan that is enqueued as a captured graph. program: verified,
    with memory of its own for each buffer (`launch_graph.with_own_memory`). branches: as
    `Debug.branches`. frequencies: as for `profiled`."""
    main = program.tree.main.body
    forced = hosted(main) if control == "host" else set[int]()
    if branches == "predicated" and control == "auto":
        forced |= set(map(id, outer_branches(main)))
    outer = [leaf for leaf in outer_leaves(main, forced) if len(leaf.body.kernels) > 1]
    if launches == "per_kernel":
        forced |= {id(leaf) for leaf in outer_leaves(main, forced)}
    everything = frozenset(id(node) for node in walk(main) if isinstance(node, If))
    predicated = everything if branches == "predicated" else frozenset[int]()
    costing = _Costing(program, device or device_for(costs, program.units), costs, frequencies)
    chosen = Chosen(frozenset(forced), predicated=predicated)
    if branches in ("auto", "unlikely"):
        chosen = _with_unlikely(program, chosen, frequencies or {}, asked=branches == "unlikely")
    try:
        if launches == "auto":
            for leaf in outer:
                more = Chosen(frozenset({id(leaf)}))
                chosen, other, faster = costing.better(chosen, more, LEAST_GAIN)
                chosen = other if faster else chosen
            chosen = costing.timed(chosen)
        if branches == "auto":
            chosen = _Branches(costing, launches, control == "auto").chosen(chosen)
    except ScheduleError:  # a run too long to be simulated
        pass
    return replace(chosen, branches=chosen.branches + _others(program, chosen))


def graph_seconds(
    plan: Plan, device: Device, costs: CostModel, frequencies: Frequencies | None = None
) -> float:
    """A simulated replay of main as a captured graph, by Opara's algorithms. Raises ScheduleError
    for a run that is too long."""
    if plan.is_whole:
        kept = kept_in_loops(plan.program, device, costs)
        return simulate(plan.program, device, Assumed(costs.unknown_trips), costs, kept).seconds
    given = profiled(plan, device, costs, captured=True, frequencies=frequencies)
    before = given.graph.before
    order = Opara().order(before, given.profiles, device)
    return given.simulated("Opara", arranged(before, order, opara_streams(before))).run.seconds


def outer_branches(main: Node[Schedule]) -> Iterator[If[Schedule]]:
    """The branches of main that are in no loop, and in no other branch."""
    if isinstance(main, Seq):
        for child in main.children:
            yield from outer_branches(child)
    elif isinstance(main, If):
        yield main


@dataclass(frozen=True, slots=True)
class _Costing:
    """Simulates the plans of one program."""

    program: DeviceProgram
    device: Device
    costs: CostModel
    frequencies: Frequencies | None

    def timed(self, chosen: Chosen) -> Chosen:
        """With its seconds."""
        if chosen.seconds is not None:
            return chosen
        plan = make_plan(
            self.program,
            cuts=chosen.cuts,
            by_address=True,
            predicated=chosen.predicated,
            unlikely=chosen.unlikely,
        )
        seconds = graph_seconds(plan, self.device, self.costs, self.frequencies)
        return replace(chosen, seconds=seconds)

    def better(self, best: Chosen, more: Chosen, gain: float) -> tuple[Chosen, Chosen, bool]:
        """What is chosen so far, that with the cuts and predicated branches of `more` too, and
        whether the second is faster by more than this part."""
        best = self.timed(best)
        cuts, predicated = best.cuts | more.cuts, best.predicated | more.predicated
        other = self.timed(replace(best, cuts=cuts, predicated=predicated, seconds=None))
        assert best.seconds is not None and other.seconds is not None
        return best, other, other.seconds < (1 - gain) * best.seconds


Candidate = tuple[If[Schedule], Chosen, str]
"""A branch, what is added to predicate it, and what executes it otherwise."""


@dataclass(frozen=True, slots=True)
class _Branches:
    """Chooses for each branch. from_units: those that the units execute may be predicated, too."""

    costing: _Costing
    launches: str
    from_units: bool

    def chosen(self, best: Chosen) -> Chosen:
        candidates = list(self.candidates(best))
        if len(candidates) > MOST_BRANCHES:
            return self.together(best, candidates)
        for candidate in candidates:
            if id(candidate[0]) not in best.predicated:
                best = self.compared(best, [candidate])
        return best

    def candidates(self, best: Chosen) -> Iterator[Candidate]:
        """Outer branches before those in them."""
        program = self.costing.program
        apart = branches_apart(program, best.cuts)
        for branch, why in apart:
            if why is None and id(branch) not in best.unlikely:
                inside = frozenset(id(node) for node in walk(branch) if isinstance(node, If))
                yield branch, Chosen(predicated=inside), "conditional"
        known = {id(branch) for branch, _ in apart}
        for branch in outer_branches(program.tree.main.body) if self.from_units else ():
            cuts = {id(branch)}
            if self.launches != "one":
                cuts |= {id(leaf) for arm in children(branch) for leaf in outer_leaves(arm, known)}
            reasons = branches_apart(program, best.cuts | cuts)
            if id(branch) not in known and any(b is branch and w is None for b, w in reasons):
                yield branch, Chosen(frozenset(cuts), predicated=frozenset({id(branch)})), "units"

    def together(self, best: Chosen, candidates: list[Candidate]) -> Chosen:
        """Too many branches for a plan each: those of a kind are predicated, or none."""
        for kind in ("conditional", "units"):
            if alike := [one for one in candidates if one[2] == kind]:
                best = self.compared(best, alike)
        return best

    def compared(self, best: Chosen, candidates: list[Candidate]) -> Chosen:
        """With those branches predicated, where that is faster."""
        otherwise = candidates[0][2]
        more = Chosen(
            frozenset[int]().union(*(added.cuts for _, added, _ in candidates)),
            predicated=frozenset[int]().union(*(added.predicated for _, added, _ in candidates)),
        )
        # A branch of the units needs no further launches, one that is conditional has them already.
        gain = LEAST_GAIN if otherwise == "units" else 0.0
        before, after, faster = self.costing.better(best, more, gain)
        why = (
            f"{seconds_text(after.seconds or 0)} predicated, {seconds_text(before.seconds or 0)} "
            f"{_OTHERWISE[otherwise]}, simulated"
        )
        if self.costing.frequencies:
            why += ", with the ways that were counted"
        way = "predicated" if faster else otherwise
        found = [ChosenBranch(branch.condition.name, way, why) for branch, _, _ in candidates]
        return replace(after if faster else before, branches=(*best.branches, *found))


def _with_unlikely(
    program: DeviceProgram, chosen: Chosen, frequencies: Frequencies, asked: bool
) -> Chosen:
    """With an unlikely arm for each branch that is taken apart, if that is asked for; else for
    those of which one arm cannot be captured, which would end the graph before them."""
    unlikely: dict[int, Branching] = {}
    found: list[ChosenBranch] = []
    known: set[int] = set()
    loops = filter(is_loop, walk(program.tree.main.body))
    heads = (head for loop in loops for head in children(loop)[:-1])
    in_heads = {id(node) for head in heads for node in walk(head)}
    branches = (branch for branch, _ in branches_apart(program, chosen.cuts))
    apart = [branch for branch in branches if id(branch) not in in_heads]
    for branch in reversed(apart):  # inner branches first
        share = frequencies.get(branch.condition.name)
        refused = [cannot_be_captured(program, arm, known) for arm in children(branch)]
        if asked:
            first = (not _is_empty(branch.then)) if share is None else share <= 0.5
            why = "as Debug.branches says"
        elif refused[0] != refused[1]:
            first = refused[0]
            why = f"its {'first' if first else 'second'} arm cannot be captured"
            if share is not None and (share if first else 1 - share) > 0.5:
                continue  # the usual way would be that of the host
        else:
            continue
        unlikely[id(branch)] = Branching.UNLIKELY_THEN if first else Branching.UNLIKELY_ELSE
        known.add(id(branch.then if first else branch.orelse))
        if share is not None:
            why += f"; the first one was taken in {100 * share:.0f} % of all times"
        found.append(ChosenBranch(branch.condition.name, "unlikely", why))
    return replace(chosen, unlikely=unlikely, branches=tuple(reversed(found)))


def _is_empty(node: Node[Schedule]) -> bool:
    return isinstance(node, Seq) and all(map(_is_empty, node.children))


_OTHERWISE = {"conditional": "as conditional nodes", "units": "by the units"}


def _others(program: DeviceProgram, chosen: Chosen) -> tuple[ChosenBranch, ...]:
    """The branches that are taken apart and were not compared."""
    known = {branch.condition for branch in chosen.branches}
    found: list[ChosenBranch] = []
    for branch, why in branches_apart(program, chosen.cuts):
        name, asked = branch.condition.name, id(branch) in chosen.predicated
        if name not in known:
            way = "predicated" if asked and why is None else "conditional"
            found.append(ChosenBranch(name, way, why or "as Debug.branches says"))
    return tuple(found)
