"""What one try of a capture leaves to the next."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.frontends.python.interpreter.execution import PythonInterpreter


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each function is traced."""
    found = Counter[str]()
    run = PythonInterpreter.run

    def counted(self: PythonInterpreter, function: Any, *given: Any) -> Any:
        found[function.__name__] += 1
        return run(self, function, *given)

    monkeypatch.setattr(PythonInterpreter, "run", counted)
    return found


def same(f: Callable[..., Any], make: Callable[[], tuple[Any, ...]]) -> None:
    fast = stretto.compile(f, backend="interpreter")
    for _ in range(2):
        wanted, found = f(*make()), fast(*make())
        torch.testing.assert_close(found, wanted)


def halved(x: Tensor) -> Tensor:
    if x.sum() > 1:
        return halved(x / 2)
    return x


def odd(x: Tensor) -> Tensor:
    return even(x - 1) if x.sum() > 0 else x


def even(x: Tensor) -> Tensor:
    return odd(x * 0.5) if x.sum() > 0 else x + 1


def prepared(x: Tensor) -> Tensor:
    return x + 1


def test_functions_that_name_themselves_are_outlined_in_the_first_try(
    calls: Counter[str],
) -> None:
    same(lambda x: halved(prepared(x)), lambda: (torch.full((3,), 4.0),))
    assert calls["prepared"] == 1


def test_functions_that_call_each_other_take_a_second_try(calls: Counter[str]) -> None:
    same(lambda x: odd(prepared(x)), lambda: (torch.full((3,), 4.0),))
    assert calls["prepared"] == 2


def test_more_such_functions_than_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: Counter[str]
) -> None:
    pair = """
def one_{n}(x):
    return two_{n}(x / 2) if x.sum() > 1 else x

def two_{n}(x):
    return one_{n}(x)
"""
    source = "".join(pair.format(n=n) for n in range(12))
    (tmp_path / "many_pairs.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    pairs = importlib.import_module("many_pairs")
    chain = [getattr(pairs, f"one_{n}") for n in range(12)]

    def every(x: Tensor) -> Tensor:
        for f in chain:
            x = f(x * 4)
        return x

    same(every, lambda: (torch.full((3,), 4.0),))
    assert calls["one_0"] > 12


class State:
    def __init__(self) -> None:
        self.seen: Any = 0


def finished(x: Tensor) -> Tensor:
    return x * 2


def counting(state: State, x: Tensor) -> Tensor:
    while x.sum() > 1:
        x = x / 2
        state.seen = state.seen + 1
    return finished(x) + state.seen


def test_a_loop_that_changes_an_object_takes_one_try(calls: Counter[str]) -> None:
    state = State()

    def f(x: Tensor) -> Tensor:
        state.seen = 0
        return counting(state, prepared(x))

    same(f, lambda: (torch.full((3,), 4.0),))
    assert calls["prepared"] == calls["finished"] == 1


def test_many_loops_that_change_objects() -> None:
    """The tries that end early are few, however many loops there are."""
    states = [State() for _ in range(14)]

    def f(x: Tensor) -> Tensor:
        for state in states:
            state.seen = 0
            x = counting(state, x + 1)
        return x

    same(f, lambda: (torch.full((3,), 4.0),))
