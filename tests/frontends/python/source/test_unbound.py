"""Variables that have a value only if a loop ran, or an arm was taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.errors import RunError
from stretto.ir.ops import CheckOp
from tests.frontends.python.checks import check, count, run_captured

A = torch.tensor([1.0, 2.0, 3.0])


def bound_in_a_while_loop(x: Tensor) -> Tensor:
    while x.sum() < 50:
        x = x * 2
        y = x + 1
    return y


def list_bound_in_a_while_loop(x: Tensor) -> Tensor:
    while x.sum() < 100:
        x = x * x
        y = [x, x + 1]
    return y[0]


def bound_in_a_for_loop(x: Tensor) -> tuple[Tensor, int, tuple[Tensor, Tensor]]:
    for i in range(int(x.sum().clamp(0, 5))):
        y, k, pair = x * i, i, (x, x + i)
    return y, k, pair


def bound_in_one_arm(x: Tensor) -> Tensor:
    if x.sum() > 0 and x.sum() < 50:
        y = x * 2
    y += 1
    return y


def bound_in_an_arm_that_breaks(x: Tensor) -> tuple[Tensor, int]:
    for i in range(5):
        if 0 < x[i % 3] < 50:
            found, where = x * i, i
            break
    return found, where


def bound_in_a_loop_in_a_loop(x: Tensor) -> Tensor:
    out = []
    while x.sum() < 50:
        x = x + 1
        while x[0] < 4:
            x = x + 1
            last = x * 2
        out.append(last)
    return last + len(out)


def bound_conditionally_in_a_loop(x: Tensor) -> Tensor:
    for i in range(5):
        if 0 < x.sum() < 50:
            y = x * i
    y.add_(1)
    return y


def read_by_a_nested_function(x: Tensor) -> Tensor:
    def read() -> Tensor:
        return y + 1

    if 0 < x.sum() < 50:
        y = x
    return read()


def read_before_it_is_bound(x: Tensor) -> Tensor:
    for i in range(5):
        if i > 0 or x.sum() > 50:
            x = x + y  # noqa: F821
        y = x * i  # noqa: F841
    return x


@pytest.mark.parametrize(
    "fn",
    [
        bound_in_a_while_loop,
        list_bound_in_a_while_loop,
        bound_in_a_for_loop,
        bound_in_one_arm,
        bound_in_an_arm_that_breaks,
        bound_in_a_loop_in_a_loop,
        bound_conditionally_in_a_loop,
        read_by_a_nested_function,
        read_before_it_is_bound,
    ],
)
def test_variables_that_may_have_no_value(fn: Callable[[Tensor], Any]) -> None:
    good, missing = torch.tensor([1.0, 2.0, 0.5]), torch.tensor([-100.0, 500.0, 70.0])
    captured = check(fn, (good,))
    if fn is bound_in_a_for_loop:
        missing = -missing
    with pytest.raises(NameError, match="associated with a value"):
        fn(missing.clone())
    with pytest.raises(UnboundLocalError, match="cannot access local variable '") as caught:
        run_captured(captured, (missing,), {})
    assert isinstance(caught.value, RunError)


def test_a_variable_that_every_path_binds_is_not_checked() -> None:
    def f(x: Tensor) -> Tensor:
        for i in range(5):
            y = x * i
        if x.sum() > 0:
            z = y
        else:
            z = -y
        return z + y

    assert count(check(f, (A,), (-A,)), CheckOp) == 0


def test_a_variable_that_is_read_before_it_is_bound() -> None:
    def f(x: Tensor) -> Tensor:
        for _ in range(3):
            x = x + later  # noqa: F821
        later = x
        return later

    for backend in ("interpreter", "emulator"):
        with pytest.raises(UnboundLocalError, match="later"):
            stretto.compile(f, backend=backend)(torch.ones(2))
