"""`stretto demo`, on the small presets."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import stretto
from stretto.machines.registry import default_machine, find_machine
from stretto.tools.demo import ModelMeasurement, demo, results_table

OPTIONS = stretto.Options(threads=1)
HERE = default_machine()


def test_the_demo_measures_checks_and_draws(tmp_path: Path) -> None:
    told: list[str] = []
    threads = torch.get_num_threads()
    results, written = demo(
        OPTIONS, HERE, tmp_path, told.append, models=("rae",), preset="small", quick=True
    )
    (result,) = results
    assert result.model == "rae"
    assert result.launches == 1
    assert result.error < 1e-4
    assert result.eager > 0 and result.fast > 0
    assert [path.name for path in written] == ["timeline-rae.html", "timeline-rae.png"]
    assert all(path.stat().st_size > 1000 for path in written)
    assert told[0] == "rae: compiling"
    assert torch.get_num_threads() == threads


def test_the_demo_on_an_emulated_gpu() -> None:
    options = stretto.Options(threads=1, units=2)
    (result,), written = demo(
        options,
        find_machine("cuda-emulated"),
        None,
        lambda text: None,
        models=("rae",),
        preset="small",
        quick=True,
    )
    assert result.launches == 1
    assert result.error < 1e-4
    assert written == []
    assert "the times mean nothing" in results_table([result], 1, find_machine("cuda-emulated"))


def test_without_a_folder_nothing_is_drawn() -> None:
    _, written = demo(
        OPTIONS, HERE, None, lambda text: None, models=("lstm",), preset="small", quick=True
    )
    assert written == []


@pytest.mark.parametrize(("units", "title"), [(1, "1 thread each"), (2, "2 threads each")])
def test_the_table(units: int, title: str) -> None:
    text = results_table([ModelMeasurement("lstm", 6e-3, 2e-3, 2.1e-7, 1, 3.2)], units, HERE)
    assert title in text
    line = next(line for line in text.splitlines() if "lstm" in line)
    assert line.split() == ["lstm", "6", "ms", "2", "ms", "3.00x", "2.1e-07", "1", "3.2", "s"]
