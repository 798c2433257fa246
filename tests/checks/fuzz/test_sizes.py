"""Random functions over sizes, and the writer behind them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from checks.fuzz.choices import Choices, drawn
from checks.fuzz.grammar import SIZES
from checks.fuzz.outcome import FAILURES
from checks.fuzz.programs import random_programs
from checks.fuzz.scope import Misfit, Scope, is_float
from checks.fuzz.source import Source, load
from checks.fuzz.trial import try_program
from checks.fuzz.writer import write
from tests.sampling import sampled


@pytest.mark.parametrize("seed", sampled(range(24), (0, 3, 4, 5, 7, 9)))
def test_random_functions_over_sizes(seed: int) -> None:
    """The same as `python -m checks.fuzz --part sizes`, which tries many more, and native code."""
    job = random_programs("sizes", seed, 1, ("interpreter",), 60.0)
    outcome = job.run(seed, lambda _: None)
    assert outcome.verdict not in FAILURES, f"{outcome}\n{outcome.detail}\n{outcome.source}"


def test_the_seed_says_it_all() -> None:
    assert write("sizes", 5) == write("sizes", 5) != write("sizes", 6)


def test_calls_have_many_sizes(tmp_path: Path) -> None:
    module = load(write("sizes", 3), tmp_path)
    shapes = [[a.shape for a in args if isinstance(a, torch.Tensor)] for args in module.calls()]
    assert len({str(shape) for shape in shapes}) > 5


def test_an_expression_fits_all_sizes() -> None:
    def lengths(draw: Choices) -> str:
        samples = [{"x": torch.ones(n, 4), "n": n} for n in (5, 8, 2)]
        scope = Scope(draw, SIZES, {"torch": torch}, samples)
        with pytest.raises(Misfit):
            scope.evaluate("x[4]")
        assert scope.names(is_float) == ["x"]
        return str([len(value) for value in scope.evaluate("x[1:].reshape(-1)")])

    assert drawn(lengths, 0) == "[16, 28, 4]"


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
