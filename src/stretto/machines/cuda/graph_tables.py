"""What `explain()` says of a plan as a graph: nodes, streams, events, simulated times."""

from __future__ import annotations

from stretto.device.costs import CostModel
from stretto.device.launch_graph import LaunchGraph, needed
from stretto.errors import ScheduleError
from stretto.machines.cuda.styles import GpuProgram
from stretto.machines.machine import Table
from stretto.schedule.alternatives import Alternative, Profiled, alternatives, profiled
from stretto.simulator.devices import device_for
from stretto.simulator.occupancy import BlockNeeds
from stretto.text import seconds_text

MOST_ROWS = 40
"""Nodes that are listed."""
MOST_NODES = 400
"""A graph of more nodes is not simulated for `explain()`."""
NODE_HEADERS = ("node", "what", "name", "after", "stream", "blocks", "bound by", "begins", "ends")
WAY_HEADERS = ("way", "simulated", "streams", "events")
_WARP = 32


def graph_tables(made: GpuProgram, costs: CostModel) -> list[Table]:
    """Tables for a plan of which the host enqueues more than one action."""
    needs = {
        id(launch): BlockNeeds(
            compiled.resources.warps * _WARP,
            compiled.resources.registers,
            compiled.resources.shared_bytes,
        )
        for (_, launch), compiled in zip(made.plan.launches, made.compiled, strict=False)
    }
    device = device_for(costs, made.plan.program.units)
    try:
        given = profiled(made.plan, device, costs, needs)
    except ScheduleError:  # a launch that is too long to be simulated
        return []
    if not 1 < len(given.graph.nodes) <= MOST_NODES:
        return []
    ways = alternatives(given)
    opara = next(way for way in ways if way.name == "Opara")
    title = f"main as a graph, on {device.name} simulated (not measured), as Opara enqueues it"
    return [
        Table(title, node_rows(given, opara), NODE_HEADERS),
        Table("ways to enqueue the graph, simulated (not measured)", way_rows(ways), WAY_HEADERS),
    ]


def node_rows(given: Profiled, way: Alternative) -> list[tuple[str, ...]]:
    """The nodes in the order in which they are enqueued."""
    graph, rows = given.graph, list[tuple[str, ...]]()
    after = waits_text(graph)
    for number in way.arrangement.order[:MOST_ROWS]:
        node, profile = graph.nodes[number], given.profiles[number]
        rows.append(
            (
                str(number),
                str(node.kind),
                node.name,
                after[number],
                str(way.arrangement.streams[number]),
                str(profile.blocks),
                "bytes" if profile.is_memory_bound(given.device) else "arithmetic",
                seconds_text(way.run.starts[number]),
                seconds_text(way.run.ends[number]),
            )
        )
    if len(graph.nodes) > MOST_ROWS:
        rows.append((f"{len(graph.nodes) - MOST_ROWS} more", *[""] * (len(NODE_HEADERS) - 1)))
    return rows


def waits_text(graph: LaunchGraph) -> list[str]:
    """For each node those it has to come after, without what they imply."""
    found = needed(graph.before, range(len(graph.nodes)))
    return [", ".join(map(str, earlier)) or "-" for earlier in found]


def way_rows(ways: list[Alternative]) -> list[tuple[str, ...]]:
    return [
        (
            way.name,
            seconds_text(way.run.seconds),
            str(way.arrangement.stream_count),
            str(len(way.arrangement.events)),
        )
        for way in ways
    ]
