"""Cases of which `make test` runs a sample; `make whole` runs all of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import product
from typing import Any

import pytest


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
