"""A compile that a bug ends: the error names the stage, and `fallback=True` gives the results."""

from __future__ import annotations

import functools
import operator
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.errors import (
    BuildError,
    CodegenError,
    InternalError,
    PassError,
    ScheduleError,
    StrettoError,
    StrettoWarning,
    VerifyError,
)
from stretto.machines import stages
from stretto.passes.distribute import Distribute
from stretto.passes.hoist import HoistInvariants

X = torch.linspace(-1, 1, 12).reshape(3, 4)
fails: Any = operator.itemgetter("nothing")
"""A stage that raises TypeError, whatever it is called with."""


def halved(x: Tensor) -> Tensor:
    y = x + 1
    while y.abs().max() > 0.5:
        y = y * 0.5
    return y


def breaks_pass(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Distribute, "apply", fails)


def breaks_program(patch: pytest.MonkeyPatch) -> None:
    def apply(self: Any, program: Any) -> bool:
        program.main.body.yields = (*program.main.body.yields, *program.main.body.yields[:1])
        program.main.body.ops.clear()
        return True

    patch.setattr(HoistInvariants, "apply", apply)


def breaks_lowering(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stages, "lower", functools.partial(fails, 0))


def raises(error: StrettoError) -> Any:
    def breaks(patch: pytest.MonkeyPatch) -> None:
        def schedule(*_: Any) -> Any:
            raise error

        patch.setattr(stages, "schedule_with_report", schedule)

    return breaks


CASES: dict[str, tuple[Any, type[StrettoError], str]] = {
    "pass": (breaks_pass, InternalError, r"TypeError.*\n.*stage: passes, `distribute`"),
    "program": (breaks_program, PassError, r"invalid Program(.|\n)*stage: passes, `hoist`"),
    "lowering": (breaks_lowering, InternalError, r"TypeError(.|\n)*stage: lower"),
    "codegen": (raises(CodegenError("no")), CodegenError, "stage: schedule"),
    "schedule": (raises(ScheduleError("no")), ScheduleError, "stage: schedule"),
    "verify": (raises(VerifyError("no")), VerifyError, "stage: schedule"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_error_names_the_stage_and_what_to_report(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks, kind, text = CASES[name]
    breaks(monkeypatch)
    with pytest.raises(kind, match=text) as found:
        stretto.compile(halved, backend="emulator", dynamic=False)(X)
    assert "please report" in str(found.value)
    assert "dump_dir" in str(found.value)


@pytest.mark.parametrize("name", CASES)
def test_with_fallback_the_results_are_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    CASES[name][0](monkeypatch)
    fast = stretto.compile(halved, backend="emulator", fallback=True)
    with pytest.warns(StrettoWarning, match="please report"):
        assert torch.equal(fast(X), halved(X))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in (X * 3, X, X[:2]):
            assert torch.equal(fast(x), halved(x))
    assert "in Python: 4 calls" in fast.explain()


def test_a_missing_compiler_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    raises(BuildError("no compiler"))(monkeypatch)
    fast = stretto.compile(halved, backend="emulator", fallback=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(fast(X), halved(X))
    assert "no compiler" in fast.explain()


def test_errors_of_a_run_are_raised_in_any_case() -> None:
    def endless(x: Tensor) -> Tensor:
        while x.sum() > -1:
            x = x + 1
        return x

    fast = stretto.compile(
        endless, backend="emulator", fallback=True, options=stretto.Options(timeout=0.2)
    )
    with pytest.raises(stretto.RunError):
        fast(X)


def test_a_handler_of_the_user_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that a signal raises while a stage runs is none of the stage."""

    class Stopped(Exception):
        pass

    def lower(*_: Any) -> Any:
        raise Stopped

    monkeypatch.setattr(stages, "lower", lower)
    with pytest.raises(Stopped):
        stretto.compile(halved, backend="emulator", fallback=True)(X)
