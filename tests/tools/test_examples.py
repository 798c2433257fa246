"""The scripts under `examples/` run, and find what they compute equal to eager."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
WITH_RAY = ("many_machines",)  # tests/batching/serving/test_many_machines.py runs these


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3


@pytest.mark.whole
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(script: Path) -> None:
    if script.stem in WITH_RAY:
        pytest.skip("it is run by tests/batching/serving/test_many_machines.py, with Ray")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "programs compiled: 1" in done.stdout


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_says_how_to_run_it(script: Path) -> None:
    assert f"Run it: `python examples/{script.name}`\n" in script.read_text()
