"""How the host enqueues each sequence of a plan: an order, streams, events, what comes after what.

Sequences inside of loops, branches and functions have graphs of their own, and are arranged alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stretto.device.costs import CostModel
from stretto.device.launch_graph import Arrangement, LaunchGraph, needed
from stretto.device.plan import Action, Plan, stretch
from stretto.device.tree import Node, Seq, children
from stretto.device.verifier.plans import verify_arrangement, verify_graph
from stretto.errors import ScheduleError
from stretto.schedule.alternatives import profiles_of
from stretto.schedule.launch_graph import plan_graph
from stretto.schedule.launch_order import Opara, program_order
from stretto.schedule.streams import arranged, opara_streams
from stretto.simulator.devices import device_for


@dataclass(frozen=True, slots=True)
class Arranged:
    """A stretch of a plan. arrangement: verified. after: for each node those that it has to come
    after, without what these imply."""

    arrangement: Arrangement
    after: tuple[tuple[int, ...], ...]


ONE_NODE = Arranged(Arrangement((0,), (0,)), ((),))
"""A stretch of one part."""

Arrangements = Mapping[int, Arranged]
"""Of each sequence that the host executes, by its `id`."""


def arrangements(plan: Plan, costs: CostModel) -> Arrangements:
    """Every sequence of a plan by Opara's two algorithms, with the profiles of a device like that
    of the costs; in the plan's order, where that cannot be simulated. Raises VerifyError for a
    graph that lacks an edge."""
    found: dict[int, Arranged] = {}
    for function in plan.tree.functions:
        graph = plan_graph(plan, function.name)
        verify_graph(graph)
        _collect(plan, costs, function.body, graph, found)
    return found


def _collect(
    plan: Plan,
    costs: CostModel,
    body: Node[Action],
    graph: LaunchGraph,
    found: dict[int, Arranged],
) -> None:
    if isinstance(body, Seq):
        found[id(body)] = _arranged(plan, costs, body, graph)
    for part, node in zip(stretch(body), graph.nodes, strict=True):
        for child, inner in zip(children(part), node.bodies, strict=True):
            _collect(plan, costs, child, inner, found)


def _arranged(plan: Plan, costs: CostModel, body: Seq[Action], graph: LaunchGraph) -> Arranged:
    before = graph.before
    device = device_for(costs, plan.program.units)
    try:
        order = Opara().order(before, profiles_of(plan, body, device, costs), device)
    except ScheduleError:  # a launch that is too long to be simulated
        order = program_order(before)
    made = arranged(before, order, opara_streams(before))
    verify_arrangement(graph, made)
    return Arranged(made, needed(before, range(len(graph.nodes))))
