"""Dependence graphs of launches: a straight-line part of a plan as nodes and necessary order.

A plan (`plan.py`) fixes one order. A `LaunchGraph` has one node for each action of a straight-line
stretch, numbered in the plan's order, and an edge for each pair whose order matters: two accesses
to memory or to a register, one of which writes, or a node that may stop the run. Any order that the
edges allow gives the same results, which `verifier/plans.py` checks. Control nodes of the host are
nodes with their own graphs, one for each part.

An `Arrangement` is one way to enqueue a graph: an order, a stream for each node, and the events by
which a node of one stream waits for a node of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from stretto.device.expr_text import ExprParser, ExprPrinter
from stretto.device.operator import Piece, TileDim
from stretto.device.plan import Guard, excludes
from stretto.device.regions import Part, Region, overlap
from stretto.device.syntax import GUARD, INTEGER, MARK, NAME, TILE_DIM, record
from stretto.grammar import Syntax, block, flag, indented, items, later, member, pair

STACK = "#stack"
"""Represents the memory after the frame, which holds the frames of functions that a launch
calls."""
COUNTERS = "#counters"
"""Represents the progress counters of the units, which a launch with internal waits needs
exclusively."""


class NodeKind(StrEnum):
    LAUNCH = "launch"
    LIBRARY = "library"
    CONTROL = "control"


class Dependence(StrEnum):
    """The reason why the order of two nodes matters."""

    FLOW = "flow"
    """The later one reads what the earlier one wrote."""
    ANTI = "anti"
    """The later one overwrites what the earlier one reads."""
    OUTPUT = "output"
    """Both write the same place."""
    MEMORY = "memory"
    """They use two buffers that share bytes."""
    REGISTER = "register"
    """They access the same register, address, or resource that only one launch at a time
    may use."""
    ORDER = "order"
    """One of them may stop the run."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A launch, library call or control node. regions: the memory that it touches. reads, writes:
    names of registers, of words with addresses, and of resources that only one launch at a time
    may use. stops: it may stop the run. bodies: graphs of a control node's parts. guards: it
    has no effect unless all of them hold; their registers are among `reads`."""

    kind: NodeKind
    name: str
    regions: tuple[Region, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    stops: bool = False
    bodies: tuple[LaunchGraph, ...] = ()
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True, slots=True)
class Edge:
    """Node number `before` must end before number `after` begins."""

    before: int
    after: int
    reason: Dependence


@dataclass(frozen=True, slots=True)
class LaunchGraph:
    """A graph of launches. nodes: in the plan's order. shares: pairs of names of buffers that have
    bytes in common."""

    name: str
    nodes: tuple[GraphNode, ...]
    edges: tuple[Edge, ...]
    shares: tuple[tuple[str, str], ...] = ()

    @property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """For each node its direct predecessors, in the plan's order."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for edge in self.edges:
            found[edge.after].append(edge.before)
        return tuple(tuple(sorted(set(numbers))) for numbers in found)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A way to enqueue a graph. order: the numbers of the nodes, as they are enqueued. streams: the
    stream of each node, by its number. events: (before, after) pairs of nodes on two streams."""

    order: tuple[int, ...]
    streams: tuple[int, ...]
    events: tuple[tuple[int, int], ...] = ()

    @property
    def stream_count(self) -> int:
        return len(set(self.streams))

    @property
    def waits(self) -> tuple[tuple[int, ...], ...]:
        """For each node the nodes that it waits for: its predecessor on the stream, and those of
        events."""
        found: list[list[int]] = [[] for _ in self.order]
        last: dict[int, int] = {}
        for number in self.order:
            stream = self.streams[number]
            if stream in last:
                found[number].append(last[stream])
            last[stream] = number
        for before, after in self.events:
            found[after].append(before)
        return tuple(map(tuple, found))


def dependences(
    nodes: Sequence[GraphNode], shares: Iterable[tuple[str, str]] = ()
) -> Iterator[Edge]:
    """Yield all pairs of nodes whose order matters, each once, with the first reason that is found.

    Two nodes that one register guards in opposite ways are unordered, since only one of them has an
    effect in a run. If a node between them changed the register, both would be ordered with that
    node.
    """
    near = _neighbours(shares)
    touched: dict[str, list[tuple[int, Region]]] = {}
    readers: dict[str, list[int]] = {}
    writers: dict[str, list[int]] = {}
    for number, node in enumerate(nodes):
        found: dict[int, Dependence] = {}
        for region in node.regions:
            for other, earlier in touched.get(region.buffer.name, ()):
                if other not in found and (reason := _conflict(earlier, region)) is not None:
                    found[other] = reason
        for region in node.regions:
            for name in near.get(region.buffer.name, ()):
                for other, earlier in touched.get(name, ()):
                    if earlier.write or region.write:
                        found.setdefault(other, Dependence.MEMORY)
        for name in (*node.reads, *node.writes):
            for other in writers.get(name, ()):
                found.setdefault(other, Dependence.REGISTER)
        for name in node.writes:
            for other in readers.get(name, ()):
                found.setdefault(other, Dependence.REGISTER)
        for other in range(number):
            if nodes[other].stops or (node.stops and _lasts(nodes[other])):
                found.setdefault(other, Dependence.ORDER)
        for region in node.regions:
            touched.setdefault(region.buffer.name, []).append((number, region))
        for names, known in ((node.reads, readers), (node.writes, writers)):
            for name in names:
                known.setdefault(name, []).append(number)
        yield from (
            Edge(other, number, found[other])
            for other in sorted(found)
            if not excludes(nodes[other].guards, node.guards)
        )


def ancestors(before: Sequence[Iterable[int]], order: Iterable[int]) -> list[int]:
    """Return for each node the set of all its predecessors, as the bits of a number. order: a
    topological order of the nodes."""
    found = [0] * len(before)
    for number in order:
        for earlier in before[number]:
            found[number] |= found[earlier] | 1 << earlier
    return found


def needed(before: Sequence[Iterable[int]], order: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return for each node the predecessors that no other one implies: the transitive reduction."""
    known = ancestors(before, order)
    return tuple(
        tuple(
            sorted(
                one
                for one in set(earlier)
                if not any(known[other] >> one & 1 for other in earlier if other != one)
            )
        )
        for earlier in map(tuple, before)
    )


