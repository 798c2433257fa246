"""Timing: bounded preparation, and rounds in which the systems take turns."""

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SHORT_RUN_S = 0.010
SETTLE_S = 0.02


class TimeLimitError(BaseException):
    """Time is up. Not an `Exception`, so that a compiler's own error handling does not catch it."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """Numbers of runs. `short_runs` holds for runs below 10 ms; both are split over `rounds`."""

    rounds: int = 5
    runs: int = 20
    short_runs: int = 100
    warmup_s: float = 0.2
    prepare_limit_s: float = 300.0

    @classmethod
    def quick(cls) -> "Protocol":
        """Return the protocol of a functional check: too few runs to quote a time."""
        return cls(rounds=1, runs=3, short_runs=3, warmup_s=0.0, prepare_limit_s=60.0)

    def runs_per_round(self, one_run_s: float) -> int:
        total = self.short_runs if one_run_s < SHORT_RUN_S else self.runs
        return -(-total // self.rounds)


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one system on one model, in milliseconds."""

    median_ms: float
    q1_ms: float
    q3_ms: float
    minimum_ms: float
    runs: int

    @property
    def iqr_ms(self) -> float:
        return self.q3_ms - self.q1_ms

    def scaled(self, factor: float) -> "Timing":
        """Return the times of `factor` times the work."""
        times = (self.median_ms, self.q1_ms, self.q3_ms, self.minimum_ms)
        return Timing(*(factor * time for time in times), self.runs)


def summarize(seconds: list[float]) -> Timing:
    """Median and quartiles of at least one run."""
    milliseconds = sorted(1e3 * value for value in seconds)
    quartiles = [milliseconds[0]] * 3
    if len(milliseconds) > 1:
        quartiles = statistics.quantiles(milliseconds, n=4, method="inclusive")
    return Timing(quartiles[1], quartiles[0], quartiles[2], milliseconds[0], len(milliseconds))


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeLimitError` in the body after `seconds`.

    Works by an alarm signal, so only in the main thread and between two Python instructions;
    elsewhere the body runs without a limit.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeLimitError(f"no result after {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, ring)
    # The alarm repeats, in case a handler that catches everything swallows the first one.
    signal.setitimer(signal.ITIMER_REAL, seconds, 5.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, previous)


@contextmanager
def limit_cpus(threads: int) -> Iterator[None]:
    """Keep this thread, and all thread pools made from here on, on `threads` processors."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:threads])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def once(call: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def warm_up(call: Callable[[], object], protocol: Protocol) -> float:
    """Run until the warm-up time is over, at least twice; the fastest run's seconds."""
    fastest = once(call)
    end = time.perf_counter() + protocol.warmup_s
    while True:
        fastest = min(fastest, once(call))
        if time.perf_counter() >= end:
            return fastest


def interleave(
    calls: Mapping[str, Callable[[], object]],
    protocol: Protocol,
    on_turn: Callable[[str], None] = lambda name: None,
) -> dict[str, Timing | Exception]:
    """Time all `calls` in rounds: in each one every system has a turn, in the same order.

    A turn starts with a pause, in which the threads of the system before go to sleep, and with
    one run that does not count. A call that raises is dropped; its exception is its result.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    runs: dict[str, int] = {}
    failed: dict[str, Timing | Exception] = {}
    for turn in range(protocol.rounds + 1):
        for name, call in calls.items():
            if name in failed:
                continue
            on_turn(name)
            try:
                if turn == 0:
                    runs[name] = protocol.runs_per_round(warm_up(call, protocol))
                    continue
                time.sleep(SETTLE_S)
                call()
                seconds[name] += [once(call) for _ in range(runs[name])]
            except Exception as error:
                failed[name] = error
    return {name: failed.get(name) or summarize(seconds[name]) for name in calls}
