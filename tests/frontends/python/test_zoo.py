"""Every model of the zoo is captured; loops, branches and recursion keep their form."""

from __future__ import annotations

import pytest

from benchmarks.models import ZOO, build
from stretto.options import Debug, Options
from tests.frontends.python.checks import check


@pytest.mark.parametrize("name", sorted(ZOO))
def test_small_models_equal_eager(name: str) -> None:
    model, inputs = build(name, "small")
    check(model, inputs, options=Options(debug=Debug(unroll=0)))