def _conflict(earlier: Region, later: Region) -> Dependence | None:
    if not (earlier.write or later.write) or not overlap(earlier, later):
        return None
    if earlier.write and later.write:
        return Dependence.OUTPUT
    return Dependence.FLOW if earlier.write else Dependence.ANTI


def _lasts(node: GraphNode) -> bool:
    """Return True if the node has an effect that outlives a stopped run: it may stop the run
    itself, or it changes an input."""
    return node.stops or any(r.write and r.buffer.kind == "updated" for r in node.regions)


def _neighbours(shares: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one, other in shares:
        found.setdefault(one, []).append(other)
        found.setdefault(other, []).append(one)
    return found


# ---- The text of a graph of launches, which is parsed back exactly.
#
# print_graph(graph)        parse_graph(text) == graph


def print_graph(graph: LaunchGraph) -> str:
    printer = ExprPrinter()
    text = "graph\n" + MARK + "\n" + GRAPH.show(printer, graph)
    return indented(text.replace(MARK, "\n".join(printer.declarations())))


def parse_graph(text: str) -> LaunchGraph:
    """Parse the text of a graph. Raise ScheduleError for a mistake in the text."""
    given = ExprParser(text, {})
    given.expect("graph")
    given.declarations()
    found = GRAPH.read(given)
    given.end()
    return found


def _part_text(printer: ExprPrinter, part: Part) -> str:
    match part:
        case None:
            return "all"
        case Piece(dim, first, last):
            # Not a `Split`: registers may change between the nodes of a graph.
            assert isinstance(dim, TileDim)
            return f"pieces {first} .. {last} of {TILE_DIM.show(printer, dim)}"
        case (first, last):
            return f"{first} .. {last}"


def _read_part(given: ExprParser) -> Part:
    if given.accept("all"):
        return None
    if not given.accept("pieces"):
        first = given.integer()
        given.expect("..")
        return first, given.integer()
    first = given.integer()
    given.expect("..")
    last = given.integer()
    given.expect("of")
    return Piece(TILE_DIM.read(given), first, last)


PART: Syntax[Part] = Syntax(_part_text, _read_part)
REGION = record(
    Region, "region {buffer} {shape} {box}{write}", box=items(PART), write=flag("write")
)
_GRAPHS: Syntax[Any] = block(later(lambda: GRAPH))
NODE = record(
    GraphNode,
    "node {kind} {name}[ guards {guards}][ reads {reads}][ writes {writes}]{stops}"
    "[ bodies {bodies}][ regions {regions}]",
    kind=member(NodeKind, NAME),
    guards=items(GUARD),
    stops=flag("stops"),
    bodies=_GRAPHS,
    regions=block(REGION),
)
EDGE = record(Edge, "edge {before} {after} {reason}", before=INTEGER, after=INTEGER,
              reason=member(Dependence, NAME))  # fmt: skip
GRAPH: Syntax[LaunchGraph] = record(
    LaunchGraph,
    "{name} {{\n[shares {shares}\n]nodes {nodes}\nedges {edges}\n}}",
    nodes=block(NODE),
    edges=block(EDGE),
    shares=items(pair("{left} = {right}", NAME, NAME)),
)
