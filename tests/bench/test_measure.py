"""Tests of timing, of the machine's description and of the physical floor."""

import shutil
import threading
import time
from pathlib import Path

import pytest

from benchmarks.floor import FloorError, Rates, best_rates, floor_seconds, measure_rates
from benchmarks.machine import cache_sizes, machine_line, versions
from benchmarks.measure import (
    Protocol,
    TimeLimitError,
    Timing,
    interleave,
    summarize,
    time_limit,
)
from benchmarks.models.entry import Phase

RATES = Rates(2, 100.0, 40.0, 20.0, 10.0, l2_bytes=8, l3_bytes=64)


def test_summary_of_runs() -> None:
    timing = summarize([0.001, 0.002, 0.003, 0.004, 0.005])
    assert timing == Timing(3.0, 2.0, 4.0, 1.0, 5)
    assert timing.iqr_ms == 2.0
    assert summarize([0.5]) == Timing(500.0, 500.0, 500.0, 500.0, 1)


def test_short_runs_are_repeated_more_often() -> None:
    assert Protocol().runs_per_round(0.001) * Protocol().rounds == 100
    assert Protocol().runs_per_round(0.1) * Protocol().rounds == 20


def test_systems_take_turns_in_the_same_order() -> None:
    turns: list[str] = []
    protocol = Protocol(rounds=3, runs=6, short_runs=6, warmup_s=0.0)
    calls: list[str] = []
    timings = interleave(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, protocol, turns.append
    )
    assert turns == ["a", "b"] * 4
    assert "".join(calls) == "aabb" + "aaabbb" * 3
    assert [timing.runs for timing in timings.values() if isinstance(timing, Timing)] == [6, 6]


def test_time_limit() -> None:
    with pytest.raises(TimeLimitError, match="no result after 0.05 s"), time_limit(0.05):
        while True:
            time.sleep(0.01)
    with time_limit(0.05):
        pass
    time.sleep(0.06)  # the alarm is off


def test_time_limit_passes_through_handlers_of_exceptions() -> None:
    with pytest.raises(TimeLimitError), time_limit(0.05):
        try:
            time.sleep(1.0)
        except Exception:
            pytest.fail("a compiler's own handler caught the limit")


def test_without_signals_there_is_no_limit() -> None:
    done: list[bool] = []

    def body() -> None:
        with time_limit(0.01):
            time.sleep(0.03)
        done.append(True)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert done == [True]


@pytest.mark.parametrize(
    ("phase", "seconds"),
    [
        (Phase("computing", 1000.0, 40.0, 4.0), 10.0),
        (Phase("from L2", 0.0, 40.0, 8.0), 1.0),
        (Phase("from L3", 0.0, 40.0, 64.0), 2.0),
        (Phase("from memory", 0.0, 40.0, 65.0), 4.0),
    ],
)
def test_floor_of_a_phase(phase: Phase, seconds: float) -> None:
    assert floor_seconds((phase,), RATES) == seconds
    assert floor_seconds((phase, phase), RATES) == 2 * seconds


def test_the_higher_of_two_rates_counts() -> None:
    other = Rates(2, 50.0, 80.0, 10.0, 20.0, l2_bytes=8, l3_bytes=64)
    assert best_rates(RATES, other) == Rates(2, 100.0, 80.0, 20.0, 20.0, 8, 64)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_rates_are_plausible() -> None:
    rates = measure_rates(1)
    assert rates.flops_per_s > 1e9
    assert rates.l2_bytes_per_s > 1e9
    assert rates.memory_bytes_per_s > 1e8


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(FloorError, match="no-such-compiler"):
        measure_rates(1)


def test_cache_sizes_leave_out_instructions(tmp_path: Path) -> None:
    caches = (("Data", "1", "48K"), ("Instruction", "1", "32K"), ("Unified", "2", "1M"))
    for index, (kind, level, size) in enumerate(caches):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in (("type", kind), ("level", level), ("size", size)):
            (folder / name).write_text(text + "\n")
    assert cache_sizes(tmp_path) == {"L1": 48 << 10, "L2": 1 << 20}


def test_machine_line_and_versions() -> None:
    assert "CPUs (2 used)" in machine_line(2)
    assert "\n" not in machine_line(2)
    assert "torch" in versions()
