"""Ways to enqueue a graph of launches, compared in simulation: streams, events, orders as data.

Each kernel of a model is a launch. Nothing is measured: every time comes from the simulator.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from stretto.call.compiler import begin, run_stages
from stretto.device.costs import CostModel
from stretto.device.launch_graph import Arrangement, NodeKind, ancestors
from stretto.device.plan import Plan
from stretto.device.program import DeviceProgram
from stretto.device.tree import If, Leaf, Seq, walk
from stretto.frontends.python import capture
from stretto.ir.core import Program
from stretto.machines.cuda.machine import LIBRARY
from stretto.machines.machine import HOST, LibraryChoice
from stretto.machines.stages import TO_SCHEDULE
from stretto.options import Options
from stretto.schedule.launch_graph import (
    Before,
    Opara,
    Order,
    arranged,
    events_between,
    one_stream,
    opara_streams,
    program_order,
    taken_one_by_one,
    with_own_memory,
)
from stretto.schedule.plan import make_plan
from stretto.schedule.plan_cost import Enqueued, Profiled, plan_seconds, profiled
from stretto.schedule.plan_search import search_plan
from stretto.simulator.devices import Device
from stretto.simulator.graph_run import captured_costs, launched_costs, run_graph
from stretto.simulator.run_path import DefaultChoices
from stretto.simulator.simulate import simulate
from stretto.simulator.work import kept_in_loops
from stretto.text import counted, seconds_text
from stretto.tools.models import Model
from stretto.tools.names import UsageError
from stretto.tools.simulate import device_machine

MOST_NODES = 9
"""Nodes of a graph all of whose orders are tried."""

MOST_ORDERS = 20_000
"""Orders of such a graph that are tried; a graph with more of them has no best order here."""


# ---- orders ----------------------------------------------------------------------------------
def breadth_first(before: Before) -> Order:
    """What was ready first comes first."""
    ready: list[int] = []
    return taken_one_by_one(before, ready.append, lambda turn: ready.pop(0))


def depth_first(before: Before) -> Order:
    """What became ready last comes first."""
    ready: list[int] = []
    return taken_one_by_one(before, ready.append, lambda turn: ready.pop())


def random_order(before: Before, seed: int) -> Order:
    """Any order that the edges allow."""
    draw = random.Random(seed)
    ready: list[int] = []
    return taken_one_by_one(
        before, ready.append, lambda turn: ready.pop(draw.randrange(len(ready)))
    )


def all_orders(before: Before) -> Iterator[Order]:
    """Every order that the edges allow."""
    taken: list[int] = []

    def further() -> Iterator[Order]:
        if len(taken) == len(before):
            yield tuple(taken)
            return
        for number, earlier in enumerate(before):
            if number not in taken and all(other in taken for other in earlier):
                taken.append(number)
                yield from further()
                taken.pop()

    return further()


def with_all_events(before: Before, order: Sequence[int], streams: Sequence[int]) -> Arrangement:
    """An order with an event for each edge between two streams."""
    return Arrangement(tuple(order), tuple(streams), events_between(before, order, streams))


def implied(before: Before, edge: tuple[int, int]) -> bool:
    """Whether other edges say what an edge says."""
    earlier, later = edge
    known = ancestors(before, range(len(before)))
    return any(known[other] >> earlier & 1 for other in before[later] if other != earlier)


# ---- comparison ------------------------------------------------------------------------------
def alternatives(given: Profiled, seeds: Sequence[int] = (0, 1, 2, 3, 4)) -> list[Enqueued]:
    """The ways that are compared, the plan's own order on one stream first; then Opara's streams
    with several orders, and with parts of Opara's algorithms left out. Of random orders the median.
    """
    before, profiles, device = given.graph.before, given.profiles, given.device
    planned = arranged(before, program_order(before), one_stream(before))
    streams = opara_streams(before)
    opara = Opara().order(before, profiles, device)
    orders = {
        "Opara": opara,
        "depth first": depth_first(before),
        "breadth first": breadth_first(before),
        "Opara, not in turns": Opara(in_turns=False).order(before, profiles, device),
        "Opara, not by needs": Opara(by_needs=False).order(before, profiles, device),
        "Opara, shared memory only": Opara(only_shared=True).order(before, profiles, device),
    }
    found = [
        given.simulated("launches, one stream", planned, launched_costs(device)),
        given.simulated("graph, one stream", planned),
        *(given.simulated(name, arranged(before, o, streams)) for name, o in orders.items()),
        given.simulated("Opara, all events", with_all_events(before, opara, streams)),
    ]
    drawn = [
        given.simulated("random", arranged(before, random_order(before, seed), streams))
        for seed in seeds
    ]
    found.append(sorted(drawn, key=lambda one: one.run.seconds)[len(drawn) // 2])
    best = best_order(given)
    return found if best is None else [*found, best]


def best_order(given: Profiled) -> Enqueued | None:
    """The fastest of all orders, of a graph that is small enough; the streams are Opara's."""
    before = given.graph.before
    if len(before) > MOST_NODES:
        return None
    orders = list(islice(all_orders(before), MOST_ORDERS + 1))
    if len(orders) > MOST_ORDERS:
        return None
    streams, costs = opara_streams(before), captured_costs(given.device)

    def seconds(order: tuple[int, ...]) -> float:
        return run_graph(
            given.profiles, arranged(before, order, streams), given.device, costs
        ).seconds

    return given.simulated(
        "best of all orders", arranged(before, min(orders, key=seconds), streams)
    )


