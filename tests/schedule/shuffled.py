"""Runs a plan in other orders than its own: each that the edges of its graphs allow gives the same
results, and an edge that is missing shows in one of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from benchmarks.scheduling.enqueuing import random_order
from stretto.device.launch_graph import LaunchGraph, ancestors
from stretto.device.plan import Action, Plan, enqueued_nodes
from stretto.device.tree import Node, Seq, children
from stretto.machines.cuda.host import Order
from stretto.schedule.launch_graph import plan_graph

Graphs = Mapping[int, LaunchGraph]
"""The graph of each sequence of a plan, by its `id`."""


def sequence_graphs(plan: Plan) -> dict[int, LaunchGraph]:
    """The graphs of all sequences that the host executes."""
    found: dict[int, LaunchGraph] = {}
    for function in plan.tree.functions:
        _collect(function.body, plan_graph(plan, function.name), found)
    return found


def shuffled(graphs: Graphs, seed: int, early: Mapping[int, int] | None = None) -> Order:
    """Each sequence in a random order that its graph allows, another one each time.

    early: by the `id` of a sequence a node that comes as early as its graph allows.
    """
    draw = random.Random(seed)
    first = early or {}

    def order(sequence: Seq[Action]) -> Sequence[Node[Action]]:
        graph = graphs[id(sequence)]
        numbers = random_order(graph.before, draw.randrange(1 << 30))
        if id(sequence) in first:
            node = first[id(sequence)]
            known = ancestors(graph.before, numbers)[node] | 1 << node
            numbers = sorted(numbers, key=lambda number: not known >> number & 1)
        return [enqueued_nodes(sequence)[number] for number in numbers]

    return order


def _collect(body: Node[Action], graph: LaunchGraph, found: dict[int, LaunchGraph]) -> None:
    if isinstance(body, Seq):
        found[id(body)] = graph
    for part, node in zip(enqueued_nodes(body), graph.nodes, strict=True):
        for child, inner in zip(children(part), node.bodies, strict=True):
            _collect(child, inner, found)
