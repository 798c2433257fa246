"""The lease without a GPU: a rehearsal of all stages, and what happens to jobs that crash or hang,
to a lease that is killed, and to launches that fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import lease, smoke
from benchmarks.gpu.engine import ROOT, Job, Log, Settings, run_jobs
from benchmarks.gpu.lease import FIRST, SLACK_S, TOTAL_S, Lease, Stage, again
from benchmarks.gpu.results import Row, RowFile, Rows, read_rows
from benchmarks.gpu.saved import KINDS

pytest.importorskip("greenlet", reason="greenlet is not installed")
pytest.importorskip("triton", reason="triton is not installed")

NAME = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
MOST_FILES = 8
# Workers are as on a machine that has torch, triton and numpy only.
BLOCKER = """
import sys
if "benchmarks.gpu.worker" in sys.orig_argv:
    for name in ("typer", "rich", "matplotlib"):
        sys.modules[name] = None
"""


def environment(folder: Path, startup: str = BLOCKER) -> dict[str, str]:
    """startup: what each process runs before anything else."""
    (folder / "sitecustomize.py").write_text(startup)
    path = os.pathsep.join([str(folder), str(ROOT / "src"), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path}


def command(out: Path, *arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "benchmarks.gpu.lease",
        "--out",
        str(out),
        "--dry-run",
        *arguments,
    ]


@pytest.mark.whole
def test_a_rehearsal(tmp_path: Path) -> None:
    out = tmp_path / "out"
    start = time.monotonic()
    done = subprocess.run(
        command(out, "--models", "lstm"),
        cwd=ROOT,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert time.monotonic() - start < TOTAL_S
    files = [path for path in out.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"rows.jsonl", "log.txt"}
    assert len(files) <= MOST_FILES and all(set(path.name) <= NAME for path in files)
    rows = read_rows([out / "rows.jsonl"])
    assert rows.dry_run
    assert {(row.stage, row.name): row.reason for row in rows.rows if lease.is_wrong(row)} == {}
    counts = Counter(row.stage for row in rows.rows)
    assert counts == {
        "facts": 2,
        "smoke": 8,
        "sanitizer": 2,
        "correctness": 20,
        "ceilings": 34,
        "peers": 6,
        "profile": 1,
    }
    for line in (out / "rows.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert row["dry_run"] and row["seconds"] >= 0 and row["at"] <= TOTAL_S
    timed = rows.row("peers", "lstm stretto")
    assert timed is not None and timed.measured_us and timed.simulated_us
    checked = rows.row("correctness", "full lstm")
    assert checked is not None and checked.simulated_us == timed.simulated_us
    assert checked.values["reference"] == "stored"
    reasons = {row.reason for row in rows.of("sanitizer")}
    assert reasons == {"compute-sanitizer is not installed"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lease.main(["--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.startswith("No GPU, nothing is measured: torch")
    assert not (tmp_path / "out").exists()


@pytest.mark.whole
def test_a_lease_that_is_killed_keeps_its_rows(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        command(out, "--models", "lstm"),
        cwd=ROOT,
        env=environment(tmp_path),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    path = out / "rows.jsonl"
    end = time.monotonic() + 120
    while time.monotonic() < end and not (path.exists() and path.read_text().count("\n") >= 4):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    rows = read_rows([path])
    assert len(rows.rows) >= 4
    assert all(row.status == "ok" for row in rows.of("smoke"))


# ---- the first launch --------------------------------------------------------------------------
REFUSING = """
def refuse():
    from benchmarks.gpu import rehearsal
    start = rehearsal.start
    def refusing(folder):
        made = start(folder)
        made.allows = lambda cooperative: not cooperative
        return made
    rehearsal.start = refusing
import sys
if "benchmarks.gpu.worker" in sys.orig_argv:
    import importlib.abc, importlib.machinery
    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name != "benchmarks.gpu.rehearsal":
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            run = spec.loader.exec_module
            def execute(module):
                run(module)
                refuse()
            spec.loader.exec_module = execute
            return spec
    import importlib.util
    sys.meta_path.insert(0, Finder())
