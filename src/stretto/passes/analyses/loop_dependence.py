"""Dependences between the parts of a loop body, and the cycles among them.

A node is an op of the body (with all that is nested in it) or a carried parameter. An edge leads
from what makes a value to what reads it; a carried parameter reads what the iteration before
yielded for it. The strongly connected components are the recurrences of the loop: what lies on no
cycle need not wait for the iteration before (Allen and Kennedy, "Optimizing Compilers for Modern
Architectures", section 2.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx

from stretto.ir.core import Op, Value
from stretto.ir.ops import ForOp, WhileOp
from stretto.ir.rewrite import free_values_of_op
from stretto.ir.symbols import symbols_bound_by, symbols_of_op

Node = Op | Value


@dataclass(frozen=True, slots=True)
class LoopDependence:
    """The components of one loop body, in an order that respects all edges."""

    components: tuple[tuple[Node, ...], ...]
    component_of: dict[Node, int]
    reads: dict[Node, tuple[Value, ...]]
    """What each node reads that the body makes: results of its ops, and carried parameters. An op
    whose types name a size that the body binds reads the results of the op that binds it."""
    maker: dict[Value, Node]
    """The node that makes a value; a carried parameter makes itself."""
    cyclic: frozenset[int]

    def is_recurrent(self, node: Node) -> bool:
        """True when the node's next value depends on its last one."""
        return self.component_of[node] in self.cyclic

    def component(self, value: Value) -> int | None:
        """The component that makes the value; None for the index and for values from outside."""
        node = self.maker.get(value)
        return None if node is None else self.component_of[node]


def loop_dependence(loop: ForOp | WhileOp) -> LoopDependence:
    """The dependences in the body of a loop."""
    body, carried = loop.body, loop.carried if isinstance(loop, ForOp) else loop.body.params
    maker: dict[Value, Node] = {value: value for value in carried}
    for op in body.ops:
        maker.update(dict.fromkeys(op.results, op))
    binders = {symbol: op.results for op in body.ops for symbol in symbols_bound_by(op)}
    reads: dict[Node, tuple[Value, ...]] = {}
    for value, yielded in zip(carried, body.yields, strict=True):
        reads[value] = (yielded,) if yielded in maker else ()
    for op in body.ops:
        named = symbols_of_op(op) - symbols_bound_by(op)
        sizes = (value for symbol in sorted(named, key=str) for value in binders.get(symbol, ()))
        every = dict.fromkeys((*free_values_of_op(op), *sizes))
        reads[op] = tuple(value for value in every if value in maker)
    graph: nx.DiGraph[Node] = nx.DiGraph()
    graph.add_nodes_from(reads)
    graph.add_edges_from((maker[value], node) for node in reads for value in reads[node])
    return _components(graph, reads, maker)


def _components(
    graph: nx.DiGraph[Node], reads: dict[Node, tuple[Value, ...]], maker: dict[Value, Node]
) -> LoopDependence:
    position = {node: place for place, node in enumerate(reads)}
    condensed = nx.condensation(graph)
    members: dict[int, list[Node]] = {
        number: sorted(condensed.nodes[number]["members"], key=position.__getitem__)
        for number in condensed
    }

    def last(number: int) -> int:
        return position[members[number][-1]]

    order: list[int] = list(nx.lexicographical_topological_sort(condensed, key=last))
    components = tuple(tuple(members[number]) for number in order)
    component_of = {node: place for place, nodes in enumerate(components) for node in nodes}
    cyclic = frozenset(
        place
        for place, nodes in enumerate(components)
        if len(nodes) > 1 or any(graph.has_edge(node, node) for node in nodes)
    )
    return LoopDependence(components, component_of, reads, maker, cyclic)
