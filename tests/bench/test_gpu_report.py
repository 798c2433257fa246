"""Tables and pictures from the rows of a lease."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.gpu import report, shapes
from benchmarks.gpu.constants import proposals
from benchmarks.gpu.results import Row, RowFile, Rows
from benchmarks.gpu.saved import KINDS
from benchmarks.gpu.smoke import GPU
from stretto.machines.cuda.costs import CUDA_COSTS


def row(stage: str, name: str, microseconds: float, **values: object) -> Row:
    timing = dict.fromkeys(("median", "q1", "q3"), microseconds / 1e3)
    return Row(name, "ok", values={"device": timing, **values}, stage=stage)


def ceiling(name: str, value: float, unit: str = "s", **values: object) -> Row:
    spread = dict.fromkeys(("median", "q1", "q3"), value)
    return Row(name, "ok", values={**spread, "unit": unit, **values}, stage="ceilings")


def facts(kind: str = "h200") -> Row:
    values = {"machine": "NVIDIA H200", "versions": {"torch": "2.11"}, "date": "today"}
    values |= {"commit": "abc", "gpu": asdict(KINDS[kind])}
    return Row(GPU, "ok", values=values, stage="facts")


def measured() -> Rows:
    memory = [
        Row(
            shapes.row_name("deepfm", "graph-each", count),
            "ok",
            values={"shapes": count, "graphs": count, "driver_bytes": size << 20},
            stage="shapes",
        )
        for count, size in ((1, 2), (4, 8), (16, 32))
    ]
    rows = (
        facts(),
        row("peers", "rae stretto", 250.0, simulated_us=80.0, launches_per_call=1),
        row("peers", "rae stretto-graph", 240.0, simulated_us=80.0),
        row("peers", "rae eager", 2000.0),
        row("peers", "rae jax", 1000.0),
        Row("rae cudnn-graph", "failed", "no result after 9 s: killed", stage="peers"),
        ceiling("fp32 matmul", 5e13, "FLOP/s"),
        ceiling("copy bandwidth", 4e12, "B/s"),
        ceiling("read bandwidth, L2", 5.28e12, "B/s", units=132),
        ceiling("wait between two units", 7e-7),
        row("graphs", "deepfm stretto", 60.0, simulated_us=56.6),
        row("graphs", "deepfm stretto-per-kernel", 20.0, as_they_were=1.0, patched_per_call=0.0),
        row("graphs", "deepfm stretto-inputs-moved", 30.0, as_they_were=0.0, patched_per_call=24.0),
        row("graphs", "deepfm stretto-inputs-copied", 40.0),
        row("graphs", "deepfm eager-graph", 80.0),
        *memory,
        Row(
            "ncu lstm",
            "ok",
            values={"dram__bytes_read.sum": {"value": 21.5, "unit": "Mbyte"}},
            stage="profile",
        ),
    )
    return Rows(rows)


def test_measured_beside_simulated() -> None:
    text = report.report(measured())
    assert "| rae | stretto | 250.0 | 80.0 | 3.12 |" in text
    assert "| deepfm | stretto | 60.0 | 56.6 | 1.06 |" in text
    assert "- FAILED peers, rae cudnn-graph: no result after 9 s: killed" in text
    assert "NVIDIA H200; torch 2.11; today, commit abc." in text and "DRY RUN" not in text


def test_peers_and_floors() -> None:
    lines = report.report(measured()).splitlines()
    (line,) = [one for one in lines if one.startswith("| recursive autoencoder")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1:6] == ["250.0", "240.0", "1000.0 jax", "4.00x", "8.00x"] and cells[7] == "1"
    once, again = (float(value) for value in cells[6].split(", "))
    assert 0.4 < once < again


def test_graphs() -> None:
    text = report.report(measured())
    assert "| DeepFM, 32 categories and 16 numbers |  | 80.0 |  | 60.0 |  | 20.0 |  |" in text
    assert "inputs that stay: 20.0 us, 100 % of replays with all arguments as they were" in text
    assert "inputs that move: 30.0 us, 0 % of replays" in text and "24.0 launches" in text
    assert "inputs that are copied: 40.0 us, replays were not counted" in text
    assert "1, 4, 16 shapes, graph-each: driver 2.0, 8.0, 32.0 MiB; 1, 4, 16 graphs" in text
    assert "- ncu lstm: dram__bytes_read.sum 21.5 Mbyte" in text
    tables = [
        line.count("|") for line in text.splitlines() if line.startswith(("| DeepFM", "| model"))
    ]
    assert len(tables) == 4


def test_constants_come_from_measurements_only() -> None:
    found = {one.constant.basis: one for one in proposals(measured())}
    assert found["wait between two units"].measured == 7e-7
    assert found["wait between two units"].now == CUDA_COSTS.wait_seconds
    assert found["reads from L2, a unit's part"].measured == pytest.approx(4e10)
    assert found["reads from memory, a unit's part"].measured is None
    assert "| not measured |  | reads from memory" in report.report(measured())


def test_constants_are_those_of_the_measured_gpu() -> None:
    found = {one.constant.name: one for one in proposals(Rows((facts("h100"),)))}
    assert found["bandwidth"].now < CUDA_COSTS.bandwidth


def test_figures_of_a_dry_run_say_that_they_mean_nothing() -> None:
    text = report.report(replace(measured(), dry_run=True))
    assert text.startswith("**DRY RUN: the figures mean nothing.**")


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "rows.jsonl"
    file = RowFile(path, False, lambda: 0.0)
    for one in measured().rows:
        file.keep(one.stage)(one)
    assert report.main([str(path), "--pictures", str(tmp_path)]) == 0
    assert "| rae | stretto | 250.0 | 80.0 | 3.12 |" in capsys.readouterr().out
    for name in ("ratios", "simulated"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_quantities() -> None:
    assert report.quantity(4.3e12, "B/s") == "4.3 TB/s"
    assert report.quantity(7.8e-7, "s") == "780 ns"