PERSISTENT = "one persistent kernel"
CONDITIONAL = "a launch per kernel, conditional nodes"
PREDICATED = "a launch per kernel, predicated branches"
MIXED = "the plan of a graph that is chosen"
BY_COST = "the same, library calls by cost"


@dataclass(frozen=True, slots=True)
class Graphed:
    """A model as a graph on a device. ways: how it may be enqueued. persistent: simulated seconds
    as one launch. mixed: of what `Options(enqueue="graph")` makes, as a captured graph: for each
    stretch of the program one launch, or one for each kernel. by_cost: of what it makes with
    `library="auto"`, and which products torch computes there. conditional: with a launch per kernel
    and conditional nodes, where there are loops or branches; predicated: with branches predicated
    instead, where they can be. frame_bytes: of main's frame as it is
    planned, and with own memory."""

    model: str
    plan: Plan
    given: Profiled
    ways: tuple[Enqueued, ...]
    persistent: float | None
    mixed: float
    conditional: float | None
    predicated: float | None
    frame_bytes: tuple[int, int]
    by_cost: tuple[float, LibraryChoice] | None = None


def graph_model(
    model: Model,
    name: str,
    units: int | None = None,
    options: Options | None = None,
    *,
    own_memory: bool = True,
) -> Graphed:
    """Compiles a model for a GPU that need not be there, a launch per kernel, and compares the ways
    to enqueue them.

    own_memory: local buffers share no bytes, so that launches do not wait because of them. Raises
    UsageError for what is no GPU, and the errors of the stages.
    """
    machine, device, options = device_machine(name, units, options or Options())
    if not device.target:
        raise UsageError(f"graphs are of launches: {name} is no GPU")
    stages = begin(_captured(model, options), machine, options, HOST)
    run_stages(stages, TO_SCHEDULE)
    program, _ = stages.runnable()
    plan = per_kernel_plan(program, machine.costs, own_memory)
    given = profiled(plan, device, machine.costs)
    frames = (program.frame("main").nbytes, plan.program.frame("main").nbytes)
    persistent = persistent_seconds(program, device, machine.costs)
    mixed = captured_seconds(program, device, machine.costs, "auto", "auto", "auto")
    conditional = predicated = None
    nodes = list(walk(program.tree.main.body))
    asked = (program, device, machine.costs, "per_kernel", "host")
    if any(not isinstance(node, Leaf | Seq) for node in nodes):
        conditional = captured_seconds(*asked, "conditional")
    if any(isinstance(node, If) for node in nodes):
        predicated = captured_seconds(*asked, "predicated")
    ways = tuple(alternatives(given))
    by_cost = None
    if not options.library:
        stages.options = replace(options, library="auto", enqueue="graph")
        LIBRARY.run(stages)
        assert stages.library is not None
        chosen, _ = stages.runnable()
        by_cost = (
            captured_seconds(chosen, device, machine.costs, "auto", "auto", "auto"),
            stages.library,
        )
    return Graphed(
        model.name, plan, given, ways, persistent, mixed, conditional, predicated, frames, by_cost
    )


def _captured(model: Model, options: Options) -> Program:
    with torch.no_grad():
        return capture(model.function, model.inputs, {}, options).program


def per_kernel_plan(program: DeviceProgram, costs: CostModel, own_memory: bool) -> Plan:
    """A launch for each kernel outside of control flow."""
    if own_memory:
        program = with_own_memory(program)
    chosen = search_plan(program, costs, "per_kernel", "units")
    return make_plan(program, cuts=chosen.cuts)


def persistent_seconds(program: DeviceProgram, device: Device, costs: CostModel) -> float | None:
    """Of a program as one launch, with the weights that its loops keep on chip; None where library
    calls cut it."""
    if any(kernel.call is not None for kernel in program.kernels):
        return None
    kept = kept_in_loops(program, device, costs)
    return simulate(program, device, DefaultChoices(costs.unknown_trips), costs, kept).seconds


def captured_seconds(
    program: DeviceProgram,
    device: Device,
    costs: CostModel,
    launches: str,
    control: str,
    branches: str,
) -> float:
    """Of the captured graph that options make; "auto": by cost."""
    apart = with_own_memory(program)
    chosen = search_plan(apart, costs, launches, control, branches, device, captured=True)
    plan = chosen.plan(apart, captured=True)
    return plan_seconds(plan, device, costs, captured=True)


