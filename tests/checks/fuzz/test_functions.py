"""Random functions on the backends, and the writer and comparison behind them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from checks.fuzz.choices import drawn
from checks.fuzz.compare import differences, within
from checks.fuzz.observe import observe
from checks.fuzz.outcome import FAILURES, Outcome
from checks.fuzz.programs import random_programs, reduced_source, run_again
from checks.fuzz.reference import Noise, Wide, run_in
from checks.fuzz.source import Source, load
from checks.fuzz.trial import Made, Program, try_program
from checks.fuzz.writer import FunctionsWriter, smallest, write

SEEDS = range(26)


@pytest.mark.whole
@pytest.mark.parametrize("seed", SEEDS)
def test_random_functions(seed: int) -> None:
    """The same as `python -m checks.fuzz --part functions`, which tries many more."""
    job = random_programs("functions", seed, 1, ("interpreter", "emulator"), 60.0)
    outcome = job.run(seed, lambda _: None)
    assert outcome.verdict not in FAILURES, f"{outcome}\n{outcome.detail}\n{outcome.source}"


def test_the_seed_says_it_all() -> None:
    assert write("functions", 5) == write("functions", 5) != write("functions", 6)


def test_sources_run(tmp_path: Path) -> None:
    module = load(write("functions", 7), tmp_path)
    assert all(isinstance(args, tuple) for args in module.calls())


HEAD = "import torch\n\n\ndef calls():\n    yield (torch.tensor([1.0, 2.0, 3.0]),)\n"


def verdict(body: str, **changes: object) -> tuple[str, str]:
    source = Source("case", HEAD + body, machines=("interpreter",))
    found = try_program(source.program())
    return found.verdict, found.reason


def test_verdicts() -> None:
    assert verdict("def f(x):\n    return x + 1\n")[0] == "equal"
    assert verdict("def f(x):\n    return x.split(int(x[0]))\n")[0] == "refused"
    endless = "def f(x):\n    while x.sum() == x.sum():\n        x = x + 1\n    return x\n"
    assert verdict(endless) == ("skipped", "eager does not end")


@pytest.mark.parametrize("shape", [(0,), (3, 33, 33), (1,)])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_special_values_of_any_size(shape: tuple[int, ...], dtype: str) -> None:
    text = drawn(lambda draw: FunctionsWriter(draw).tensor_of(shape, dtype, special=True), 0)
    tensor = eval(text, {"torch": torch, "inf": torch.inf, "nan": torch.nan})
    assert tensor.shape == shape and str(tensor.dtype) == f"torch.{dtype}"


def test_an_error_that_rounding_decides() -> None:
    """Whether a product that overflows is NaN, eager's own order and rounding decide."""
    head = "import torch\n\n\ndef calls():\n    yield (torch.tensor([[-3.5, 3e38]]),)\n"
    body = "def f(x):\n    return int((x @ torch.full((2, 1), 3e38)).sum().clamp(-9, 9))\n"
    found = try_program(Source("case", head + body, machines=("emulator",)).program())
    assert found.verdict in ("equal", "skipped")
    found = try_program(Program("case", Raising().make, machines=("interpreter",)))
    assert (found.verdict, found.reason) == ("wrong", "needless RunError")


def test_what_eager_raises_must_be_raised() -> None:
    assert verdict("def f(x):\n    raise ValueError\n") == ("equal", "raises")


def test_a_machine_without_enough_memory_decides_nothing() -> None:
    """Eager makes a tensor that nobody uses, and the compiled function does not."""
    body = "def f(x):\n    y = torch.zeros(1 << 46)\n    return x + 1\n"
    assert verdict(body) == ("skipped", "there is not enough memory")


class Unlike:
    """Computes one thing in eager and another one compiled."""

    def __init__(self) -> None:
        self.made = 0

    def make(self, _: Path) -> Made:
        self.made += 1
        scale = 2.0 if self.made == 2 else 1.0
        return Made(lambda x: x * scale, [((torch.ones(3),), {})])


class Raising(Unlike):
    """Raises compiled alone."""

    def make(self, _: Path) -> Made:
        self.made += 1
        value = torch.tensor(torch.nan if self.made == 2 else 1.0)
        return Made(lambda x: int((x * value).sum()), [((torch.ones(3),), {})])


def test_a_wrong_result_is_found() -> None:
    found = try_program(Program("case", Unlike().make, machines=("interpreter",)))
    assert found.verdict == "wrong"
    assert found.reason == "numbers of the result, first call"
    assert "3 of 3 differ, 2.0 instead of 1.0 at [0]" in found.detail


