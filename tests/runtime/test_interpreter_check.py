"""`Options(check=True)`."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import stretto
from stretto.call.compiled import Compiled
from stretto.errors import RunError, VerifyError
from stretto.options import Options
from stretto.runtime.interpreter_check import Checker, differences
from stretto.runtime.results import Result


def compiled(function: Callable[..., object], backend: str = "emulator") -> Compiled:
    return stretto.compile(function, backend=backend, options=Options(threads=1, check=True))


class Falsified:
    """An executable whose results are changed."""

    def __init__(self, inner: Callable[[list[Tensor]], list[Result]], change: float) -> None:
        self.inner = inner
        self.change = change

    def __call__(self, inputs: list[Tensor]) -> list[Result]:
        found = self.inner(inputs)
        return [
            [i + self.change for i in r] if isinstance(r, list) else r + self.change for r in found
        ]


def falsify(function: Compiled, change: float = 1.0) -> None:
    (entry,) = function.signatures
    entry.executable = Falsified(entry.executable, change)


def double(x: Tensor) -> Tensor:
    while x.sum() < 9:
        x = x * 2
    return x


@pytest.mark.parametrize("backend", ["emulator", "cpu", "cuda-emulated"])
def test_a_wrong_result_is_an_error(backend: str) -> None:
    options = Options(threads=1, units=1, check=True)
    fast = stretto.compile(double, (torch.ones(3),), backend=backend, options=options)
    falsify(fast)
    with pytest.raises(VerifyError) as caught:
        fast(torch.ones(3))
    assert (
        "the compiled program gives another result than the interpreter: "
        "result 0: 3 of 3 elements, 5.0 instead of 4.0"
    ) in str(caught.value)
    assert 'backend="interpreter"' in str(caught.value)


def test_the_first_call_is_compared_and_no_other() -> None:
    fast = compiled(double)
    assert torch.equal(fast(torch.ones(3)), torch.full((3,), 4.0))
    falsify(fast)
    assert torch.equal(fast(torch.ones(3)), torch.full((3,), 5.0))


def test_a_wrong_result_has_no_effect() -> None:
    fast = stretto.compile(lambda x: x.add_(1), (torch.zeros(3),), options=Options(check=True))
    falsify(fast)
    x = torch.zeros(3)
    with pytest.raises(VerifyError):
        fast(x)
    assert torch.equal(x, torch.zeros(3))


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        x.mul_(2)
        return x + self.seen


@pytest.mark.parametrize("backend", ["emulator", "cpu"])
def test_effects_are_made_once(backend: str) -> None:
    eager = Counter().eval()
    fast = compiled(copy.deepcopy(eager), backend)
    for _ in range(2):
        one, other = torch.ones(3), torch.ones(3)
        assert torch.equal(fast(one), eager(other))
        assert torch.equal(one, other)
    assert torch.equal(fast.seen, eager.seen)


def test_what_stops_the_run_is_raised_as_it_is() -> None:
    def endless(x: Tensor, n: Tensor) -> Tensor:
        return x if n < 0 else endless(x + 1, n + 1)

    options = Options(threads=1, check=True, max_depth=50)
    fast = stretto.compile(endless, backend="cpu", options=options)
    with pytest.raises(RunError, match="recursion is deeper than"):
        fast(torch.ones(3), torch.tensor(1))


def test_an_interpreter_that_stops_is_a_difference() -> None:
    def first(x: Tensor, n: Tensor) -> Tensor:
        items = [x, x + 1]
        for i in range(n):
            items.append(x + i)
        return items[n]

    fast = compiled(first, "interpreter")
    fast(torch.ones(3), torch.tensor(1))
    (entry,) = fast.signatures
    checker = Checker(entry.captured.program, 100)
    checker.check([torch.ones(3), torch.tensor(1)], [torch.full((3,), 2.0)])
    with pytest.raises(VerifyError, match="the compiled program ran, but the interpreter stopped"):
        checker.check([torch.ones(3), torch.tensor(-9)], [torch.ones(3)])


def test_an_ill_conditioned_program_is_not_judged() -> None:
    """Which of the numbers is right depends on rounding: (x * 3) - x - x - x is not zero."""

    def rounding(x: Tensor) -> Tensor:
        return (x * 3 - x - x - x).sign()

    fast = stretto.compile(rounding, (torch.tensor([0.1]),), options=Options(check=True))
    falsify(fast, 0.5)
    fast(torch.tensor([0.1]))


@pytest.mark.parametrize(
    ("found", "wanted", "what"),
    [
        (torch.ones(2), torch.ones(3), "result 0 has shape [2] instead of [3]"),
        (torch.ones(2), torch.ones(2).long(), "has torch.float32 instead of torch.int64"),
        ([torch.ones(2)], [], "result 0 has 1 items instead of 0"),
        ([torch.ones(2)], [torch.zeros(2)], "result 0[0]: 2 of 2 elements, 1.0 instead of 0.0"),
        (torch.tensor([1.0, float("nan")]), torch.ones(2), "1 of 2 elements, nan instead of 1.0"),
        (torch.tensor([True]), torch.tensor([False]), "True instead of False"),
    ],
)
def test_differences(found: Result, wanted: Result, what: str) -> None:
    (difference,) = differences([found], [wanted])
    assert what in difference


def test_the_environment_switches_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRETTO_CHECK", raising=False)
    assert not Options().check
    monkeypatch.setenv("STRETTO_CHECK", "1")
    assert Options().check and not Options(check=False).check


def test_an_exception_of_the_user_that_only_the_interpreter_raises_is_a_difference() -> None:
    def positive(x: Tensor) -> Tensor:
        if x.sum() < 0:
            raise ValueError("negative")
        return x

    fast = compiled(positive, "interpreter")
    fast(torch.ones(3))
    (entry,) = fast.signatures
    checker = Checker(entry.captured.program, 100)
    with pytest.raises(VerifyError, match="interpreter stopped: ValueError: negative"):
        checker.check([-torch.ones(3)], [-torch.ones(3)])
