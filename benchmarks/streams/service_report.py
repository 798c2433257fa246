"""The results of a service under load: as JSON, as a table, and as a picture of its latencies."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..report import BAR_COLORS

_COLORS = {**BAR_COLORS, "hand": "#4c78a8"}


@dataclass(frozen=True, slots=True)
class ServiceResult:
    """One system under one load.

    lost: requests without an answer; failed: requests answered by an exception; wrong:
    answers that differ from eager PyTorch's by more than the benchmark's tolerance;
    error: the largest difference, relative. reordered: answers that came before that of
    an earlier request of the same caller. batch_ms, batch_mean_ms, batch_p99_ms: run
    time of batches: the median, the mean, the 99th percentile. late_p99_ms: delay of
    callers behind their timetable; part of the latencies. latencies_ms: per request,
    from the planned time to the answer.
    """

    system: str
    model: str
    max_batch: int
    max_wait_ms: float
    sent: int
    lost: int
    failed: int
    wrong: int
    error: float
    reordered: int
    batch_sizes: dict[str, int]
    batch_ms: float
    batch_mean_ms: float
    batch_p99_ms: float
    late_p99_ms: float
    latencies_ms: tuple[float, ...]

    @property
    def limit_ms(self) -> float:
        """The limit for 99 % of the latencies: the wait, the batch that runs when a request comes,
        and the request's own batch."""
        return self.max_wait_ms + 2.0 * self.batch_ms

    def percentile_ms(self, percent: float) -> float:
        return percentile_ms([ms / 1e3 for ms in self.latencies_ms], percent)

    @property
    def mean_batch(self) -> float:
        number = sum(self.batch_sizes.values())
        requests = sum(int(size) * times for size, times in self.batch_sizes.items())
        return requests / number if number else math.nan


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """All systems under the same load, and where and with what they were measured."""

    date: str
    commit: str | None
    machine: str
    versions: dict[str, str]
    threads: int
    rate: float
    callers: int
    seconds: float
    preset: str
    results: tuple[ServiceResult, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, with latencies sorted, on few lines, and derived values."""
        data = asdict(self)
        for result, entry in zip(self.results, data["results"], strict=True):
            entry["limit_ms"] = result.limit_ms
            entry["p50_ms"], entry["p90_ms"], entry["p99_ms"] = (
                result.percentile_ms(percent) for percent in (50, 90, 99)
            )
            entry["latencies_ms"] = " ".join(f"{ms:g}" for ms in sorted(result.latencies_ms))
        return data

    def write_json(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.as_dict(), indent=1) + "\n")

    @staticmethod
    def of_dict(data: dict[str, Any]) -> ServiceRecord:
        """Read the result of `as_dict`."""
        known = {item.name for item in fields(ServiceResult)}
        results: list[ServiceResult] = []
        for entry in data["results"]:
            kept: dict[str, Any] = {name: entry[name] for name in known}
            kept["latencies_ms"] = tuple(map(float, entry["latencies_ms"].split()))
            results.append(ServiceResult(**kept))
        whole: dict[str, Any] = {**data, "results": tuple(results)}
        return ServiceRecord(**whole)


def percentile_ms(seconds: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` % of the values do not exceed, in milliseconds."""
    if not seconds:
        return math.nan
    return 1e3 * sorted(seconds)[max(1, math.ceil(len(seconds) * percent / 100)) - 1]


def table(record: ServiceRecord) -> Table:
    """A row per system."""
    title = (
        f"{record.rate:g} requests/s from {record.callers} threads for {record.seconds:g} s, "
        f"threads {record.threads}; times in ms"
    )
    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    made.add_column("system, model", no_wrap=True)
    columns = ("sent", "lost", "failed", "wrong", "reordered", "batch", "batch ms", "batch p99")
    for name in (*columns, "p50", "p90", "p99", "longest", "limit", "late p99"):
        made.add_column(name, justify="right", no_wrap=True)
    for result in record.results:
        times = (*(result.percentile_ms(p) for p in (50, 90, 99, 100)), result.limit_ms)
        counts = (result.sent, result.lost, result.failed, result.wrong, result.reordered)
        batch = (result.mean_batch, result.batch_ms, result.batch_p99_ms)
        made.add_row(
            f"{result.system}, {result.model}",
            *map(str, counts),
            *(f"{value:.2f}" for value in (*batch, *times, result.late_p99_ms)),
        )
    return made


def draw(record: ServiceRecord, path: Path) -> None:
    """A histogram of the latencies of each system, with its percentiles and its limit."""
    figure = Figure(figsize=(7.2, 1.0 + 2.3 * len(record.results)))
    panels = figure.subplots(len(record.results), squeeze=False, sharex=True)[:, 0]
    shortest = min(min(result.latencies_ms) for result in record.results)
    longest = max(max(max(r.latencies_ms), r.limit_ms) for r in record.results)
    steps = 90
    edges = [
        0.9 * shortest * (1.2 * longest / (0.9 * shortest)) ** (i / steps) for i in range(steps + 1)
    ]
    for axes, result in zip(panels, record.results, strict=True):
        axes.hist(result.latencies_ms, bins=edges, color=_COLORS.get(result.system))
        for percent, style in ((50, ":"), (90, "--"), (99, "-")):
            value = result.percentile_ms(percent)
            label = f"p{percent} {value:.1f} ms"
            axes.axvline(value, color="#222222", linestyle=style, linewidth=1.0, label=label)
        limit = f"max_wait_ms + 2 batches: {result.limit_ms:.1f} ms"
        axes.axvline(result.limit_ms, color="#c0392b", linewidth=1.4, label=limit)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("{x:g}")
        axes.tick_params(axis="x", which="minor", labelsize=7)
        axes.set_ylabel("requests")
        sizes = f"{result.sent} requests, {result.mean_batch:.1f} per batch"
        axes.set_title(f"{result.system}, {result.model}: {sizes}", fontsize=9, loc="left")
        axes.legend(fontsize=7, frameon=False)
    panels[-1].set_xlabel("latency, ms")
    figure.text(0.01, 0.005, record.machine, fontsize=5, color="#666666")
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
