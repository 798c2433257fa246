"""`Compiled.timeline()`: one profiled run as a page, a picture, or a trace for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto.options import Options
from stretto.text import seconds_text
from stretto.tools.profile import Profile, left_out, profile_entry
from stretto.tools.timeline_page import page
from stretto.tools.timeline_picture import draw

if TYPE_CHECKING:
    from stretto.entry import Entry

MOST_IN_PAGE = 50_000
MOST_IN_PICTURE = 50_000
MOST_IN_TRACE = 1_000_000
"""Tasks shown at most, the first ones; the summary counts all, and a note says what is left out."""


def write_timeline(entry: Entry, options: Options, path: str | Path) -> None:
    """Profiles the signature and writes `path`: `.html`, `.json` (Chrome's trace format), `.png`.

    Raises ValueError for another suffix, BuildError for a backend without a clock.
    """
    target = Path(path)
    write = writer_of(target)
    profile = profile_entry(entry, options)
    target.parent.mkdir(parents=True, exist_ok=True)
    write(profile, target)


def writer_of(path: Path) -> Callable[[Profile, Path], None]:
    """The function that writes a profile in the format of the suffix."""
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
    draw(profile, path, MOST_IN_PICTURE)


def write_trace(profile: Profile, path: Path) -> None:
    path.write_text(json.dumps(trace(profile, MOST_IN_TRACE)), encoding="utf-8")


def trace(profile: Profile, most: int) -> dict[str, Any]:
    """The profile in Chrome's trace event format, which Perfetto opens; times in microseconds."""
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
