"""All streams on all systems, in turns, and their results as a table and as JSON."""

from __future__ import annotations

import datetime
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..harness import TOLERANCE
from ..machine import git_commit, machine_line, versions
from ..record import OWN_SYSTEM
from .worker import StreamResult

LIMIT_S = 1200.0


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """Every run of every stream, with the machine and versions of the measurement."""

    date: str
    commit: str | None
    machine: str
    versions: dict[str, str]
    threads: int
    runs: tuple[StreamResult, ...]

    def of(self, stream: str, system: str) -> list[StreamResult]:
        return [run for run in self.runs if (run.stream, run.system) == (stream, system)]

    def write_json(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def run(
    streams: Sequence[str],
    systems: Sequence[str],
    *,
    calls: int = 500,
    rounds: int = 3,
    threads: int = 2,
    small: bool = False,
    observe: Callable[[str, float], None] = lambda text, done: None,
) -> StreamRecord:
    """Run each stream on each system in a separate process, `rounds` times in turns."""
    runs = list[StreamResult]()
    turns = [(s, system) for s in streams for _ in range(rounds) for system in systems]
    for number, (stream, system) in enumerate(turns):
        observe(f"{stream}: {system}", number / len(turns))
        runs.append(_in_process(stream, system, calls, threads, small))
    return StreamRecord(
        datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        git_commit(),
        machine_line(threads),
        versions(),
        threads,
        tuple(runs),
    )


def _in_process(stream: str, system: str, calls: int, threads: int, small: bool) -> StreamResult:
    module = f"{__package__}.worker"
    size = "small" if small else "full"
    command = [sys.executable, "-m", module, stream, system, str(calls), str(threads), size]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return StreamResult(stream, system, calls, reason=f"no result after {LIMIT_S:.0f} s")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return StreamResult(stream, system, calls, reason=f"ended with {done.returncode}: {last}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    result = StreamResult(**{**found, "memory": tuple(found["memory"])})
    if not result.reason and result.error > TOLERANCE:
        return StreamResult(stream, system, calls, reason=f"wrong by {result.error:.1e}")
    return result


def table(record: StreamRecord) -> Table:
    """Per stream a row per system; times are medians of the rounds."""
    made = Table(title=f"threads {record.threads}", title_justify="left", box=SIMPLE_HEAD)
    made.add_column("stream, system", no_wrap=True)
    columns = ("total s", "calls s", "ms a call", "slowest s", "compiled", "grown MB", "ratios")
    for name in columns:
        made.add_column(name, justify="right", no_wrap=True)
    for stream in dict.fromkeys(run.stream for run in record.runs):
        made.add_row(f"[bold]{stream}[/bold]")
        for system in dict.fromkeys(run.system for run in record.runs):
            made.add_row(f"  {system}", *_cells(record, stream, system))
        made.add_section()
    return made


def _cells(record: StreamRecord, stream: str, system: str) -> list[str]:
    runs = [run for run in record.of(stream, system) if not run.reason]
    if not runs:
        found = record.of(stream, system)
        return [found[0].reason[:60]] if found else []
    middle = statistics.median
    steady = middle(run.steady_s for run in runs)
    own = record.of(stream, OWN_SYSTEM)
    pairs = zip(runs, own, strict=False)
    ratios = [f"{run.steady_s / mine.steady_s:.2f}" for run, mine in pairs if mine.steady_s]
    return [
        f"{middle(run.total_s for run in runs):.2f}",
        f"{steady:.2f}",
        f"{1e3 * steady / runs[0].calls:.2f}",
        f"{middle(run.slowest_s for run in runs):.2f}",
        str(runs[0].compilations),
        f"{middle(run.memory[2] - run.memory[0] for run in runs) / 1e6:.0f}",
        " ".join(ratios),
    ]


def publish(record: StreamRecord, console: Console, path: Path | None) -> None:
    """Print the table; its last column is the time of the calls over stretto's, per round."""
    if not console.is_terminal:
        console.width = max(console.width, 120)
    console.print(table(record))
    console.print(record.machine, style="dim", highlight=False, markup=False)
    if path is not None:
        record.write_json(path)
        console.print(f"wrote {path}", highlight=False, markup=False)
