"""Tests of the figures of auto-batching: their jobs, records, tables and pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.batching import parts, pictures, suite, tables
from benchmarks.batching.__main__ import app
from benchmarks.batching.suite import Job
from benchmarks.models.instances import INSTANCE_ZOO
from stretto.batching.passes.pipeline import BatchPasses


def test_jobs_have_names_of_their_own_and_cover_all_models() -> None:
    jobs = list(suite.all_jobs())
    assert len({job.name for job in jobs}) == len(jobs)
    firsts = {job.arguments[1].partition(":")[0] for job in jobs if job.arguments[0] == "first"}
    peers = {job.arguments[1].partition(":")[0] for job in jobs if job.arguments[0] == "peers"}
    assert firsts == peers == set(INSTANCE_ZOO)
    runs = [job for job in jobs if job.name.startswith("peers-birnn-256-8-")]
    assert len(runs) == 3


def test_each_switch_is_turned_once() -> None:
    found = parts.variants("birnn:256")
    assert found[parts.ALL_ON] == BatchPasses()
    assert found["without coarsen"] == BatchPasses(coarsen=False)
    assert not any(getattr(found[parts.ALL_OFF], name) for name in ("tidy", "coarsen"))


def test_jobs_with_a_record_are_not_run_again(tmp_path: Path, capsys: Any) -> None:
    jobs = [Job("nothing", ("sizes",), 60.0)]
    (tmp_path / "nothing.json").write_text("{}")
    suite.run_jobs(jobs, tmp_path, tmp_path, until=float("inf"))
    assert capsys.readouterr().out == ""
    suite.run_jobs([Job("other", ("sizes",), 60.0)], tmp_path, tmp_path, until=0.0)
    assert "no time is left" in capsys.readouterr().out


def test_a_part_that_is_wrong_is_refused() -> None:
    result = CliRunner().invoke(app, ["part", "siezs"])
    assert result.exit_code == 2
    assert "no part 'siezs'" in result.output


def peers_record(folder: Path, run: int, model: str = "treelstm:256", **ms: float) -> None:
    systems = [
        {"system": name, "timing": {"median_ms": value}, "note": ""} for name, value in ms.items()
    ]
    record = {"models": [{"model": model, "floor_ms": 1.0, "systems": systems}]}
    path = folder / f"peers-{model.replace(':', '-')}-8-{run}.json"
    path.write_text(json.dumps(record))


def test_the_worst_run_counts_and_dynet_is_among_the_peers(tmp_path: Path) -> None:
    peers_record(tmp_path, 1, eager=40.0, hand=6.0, stretto=2.0)
    peers_record(tmp_path, 2, eager=40.0, hand=5.2, stretto=2.0)
    line = tables.published(tmp_path).splitlines()[-1]
    # DyNet took 3.9 ms where the fastest other system took 5.2 ms.
    assert "| 3.90 | **2.00** | 2.25 / 1.95 | 20.0 | 2.00 |" in line
    assert "2.60 |" in tables.models(tmp_path)


def test_pages_are_changed_between_marks_only(tmp_path: Path) -> None:
    page = "a\n<!-- figures: models -->\nold\n<!-- end of figures -->\nb\n"
    assert tables.with_figures(page, tmp_path) == page  # without records
    peers_record(tmp_path, 1, eager=40.0, stretto=2.0)
    made = tables.with_figures(page, tmp_path)
    assert made.startswith("a\n<!-- figures: models -->\n| model | batch |")
    assert "old" not in made and made.endswith("<!-- end of figures -->\nb\n")
    with pytest.raises(KeyError, match="modells"):
        tables.with_figures(page.replace("models", "modells"), tmp_path)


def test_marks_of_the_docs_name_tables() -> None:
    names = [
        found[2]
        for page in tables.DOCS.glob("*.md")
        for found in tables._MARKED.finditer(page.read_text())
    ]
    assert set(names) == set(tables.TABLES)


def test_pictures_of_records(tmp_path: Path) -> None:
    head = {"model": "treelstm:256", "batch": 64}
    times = dict.fromkeys(parts.variants("birnn:256"), 2.0)
    (tmp_path / "ablation-treelstm-256.json").write_text(
        json.dumps({**head, "milliseconds": times})
    )
    by_size = {"milliseconds": {"1": 2.0, "2": 1.0}, "errors": {"1": 0.0, "2": 1e-6}}
    (tmp_path / "sizes-treelstm-256.json").write_text(json.dumps({**head, **by_size}))
    made = list(pictures.draw_all(tmp_path, tmp_path / "images"))
    assert [path.name for path in made] == ["batching-ablation.png", "batching-sizes.png"]
    assert all(path.stat().st_size > 5000 for path in made)
    assert "1.0e-06 of its largest value" in tables.sizes(tmp_path)
