"""Variables bound by `:=` in parts of expressions that the program may not come to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import stretto
from tests.frontends.python.checks import check

ONES = torch.ones(3)


def number(value: float) -> Tensor:
    return torch.tensor(value)


CASES = tuple((number(a), x) for a in (2.0, 0.25, -1.0) for x in (ONES, -ONES, ONES * 9))


def doubled(x: Tensor) -> Tensor:
    return x.sum() * 2


def in_and(a: Tensor, x: Tensor) -> Tensor:
    if a > 0 and (b := doubled(x)) > 1:
        return b + 1
    return x.sum()


def in_or(a: Tensor, x: Tensor) -> Tensor:
    if a > 0 or (b := doubled(x)) > 1:
        return x.sum()
    return b


def in_the_test_of_a_loop(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    n = x.min()
    while a > 0 and (b := x.sum()) < 50:
        x = x * 2 + 1
        a = a - 1
        n = n + b
    return x, n


def before_and_behind(a: Tensor, x: Tensor) -> Tensor:
    b = x.sum() - 7
    if a > 0 and (b := doubled(x)) > 1:
        x = x + 1
    return x + b


def in_a_conditional_expression(a: Tensor, x: Tensor) -> Tensor:
    y = x - 1 if (d := x.min()) > a else (x := x + d)
    return (b if (a > 0 and (b := doubled(x)) > 1) else x.sum()) + y


def in_a_chain(a: Tensor, x: Tensor) -> Tensor:
    if 0 < (b := x.sum()) < (c := a * 5):
        return b + c
    return b


def nested(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    while (a > 0 and ((_b := doubled(x)) > 1 or (_c := x.max()) > 0)) or (a := a + 3) < 5:
        x = x - 1 if (d := x.min()) > -2 else (x := x + d)
        a = a - 1
    return a, x


def in_a_nested_function(a: Tensor, x: Tensor) -> Tensor:
    total = x * 0

    def inner(y: Tensor) -> Tensor:
        nonlocal total
        if a > 0 and (z := doubled(y)) > 1:
            total = total + z
        return y if a < 0 or (total := total + 1).sum() > 9 else -y

    return inner(x) + inner(x * 2) + total


def of_python_values(a: Tensor, x: Tensor) -> Tensor:
    found = [k for i in range(4) if i > 0 and (k := i * 2) > 3]
    return a * x * sum(found) + k


FUNCTIONS = (
    in_and, in_or, in_the_test_of_a_loop, before_and_behind, in_a_conditional_expression,
    in_a_chain, nested, in_a_nested_function, of_python_values,
)  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_as_in_eager(function: Callable[..., object]) -> None:
    check(function, *CASES)


def test_a_variable_that_was_not_bound() -> None:
    def function(a: Tensor, x: Tensor) -> Tensor:
        y = a > 0 and (b := doubled(x)) > 1
        return b + y

    run = stretto.compile(function)
    assert torch.equal(run(number(1.0), ONES), function(number(1.0), ONES))
    with pytest.raises(UnboundLocalError, match="'b'"):
        run(number(-1.0), ONES)


def in_a_lambda(a: Tensor, x: Tensor) -> Tensor:
    test = lambda v: v > 0 and (_w := v * 2) > 1  # noqa: E731
    return x if test(a) else -x


def in_a_comprehension(a: Tensor, x: Tensor) -> list[Tensor]:
    return [v if (v > a and (_w := v * 2) > 1) else -v for v in x]


@pytest.mark.parametrize("function", [in_a_lambda, in_a_comprehension])
def test_in_parts_that_are_functions(function: Callable[..., object]) -> None:
    check(function, *CASES)