"""


def settings_of(folder: Path, **changes: Any) -> Settings:
    made = Settings(folder, folder, Log(folder / "log.txt"), dry_run=True)
    return replace(made, **changes)


@pytest.mark.whole
def test_a_first_launch_that_fails_leads_to_other_forms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", environment(tmp_path, REFUSING)["PYTHONPATH"])
    rows: dict[str, Row] = {}
    settings = settings_of(tmp_path)
    smoke.drive(settings, lambda row: rows.update({row.name: row}), time.monotonic() + 100)
    assert rows[smoke.FIRST].status == "failed"
    assert "cuLaunchKernelEx" in rows[smoke.FIRST].reason
    forms = {name.removeprefix("launch form: "): row.status for name, row in rows.items()}
    assert forms["not cooperative"] == "ok", "it is known which form works"
    assert forms["one unit"] == "failed"
    assert forms["Triton's own"] == "skipped"


# ---- stages ------------------------------------------------------------------------------------
def lease_of(folder: Path, seconds: float) -> Lease:
    start = time.monotonic()
    file = RowFile(folder / "rows.jsonl", True, lambda: time.monotonic() - start)
    return Lease(settings_of(folder), file, start + seconds)


def test_stages_fill_the_command() -> None:
    assert sum(stage.limit_s for stage in FIRST) + SLACK_S == TOTAL_S
    names = [stage.name for stage in FIRST]
    assert names == [
        "facts", "smoke", "sanitizer", "correctness", "ceilings", "peers", "graphs", "profile",
    ]  # fmt: skip


def test_a_stage_ends_within_its_limit_and_the_lease_s(tmp_path: Path) -> None:
    ends: list[float] = []

    def drive(settings: Settings, keep: Any, end: float) -> None:
        ends.append(end - time.monotonic())
        keep(Row("a", "ok"))

    made = lease_of(tmp_path, 10.0)
    for limit in (3.0, 90.0):
        made.stage(Stage("one", limit, drive))
    assert ends[0] == pytest.approx(3.0, abs=0.1) and ends[1] == pytest.approx(10.0, abs=0.1)


def test_a_mistake_in_a_stage_does_not_end_the_lease(tmp_path: Path) -> None:
    def drive(settings: Settings, keep: Any, end: float) -> None:
        raise KeyError("no such thing")

    made = lease_of(tmp_path, 10.0)
    made.stage(Stage("one", 3.0, drive))
    (row,) = read_rows([tmp_path / "rows.jsonl"]).rows
    assert (row.status, row.reason) == ("failed", "KeyError: 'no such thing'")


def done_again(rows: Rows, monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[tuple[Any, ...]]:
    """By stage the jobs of what failed, and rows that are not repeated."""
    seen: list[tuple[Any, ...]] = []

    def run(jobs: list[Job], *rest: Any) -> None:
        seen.append(([job.name for job in jobs], *rest[3:]))

    def turn(lineup: Any, jobs: list[Job], *rest: Any) -> None:
        seen.append((lineup.part, [job.name for job in jobs]))

    monkeypatch.setattr(lease, "run_jobs", run)
    monkeypatch.setattr(lease.turns, "drive", turn)
    settings = settings_of(folder, dry_run=False)
    for stage in again(rows, lease.is_wrong):
        stage.drive(settings, print, 0.0)
    return seen


def test_what_failed_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    rows = Rows(
        (
            Row("small lstm", "ok", stage="correctness", job="zoo"),
            Row("small rae", "failed", stage="correctness", job="zoo"),
            Row("full lstm", "ok", stage="correctness", job="full lstm"),
            Row("rae eager", "ok", stage="peers", job="rae library"),
            Row("rae stretto", "wrong", stage="peers", job="rae stretto"),
            Row("seq2seq library: all", "failed", stage="peers", job="seq2seq library"),
            Row("copy bandwidth", "ok", stage="ceilings", job="all"),
        )
    )
    found = done_again(rows, monkeypatch, tmp_path)
    assert found == [
        (["zoo"], 8, {"zoo": ["small lstm"], "full lstm": ["full lstm"]}),
        (
            "peers",
            ["seq2seq stretto", "seq2seq library", "seq2seq jax", "rae stretto", "rae library"],
        ),
    ]


def test_rows_of_jobs_that_ran_again_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(jobs: list[Job], settings: Settings, keep: Any, *rest: Any) -> None:
        keep(Row("dtype float32", "ok", job="dtypes"))

    monkeypatch.setattr(lease, "run_jobs", run)
    made = lease_of(tmp_path, 100.0)
    for job in ("dtypes", "zoo"):
        made.rows["correctness", f"{job}: all"] = Row(
            f"{job}: all", "failed", "not reached: x", stage="correctness", job=job
        )
    for stage in again(made.known(), lease.was_cut_off):
        made.stage(stage)
    statuses = {name: row.status for (_, name), row in made.rows.items()}
    assert statuses == {"dtypes: all": "skipped", "zoo: all": "failed", "dtype float32": "ok"}


def test_the_gpu_of_the_first_row_decides_about_programs(tmp_path: Path) -> None:
    values = {"gpu": {**asdict(KINDS["h200"]), "capability": [9, 0]}}
    for kind, folder in ((None, "h200"), ("h100", "h100")):
        made = replace(lease_of(tmp_path, 100.0), kind=kind)
        made.settings = replace(made.settings, saved=tmp_path / "saved" / "h100")
        made.rows["facts", smoke.GPU] = Row(smoke.GPU, "ok", values=values)
        made.know_gpu()
        assert made.settings.gpu == KINDS["h200"]
        assert made.settings.saved == tmp_path / "saved" / folder


def test_the_second_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, float]] = []

    def stand_in(name: str) -> Any:
        return lambda settings, keep, end: seen.append((name, end - time.monotonic()))

    def run(jobs: list[Job], settings: Settings, keep: Any, end: float, *rest: Any) -> None:
        seen.append((jobs[0].name, end - time.monotonic()))

    monkeypatch.setattr(lease, "FIRST", (Stage("facts", 15, stand_in("facts")),))
    monkeypatch.setattr(lease, "run_jobs", run)
    monkeypatch.setattr(lease, "_skipnet", stand_in("skipnet"))
    monkeypatch.setattr(lease, "_tuned", stand_in("tuned"))
    monkeypatch.setattr(lease.shapes, "drive", stand_in("shapes"))
    previous = Rows((Row("full rae", "wrong", stage="correctness", job="full rae"),))
    lease.second(lease_of(tmp_path, 200.0), previous)
    assert [name for name, _ in seen] == ["facts", "full rae", "skipnet", "shapes", "tuned"]
    assert seen[1][1] == pytest.approx(100, abs=1) and seen[-1][1] == pytest.approx(200, abs=1)


# ---- jobs that go wrong ------------------------------------------------------------------------

PLANTED = """
import os, time
def run(reporter, bench):
    reporter.row("first", 20, dict)
    reporter.row("crash", 20, lambda: os._exit(7))
    reporter.row("raises", 20, lambda: 1 / 0)
    reporter.row("hang", 0.5, lambda: time.sleep(60))
    reporter.row("last", 20, lambda: {"told": print("not a message") or 1})
    reporter.row("tests", 20, lambda: {"folder": __import__("tests").__file__})
