"""Pictures of rows. Needs matplotlib, which is imported only here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..record import OWN_SYSTEM
from .report import DRY, is_own, median_us, times
from .results import Rows
from .smoke import GPU

COLORS = {
    "stretto": "#2a9d5c",
    "stretto-graph": "#7fc79b",
    "eager": "#9e9e9e",
    "eager-graph": "#616161",
    "cudnn-graph": "#8f6f12",
    "compile-max-autotune": "#8c3b10",
    "jax": "#7b5aa6",
    "stretto-parallel": "#2e75b6",
    "stretto-per-kernel": "#5b9bd5",
    "stretto-library": "#9dc3e6",
    "stretto-inputs-moved": "#b58900",
    "stretto-inputs-copied": "#e0c36a",
}
OTHER = "#4c78a8"


def draw(rows: Rows, folder: Path) -> None:
    """Writes ratios.png and simulated.png."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in {"ratios": ratios, "simulated": simulated}.items():
        figure = picture(rows)
        figure.text(0.01, 0.005, _origin(rows), fontsize=6, color="#666666")
        figure.tight_layout(rect=(0, 0.02, 1, 1))
        figure.savefig(folder / f"{name}.png", dpi=150)


def ratios(rows: Rows) -> Figure:
    """Draw bars of each system's time over stretto's, by model, on a logarithmic axis."""
    found = {model: own for model, own in times(rows).items() if OWN_SYSTEM in own}
    names = dict.fromkeys(system for own in found.values() for system in own)
    systems = [name for name in names if name != OWN_SYSTEM]
    figure = Figure(figsize=(max(7.0, 1.7 * len(found) + 1.5), 4.8))
    axes = figure.subplots()
    width = 0.84 / max(len(systems), 1)
    for place, system in enumerate(systems):
        offset = (place - (len(systems) - 1) / 2) * width
        points = [
            (number + offset, median_us(own[system]) / median_us(own[OWN_SYSTEM]))
            for number, own in enumerate(found.values())
            if system in own
        ]
        bars = axes.bar([x for x, _ in points], [y for _, y in points], width * 0.94)
        for bar in bars:
            bar.set_color(COLORS.get(system, OTHER))
        bars.set_label(system)
        axes.bar_label(bars, fmt="%.3g", fontsize=6, rotation=90, padding=2)
    axes.axhline(1.0, color=COLORS[OWN_SYSTEM], linewidth=1.2)
    axes.set_yscale("log")
    axes.margins(y=0.2)
    axes.set_ylabel("time over stretto's (more than 1: slower)")
    axes.set_xticks(range(len(found)), list(found))
    if systems:
        axes.legend(
            fontsize=7, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False
        )
    return figure


def simulated(rows: Rows) -> Figure:
    """Draw measured over simulated microseconds of stretto's programs, on logarithmic axes, with a
    line where both are equal."""
    figure = Figure(figsize=(6.0, 5.4))
    axes: Any = figure.subplots()
    ends: list[float] = []
    for model, own in times(rows).items():
        for system, row in own.items():
            if not is_own(system) or row.simulated_us is None:
                continue
            x, y = row.simulated_us, median_us(row)
            ends += [x, y]
            axes.plot(x, y, "o", color=COLORS.get(system, OTHER), markersize=4)
            axes.annotate(f"{model} {system.removeprefix('stretto-')}", (x, y), fontsize=5)
    if ends:
        axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color="#444444", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("simulated, us")
    axes.set_ylabel("measured, us")
    return figure


def _origin(rows: Rows) -> str:
    row = rows.row("facts", GPU)
    values = row.values if row is not None else {}
    versions = values.get("versions", {})
    line = f"{values.get('machine')}; torch {versions.get('torch')}; {values.get('date')}"
    return f"{DRY} {line}" if rows.dry_run else line
