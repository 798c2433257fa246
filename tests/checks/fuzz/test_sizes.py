"""Random functions over sizes, and the writer behind them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from checks.fuzz.outcome import FAILURES
from checks.fuzz.scope import is_float
from checks.fuzz.sizes import random_sizes, write_sized
from checks.fuzz.source import Source, load
from checks.fuzz.trial import try_program
from checks.fuzz.worlds import Worlds
from tests.sampling import sampled


@pytest.mark.parametrize("seed", sampled(range(24), (0, 3, 4, 5, 7, 9)))
def test_random_functions_over_sizes(seed: int) -> None:
    """The same as `python -m checks.fuzz --part sizes`, which tries many more, and native code."""
    job = random_sizes(seed, 1, ("interpreter",), 60.0)
    outcome = job.run(seed, lambda _: None)
    assert outcome.verdict not in FAILURES, f"{outcome}\n{outcome.detail}\n{outcome.source}"


def test_the_seed_says_it_all() -> None:
    assert write_sized(5) == write_sized(5) != write_sized(6)


def test_calls_have_many_sizes(tmp_path: Path) -> None:
    module = load(write_sized(3), tmp_path)
    shapes = [[a.shape for a in args if isinstance(a, torch.Tensor)] for args in module.calls()]
    assert len({str(shape) for shape in shapes}) > 5


def test_an_expression_fits_all_sizes() -> None:
    samples = [{"x": torch.ones(n, 4), "n": n} for n in (5, 8, 2)]
    worlds = Worlds(random.Random(0), {"torch": torch}, samples)
    assert worlds.evaluate("x[4]") is None
    found = worlds.evaluate("x[1:].reshape(-1)")
    assert found is not None and [len(value) for value in found] == [16, 28, 4]
    assert worlds.names(is_float) == ["x"]


TEXT = """
import torch


def f(x):
    return {result}


def calls():
    for n in (3, 0, 5, 1):
        yield (torch.ones(n, 2),)
"""


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        ("x[1:].sum(0) + x.shape[0]", "equal"),
        ("x[2].sum()", "equal"),  # the second and the last call raise, the third is made
        ("x * (1 if torch.compiler.is_compiling() and x.shape[0] == 1 else 2)", "wrong"),
    ],
)
def test_verdicts(result: str, verdict: str) -> None:
    text = TEXT.replace("{result}", result)
    source = Source("case", text, machines=("interpreter",), dynamic=True, goes_on=True)
    assert try_program(source.program()).verdict == verdict
