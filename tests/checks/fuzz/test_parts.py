"""Workers, verdicts, reasons, the report and the command."""

from __future__ import annotations

import json
import lzma
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from checks.fuzz.command import PART_NAMES, app
from checks.fuzz.journal import Journal
from checks.fuzz.known import is_known
from checks.fuzz.machines import MACHINES, STANDARD
from checks.fuzz.outcome import Outcome, normalised, outcome_of_error, worst
from checks.fuzz.parts import PARTS, Settings, failed, run_part
from checks.fuzz.programs import machines_of
from checks.fuzz.report import PartReport, show, summary
from checks.fuzz.trial import Note
from checks.fuzz.workers import Job, run_all
from stretto.errors import CaptureError, PassError


def behave(case: str, note: Note) -> Outcome:
    if case == "fails":
        raise KeyError("inside")
    if case == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if case == "hangs":
        note("cpu-1")
        time.sleep(60)
    if case == "eager hangs":
        note("eager")
        time.sleep(60)
    return Outcome(case, "equal")


@pytest.mark.whole
def test_every_case_has_an_outcome() -> None:
    cases = ["a", "fails", "dies", "b", "hangs", "eager hangs", "c"]
    found = {o.name: o for o in run_all(Job(cases, behave, str, seconds=5.0), 2)}
    assert {name: outcome.verdict for name, outcome in found.items()} == {
        "a": "equal",
        "fails": "internal error",
        "dies": "internal error",
        "b": "equal",
        "hangs": "hang",
        "eager hangs": "skipped",
        "c": "equal",
    }
    assert "SIGSEGV" in found["dies"].reason
    assert found["hangs"].backend == "cpu-1"


HANDLED = """
import os, signal
from checks.fuzz.outcome import Outcome
from checks.fuzz.workers import Job, run_all

def behave(case, note):
    os.kill(os.getpid(), signal.SIGSEGV)

signal.signal(signal.SIGSEGV, lambda *_: None)
(found,) = run_all(Job(["dies"], behave, str, seconds=30.0), 1)
print(found.verdict, "|", found.reason)
"""


@pytest.mark.whole
def test_a_handler_of_signals_does_not_keep_a_worker_alive() -> None:
    """In a process of its own: Python cannot give back the handler that pytest has installed."""
    process = subprocess.run(
        [sys.executable, "-c", HANDLED], capture_output=True, text=True, timeout=120
    )
    assert process.stdout == "internal error | the process died: signal SIGSEGV\n", process.stderr


def test_errors_are_sorted() -> None:
    refusal = CaptureError("'x' has shape [3, 4] at /tmp/a.py:12, in f")
    assert outcome_of_error("a", "cpu-1", refusal).verdict == "refused"
    assert outcome_of_error("a", "cpu-1", PassError("no")).verdict == "internal error"
    assert outcome_of_error("a", "cpu-1", KeyError("no")).verdict == "internal error"
    assert normalised(refusal.message) == "'...' has shape SHAPE at PLACE"
    assert normalised("aten.sin.default of 3 and 4.5e-3") == "OPERATOR of N and N"


def test_the_worst_outcome_counts() -> None:
    outcomes = [Outcome("a", "equal"), Outcome("a", "wrong"), Outcome("a", "refused")]
    assert worst(outcomes).verdict == "wrong"


def test_report() -> None:
    report = PartReport("functions")
    report.add(Outcome("seed 1", "equal"))
    report.add(Outcome("seed 2", "wrong", "cpu-1", "numbers"))
    report.add(Outcome("seed 3", "refused", "interpreter", "too hard"))
    assert failed([report])
    console = Console(width=120, record=True, quiet=True)
    show(report, console)
    console.print(summary([report]))
    assert report.counts == {"equal": 1, "wrong": 1, "refused": 1}
    assert [reason for _, reason, _ in report.by_reason()] == ["numbers", "too hard"]


