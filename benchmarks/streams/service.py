"""A service under load: requests from several threads, answered in batches by one stream.

    python -m benchmarks.streams.service [SYSTEM ...] [--model NAME] [--rate 200] [--callers 8]
        [--seconds 30] [--json FILE] [--plot FILE.png]

Each caller sends its requests by a timetable that was drawn before, whether or not earlier ones are
answered; a latency counts from the time in the table, so a caller that comes late counts as well.
Every answer is compared with eager PyTorch's, and the order of the answers with that of the
requests of each caller.

Systems: `stretto` is the batcher of `stretto.batch`, `hand` the model written for a batch by hand,
`eager` the model instance by instance.
"""

from __future__ import annotations

import datetime
import functools
import gc
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from rich.console import Console

import stretto
from stretto.batching.serving import (
    BatchRunner,
    InstanceCall,
    InstanceFailure,
    InstanceResult,
    Outcome,
    Stream,
    StreamOptions,
)

from ..harness import TOLERANCE
from ..machine import git_commit, machine_line, versions
from ..measure import limit_cpus
from ..models.instances import INSTANCE_ZOO, as_it_is, build
from .service_report import ServiceRecord, ServiceResult, draw, percentile_ms, table

INSTANCES = 256
"""Number of different instances, which the requests use in turn."""

System = Literal["stretto", "hand", "eager"]


@dataclass(frozen=True, slots=True)
class Load:
    """The load on a service. rate: requests per second of all callers together, with exponential
    gaps, as from independent users."""

    rate: float = 200.0
    callers: int = 8
    seconds: float = 30.0
    seed: int = 0

    def timetables(self) -> list[list[float]]:
        """Return, per caller, the seconds after the start at which it sends requests."""
        return [self._timetable(caller) for caller in range(self.callers)]

    def _timetable(self, caller: int) -> list[float]:
        source = random.Random(1000 * self.seed + caller)
        times, now = list[float](), 0.0
        while (now := now + source.expovariate(self.rate / self.callers)) < self.seconds:
            times.append(now)
        return times


@dataclass(slots=True)
class Caller:
    """One thread that sends requests, with the outcome of each by its number."""

    stream: Stream
    instances: Sequence[Any]
    timetable: Sequence[float]
    first: int
    futures: list[Future[Any]] = field(default_factory=list[Future[Any]])
    late_s: list[float] = field(default_factory=list[float])
    answered: list[int] = field(default_factory=list[int])
    latency_s: list[float] = field(default_factory=list[float])

    def send(self, start: float) -> None:
        """Send all requests; `start` is the time of `perf_counter` at which the table begins."""
        for number, planned in enumerate(self.timetable):
            pause = start + planned - time.perf_counter()
            if pause > 0:
                time.sleep(pause)
            self.late_s.append(time.perf_counter() - start - planned)
            future = self.stream.submit(self.instances[self.instance(number)])
            future.add_done_callback(functools.partial(self._note, number, start + planned))
            self.futures.append(future)

    def instance(self, number: int) -> int:
        return (self.first + number) % len(self.instances)

    def _note(self, number: int, planned: float, _: Future[Any]) -> None:
        self.latency_s.append(time.perf_counter() - planned)
        self.answered.append(number)