def graph_table(found: Graphed) -> Table:
    """The ways to enqueue a model's graph, the slowest kind first."""
    graph = found.given.graph
    nodes, edges = counted(len(graph.nodes), "node"), counted(len(graph.edges), "edge")
    title = f"{found.model} on {found.given.device.name}, simulated: {nodes}, {edges}"
    table = Table(title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD)
    for column in ("", "time", "streams", "events"):
        table.add_column(column, justify="right" if column else "left")
    for cells in ways_cells(found.ways):
        table.add_row(*cells)
    if found.persistent is not None:
        table.add_row(PERSISTENT, seconds_text(found.persistent))
    if found.conditional is not None:
        table.add_row(CONDITIONAL, seconds_text(found.conditional))
    if found.predicated is not None:
        table.add_row(PREDICATED, seconds_text(found.predicated))
    table.add_row(MIXED, seconds_text(found.mixed))
    if found.by_cost is not None:
        seconds, choice = found.by_cost
        table.add_row(BY_COST, seconds_text(seconds))
        table.caption = f"library calls: {choice.text()}"
    return table


def _choice_data(seconds: float, choice: LibraryChoice) -> dict[str, Any]:
    return {
        "seconds": seconds,
        "library_calls": sum(len(product.ops) for product in choice.taken),
        "products": sum(len(product.ops) for product in choice.looked_at),
        "tried": [{"library_calls": count, "seconds": taken} for count, taken in choice.tried],
    }


def ways_cells(ways: Sequence[Enqueued]) -> list[tuple[str, str, str, str]]:
    """Name, time, streams and events of each way."""
    return [
        (
            way.name,
            seconds_text(way.run.seconds),
            str(way.arrangement.stream_count),
            str(len(way.arrangement.events)),
        )
        for way in ways
    ]


def graph_data(found: Graphed) -> dict[str, Any]:
    """The same for a file."""
    graph = found.given.graph
    return {
        "nodes": len(graph.nodes),
        "edges": len(graph.edges),
        "frame_bytes": {"as planned": found.frame_bytes[0], "graph": found.frame_bytes[1]},
        "persistent_seconds": found.persistent,
        "mixed_seconds": found.mixed,
        "conditional_seconds": found.conditional,
        "by_cost": None if found.by_cost is None else _choice_data(*found.by_cost),
        "predicated_seconds": found.predicated,
        "ways": {
            way.name: {
                "seconds": way.run.seconds,
                "streams": way.arrangement.stream_count,
                "events": len(way.arrangement.events),
            }
            for way in found.ways
        },
    }


# ---- A graph of launches as an SVG: a row per stream, a box per node over its simulated time,
# and a line for each event by which a node of one stream waits for one of another.


WIDTH = 1200
ROW = 26
BOX = 18
LEFT = 70
TOP = 40
COLORS = {NodeKind.LAUNCH: "#4269d0", NodeKind.LIBRARY: "#efb118", NodeKind.CONTROL: "#a463f2"}


def write_picture(found: Graphed, path: Path, way: str = "Opara") -> None:
    """Draws one of the ways to enqueue the graph."""
    chosen = next(one for one in found.ways if one.name == way)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(picture(found.model, found.given, chosen))


def picture(model: str, given: Profiled, way: Enqueued) -> str:
    """The SVG. A title on each box says what it is."""
    streams = way.arrangement.stream_count
    height = TOP + ROW * streams + 30
    head = (
        f"{model} on {given.device.name}, simulated, not measured: {way.name}, "
        f"{seconds_text(way.run.seconds)}, streams: {streams}, "
        f"events: {len(way.arrangement.events)}"
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + LEFT + 20}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="20" font-size="14">{escape(head)}</text>',
        *_rows(streams),
        *_events(way),
        *_boxes(given, way),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _x(way: Enqueued, time: float) -> float:
    return LEFT + WIDTH * time / (way.run.seconds or 1.0)


def _middle(way: Enqueued, number: int) -> float:
    return TOP + ROW * way.arrangement.streams[number] + ROW / 2


def _rows(streams: int) -> Iterator[str]:
    for stream in range(streams):
        y = TOP + ROW * stream + ROW / 2
        yield f'<text x="8" y="{y + 4:.0f}" fill="#555">stream {stream}</text>'
        yield f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y}" y2="{y}" stroke="#ddd"/>'


def _boxes(given: Profiled, way: Enqueued) -> Iterator[str]:
    for number, node in enumerate(given.graph.nodes):
        start, end = way.run.starts[number], way.run.ends[number]
        x, y = _x(way, start), _middle(way, number) - BOX / 2
        width = max(_x(way, end) - x, 1.5)
        what = f"{number}: {node.kind} {node.name}, {seconds_text(end - start)}"
        yield (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BOX}" rx="2" '
            f'fill="{COLORS[node.kind]}"><title>{escape(what)}</title></rect>'
        )


def _events(way: Enqueued) -> Iterator[str]:
    for before, after in way.arrangement.events:
        x1, x2 = _x(way, way.run.ends[before]), _x(way, way.run.starts[after])
        y1, y2 = _middle(way, before), _middle(way, after)
        yield (
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#888" '
            'stroke-width="0.8"/>'
        )
