"""`stretto simulate`: what it prints and draws."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import stretto
from stretto.options import Options
from stretto.tools.cli import app
from stretto.tools.models import find_model
from stretto.tools.simulate import predicted_seconds, simulate_model


def run(*arguments: str, code: int = 0) -> str:
    environment = {"COLUMNS": "200", "NO_COLOR": "1"}
    result = CliRunner().invoke(app, ["simulate", *arguments], env=environment)
    assert result.exit_code == code, result.output
    return result.output


def test_a_cpu_and_its_timeline(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    text = run("rae", "--small", "--device", "cpu:2", "--timeline", str(file))
    for part in ("rae on cpu:2, simulated", "utilisation", "critical path", "stretches"):
        assert part in text
    events = json.loads(file.read_text())["traceEvents"]
    tasks = [event for event in events if event["ph"] == "X"]
    assert f"{len(tasks):,} on " in text


@pytest.mark.parametrize("device", ["h200", "v100"])
def test_a_gpu_with_a_few_units(device: str) -> None:
    pytest.importorskip("triton")
    text = run("lstm", "--small", "--device", device, "--units", "3")
    assert f"lstm on {device}, simulated" in text
    assert "on 3 units" in text


MODEL = """
import torch

def settle(x):
    while x.norm() > 0.5:
        x = torch.tanh(x) * 0.9
    return x

def example_inputs():
    return (torch.randn(64),)
"""


def test_trips_that_values_decide_are_an_option(tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text(MODEL)
    texts = [run(f"{source}:settle", "--device", "cpu:1", "--trips", trips) for trips in ("0", "3")]
    first, last = (int(re.search(r"tasks +(\d+) on", text)[1]) for text in texts)  # pyright: ignore
    assert first < last


@pytest.mark.whole
def test_the_way_of_a_run_is_followed(tmp_path: Path) -> None:
    """The run has 5 trips, of which the third has an arm of its own."""
    source = tmp_path / "model.py"
    source.write_text(
        """
import torch

def settle(x):
    while x.mean() < 1.2:
        if x.mean() > 0.6 and x.mean() < 0.9:
            x = torch.softmax(x @ x, 0) * 64
        else:
            x = x + 0.25
    return x

def example_inputs():
    return (torch.zeros(64, 64),)
"""
    )
    model = find_model(f"{source}:settle")
    for device in ("cpu:1", "cpu:2"):
        found = simulate_model(model, device, followed=True)
        runs = [s.runs for s in found.result.stretches if "while" in s.title]
        assert runs == [6, 5, 1, 4, 5]  # the test, the inner one, both arms, the mean


def test_a_prediction_goes_the_way_of_a_run(tmp_path: Path) -> None:
    """Twice as many trips, which only values decide, take about twice as long."""
    seconds: list[float] = []
    for trips in (40, 80):

        def counted(x: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
            while x[0, 0] < most:
                x = x + 1.0
            return x

        inputs = (torch.zeros(64, 64), torch.tensor(float(trips)))
        options = Options(threads=2, cache_dir=tmp_path)
        fast = stretto.compile(counted, inputs, options=options)
        fast(*inputs)
        seconds.append(predicted_seconds(fast, options))
    assert 1.5 < seconds[1] / seconds[0] < 2.2


def test_tasks_that_are_measured_here() -> None:
    text = run("rae", "--small", "--device", "cpu:1", "--measured")
    assert re.search(r"critical path .*compute \d+%", text)


@pytest.mark.parametrize(
    ("device", "message"),
    [("h200", "does not go with h200"), ("cpu:9999", "as many cores as units: 9999")],
)
def test_tasks_that_cannot_be_measured_here(device: str, message: str) -> None:
    if device == "h200":
        pytest.importorskip("triton")
    assert message in run("rae", "--small", "--device", device, "--measured", code=2)


def test_a_device_that_is_not_known() -> None:
    text = run("lstm", "--small", "--device", "h20", code=2)
    assert "unknown device 'h20'" in text
    assert "cpu:N" in text
