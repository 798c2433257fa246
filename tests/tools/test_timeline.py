"""Timelines: the three formats, what they hold, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.image import imread

import stretto
from stretto.tools.profile import Profile, ProfiledKernel, make_profile
from stretto.tools.timeline import (
    FEW,
    MANY,
    REST,
    close_window,
    draw,
    kernel_colors,
    page,
    page_data,
    summary,
    trace,
    write_page,
    write_picture,
    write_trace,
    writer_of,
)
from tests.tools.profiles import profile
from tests.tools.programs import DECAY, decay


def embedded(text: str) -> dict[str, Any]:
    """The data inside a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


# ---- the page --------------------------------------------------------------------------------


def test_a_page_holds_every_task_by_unit() -> None:
    made = profile(steps=3)
    data = embedded(page(made, most=100))
    assert data["total"] == 1400
    assert [len(unit) for unit in data["units"]] == [6 * 4, 6 * 4]
    assert data["units"][1][:8] == [0, 1, 0, 300, 1, 1, 300, 100]
    assert data["kernels"][0]["name"] == "cell1"
    assert data["kernels"][0]["lines"] == "m.py:3"
    assert data["note"] == ""


def test_a_page_needs_nothing_from_elsewhere() -> None:
    text = page(profile(steps=3), most=100)
    assert not re.search(r"(src|href)\s*=|https?://|@import|url\(", text)
    assert "$" not in text.replace("$data", "")


def test_a_page_says_what_it_leaves_out() -> None:
    data = page_data(profile(steps=30), most=10)
    assert sum(len(unit) for unit in data["units"]) == 10 * 4
    assert "first 10 of 120 tasks" in data["note"]
    assert data["tasks"] == [60, 60]


def test_names_cannot_break_out_of_a_page() -> None:
    text = page(profile(steps=1, title="</script><b>&"), most=10)
    assert "</script><b>" not in text
    assert embedded(text)["title"] == "</script><b>&"


def test_the_summary_line() -> None:
    assert summary(profile(steps=3)) == "1.4 us · 12 tasks · 2 units · 86% busy"
    assert summary(make_profile("", 1, (), [])) == "0 s · 0 tasks · 1 unit · 0% busy"


@pytest.mark.skipif(shutil.which("node") is None, reason="no node to parse the script with")
def test_the_script_of_a_page_parses(tmp_path: Path) -> None:
    scripts = re.findall(r"<script>(.*?)</script>", page(profile(steps=1), most=10), re.DOTALL)
    file = tmp_path / "page.js"
    file.write_text("\n".join(scripts))
    subprocess.run(["node", "--check", str(file)], check=True, capture_output=True)


# ---- the trace -------------------------------------------------------------------------------


def test_a_trace_has_perfettos_form() -> None:
    made = trace(profile(steps=2), most=100)
    names = [event for event in made["traceEvents"] if event["ph"] == "M"]
    tasks = [event for event in made["traceEvents"] if event["ph"] == "X"]
    assert [event["args"]["name"] for event in names] == [
        "stretto",
        "unit 0, 89% busy",
        "unit 1, 89% busy",
    ]
    assert tasks[0] == {
        "ph": "X",
        "pid": 1,
        "tid": 0,
        "ts": 0.0,
        "dur": 0.3,
        "cat": "task",
        "name": "cell1",
        "args": {"task": 0, "operators": "contraction x4, tanh", "source": "m.py:3"},
    }
    assert len(tasks) == 8
    assert "note" not in made["otherData"]


def test_a_trace_says_what_it_leaves_out() -> None:
    made = trace(profile(steps=30), most=10)
    assert sum(event["ph"] == "X" for event in made["traceEvents"]) == 10
    assert "first 10 of 120 tasks" in made["otherData"]["note"]


# ---- the picture -----------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "units"), [(0, 1), (4, 1), (100, 2), (2000, 3)])
def test_a_picture_is_drawn_for_any_number_of_tasks(tmp_path: Path, steps: int, units: int) -> None:
    file = tmp_path / "run.png"
    draw(profile(steps, units), file, most=50_000)
    pixels = imread(file)
    assert pixels.shape[1] == 1800
    if steps:
        blue = torch.tensor([0x42, 0x69, 0xD0]) / 255
        close = (torch.from_numpy(pixels[..., :3]) - blue).abs().amax(dim=-1) < 0.02
        assert int(close.sum()) > 1000


def test_the_close_view_holds_the_middle_of_a_long_run() -> None:
    made = profile(steps=200)
    window = close_window(made, tasks=20)
    assert window is not None
    inside = [e for e in made.events if e.unit == 0 and window[0] <= e.start and e.end <= window[1]]
    assert len(inside) == 20
    assert abs(sum(window) / 2 - made.nanoseconds / 2) < made.nanoseconds / 20


def test_a_short_run_has_no_close_view() -> None:
    assert close_window(profile(steps=20), tasks=20) is None


def many_kernels(count: int) -> Profile:
    kernels = tuple(
        ProfiledKernel(f"k{n}", "tanh", "loops", "whole", "", 1, 10 + n) for n in range(count)
    )
    return make_profile("", 1, kernels, [])


def test_few_kernels_get_a_hue_each() -> None:
    assert kernel_colors(many_kernels(10)) == list(FEW)


def test_of_many_kernels_those_with_the_most_time_get_a_colour() -> None:
    assert kernel_colors(many_kernels(22)) == [REST, REST, *MANY]


# ---- files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "writer"),
    [
        ("a.html", write_page),
        ("a.HTML", write_page),
        ("a.json", write_trace),
        ("a.png", write_picture),
    ],
)
def test_the_suffix_chooses_the_format(name: str, writer: object) -> None:
    assert writer_of(Path(name)) is writer


@pytest.mark.parametrize("name", ["run.svg", "run", "run.html.gz"])
def test_another_suffix_is_refused_before_anything_runs(tmp_path: Path, name: str) -> None:
    fast = stretto.compile(decay, DECAY, backend="interpreter")
    with pytest.raises(ValueError, match=r"\.html, \.json \(for Perfetto\) or \.png, not"):
        fast.timeline(tmp_path / name)


@pytest.mark.parametrize("suffix", [".html", ".json", ".png"])
def test_a_timeline_of_a_real_run(tmp_path: Path, suffix: str) -> None:
    fast = stretto.compile(decay, DECAY, backend="cpu", options=stretto.Options(threads=2))
    path = tmp_path / "new" / f"run{suffix}"
    fast.timeline(path)
    if suffix == ".html":
        assert sum(embedded(path.read_text())["tasks"]) >= 6
    elif suffix == ".json":
        assert len(json.loads(path.read_text())["traceEvents"]) >= 6
    else:
        assert imread(path).shape[1] == 1800


def test_a_timeline_needs_something_compiled(tmp_path: Path) -> None:
    with pytest.raises(stretto.BuildError, match="nothing has been compiled yet"):
        stretto.compile(decay).timeline(tmp_path / "run.html")


def test_a_timeline_of_inputs_that_are_given(tmp_path: Path) -> None:
    fast = stretto.compile(decay, backend="cpu", options=stretto.Options(threads=1))
    fast.timeline(tmp_path / "run.json", *DECAY)
    assert len(fast.signatures) == 1
