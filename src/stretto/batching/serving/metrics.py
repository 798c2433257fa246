"""Metrics of a stream: counts of requests, batch sizes, and durations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from stretto.text import seconds_text, table

_SHORTEST_S = 1e-6
_PER_OCTAVE = 8
_BUCKETS = 31 * _PER_OCTAVE  # up to 2147 s; one more bucket takes longer durations


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations in buckets whose bounds grow by the factor 2^(1/8), so they are exact within 9 %.

    counts: number of durations above `Histogram.bound(i - 1)` and up to `Histogram.bound(i)`
    seconds. total_s, longest_s: exact, in seconds.
    """

    counts: tuple[int, ...] = (0,) * (_BUCKETS + 1)
    total_s: float = 0.0
    longest_s: float = 0.0

    @staticmethod
    def bound(bucket: int) -> float:
        """Return the longest duration of a bucket, in seconds."""
        return _SHORTEST_S * 2.0 ** (bucket / _PER_OCTAVE)

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean_s(self) -> float:
        """The mean in seconds; NaN without any duration."""
        return self.total_s / self.count if self.count else math.nan

    def percentile(self, percent: float) -> float:
        """Return the seconds that `percent` % of the durations do not exceed: at least the exact
        value, and at most 9 % more. NaN without any duration. Raises ValueError for a percent
        outside 0 to 100."""
        if not 0.0 <= percent <= 100.0:
            raise ValueError(f"percent is from 0 to 100, got {percent!r}")
        wanted = max(1, math.ceil(self.count * percent / 100.0))
        seen = 0
        for bucket, number in enumerate(self.counts):
            seen += number
            if seen >= wanted:
                last = bucket == _BUCKETS
                return self.longest_s if last else min(self.bound(bucket), self.longest_s)
        return math.nan


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metrics of a stream at one moment.

    submitted: accepted requests, `finished + failed + cancelled + waiting + running` in total.
    refused: requests that were not accepted, since there was no room, the stream was closed, or
        their caller gave up before there was room.
    blocked: callers that wait for room now.
    batch_sizes: number of batches of each size.
    waits: from submitting until the batch begins; latencies: from submitting until the answer;
        batches: run times of batches.
    """

    submitted: int
    finished: int
    failed: int
    cancelled: int
    refused: int
    waiting: int
    running: int
    blocked: int
    batch_sizes: Mapping[int, int]
    waits: Histogram
    latencies: Histogram
    batches: Histogram

    @property
    def mean_batch(self) -> float:
        """Mean number of requests per batch; NaN without any batch."""
        number = sum(self.batch_sizes.values())
        requests = sum(size * times for size, times in self.batch_sizes.items())
        return requests / number if number else math.nan

    def __str__(self) -> str:
        counts = ", ".join(f"{getattr(self, name)} {name}" for name in _COUNTS)
        sizes = ", ".join(f"{size} ({times}x)" for size, times in self.batch_sizes.items())
        rows = [_row(name, getattr(self, name)) for name in ("waits", "latencies", "batches")]
        return (
            f"requests: {counts}\n"
            f"batch sizes: {sizes or 'no batch yet'}\n"
            f"{table(rows, ['', 'count', 'mean', 'p50', 'p90', 'p99', 'longest'])}"
        )


_COUNTS = tuple(f.name for f in fields(Metrics) if f.type == "int")


def _row(name: str, times: Histogram) -> list[str]:
    if not times.count:
        return [name, "0", "", "", "", "", ""]
    percentiles = [seconds_text(times.percentile(percent)) for percent in (50, 90, 99)]
    mean, longest = seconds_text(times.mean_s), seconds_text(times.longest_s)
    return [name, str(times.count), mean, *percentiles, longest]


@dataclass(slots=True)
class Durations:
    """A histogram under construction."""

    counts: list[int] = field(default_factory=lambda: [0] * (_BUCKETS + 1))
    total_s: float = 0.0
    longest_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[_bucket(seconds)] += 1
        self.total_s += seconds
        self.longest_s = max(self.longest_s, seconds)

    def histogram(self) -> Histogram:
        return Histogram(tuple(self.counts), self.total_s, self.longest_s)


def _bucket(seconds: float) -> int:
    if seconds <= _SHORTEST_S:
        return 0
    bucket = math.ceil(_PER_OCTAVE * math.log2(seconds / _SHORTEST_S))
    return min(bucket, _BUCKETS)


@dataclass(slots=True)
class RequestCounts:
    """The counters of a worker, guarded by its lock."""

    submitted: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0
    batch_sizes: Counter[int] = field(default_factory=lambda: Counter[int]())
    waits: Durations = field(default_factory=Durations)
    latencies: Durations = field(default_factory=Durations)
    batches: Durations = field(default_factory=Durations)

    def metrics(self, *, waiting: int, running: int, blocked: int) -> Metrics:
        return Metrics(
            submitted=self.submitted,
            finished=self.finished,
            failed=self.failed,
            cancelled=self.cancelled,
            refused=self.refused,
            waiting=waiting,
            running=running,
            blocked=blocked,
            batch_sizes=MappingProxyType(dict(sorted(self.batch_sizes.items()))),
            waits=self.waits.histogram(),
            latencies=self.latencies.histogram(),
            batches=self.batches.histogram(),
        )
