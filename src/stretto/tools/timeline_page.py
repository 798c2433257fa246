"""A timeline as one HTML file that needs no network: the data inside, drawn on a canvas."""

from __future__ import annotations

import html
import json
from pathlib import Path
from string import Template
from typing import Any

from stretto.text import seconds_text
from stretto.tools.colors import kernel_colors
from stretto.tools.profile import Profile, left_out

TEMPLATE = Path(__file__).with_name("timeline_page.html")


def page(profile: Profile, most: int) -> str:
    """The whole file, with at most the first `most` tasks."""
    template = Template(TEMPLATE.read_text(encoding="utf-8"))
    # `<` inside the JSON could end the script element that holds it.
    data = json.dumps(page_data(profile, most), separators=(",", ":")).replace("<", "\\u003c")
    return template.substitute(title=html.escape(profile.title), data=data)


def page_data(profile: Profile, most: int) -> dict[str, Any]:
    """What the page draws. Each unit's tasks are a flat list: kernel, task, start, duration, ..."""
    colors = kernel_colors(profile)
    units: list[list[int]] = [[] for _ in range(profile.units)]
    for event in profile.events[:most]:
        units[event.unit] += [event.kernel, event.task, event.start, event.end - event.start]
    kernels = [
        {
            "name": kernel.name,
            "operators": kernel.operators,
            "template": kernel.template,
            "tile": kernel.tile,
            "lines": kernel.lines,
            "tasks": kernel.tasks,
            "busy": kernel.busy,
            "color": color,
        }
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
    """One line: the run's time, tasks, and how busy the units were."""
    units = f"{profile.units} unit{'s' if profile.units > 1 else ''}"
    shares = [profile.busy_share(unit) for unit in range(profile.units)]
    busy = f"{sum(shares) / len(shares):.0%}" if shares else "0%"
    time = seconds_text(profile.nanoseconds / 1e9)
    return f"{time} · {len(profile.events):,} tasks · {units} · {busy} busy"
