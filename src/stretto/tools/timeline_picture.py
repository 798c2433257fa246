"""A timeline as a still picture: the whole run, and a part of it close enough to see tasks."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from stretto.machines.machine import TaskEvent
from stretto.text import seconds_text
from stretto.tools.colors import REST, kernel_colors
from stretto.tools.profile import Profile, ProfiledKernel

WIDTH_INCHES = 12.0
MOST_INCHES = 6.0
"""Height of the rows of a panel; many units have thin ones."""
MOST_LABELS = 24
"""Of units, beside their rows and in the headline."""
CLOSE_TASKS = 48
"""Tasks of one unit in the close view."""
MOST_NAMED = 20
LEGEND_COLUMNS = 4
MOST_BOXES = 400
"""Tasks of a unit that are drawn one by one in a panel; more would be thinner than a pixel."""
COLUMNS = 240
HALF = 0.4
"""Half of the height of a unit's row."""
_INK = "#24292f"
_IDLE = "#eceef1"


def draw(profile: Profile, path: Path, most: int) -> None:
    """Writes a PNG that shows at most the first `most` tasks."""
    colors = kernel_colors(profile)
    window = close_window(profile, CLOSE_TASKS)
    rows = 1 if window is None else 2
    used = sum(kernel.tasks > 0 for kernel in profile.kernels)
    legend = 0.2 + 0.2 * -(-min(used, MOST_NAMED + 1) // LEGEND_COLUMNS)
    height = 0.3 + legend + rows * (0.62 + min(0.42 * profile.units, MOST_INCHES))
    figure = Figure(figsize=(WIDTH_INCHES, height), dpi=150)
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
    figure.tight_layout(rect=(0, legend / height, 1, 1))
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
    shares = [profile.busy_share(unit) for unit in range(profile.units)]
    busy = ", ".join(f"{share:.0%}" for share in shares)
    if profile.units > MOST_LABELS:
        busy = f"{min(shares):.0%} to {max(shares):.0%}, {sum(shares) / len(shares):.0%} on average"
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
    """Units as rows; a box per task, or where those would be too thin, each kernel's share of the
    time. What is not covered is waiting."""
    low, high = window
    inside = [event for event in events if event.end > low and event.start < high]
    for unit in range(profile.units):
        axes.axhspan(unit - HALF, unit + HALF, color=_IDLE, linewidth=0, zorder=0)
    if len(inside) <= MOST_BOXES * profile.units:
        _boxes(axes, inside, colors)
    else:
        for unit in range(profile.units):
            _shares(axes, unit, [e for e in inside if e.unit == unit], colors, window)
    axes.set_xlim(low, high)
    axes.set_ylim(profile.units - 0.45, -0.55)
    labelled = range(0, profile.units, -(-profile.units // MOST_LABELS) or 1)
    axes.set_yticks(labelled, [f"unit {unit}" for unit in labelled])
    axes.xaxis.set_major_locator(MaxNLocator(9))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: seconds_text(x / 1e9)))
    axes.tick_params(length=0, labelsize=8, labelcolor=_INK)
    axes.spines[:].set_visible(False)


def _boxes(axes: Any, events: list[TaskEvent], colors: list[str]) -> None:
    boxes = [
        [
            (e.start, e.unit - HALF),
            (e.end, e.unit - HALF),
            (e.end, e.unit + HALF),
            (e.start, e.unit + HALF),
        ]
        for e in events
    ]
    faces = [colors[event.kernel] for event in events]
    axes.add_collection(
        PolyCollection(boxes, facecolors=faces, edgecolors="white", linewidths=0.4, zorder=1)
    )


def _shares(
    axes: Any, unit: int, events: list[TaskEvent], colors: list[str], window: tuple[int, int]
) -> None:
    """Columns of the run's time; in each, kernels one above the other by their share of it."""
    edges = np.linspace(*window, COLUMNS + 1)
    shares = np.zeros((len(colors), COLUMNS))
    for kernel in range(len(colors)):
        mine = [event for event in events if event.kernel == kernel]
        # Time that the kernel has had before each edge, and so in each column.
        times = np.array([[e.start, e.end] for e in mine]).reshape(-1)
        spent = np.cumsum([0, *np.diff(times)[::2]])
        known = np.repeat(spent, 2)[1:-1]
        if len(mine):
            shares[kernel] = np.diff(np.interp(edges, times, known))
    heights = shares * (2 * HALF) / np.diff(edges)
    base = np.full(COLUMNS, unit + HALF)
    for kernel in np.argsort(-shares.sum(axis=1), kind="stable"):
        top = base - heights[kernel]
        lower, upper = (np.append(line, line[-1]) for line in (base, top))
        axes.fill_between(edges, lower, upper, step="post", color=colors[kernel], linewidth=0)
        base = top


def _legend(figure: Figure, profile: Profile, colors: list[str]) -> None:
    """Kernels in the order of the program with their share of the busy time, small ones as one."""
    total = sum(kernel.busy for kernel in profile.kernels) or 1
    ran = [number for number, kernel in enumerate(profile.kernels) if kernel.tasks]
    by_time = sorted(ran, key=lambda number: -profile.kernels[number].busy)
    handles = [
        Patch(color=colors[number], label=_legend_text(profile.kernels[number], total))
        for number in sorted(by_time[:MOST_NAMED])
    ]
    if rest := by_time[MOST_NAMED:]:
        share = sum(profile.kernels[n].busy for n in rest) / total
        handles.append(Patch(color=REST, label=f"{len(rest)} more {share:.0%}"))
    figure.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.01, 0.0),
        ncols=LEGEND_COLUMNS,
        frameon=False,
        fontsize=8,
        labelcolor=_INK,
        handlelength=1.0,
        handleheight=1.0,
    )


def _legend_text(kernel: ProfiledKernel, total: int) -> str:
    operators = textwrap.shorten(kernel.operators, 30, placeholder=" ...")
    return f"{kernel.name} {kernel.busy / total:.0%} ({operators})"
