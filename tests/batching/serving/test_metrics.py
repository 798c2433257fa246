"""Histograms and the printed table."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.batching.serving import Histogram, Stream, StreamOptions
from stretto.batching.serving.metrics import Durations
from tests.batching.serving.fakes import Gated, ManualClock


def histogram(*seconds: float) -> Histogram:
    durations = Durations()
    for each in seconds:
        durations.add(each)
    return durations.histogram()


@given(
    st.lists(st.floats(1e-6, 2000.0), min_size=1, max_size=50),
    st.sampled_from([0.0, 1.0, 50.0, 90.0, 99.0, 100.0]),
)
def test_percentiles_are_at_most_nine_percent_too_large(times: list[float], percent: float) -> None:
    exact = sorted(times)[max(1, math.ceil(len(times) * percent / 100)) - 1]
    assert exact * (1 - 1e-9) <= histogram(*times).percentile(percent) <= exact * 1.0906


def test_what_is_shorter_or_longer_than_all_buckets_is_counted() -> None:
    found = histogram(0.0, 1e-9, 5000.0)
    assert found.count == 3 and found.longest_s == 5000.0
    assert found.percentile(100) == 5000.0 and found.percentile(50) == 1e-6


def test_nothing_measured_is_not_a_number() -> None:
    assert math.isnan(histogram().percentile(99)) and math.isnan(histogram().mean_s)


@pytest.mark.parametrize("percent", [-1.0, 100.5, math.nan])
def test_a_percentage_that_is_none(percent: float) -> None:
    with pytest.raises(ValueError, match="percent is from 0 to 100"):
        histogram(1.0).percentile(percent)


def test_metrics_of_a_stream_as_a_record_and_as_text() -> None:
    clock = ManualClock()

    def slow(x: int) -> int:
        clock._time += 0.25
        if x == 2:
            raise ValueError
        return x

    run = Gated(slow)
    stream = Stream(run, StreamOptions(max_batch=2, max_wait_ms=500), clock)
    assert "no batch yet" in str(stream.metrics())
    stream.submit(0)
    stream.submit(1)
    run.next_batch()
    stream.submit(2)
    run.let_go(2)
    stream.close()
    metrics = stream.metrics()
    assert (metrics.submitted, metrics.finished, metrics.failed) == (3, 2, 1)
    assert dict(metrics.batch_sizes) == {1: 1, 2: 1} and metrics.mean_batch == 1.5
    assert metrics.batches.total_s == 0.75 and metrics.latencies.longest_s == 0.75
    assert metrics.waits.total_s == 0.5
    with pytest.raises(dataclasses.FrozenInstanceError):
        metrics.failed = 0  # type: ignore[misc]
    with pytest.raises(TypeError):
        metrics.batch_sizes[1] = 5  # type: ignore[index]
    lines = str(metrics).splitlines()
    assert lines[0].startswith("requests: 3 submitted, 2 finished, 1 failed, 0 cancelled")
    assert lines[1] == "batch sizes: 1 (1x), 2 (1x)"
    assert lines[2].split() == ["count", "mean", "p50", "p90", "p99", "longest"]
    assert lines[5].split()[:4] == ["latencies", "3", "583", "ms"]
