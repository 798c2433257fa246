"""Pictures of results. Needs matplotlib, which is imported only here."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from ..record import OWN_SYSTEM
from .results import PartRecord
from .summary import systems_of, times

COLORS = {
    "stretto": "#2a9d5c",
    "stretto-graph": "#7fc79b",
    "eager": "#9e9e9e",
    "eager-graph": "#616161",
    "cudnn": "#c9a227",
    "cudnn-graph": "#8f6f12",
    "compile": "#e07a3f",
    "compile-graph": "#b5541c",
    "compile-reduce-overhead": "#f0a878",
    "compile-max-autotune": "#8c3b10",
    "jax": "#7b5aa6",
    "jax-graphs": "#b39ad0",
}


def ratios(record: PartRecord, path: Path) -> None:
    """Bars of each system's time over stretto's, by model, on a logarithmic axis."""
    found = times(record)
    models = [model for model, own in found.items() if OWN_SYSTEM in own]
    systems = [name for name in systems_of(found) if name != OWN_SYSTEM]
    figure = Figure(figsize=(max(7.0, 1.7 * len(models) + 1.5), 4.8))
    axes = figure.subplots()
    width = 0.84 / max(len(systems), 1)
    for place, system in enumerate(systems):
        offset = (place - (len(systems) - 1) / 2) * width
        points = [
            (number + offset, found[model][system] / found[model][OWN_SYSTEM])
            for number, model in enumerate(models)
            if system in found[model]
        ]
        bars = axes.bar([x for x, _ in points], [y for _, y in points], width * 0.94)
        for bar in bars:
            bar.set_color(COLORS.get(system, "#4c78a8"))
        bars.set_label(system)
        axes.bar_label(bars, fmt="%.3g", fontsize=6, rotation=90, padding=2)
    axes.axhline(1.0, color="#2a9d5c", linewidth=1.2)
    axes.set_yscale("log")
    axes.margins(y=0.2)
    axes.set_ylabel("time over stretto's (more than 1: slower)")
    axes.set_xticks(range(len(models)), models)
    if systems:
        axes.legend(
            fontsize=7, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False
        )
    _finish(figure, record, path)


def gemv(record: PartRecord, path: Path) -> None:
    """Bandwidth of a matrix times a vector by the shape of a block."""
    rows = [row for row in record.rows if row.name.startswith("gemv ") and row.status == "ok"]
    figure = Figure(figsize=(8.0, max(3.0, 0.2 * len(rows) + 1.2)))
    axes = figure.subplots()
    axes.barh(
        [row.name.removeprefix("gemv ") for row in rows],
        [row.values["median"] / 1e12 for row in rows],
        color=["#4c78a8" if "memory" in row.name else "#e07a3f" for row in rows],
    )
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=6)
    axes.set_xlabel("TB/s of the matrix")
    copied = record.value("copy bandwidth")
    if copied is not None:
        axes.axvline(copied / 1e12, color="#444444", linestyle="--", linewidth=1.0)
    _finish(figure, record, path)


def _finish(figure: Figure, record: PartRecord, path: Path) -> None:
    about = record.about
    line = f"{about['device']}; torch {about['versions'].get('torch')}; {about.get('date', '')}"
    figure.text(0.01, 0.005, line, fontsize=6, color="#666666")
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
