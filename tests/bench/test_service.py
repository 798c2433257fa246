"""The load on a stream, and what is reported of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from benchmarks.streams import service
from benchmarks.streams.service import Load, measure, run_load
from benchmarks.streams.service_report import draw, percentile_ms, table
from stretto.batching.serving import (
    InstanceCall,
    InstanceFailure,
    InstanceResult,
    Outcome,
    Stream,
    StreamOptions,
)

LOAD = Load(rate=400.0, callers=3, seconds=0.2)
OPTIONS = StreamOptions(max_batch=8, max_wait_ms=1)


def test_timetables_are_those_of_the_rate_and_the_seed() -> None:
    load = Load(rate=200.0, callers=8, seconds=30.0)
    tables = load.timetables()
    assert tables == load.timetables() != Load(seed=1).timetables()
    assert 5700 < sum(map(len, tables)) < 6300 and len(tables) == 8
    assert all(times == sorted(times) and 0 < times[0] < times[-1] < 30 for times in tables)


@pytest.mark.whole
@pytest.mark.parametrize("system", ["hand", "eager"])
def test_a_load_on_a_model_is_recorded(system: service.System, tmp_path: Path) -> None:
    record = measure([system], "treelstm", "small", LOAD, OPTIONS, threads=1)
    (result,) = record.results
    assert result.sent == len(result.latencies_ms) == sum(map(len, LOAD.timetables()))
    assert (result.lost, result.failed, result.wrong, result.reordered) == (0, 0, 0, 0)
    assert result.error < 1e-4
    assert table(record).row_count == 1
    draw(record, tmp_path / "load.png")
    assert (tmp_path / "load.png").stat().st_size > 10_000
    record.write_json(tmp_path / "load.json")
    written = json.loads((tmp_path / "load.json").read_text())["results"][0]
    assert written["limit_ms"] == pytest.approx(1 + 2 * result.batch_ms)
    assert written["p99_ms"] == result.percentile_ms(99)


def test_wrong_and_failed_answers_are_counted() -> None:
    def run(calls: Sequence[InstanceCall]) -> list[Outcome]:
        return [_answer(call.args[0]) for call in calls]

    def _answer(number: int) -> Outcome:
        if number == 3:
            return InstanceFailure(ValueError())
        return InstanceResult(torch.tensor(float(number) + (number == 5)))

    numbers = list(range(1, 9))
    expected = [torch.tensor(float(number)) for number in numbers]
    open_stream = lambda: Stream(run, OPTIONS)  # noqa: E731
    result = run_load(open_stream, numbers, expected, LOAD, "test", "numbers")
    asked = [
        numbers[(31 * caller + step) % 8]
        for caller, times in enumerate(LOAD.timetables())
        for step in range(len(times))
    ]
    assert (result.failed, result.wrong) == (asked.count(3), asked.count(5))
    assert result.lost == 0 and result.error == pytest.approx(0.2)


def test_answers_in_another_order_are_counted() -> None:
    assert service._reordered([0, 1, 2]) == 0
    assert service._reordered([1, 0, 3, 2, 4]) == 2


def test_percentiles() -> None:
    assert percentile_ms([0.003, 0.001, 0.002], 50) == pytest.approx(2.0)
    assert percentile_ms([0.001] * 99 + [1.0], 99) == pytest.approx(1.0)
    assert percentile_ms([0.001] * 99 + [1.0], 100) == pytest.approx(1000.0)
