"""The GPU suite without a GPU: a dry run of all parts, and what it does when jobs crash or hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import summary
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.clock import slopes, spread
from benchmarks.gpu.constants import proposal_lines, proposals
from benchmarks.gpu.device import Bench
from benchmarks.gpu.engine import ROOT, Job, Settings, run_jobs
from benchmarks.gpu.results import PartRecord, Row, read_part
from benchmarks.gpu.suite import is_good
from stretto.machines.cuda.costs import CUDA_COSTS

pytest.importorskip("greenlet", reason="greenlet is not installed")
pytest.importorskip("triton", reason="triton is not installed")

NAME = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
# As on a machine that has torch, triton and numpy only.
BLOCKED = ("typer", "rich", "matplotlib")
BLOCKER = "import sys\nfor name in {names}: sys.modules[name] = None\n"


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_dry(tmp_path_factory)


def run_dry(tmp_path_factory: pytest.TempPathFactory, *arguments: str) -> Path:
    """The folder of a dry run's results."""
    folder = tmp_path_factory.mktemp("gpu")
    blocker = tmp_path_factory.mktemp("path")
    (blocker / "sitecustomize.py").write_text(BLOCKER.format(names=BLOCKED))
    path = os.pathsep.join([str(blocker), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--out", str(folder), "--dry-run", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    (folder / "printed").write_text(done.stdout)
    return folder


def test_a_dry_run_of_what_comes_first(tmp_path_factory: pytest.TempPathFactory) -> None:
    record = read_part(run_dry(tmp_path_factory, "--part", "correctness"), "correctness")
    assert record is not None and record.complete and record.dry_run
    assert {row.name: row.reason for row in record.rows if row.status in ("failed", "wrong")} == {}
    for name in ("a planted deadlock", "two programs on two streams"):
        row = record.row(name)
        assert row is not None and row.status == "ok"


@pytest.mark.slow
@pytest.mark.whole
def test_a_dry_run_of_everything(dry_run: Path) -> None:
    for part in summary.PARTS:
        record = read_part(dry_run, part)
        assert record is not None and record.complete and record.dry_run
        assert {row.name: row.reason for row in record.rows if row.status == "failed"} == {}
        assert {row.name: row.reason for row in record.rows if row.status == "wrong"} == {}
        assert {"date", "commit", "device", "versions"} <= set(record.about)
        assert "dry run" in record.about["device"]
    printed = (dry_run / "printed").read_text()
    assert "DRY RUN: the figures mean nothing" in printed
    assert "fastest peer eager" in printed
    files = [path.name for path in dry_run.iterdir() if path.name != "printed"]
    assert len(files) <= 8 and all(set(name) <= NAME for name in files)


@pytest.mark.slow
@pytest.mark.whole
def test_what_is_missing_is_skipped_with_its_reason(dry_run: Path) -> None:
    traces = read_part(dry_run, "traces")
    assert traces is not None
    picture = traces.row("ratios.png")
    assert picture is not None and picture.status == "skipped"
    assert picture.reason == "matplotlib is not installed"
    events = json.loads((dry_run / "trace-rae.json").read_text())["traceEvents"]
    assert any(event.get("name") == "rae: stretto" for event in events)


@pytest.mark.slow
@pytest.mark.whole
def test_parts_with_results_are_not_run_again(
    dry_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--out", str(dry_run), "--dry-run"]) == 0
    assert capsys.readouterr().out.count("there already") == len(summary.PARTS)


@pytest.mark.slow
@pytest.mark.whole
def test_pictures(dry_run: Path, tmp_path: Path) -> None:
    pictures = pytest.importorskip("benchmarks.gpu.pictures")
    for part, draw in (("models", pictures.ratios), ("ceilings", pictures.gemv)):
        draw(read_part(dry_run, part), tmp_path / f"{part}.png")
        assert (tmp_path / f"{part}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.whole
def test_a_dry_run_is_no_result(dry_run: Path, tmp_path: Path) -> None:
    assert summary.section(dry_run) == ""
    with pytest.raises(ValueError, match="no results of a GPU"):
        summary.keep(dry_run, tmp_path / "kept.json")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.startswith("No GPU, nothing is measured: torch")
    assert not (tmp_path / "out").exists()


# ---- jobs that go wrong ----------------------------------------------------------------------

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


def test_a_crash_and_a_hang_lose_one_row_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A part that is none: the worker imports it from a folder that the package is made to have.
    (tmp_path / "planted.py").write_text(PLANTED)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").write_text(WRONG_TESTS)
    (tmp_path / "sitecustomize.py").write_text(
        f"import benchmarks.gpu\nbenchmarks.gpu.__path__.append({str(tmp_path)!r})\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    rows: dict[str, Row] = {}
    settings = Settings(tmp_path, tmp_path, dry_run=True)
    end = time.monotonic() + 120
    run_jobs(
        [Job("planted", "all", 120.0)], settings, lambda row: rows.update({row.name: row}), end, 1
    )
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
    assert rows["hang"].reason == "no result after 0 s: killed"
    assert rows["last"].values == {"told": 1}
    assert rows["tests"].values == {"folder": str(ROOT / "tests" / "__init__.py")}


def test_what_is_not_reached_is_told(tmp_path: Path) -> None:
    rows: list[Row] = []
    settings = Settings(tmp_path, tmp_path, dry_run=True)
    run_jobs([Job("ceilings", "dry", 9.0)], settings, rows.append, time.monotonic() - 1, 1)
    assert [row.reason for row in rows] == ["not reached: the part's time was over"]


# ---- results ---------------------------------------------------------------------------------


def timing(median: float) -> dict[str, float]:
    return {"median": median, "q1": median, "q3": median}


def system(name: str, median: float, **values: object) -> Row:
    times = {kind: timing(median) for kind in ("device", "host", "latency")}
    return Row(name, "ok", values={**times, "compile_s": 1.0, "error": 1e-7, **values})


ABOUT = {"date": "2026-11-20", "commit": "abc", "device": "NVIDIA H200", "versions": {"torch": "2"}}


def measured(folder: Path) -> PartRecord:
    rows = [
        system("rae stretto", 0.25, launches_per_call=1),
        system("rae eager", 2.0),
        Row("rae jax", "failed", "no result after 9 s: killed"),
        system("rae compile", 1.0),
        Row("rae floor", "ok", values={"floor_ms": 0.05}),
    ]
    record = PartRecord("models", False, ABOUT, True, 1.0, rows)
    record.write(folder)
    return record


def test_the_table_names_the_fastest_peer_and_the_mark(tmp_path: Path) -> None:
    measured(tmp_path)
    text = summary.table(tmp_path)
    assert "fastest peer compile: 4.00x, aim 4.0x: reached" in text
    assert "FAILED rae jax: no result after 9 s: killed" in text
    assert "== ceilings: no results" in text


def test_the_section_of_the_readme(tmp_path: Path) -> None:
    measured(tmp_path)
    line = summary.section(tmp_path).splitlines()[-1]
    assert line.endswith("| 0.250 ms |  | 1.000 ms compile | 4.0x | 8.0x | 0.050 ms | 1 |")
    summary.keep(tmp_path, tmp_path / "kept" / "file.json")
    kept = json.loads((tmp_path / "kept" / "file.json").read_text())
    assert kept["models"]["about"] == ABOUT


def test_constants_come_from_measurements_only() -> None:
    rows = [Row("wait between two units", "ok", values={"median": 7e-7})]
    record = PartRecord("ceilings", False, ABOUT, True, 1.0, rows)
    found = {proposal.constant.basis: proposal for proposal in proposals(record)}
    assert found["wait between two units"].measured == 7e-7
    assert found["wait between two units"].now == CUDA_COSTS.wait_seconds
    assert found["best gemv from memory, a unit's part"].measured is None
    assert any("not measured" in line for line in proposal_lines(record))


def test_every_constant_is_in_the_source() -> None:
    record = PartRecord("ceilings", False, ABOUT)
    assert [p.constant.name for p in proposals(record) if p.now is None] == []


def test_only_correctness_decides_about_success() -> None:
    bad = [Row("a", "wrong", "error")]
    assert not is_good([PartRecord("correctness", False, ABOUT, True, 1.0, bad)])
    assert is_good([PartRecord("models", False, ABOUT, True, 1.0, bad)])


def test_quantities() -> None:
    assert summary.quantity(4.3e12, "B/s") == "4.3 TB/s"
    assert summary.quantity(7.8e-7, "s") == "780 ns"


def test_spread_and_slopes() -> None:
    assert spread([3.0, 1.0, 2.0])["median"] == 2.0
    (slope,) = slopes(Bench(True), lambda trips: time.sleep(0.002 * trips), 1, 11, 1)
    assert slope > 0.0015
