"""`Compiled.timeline()`: one profiled run as a page, a picture, or a trace for Perfetto."""

from __future__ import annotations

import html
import json
import textwrap
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from stretto.machines.machine import TaskEvent
from stretto.options import Options
from stretto.text import counted, seconds_text
from stretto.tools.profile import Profile, ProfiledKernel, left_out, profile_entry

if TYPE_CHECKING:
    from stretto.call.entry import Entry


# ---- Colours of kernels in timelines, equal in every format.


FEW = (
    "#4269d0",
    "#efb118",
    "#ff725c",
    "#3ca951",
    "#a463f2",
    "#6cc5b0",
    "#ff8ab7",
    "#9c6b4e",
    "#97bbf5",
    "#c2b280",
)
"""Colours that are easy to distinguish, also with weak colour vision (Observable's categorical
palette)."""

MANY = (
    *("#aec7e8", "#1f77b4", "#ffbb78", "#ff7f0e", "#98df8a", "#2ca02c", "#ff9896", "#d62728"),
    *("#c5b0d5", "#9467bd", "#c49c94", "#8c564b", "#f7b6d2", "#e377c2", "#f2d98c", "#d4a017"),
    *("#dbdb8d", "#8f9a1b", "#9edae5", "#17a2b8"),
)
"""Ten hues, each light and dark: neighbours in a program, such as the two kernels of a layer, look
similar (after Tableau's palette of 20)."""

REST = "#9aa0a6"
"""The colour of kernels beyond the palette, which are those with the least time."""


def kernel_colors(profile: Profile) -> list[str]:
    """Return a colour for each kernel: those that take the most time get the palette's, in the
    order of the program."""
    ran = [number for number, kernel in enumerate(profile.kernels) if kernel.tasks]
    palette = FEW if len(ran) <= len(FEW) else MANY
    by_time = sorted(ran, key=lambda number: -profile.kernels[number].busy)
    colors = [REST] * len(profile.kernels)
    for number, color in zip(sorted(by_time[: len(palette)]), palette, strict=False):
        colors[number] = color
    return colors


# ---- A timeline as one HTML file that needs no network: it contains the data, drawn on a canvas.


TEMPLATE = Path(__file__).with_name("timeline_page.html")


def page(profile: Profile, most: int) -> str:
    """Return the whole file, with at most the first `most` tasks."""
    template = Template(TEMPLATE.read_text(encoding="utf-8"))
    # `<` inside the JSON could end the script element that holds it.
    data = json.dumps(page_data(profile, most), separators=(",", ":")).replace("<", "\\u003c")
    return template.substitute(title=html.escape(profile.title), data=data)


def page_data(profile: Profile, most: int) -> dict[str, Any]:
    """Return the data that the page draws. Each unit's tasks are a flat list: kernel, task, start,
    duration, ..."""
    colors = kernel_colors(profile)
    units: list[list[int]] = [[] for _ in range(profile.units)]
    for event in profile.events[:most]:
        units[event.unit] += [event.kernel, event.task, event.start, event.end - event.start]
    kernels = [
        asdict(kernel) | {"color": color}
        for kernel, color in zip(profile.kernels, colors, strict=True)
    ]
    busy = [round(profile.busy_share(unit), 4) for unit in range(profile.units)]
    return {
        "title": profile.title,
        "total": profile.nanoseconds,
        "summary": summary(profile),
        "note": left_out(profile, most),
        "busy": busy,
        "tasks": [profile.tasks(unit) for unit in range(profile.units)],
        "kernels": kernels,
        "units": units,
    }


def summary(profile: Profile) -> str:
    """Return one line: the run's time, tasks, and how busy the units were."""
    units = counted(profile.units, "unit")
    shares = [profile.busy_share(unit) for unit in range(profile.units)]
    busy = f"{sum(shares) / len(shares):.0%}" if shares else "0%"
    time = seconds_text(profile.nanoseconds / 1e9)
    return f"{time} · {len(profile.events):,} tasks · {units} · {busy} busy"


# ---- A timeline as a picture: the whole run, and an enlarged part in which tasks are visible.


