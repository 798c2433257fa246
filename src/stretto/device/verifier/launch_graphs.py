"""The rules of a graph of launches: every order that its edges allow gives the same results."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.device.launch_graph import (
    Arrangement,
    LaunchGraph,
    ancestors,
    dependences,
)
from stretto.errors import VerifyError


def verify_graph(graph: LaunchGraph) -> None:
    """Raises VerifyError for edges in a circle, and for two nodes whose order matters and that no
    path of edges puts in an order; so it does for the graphs of control nodes."""
    for edge in graph.edges:
        if not 0 <= edge.before < edge.after < len(graph.nodes):
            raise VerifyError(
                f"graph {graph.name}: an edge goes from node {edge.before} to {edge.after}; edges "
                "go from a node to a later one of the plan, so that they are in no circle"
            )
    _require_order(graph, graph.before, range(len(graph.nodes)), "edges")
    for node in graph.nodes:
        for body in node.bodies:
            verify_graph(body)


def verify_arrangement(graph: LaunchGraph, arrangement: Arrangement) -> None:
    """Raises VerifyError for an order that lacks nodes, and for two nodes whose order matters and
    that neither a stream nor events put in that of the plan."""
    numbers = list(range(len(graph.nodes)))
    if sorted(arrangement.order) != numbers or len(arrangement.streams) != len(numbers):
        raise VerifyError(f"graph {graph.name}: not every node is enqueued once, on a stream")
    place = {number: n for n, number in enumerate(arrangement.order)}
    for before, after in arrangement.events:
        if place[before] >= place[after]:
            raise VerifyError(
                f"graph {graph.name}: node {after} waits for node {before}, which is enqueued later"
            )
    _require_order(graph, arrangement.waits, arrangement.order, "streams and events")


def _require_order(
    graph: LaunchGraph, before: Sequence[Sequence[int]], order: Sequence[int], what: str
) -> None:
    known = ancestors(before, order)
    for needed in dependences(graph.nodes, graph.shares):
        if not known[needed.after] >> needed.before & 1:
            first, second = (graph.nodes[n] for n in (needed.before, needed.after))
            raise VerifyError(
                f"graph {graph.name}: {first.name} ({needed.before}) has to come before "
                f"{second.name} ({needed.after}) for {needed.reason}, and no {what} say so"
            )
