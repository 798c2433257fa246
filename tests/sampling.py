"""Cases of which `make test` runs a sample, the same one each time; `make whole` runs all of them.

A case that is marked `whole` is in no sample: each of some seconds, and each of which `sampled` or
`every` says that others stand for it. Of the other cases of a test one in eight is in the sample,
and of each test and each file at least one.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import product
from typing import Any

import pytest

ONE_IN = 8
"""Of the cases of a test one in so many is in the sample."""


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


def chosen(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """The sample. It hangs on the names of the cases alone."""
    tests = defaultdict[str, list[pytest.Item]](list)
    files = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        files[item.nodeid.partition("::")[0]].append(item)
        if not item.get_closest_marker("whole"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for test, cases in tests.items():
        tests[test] = random.Random(test).sample(cases, -(-len(cases) // ONE_IN))
    found = {item for cases in tests.values() for item in cases}
    return found | {cases[0] for cases in files.values() if found.isdisjoint(cases)}