WIDTH_INCHES = 12.0
MOST_INCHES = 6.0
"""Maximum height of the rows of a panel; with many units rows become thinner."""
MOST_LABELS = 24
"""Maximum number of units that are labelled beside their rows and listed in the headline."""
CLOSE_TASKS = 48
"""Tasks of one unit in the enlarged part."""
MOST_NAMED = 20
LEGEND_COLUMNS = 4
MOST_BOXES = 400
"""Tasks per unit up to which a panel draws each task; more would be thinner than a pixel."""
COLUMNS = 240
HALF = 0.4
"""Half of the height of a unit's row."""
_INK = "#24292f"
_IDLE = "#eceef1"


def draw(profile: Profile, path: Path, most: int) -> None:
    """Write a PNG that shows at most the first `most` tasks."""
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
    """Return the start and end of `tasks` tasks of the busiest unit in the middle of the run; None
    if the whole run has hardly more."""
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
    """Draw units as rows, with a box per task, or if those would be too thin, each kernel's share
    of the time. Uncovered parts are waiting."""
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
    """Draw columns of the run's time, in each of which kernels are stacked by their share of it."""
    edges = np.linspace(*window, COLUMNS + 1)
    shares = np.zeros((len(colors), COLUMNS))
    for kernel in range(len(colors)):
        mine = [event for event in events if event.kernel == kernel]
        # The kernel's accumulated time, interpolated at the edges, gives its time per column.
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
    """Draw a legend of kernels in the order of the program with their share of the busy time,
    small ones joined."""
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


MOST_IN_PAGE = 50_000
MOST_IN_PICTURE = 50_000
MOST_IN_TRACE = 1_000_000
"""Maximum number of tasks shown, the first ones; the summary counts all, and a note says so."""


def write_timeline(entry: Entry, options: Options, path: str | Path) -> None:
    """Profile the signature and write `path`: `.html`, `.json` (Chrome's trace format) or `.png`.

    Raises ValueError for another suffix, BuildError for a backend that does not measure time.
    """
    target = Path(path)
    write = writer_of(target)
    profile = profile_entry(entry, options)
    target.parent.mkdir(parents=True, exist_ok=True)
    write(profile, target)


def writer_of(path: Path) -> Callable[[Profile, Path], None]:
    """Return the function that writes a profile in the format of the suffix. Raise ValueError for
    an unknown one."""
    writers = {".html": write_page, ".json": write_trace, ".png": write_picture}
    try:
        return writers[path.suffix.lower()]
    except KeyError:
        raise ValueError(
            f"a timeline is written as .html, .json (for Perfetto) or .png, not {path.name!r}"
        ) from None


def write_page(profile: Profile, path: Path) -> None:
    path.write_text(page(profile, MOST_IN_PAGE), encoding="utf-8")


def write_picture(profile: Profile, path: Path) -> None:
    """Draw one of the ways to enqueue the graph."""
    draw(profile, path, MOST_IN_PICTURE)


def write_trace(profile: Profile, path: Path) -> None:
    path.write_text(json.dumps(trace(profile, MOST_IN_TRACE)), encoding="utf-8")


def trace(profile: Profile, most: int) -> dict[str, Any]:
    """Return the profile in Chrome's trace event format, which Perfetto opens; times in
    microseconds."""
    named = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "stretto"}}]
    for unit in range(profile.units):
        label = f"unit {unit}, {profile.busy_share(unit):.0%} busy"
        named.append(
            {"ph": "M", "pid": 1, "tid": unit, "name": "thread_name", "args": {"name": label}}
        )
    tasks = [
        {
            "ph": "X",
            "pid": 1,
            "tid": event.unit,
            "ts": event.start / 1e3,
            "dur": (event.end - event.start) / 1e3,
            "cat": "task",
            "name": profile.kernels[event.kernel].name,
            "args": {
                "task": event.task,
                "operators": profile.kernels[event.kernel].operators,
                "source": profile.kernels[event.kernel].lines,
            },
        }
        for event in profile.events[:most]
    ]
    shown = {"signature": profile.title, "run": seconds_text(profile.nanoseconds / 1e9)}
    shown["tasks"] = str(len(profile.events))
    if note := left_out(profile, most):
        shown["note"] = note
    return {"traceEvents": [*named, *tasks], "displayTimeUnit": "ns", "otherData": shown}
