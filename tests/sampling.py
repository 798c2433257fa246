"""Cases of which `make test` runs a sample; `make whole` runs all of them.

A sample is either the same each time (`sampled`, `every`), or another one for each commit: of the
cases of a test that is marked `pytest.mark.rotating(n)`, one in n runs, and of each other test one
in eight, so that all of them run within some commits. Tests that take long (`long_tests.txt`, which
`tools/long_tests.py` writes) take turns in a run of the whole suite: one in ten of them runs.
`pytest --sample=TEXT` repeats what the header of a run says.
"""

from __future__ import annotations

import random
import subprocess
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

ONE_IN = 8
"""Of the cases of a test one in so many runs, other ones for each commit."""
TURNS = 10
"""Of the tests that take long one in so many runs, where the whole suite does."""
WHOLE_SUITE = 1000
"""So many tests are the suite, and no choice of somebody's."""
LONG_TESTS = Path(__file__).with_name("long_tests.txt")


def sampled(cases: Sequence[Any], sample: Collection[Any]) -> list[Any]:
    """Parameters for `pytest.mark.parametrize`: all cases, of which `make test` runs the `sample`.
    A case that is a tuple gives several parameters."""
    assert all(case in cases for case in sample)
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in sample else pytest.mark.whole,
        )
        for case in cases
    ]


def every(step: int, *cases: Sequence[Any]) -> list[Any]:
    """The same, where every `step`-th case, from the first one on, is the sample; of several
    sequences, every combination is a case.

    With a step that shares no factor with the lengths the sample has each item of each sequence.
    """
    tuples = list(product(*cases)) if len(cases) > 1 else list(cases[0])
    return sampled(tuples, tuples[::step])


def commit() -> str:
    """The commit that is checked out, shortened; nothing where there is none."""
    command = ("git", "rev-parse", "--short", "HEAD")
    try:
        said = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:
        return ""
    return said.stdout.strip()


def chosen(items: Sequence[pytest.Item], sample: str) -> set[pytest.Item]:
    """Those that `make test` runs: none that is marked `whole`, of a test that is marked
    `rotating(n)` one in n of its cases, and of others one in `ONE_IN`; of each test at least one,
    but of the long ones, where these are the whole suite, those alone whose turn it is.
    """
    tests = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if not item.get_closest_marker("whole"):
            tests[item.nodeid.partition("[")[0]].append(item)
    if len(tests) > WHOLE_SUITE:
        for test in long_tests() & tests.keys():
            if random.Random(f"{sample} {test} turn").randrange(TURNS):
                del tests[test]
    return {item for cases in tests.values() for item in _one_in(cases, sample)}


def long_tests() -> set[str]:
    """The tests that take long, without their parameters."""
    return {line.split(maxsplit=1)[1] for line in LONG_TESTS.read_text().splitlines()}


def _one_in(cases: list[pytest.Item], sample: str) -> list[pytest.Item]:
    marker = cases[0].get_closest_marker("rotating")
    count = -(-len(cases) // (marker.args[0] if marker else ONE_IN))
    test = cases[0].nodeid.partition("[")[0]
    return random.Random(f"{sample} {test}").sample(cases, count)
