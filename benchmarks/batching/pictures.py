"""Records as pictures for the docs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from ..streams import service_report
from . import suite
from .parts import ALL_OFF, ALL_ON, SIZES
from .tables import load

_GREEN, _GREY, _RED = "#2a9d5c", "#b0b7bd", "#c0563f"
_LINES = ("#2a9d5c", "#e07a3f", "#4c78a8", "#7b5aa6", "#c9a227", "#8a8a8a")


def draw_all(folder: Path, images: Path) -> Iterator[Path]:
    """Draw everything that has records; return the files."""
    ablations = [load(folder, f"ablation-{m.replace(':', '-')}") for m in suite.ABLATED]
    if any(ablations):
        yield draw_ablation([a for a in ablations if a], images / "batching-ablation.png")
    by_size = [load(folder, f"sizes-{model.replace(':', '-')}") for model in suite.SIZED]
    if any(by_size):
        yield draw_sizes([s for s in by_size if s], images / "batching-sizes.png")
    served = load(folder, "service")
    if served:
        path = images / "service-latency.png"
        service_report.draw(service_report.ServiceRecord.of_dict(served), path)
        yield path


def draw_ablation(records: list[dict[str, Any]], path: Path) -> Path:
    """Draw a panel per model: the time of a batch with each optimisation toggled."""
    columns = min(3, len(records))
    lines = -(-len(records) // columns)
    bars = max(len(record["milliseconds"]) for record in records)
    figure = Figure(figsize=(3.4 * columns, lines * (0.9 + 0.24 * bars)), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    for panel in panels[len(records) :]:
        panel.axis("off")
    for panel, record in zip(panels, records, strict=False):
        _draw_variants(panel, record)
    figure.supxlabel(f"milliseconds for {records[0]['batch']} instances", fontsize=9)
    return _saved(figure, path)


def _draw_variants(axes: Axes, record: dict[str, Any]) -> None:
    times = record["milliseconds"]
    base = times[ALL_ON]
    names = list(times)[::-1]
    colors = {ALL_ON: _GREEN, ALL_OFF: _RED}
    axes.barh(names, [times[name] for name in names], color=[colors.get(n, _GREY) for n in names])
    for place, name in enumerate(names):
        text = f" {times[name]:.1f}"
        if name != ALL_ON:
            text += f" ({times[name] / base:.2f}x)"
        axes.text(times[name], place, text, va="center", fontsize=7)
    axes.set_xlim(0, 1.45 * max(times.values()))
    axes.tick_params(labelsize=7)
    axes.set_title(record["model"].replace(":", " "), fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def draw_sizes(records: list[dict[str, Any]], path: Path) -> Path:
    """Draw the time per instance by the size of its batch, a line per model."""
    figure = Figure(figsize=(6.6, 4.0), layout="constrained")
    axes = figure.subplots()
    for record, color in zip(records, _LINES, strict=False):
        sizes = [int(size) for size in record["milliseconds"]]
        times = list(record["milliseconds"].values())
        label = record["model"].replace(":", " ")
        axes.plot(sizes, times, "o-", color=color, markersize=4, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(SIZES, [f"{size:,}" for size in SIZES])
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.legend(frameon=False)
    axes.set_xlabel("instances in a batch")
    axes.set_ylabel("milliseconds per instance")
    axes.grid(visible=True, which="major", color="#e4e4e4")
    axes.spines[["top", "right"]].set_visible(False)
    return _saved(figure, path)


def _saved(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
