"""The benchmark of crowded machines: its processes, and what it makes of their figures."""

import sys

import pytest

from benchmarks import contention
from benchmarks.contention import Situation, busy, measure, run


@pytest.mark.whole
def test_measure_gives_ordered_figures():
    found = measure("rae", 1, 0.02)
    assert found["calls"] >= 1
    assert 0 < found["median"] <= found["p99"]


def test_the_worst_copy_counts_and_neighbours_end(monkeypatch: pytest.MonkeyPatch):
    script = 'print(\'{"calls": 3, "median": 1.5, "p99": 2.5}\')'
    monkeypatch.setattr(contention, "command", lambda *_: [sys.executable, "-c", script])
    row = run(Situation("here", neighbours=1, copies=2), "rae", 2, 0.1, 0)
    assert (row.situation, row.threads, row.calls, row.median, row.p99) == ("here", 2, 3, 1.5, 2.5)
    with busy(1):
        pass
