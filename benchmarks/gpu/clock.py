"""Times by CUDA events, and per-trip times of loops without their start-up time.

In a dry run the host's clock replaces events: the code runs, its figures mean nothing.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .device import Bench

Call = Callable[[], object]

QUEUE_CYCLES = 4_000_000
"""Cycles that the GPU sleeps at first, about two milliseconds, so that the host gets ahead
of it."""
LONGEST_QUEUE_CYCLES = QUEUE_CYCLES << 8
"""About half a second: a host that needs longer has filled the GPU's queue and waits for it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One system's runs of a turn, in seconds each.

    device: between events around a call, with calls back to back. host: until the call
    returns. latency: from the start of a call on an idle GPU until its results are
    there.
    """

    device: list[float]
    host: list[float]
    latency: list[float]


def spread(seconds: Sequence[float], scale: float = 1.0, unit: str = "s") -> dict[str, Any]:
    """Return median and quartiles as plain data."""
    values = sorted(value * scale for value in seconds)
    low, middle, high = values[0], values[0], values[0]
    if len(values) > 1:
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {
        "median": middle,
        "q1": low,
        "q3": high,
        "least": values[0],
        "samples": len(values),
        "unit": unit,
    }


def rate(seconds: Sequence[float], amount: float, unit: str) -> dict[str, Any]:
    """Return `amount` per second: median and quartiles."""
    return spread([amount / value for value in seconds], unit=unit)


def block_seconds(bench: Bench, call: Call, calls: int) -> float:
    """Return the GPU's seconds for `calls` calls back to back. If the host takes longer to enqueue
    a call than the GPU to run it, this is the host's time."""
    if bench.dry_run:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    _enqueue(call, calls, begin, end)
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def _enqueue(call: Call, calls: int, begin: torch.cuda.Event, end: torch.cuda.Event) -> None:
    begin.record()
    for _ in range(calls):
        call()
    end.record()


def device_seconds(bench: Bench, call: Call, calls: int, samples: int) -> list[float]:
    """Return the seconds per call of queued calls, so that the time is the GPU's alone.

    The GPU sleeps while the host enqueues them. A sample counts only if the GPU still
    slept when the last call was enqueued; else the sleep is made longer. Raises
    RuntimeError if no sleep is long enough.
    """
    block_seconds(bench, call, min(calls, 3))
    if bench.dry_run:
        return [block_seconds(bench, call, calls) / calls for _ in range(samples)]
    cycles, found = QUEUE_CYCLES, list[float]()
    while len(found) < samples:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(cycles)
        _enqueue(call, calls, begin, end)
        asleep = not begin.query()
        end.synchronize()
        if asleep:
            found.append(begin.elapsed_time(end) / 1e3 / calls)
            continue
        cycles *= 2
        if cycles > LONGEST_QUEUE_CYCLES:
            raise RuntimeError(
                f"the host did not get ahead of the GPU by {calls} calls: what was measured is "
                "the host's time"
            )
    return found


def repeat(bench: Bench, call: Call, calls: int, samples: int) -> list[float]:
    """Return the seconds per call, `samples` times, after one block to warm up."""
    block_seconds(bench, call, min(calls, 3))
    return [block_seconds(bench, call, calls) / calls for _ in range(samples)]


def host_seconds(bench: Bench, call: Call, calls: int, samples: int) -> list[float]:
    """Return the seconds until a call returns; the host waits for the GPU between samples."""
    found: list[float] = []
    for _ in range(samples + 1):
        bench.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - start) / calls)
    bench.synchronize()
    return found[1:]


def slopes(
    bench: Bench, run: Callable[[int], object], low: int, high: int, samples: int
) -> list[float]:
    """Return the seconds per trip of `run(trips)`: the difference of two runs, so that the fixed
    time of a run drops out."""
    found: list[float] = []
    run(low)
    bench.synchronize()
    for _ in range(samples):
        short = block_seconds(bench, lambda: run(low), 1)
        long = block_seconds(bench, lambda: run(high), 1)
        found.append((long - short) / (high - low))
    return found


def take_turn(bench: Bench, call: Call, runs: int) -> Turn:
    """Take one turn of a system: `runs` calls in a row, then a few one at a time."""
    call()
    bench.synchronize()
    if bench.dry_run:
        alone = [_latency(bench, call) for _ in range(runs)]
        return Turn(alone, alone, alone)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * runs)]
    host: list[float] = []
    for begin, end in zip(events[::2], events[1::2], strict=True):
        begin.record()
        start = time.perf_counter()
        call()
        host.append(time.perf_counter() - start)
        end.record()
    bench.synchronize()
    pairs = zip(events[::2], events[1::2], strict=True)
    device = [begin.elapsed_time(end) / 1e3 for begin, end in pairs]
    return Turn(device, host, [_latency(bench, call) for _ in range(min(runs, 10))])


def _latency(bench: Bench, call: Call) -> float:
    start = time.perf_counter()
    call()
    bench.synchronize()
    return time.perf_counter() - start