"""
# As one that some other project has left in site-packages.
WRONG_TESTS = 'raise ImportError("not the tests of this project")'


@pytest.mark.whole
def test_a_crash_and_a_hang_lose_one_row_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A part that is none: the worker imports it from a folder that the package is made to have.
    (tmp_path / "planted.py").write_text(PLANTED)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").write_text(WRONG_TESTS)
    startup = f"import benchmarks.gpu\nbenchmarks.gpu.__path__.append({str(tmp_path)!r})\n"
    monkeypatch.setenv("PYTHONPATH", environment(tmp_path, startup)["PYTHONPATH"])
    rows: dict[str, Row] = {}
    end = time.monotonic() + 120
    jobs = [Job("planted", "all", 120.0)]
    run_jobs(jobs, settings_of(tmp_path), lambda row: rows.update({row.name: row}), end, 1)
    assert {name: row.status for name, row in rows.items()} == {
        "first": "ok",
        "crash": "failed",
        "raises": "failed",
        "hang": "failed",
        "last": "ok",
        "tests": "ok",
    }
    assert "exit code 7" in rows["crash"].reason
    assert rows["raises"].reason == "ZeroDivisionError: division by zero"
    assert rows["hang"].reason == "no result after 2 s: killed"
    assert {row.job for row in rows.values()} == {"all"}
    assert rows["last"].values == {"told": 1}
    assert rows["tests"].values == {"folder": str(ROOT / "tests" / "__init__.py")}
    assert "[planted all] not a message" in (tmp_path / "log.txt").read_text()


def test_what_is_not_reached_is_told(tmp_path: Path) -> None:
    rows: list[Row] = []
    jobs = [Job("ceilings", "all", 9.0)]
    run_jobs(jobs, settings_of(tmp_path), rows.append, time.monotonic() - 1, 1)
    assert [row.reason for row in rows] == ["not reached: the time of the stage was over"]
    assert lease.was_cut_off(rows[0])


def test_the_log_is_bounded(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.txt", most=60)
    for _ in range(9):
        log.write("who", "twenty characters or so")
    assert (tmp_path / "log.txt").read_text().splitlines() == [
        "[who] twenty characters or so",
        "[the log is full]",
    ]


# ---- rows --------------------------------------------------------------------------------------
def test_later_rows_replace_earlier_ones(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    keep = RowFile(path, False, lambda: 1.0).keep("peers")
    timing = {"median": 0.25, "q1": 0.2, "q3": 0.3, "unit": "ms"}
    keep(Row("rae stretto", "ok", values={"error": 0.0}))
    keep(Row("rae stretto", "ok", values={"device": timing, "simulated_us": 80.0}))
    with path.open("a") as file:
        file.write('{"stage": "peers", "na')  # a lease that was killed
    rows = read_rows([path])
    (row,) = rows.rows
    assert (row.stage, row.measured_us, row.simulated_us) == ("peers", 250.0, 80.0)
    assert not rows.dry_run
    first = json.loads(path.read_text().splitlines()[1])
    assert (first["measured_us"], first["simulated_us"]) == (250.0, 80.0)


def test_a_broken_line_amid_others_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    keep = RowFile(path, False, lambda: 1.0).keep("peers")
    path.write_text('{"stage"\n')
    keep(Row("a", "ok"))
    with pytest.raises(ValueError, match="line 1, is no row"):
        read_rows([path])
