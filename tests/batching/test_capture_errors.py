"""Exceptions of functions of an instance, captured: their classes, arguments and messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stretto.batching.interpreter import interpret
from tests.batching.agree import outcome
from tests.batching.test_capture import captured


class Coded(Exception):
    def __init__(self, code: int, extra: int = 2) -> None:
        super().__init__(code, extra)
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


class Named(ValueError):
    pass


def of_own_classes(n: int) -> int:
    if n > 2:
        raise Coded(7)
    if n == 2:
        raise Named
    if n == 1:
        raise Named(f"is {n * 0.5}")
    return n


def of_numbers(n: int) -> Any:
    if n > 2:
        raise KeyError(5)
    if n < 0:
        raise ValueError(n)
    if n == 1:
        raise KeyError(n / 4)
    if n == 0:
        raise KeyError(n < 1)
    return {2: 1.5}[n % 3], {1: 2}[n]


def of_all_runs(n: int) -> int:
    raise Named(f"always {n}, {n + 0.5} and {n == 1}")


def of_several_arguments(n: int) -> int:
    if n > 1:
        raise ValueError("")
    raise OSError(2, "none")


@pytest.mark.parametrize(
    "function", [of_own_classes, of_numbers, of_all_runs, of_several_arguments]
)
def test_as_in_python(function: Callable[..., Any]) -> None:
    column = [0, 1, 2, 3, -1]
    program = captured(function, column)
    for n in column:
        wanted = outcome(lambda n=n: function(n))
        found = outcome(lambda n=n: interpret(program, [n]))
        assert type(found) is type(wanted) and str(found) == str(wanted)
        if isinstance(wanted, Exception):
            assert repr(found.args) == repr(wanted.args)
