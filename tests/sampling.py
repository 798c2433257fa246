"""Cases of which `make test` runs a sample, the same one each time; `make whole` runs all of them.

A case marked `whole` is in no sample: cases that take some seconds, and cases that others
represent, as `sampled` or `every` declare. Of the other cases of a test one in eight is in
the sample, and at least one of each test and each file.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import product
from typing import Any

import pytest

ONE_IN = 8
"""One in this many cases of a test is in the sample."""


def sampled(cases: Sequence[Any], sample: Collection[Any]) -> list[Any]:
    """Return parameters for `pytest.mark.parametrize`: all cases, of which `make test` runs the
    `sample`. A case that is a tuple gives several parameters."""
    assert all(case in cases for case in sample)
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in sample else pytest.mark.whole,
        )
        for case in cases
    ]


def every(step: int, *cases: Sequence[Any]) -> list[Any]:
    """As `sampled`, with every `step`-th case, from the first one on, as the sample. With
    several sequences, every combination is a case.

    If the step has no common factor with the lengths, the sample has each item of each
    sequence.
    """
    tuples = list(product(*cases)) if len(cases) > 1 else list(cases[0])
    return sampled(tuples, tuples[::step])


def chosen(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Return the sample. It depends only on the names of the cases."""
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
