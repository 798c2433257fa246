"""The text of a graph of launches, which is read back exactly.

print_graph(graph)        parse_graph(text) == graph
"""

from __future__ import annotations

from typing import Any

from stretto.device.expr_parser import ExprParser
from stretto.device.grammar import (
    DECLARATIONS,
    INTEGER,
    NAME,
    Syntax,
    block,
    flag,
    indented,
    items,
    later,
    member,
    pair,
    record,
)
from stretto.device.launch_graph import Dependence, Edge, GraphNode, LaunchGraph, NodeKind
from stretto.device.operator import Piece
from stretto.device.printer import ExprPrinter
from stretto.device.regions import Part, Region
from stretto.device.syntax import GUARD, TILE_DIM


def print_graph(graph: LaunchGraph) -> str:
    printer = ExprPrinter()
    text = "graph\n" + DECLARATIONS + "\n" + GRAPH.show(printer, graph)
    return indented(text.replace(DECLARATIONS, "\n".join(printer.declarations())))


def parse_graph(text: str) -> LaunchGraph:
    """The graph that the text says. Raises ScheduleError for a mistake in the text."""
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
    kind=member(NodeKind),
    guards=items(GUARD),
    stops=flag("stops"),
    bodies=_GRAPHS,
    regions=block(REGION),
)
EDGE = record(Edge, "edge {before} {after} {reason}", before=INTEGER, after=INTEGER,
              reason=member(Dependence))  # fmt: skip
GRAPH: Syntax[LaunchGraph] = record(
    LaunchGraph,
    "{name} {{\n[shares {shares}\n]nodes {nodes}\nedges {edges}\n}}",
    nodes=block(NODE),
    edges=block(EDGE),
    shares=items(pair("{left} = {right}", NAME, NAME)),
)