def test_a_run_goes_on_where_another_was_ended(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    settings = Settings(count=3, seed=1, machines=("interpreter",))
    journal = Journal(path, settings.machines)
    journal.add("functions", Outcome("seed 2", "wrong", "cpu-1", "made up"))
    with path.open("a") as file:
        file.write('{"part": "functions", "mach')  # killed while it wrote
    report = run_part(
        "functions", replace(settings, reduce=False), journal=Journal(path, settings.machines)
    )
    assert report.tried == 3
    assert [outcome.reason for outcome in report.failures] == ["made up"]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["name"] for line in lines] == ["seed 2", "seed 1", "seed 3"]
    others = Journal(path, ("cpu-1",))
    assert others.known("functions", "seed 1") is None  # on other machines it is another case
    assert len(others.outcomes("functions")) == 3


def test_outcomes_in_a_file_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    Journal(path).add("functions", Outcome("seed 2", "refused", "cpu-1", "too hard"))
    found = CliRunner().invoke(app, ["--show", "--json", str(path)])
    assert found.exit_code == 0, found.output
    assert "refused: too hard" in found.output
    Journal(path).add("functions", Outcome("seed 3", "hang", "cpu-1", "no end"))
    assert CliRunner().invoke(app, ["--show", "--json", str(path)]).exit_code == 1
    found = CliRunner().invoke(app, ["--show"])
    assert "--show needs the file of --json" in found.output


def test_outcomes_are_compared_with_those_of_another_run(tmp_path: Path) -> None:
    path, other = tmp_path / "outcomes.jsonl", tmp_path / "before.jsonl"
    Journal(path).add("functions", Outcome("seed 2", "refused", "cpu-1", "too hard"))
    Journal(path).add("functions", Outcome("seed 4", "equal"))
    Journal(other).add("functions", Outcome("seed 2", "equal"))
    Journal(other).add("functions", Outcome("seed 3", "equal"))
    before = tmp_path / "before.jsonl.xz"
    before.write_bytes(lzma.compress(other.read_bytes()))
    found = CliRunner().invoke(app, ["--show", "--json", str(path), "--against", str(before)])
    assert found.exit_code == 1
    assert "seed 2: equal () before, refused (too hard) now" in found.output
    assert "1 of 1 cases changed" in found.output
    Journal(path).add("functions", Outcome("seed 2", "equal"))
    found = CliRunner().invoke(app, ["--show", "--json", str(path), "--against", str(before)])
    assert found.exit_code == 0, found.output


def test_a_refusal_that_is_not_listed_is_a_failure() -> None:
    assert not is_known("operators", Outcome("nothing float32 0", "refused", "cpu-1", "new"))


@pytest.mark.whole
def test_command() -> None:
    options = "--part functions --count 2 --seed 1 --jobs 1 --machines interpreter"
    found = CliRunner().invoke(app, [*options.split()])
    assert found.exit_code == 0, found.output
    assert "functions" in found.output and "refused" in found.output
    found = CliRunner().invoke(app, ["--part", "nothing"])
    assert found.exit_code != 0
    assert "unknown part 'nothing'" in found.output


@pytest.mark.whole
@pytest.mark.parametrize(
    ("part", "count"),
    [
        *(("operators", 12), ("operator-sizes", 6), ("modules", 6)),
        *(("operator-instances", 4), ("module-instances", 3)),
    ],
)
def test_a_sample_of_torchs_databases(part: str, count: int) -> None:
    """All of them are tried by `make fuzz`."""
    settings = Settings(count=count, seed=1, machines=("interpreter",), per_entry=2)
    report = run_part(part, settings)
    assert report.tried
    failures = [outcome for outcome in report.failures if outcome.verdict != "refused"]
    assert not failures, failures


def test_parts() -> None:
    assert {"functions", "operators", "special", "sizes", "operator-sizes"} <= set(PARTS)


def test_the_command_knows_all_names():
    assert tuple(PARTS) == PART_NAMES


def test_the_machines_that_functions_are_tried_on() -> None:
    assert tuple(MACHINES) == (
        "interpreter",
        "cuda-emulated",
        "cuda-emulated-graphs",
        "emulator",
        "cpu-1",
        "cpu-2",
    )
    assert STANDARD == ("interpreter", "emulator", "cpu-1", "cpu-2")
    assert machines_of(40, ()) == tuple(MACHINES)
    assert machines_of(41, ()) == STANDARD
    assert machines_of(40, ("cpu-2",)) == ("cpu-2",)
