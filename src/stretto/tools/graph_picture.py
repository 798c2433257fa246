"""A graph of launches as an SVG: a row per stream, a box per node over its simulated time, and a
line for each event that a node of one stream waits for in another."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from stretto.device.launch_graph import NodeKind
from stretto.schedule.alternatives import Alternative, Profiled
from stretto.text import seconds_text
from stretto.tools.graphs import Graphed

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


def picture(model: str, given: Profiled, way: Alternative) -> str:
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


def _x(way: Alternative, time: float) -> float:
    return LEFT + WIDTH * time / (way.run.seconds or 1.0)


def _middle(way: Alternative, number: int) -> float:
    return TOP + ROW * way.arrangement.streams[number] + ROW / 2


def _rows(streams: int) -> Iterator[str]:
    for stream in range(streams):
        y = TOP + ROW * stream + ROW / 2
        yield f'<text x="8" y="{y + 4:.0f}" fill="#555">stream {stream}</text>'
        yield f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y}" y2="{y}" stroke="#ddd"/>'


def _boxes(given: Profiled, way: Alternative) -> Iterator[str]:
    for number, node in enumerate(given.graph.nodes):
        start, end = way.run.starts[number], way.run.ends[number]
        x, y = _x(way, start), _middle(way, number) - BOX / 2
        width = max(_x(way, end) - x, 1.5)
        what = f"{number}: {node.kind} {node.name}, {seconds_text(end - start)}"
        yield (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BOX}" rx="2" '
            f'fill="{COLORS[node.kind]}"><title>{escape(what)}</title></rect>'
        )


def _events(way: Alternative) -> Iterator[str]:
    for before, after in way.arrangement.events:
        x1, x2 = _x(way, way.run.ends[before]), _x(way, way.run.starts[after])
        y1, y2 = _middle(way, before), _middle(way, after)
        yield (
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#888" '
            'stroke-width="0.8"/>'
        )