@pytest.mark.parametrize(
    ("found", "wanted", "what"),
    [
        (torch.ones(2), torch.ones(3), "shape [2] instead of [3]"),
        (torch.ones(2), torch.ones(2).double(), "torch.float32 instead of torch.float64"),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]), "1 of 2 differ, 2.0 instead of 2.5"),
        (torch.tensor([float("nan")]), torch.tensor([1.0]), "1 of 1 differ, nan"),
        ([1, 2], [1], "length 2 instead of 1"),
        ({"a": 1}, {"b": 1}, "instead of dict of"),
        (1, True, "int instead of bool"),
        (1.0, 1.1, "1.0 instead of 1.1"),
    ],
)
def test_differences(found: object, wanted: object, what: str) -> None:
    (difference,) = differences(observe(found), observe(wanted))
    assert what in difference.what


@pytest.mark.parametrize(
    "value", [torch.tensor([float("inf"), float("nan"), -0.0]), [1, (2.0, None)], {"a": {1, 2}}]
)
def test_no_difference(value: object) -> None:
    assert list(differences(observe(value), observe(value))) == []


def cancelling() -> torch.Tensor:
    x = torch.tensor([0.1, 0.2, 0.3])
    return (x * 3 - x - x - x).sign() + torch.ones(1)


def test_noise_opens_what_rounding_decides_and_nothing_else() -> None:
    runs = [run_in(Noise(seed), cancelling) for seed in range(8)]
    assert any(not torch.equal(run, runs[0]) for run in runs)
    same = [run_in(Noise(seed), lambda: torch.arange(4.0) * 2 + 1) for seed in range(4)]
    assert all(torch.equal(run, same[0]) for run in same)
    assert within(same[0], same) and not within(same[0] + 1, same)


@pytest.mark.parametrize(
    "product",
    [
        lambda x, y: x @ y,
        lambda x, y: x[None] @ y[:, None],
        lambda x, y: torch.conv1d(x[None, None], y[None, None]),
        lambda x, y: torch.nn.functional.linear(x, y[None]),
    ],
)
def test_the_order_decides_of_products_that_overflow(
    product: Callable[[Tensor, Tensor], Tensor],
) -> None:
    x, y = torch.tensor([-torch.inf, -3e38, -3e38]), torch.tensor([0.2, 1.3, -3.6])
    runs = [run_in(Noise(seed), lambda: product(x, y)) for seed in range(24)]
    assert {str(run.item()) for run in runs} >= {"nan", "-inf"}
    x = torch.tensor([-torch.inf, 3.0, -3.0])
    runs = [run_in(Noise(seed), lambda: product(x, y)) for seed in range(24)]
    assert {run.item() for run in runs} == {-torch.inf}


@pytest.mark.parametrize("total", [torch.sum, torch.mean])
def test_the_order_decides_of_sums_that_overflow(total: Callable[[Tensor], Tensor]) -> None:
    x = torch.tensor([3e38, -3e38, 3e38, 3e38, -3e38, -3e38, -1e38])
    assert not torch.cumsum(x, 0).isfinite().all()
    runs = [run_in(Noise(seed), lambda: total(x.repeat(40))) for seed in range(24)]
    assert len({str(run.item()) for run in runs}) > 1
    runs = [run_in(Noise(seed), lambda: total(torch.tensor([3.0, torch.inf]))) for seed in range(9)]
    assert {run.item() for run in runs} == {torch.inf}


def test_wide() -> None:
    def run() -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 2)
        x = torch.tensor([1.0, 2.0, 3.0])
        return layer(x), x.half() / 3, layer.weight.detach(), x.sum(dtype=torch.float32)

    wide, narrow = run_in(Wide(), run), run()
    assert all(tensor.dtype is torch.float64 for tensor in wide)
    for one, other in zip(wide, narrow, strict=True):
        torch.testing.assert_close(one, other.double(), rtol=1e-3, atol=1e-6)
    assert torch.equal(wide[2], narrow[2].double())
    assert float(wide[1][0]) == 1 / 3


def test_made_smaller_while_it_fails() -> None:
    """A loop with a branch in it is looked for."""

    def fails(text: str) -> bool:
        body = text.partition("def f(")[2] or text.partition("def forward(")[2]
        return re.search(r"for .*:\n( +).*\n?(\1.*\n)*?\1if ", body) is not None

    seed = next(seed for seed in range(100) if fails(write("functions", seed)))
    text = smallest("functions", seed, fails, 20.0)
    assert fails(text) and len(text) < len(write("functions", seed)), text


def test_a_printed_source_can_be_run_again(tmp_path: Path) -> None:
    outcome = Outcome("seed 3", "equal", "interpreter")
    text = reduced_source("functions", outcome, 60.0, 5.0)
    path = tmp_path / "case.py"
    path.write_text(text)
    assert "__main__" in text
    assert run_again(str(path), "functions", 3, "interpreter").startswith("equal")