def run_load(
    open_stream: Callable[[], Stream],
    instances: Sequence[Any],
    expected: Sequence[torch.Tensor],
    load: Load,
    system: str,
    model: str,
) -> ServiceResult:
    """Apply the load to a new stream; its batcher may have compiled programs already."""
    with open_stream() as stream:
        callers = [
            Caller(stream, instances, times, first=31 * number)
            for number, times in enumerate(load.timetables())
        ]
        start = time.perf_counter() + 0.1
        threads = [threading.Thread(target=caller.send, args=(start,)) for caller in callers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    metrics = stream.metrics()
    options = stream.options
    answers = [_checked(caller, expected) for caller in callers]
    sent = sum(len(caller.timetable) for caller in callers)
    return ServiceResult(
        system=system,
        model=model,
        max_batch=options.max_batch,
        max_wait_ms=options.max_wait_ms,
        sent=sent,
        lost=sent - metrics.finished - metrics.failed,
        failed=metrics.failed,
        wrong=sum(wrong for wrong, _ in answers),
        error=max(error for _, error in answers),
        reordered=sum(_reordered(caller.answered) for caller in callers),
        batch_sizes={str(size): times for size, times in metrics.batch_sizes.items()},
        batch_ms=1e3 * metrics.batches.percentile(50),
        batch_mean_ms=1e3 * metrics.batches.mean_s,
        batch_p99_ms=1e3 * metrics.batches.percentile(99),
        late_p99_ms=percentile_ms([late for caller in callers for late in caller.late_s], 99),
        latencies_ms=tuple(
            round(1e3 * latency, 3) for caller in callers for latency in caller.latency_s
        ),
    )


def _checked(caller: Caller, expected: Sequence[torch.Tensor]) -> tuple[int, float]:
    """Return the number of wrong answers, and the largest difference of an answer, relative to the
    largest expected value."""
    wrong, largest = 0, 0.0
    for number, future in enumerate(caller.futures):
        if future.exception() is not None:
            continue
        right = expected[caller.instance(number)]
        difference = (future.result() - right).abs().max() / right.abs().max()
        wrong += not difference <= TOLERANCE
        largest = max(largest, float(difference))
    return wrong, largest


def _reordered(answered: Sequence[int]) -> int:
    """Count the answers that came before that of an earlier request."""
    latest, count = -1, 0
    for number in answered:
        count += number < latest
        latest = max(latest, number)
    return count


# ---- systems -----------------------------------------------------------------------------------


def opener(
    system: System, model: torch.nn.Module, name: str, options: StreamOptions, threads: int
) -> Callable[[], Stream]:
    """Return a function that opens a stream of the system."""
    match system:
        case "stretto":
            many = stretto.batch(model, options=stretto.Options(threads=threads))
            return lambda: Stream(many.run_calls, options)
        case "hand":
            batched = INSTANCE_ZOO[name].batched
            if batched is None:
                raise typer.BadParameter(f"{name} is not written by hand")
            return lambda: Stream(_of_many(batched(model, as_it_is)), options)
        case "eager":
            return lambda: Stream(_of_one(model), options)


def _of_many(function: Callable[[Sequence[Any]], Sequence[Any]]) -> BatchRunner:
    def run(calls: Sequence[InstanceCall]) -> list[Outcome]:
        return [InstanceResult(value) for value in function([call.args[0] for call in calls])]

    return run


def _of_one(function: Callable[[Any], Any]) -> BatchRunner:
    def run(calls: Sequence[InstanceCall]) -> list[Outcome]:
        return [_outcome(function, call) for call in calls]

    return run


def _outcome(function: Callable[[Any], Any], call: InstanceCall) -> Outcome:
    try:
        return InstanceResult(function(call.args[0]))
    except Exception as error:
        return InstanceFailure(error)


# ---- the command -------------------------------------------------------------------------------


def measure(
    systems: Sequence[System],
    model: str,
    preset: str,
    load: Load,
    options: StreamOptions,
    threads: int,
    **changes: Any,
) -> ServiceRecord:
    """Measure all systems under the same load, one after the other. `changes` replace fields of
    the preset."""
    torch.set_num_threads(threads)
    module, instances = build(model, preset, INSTANCES, **changes)
    with torch.no_grad(), limit_cpus(threads):
        expected = [module(instance) for instance in instances]
        results = list[ServiceResult]()
        for system in systems:
            opened = opener(system, module, model, options, threads)
            with opened() as stream:  # warm up: compile all programs and pack constants
                for size in (1, options.max_batch, 1, 7, options.max_batch):
                    for future in [stream.submit(tree) for tree in instances[:size]]:
                        future.result()
            # Services do this when they are ready: later garbage collections skip the imported
            # objects, which otherwise stop all threads for 0.2 s.
            gc.collect()
            gc.freeze()
            results.append(run_load(opened, instances, expected, load, system, model))
    return ServiceRecord(
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        commit=git_commit(),
        machine=machine_line(threads),
        versions=versions(),
        threads=threads,
        rate=load.rate,
        callers=load.callers,
        seconds=load.seconds,
        preset=preset,
        results=tuple(results),
    )


def main(
    systems: Annotated[list[str] | None, typer.Argument(metavar="SYSTEM")] = None,
    model: str = "treelstm",
    preset: str = "",
    rate: float = 200.0,
    callers: int = 8,
    seconds: float = 30.0,
    max_batch: int = 64,
    max_wait_ms: float = 10.0,
    threads: int = 2,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
    plot: Annotated[Path | None, typer.Option("--plot")] = None,
) -> None:
    known: list[Any] = systems or ["stretto"]
    for name in known:
        if name not in ("stretto", "hand", "eager"):
            raise typer.BadParameter(f"no system {name!r}")
    record = measure(
        known,
        model,
        preset or INSTANCE_ZOO[model].sizes[0],
        Load(rate, callers, seconds),
        StreamOptions(max_batch=max_batch, max_wait_ms=max_wait_ms),
        threads,
    )
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 170)
    console.print(table(record))
    console.print(record.machine, style="dim", highlight=False, markup=False)
    if json_file is not None:
        record.write_json(json_file)
        console.print(f"wrote {json_file}", highlight=False, markup=False)
    if plot is not None:
        draw(record, plot)
        console.print(f"wrote {plot}", highlight=False, markup=False)


if __name__ == "__main__":
    typer.run(main)
