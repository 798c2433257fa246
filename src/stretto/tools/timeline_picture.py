"""A timeline as a still picture: the whole run, and a part of it close enough to see tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from stretto.runtime.native import TaskEvent
from stretto.text import seconds_text
from stretto.tools.colors import REST, kernel_colors
from stretto.tools.profile import Profile

WIDTH_INCHES = 12.0
CLOSE_TASKS = 48
"""Tasks of one unit in the close view."""
MOST_NAMED = 10
_INK = "#24292f"
_IDLE = "#eceef1"


def draw(profile: Profile, path: Path, most: int) -> None:
    """Writes a PNG that shows at most the first `most` tasks."""
    colors = kernel_colors(profile)
    window = close_window(profile, CLOSE_TASKS)
    rows = 1 if window is None else 2
    figure = Figure(figsize=(WIDTH_INCHES, 1.75 + rows * (0.62 + 0.36 * profile.units)), dpi=150)
    panels = np.ravel(figure.subplots(rows, 1, squeeze=False))
    shown = profile.events[:most]
    _panel(panels[0], profile, shown, colors, (0, max(profile.nanoseconds, 1)))
    panels[0].set_title(_headline(profile, most), loc="left", fontsize=10, color=_INK)
    if window is not None:
        _panel(panels[1], profile, shown, colors, window)
        panels[0].axvspan(*window, facecolor="none", edgecolor=_INK, linewidth=1.0, zorder=3)
        length = seconds_text((window[1] - window[0]) / 1e9)
        panels[1].set_title(f"{length} of it, close up", loc="left", fontsize=9, color=_INK)
    _legend(figure, profile, colors)
    figure.tight_layout(rect=(0, 0.42 / figure.get_figheight(), 1, 1))
    figure.savefig(path)


def close_window(profile: Profile, tasks: int) -> tuple[int, int] | None:
    """A span about the middle of the run with `tasks` tasks of its busiest unit; None where the
    whole run has hardly more."""
    busiest = max(range(profile.units), key=profile.tasks, default=0)
    events = [event for event in profile.events if event.unit == busiest]
    if len(events) <= 3 * tasks:
        return None
    first = (len(events) - tasks) // 2
    return events[first].start, events[first + tasks - 1].end


def _headline(profile: Profile, most: int) -> str:
    busy = ", ".join(f"{profile.busy_share(unit):.0%}" for unit in range(profile.units))
    text = f"{seconds_text(profile.nanoseconds / 1e9)}, {len(profile.events)} tasks, "
    text += f"{profile.units} units busy {busy}" if profile.units > 1 else f"1 unit busy {busy}"
    if len(profile.events) > most:
        text += f" (only the first {most} tasks are drawn)"
    return text


def _panel(
    axes: Any,
    profile: Profile,
    events: tuple[TaskEvent, ...],
    colors: list[str],
    window: tuple[int, int],
) -> None:
    """Units as rows, tasks as boxes; what a box does not cover is waiting."""
    low, high = window
    inside = [event for event in events if event.end > low and event.start < high]
    for unit in range(profile.units):
        axes.axhspan(unit - 0.4, unit + 0.4, color=_IDLE, linewidth=0, zorder=0)
    boxes = [
        [
            (e.start, e.unit - 0.4),
            (e.end, e.unit - 0.4),
            (e.end, e.unit + 0.4),
            (e.start, e.unit + 0.4),
        ]
        for e in inside
    ]
    edge = 0.4 if len(inside) < 100 * profile.units else 0.0
    faces = [colors[event.kernel] for event in inside]
    axes.add_collection(
        PolyCollection(boxes, facecolors=faces, edgecolors="white", linewidths=edge, zorder=1)
    )
    axes.set_xlim(low, high)
    axes.set_ylim(profile.units - 0.45, -0.55)
    axes.set_yticks(range(profile.units), [f"unit {unit}" for unit in range(profile.units)])
    axes.xaxis.set_major_locator(MaxNLocator(9))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: seconds_text(x / 1e9)))
    axes.tick_params(length=0, labelsize=8, labelcolor=_INK)
    axes.spines[:].set_visible(False)


def _legend(figure: Figure, profile: Profile, colors: list[str]) -> None:
    """Kernels by their share of the busy time, the small ones together."""
    total = sum(kernel.busy for kernel in profile.kernels) or 1
    order = sorted(range(len(profile.kernels)), key=lambda n: -profile.kernels[n].busy)
    order = [n for n in order if profile.kernels[n].tasks]
    handles = [
        Patch(
            color=colors[n],
            label=f"{profile.kernels[n].name} {profile.kernels[n].busy / total:.0%}",
        )
        for n in order[:MOST_NAMED]
    ]
    if rest := order[MOST_NAMED:]:
        share = sum(profile.kernels[n].busy for n in rest) / total
        handles.append(Patch(color=REST, label=f"{len(rest)} more {share:.0%}"))
    figure.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.01, 0.0),
        ncols=6,
        frameon=False,
        fontsize=8,
        labelcolor=_INK,
        handlelength=1.0,
        handleheight=1.0,
    )
