"""Lists that hold the same tensors, and lists under two names, in loops and recursion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.frontends.python.checks import check, refused

A = torch.tensor([1.0, 2.0, 3.0])
CASES = [(A, torch.tensor(rounds)) for rounds in (3, 0, 1, 2)]


def one_tensor_in_two_lists(t: Tensor, n: Tensor) -> Any:
    a: list[Tensor] = []
    b: list[Tensor] = []
    for _ in range(n):
        t = torch.tanh(t)
        a.append(t)
        b.append(t)
    return a, b


def in_either_of_two(t: Tensor, n: Tensor) -> Any:
    a: list[Tensor] = []
    b: list[Tensor] = []
    for _ in range(n):
        if t.sum() > 4:
            a.append(t)
        else:
            b.append(t)
        t = t - 1
    return a, b


def items_of_one_in_the_other(t: Tensor, n: Tensor) -> Any:
    a: list[Tensor] = [t]
    b: list[Tensor] = []
    for i in range(n):
        for _ in range(i):
            b.append(a[-1])
            a.append(b[-1] * 2)
        a.append(t)
        b.append(a[0])
    return a, b


def one_list_under_two_names(t: Tensor, n: Tensor) -> Any:
    a = [t]
    b = a
    for i in range(n):
        a.append(t)
        b.append(t + i)
    b.append(t)
    return a, b


def a_name_given_in_the_loop(t: Tensor, n: Tensor) -> Any:
    a = [t]
    for i in range(n):
        b = a
        for j in range(i):
            b.append(t * j)
        a.append(t)
    return a


def chosen_before_the_loop(t: Tensor, n: Tensor) -> Any:
    a, b = [t], [t * 2]
    x = a
    if t.sum() > 30:
        x = b
    for i in range(n):
        x.append(t * i)
        a.append(t)
    return a, b


def in_recursion(t: Tensor, n: Tensor) -> Any:
    def visit(t: Tensor, n: Tensor, a: list[Tensor], b: list[Tensor]) -> None:
        if n > 0:
            a.append(t)
            b.append(t)
            a.append(b[0])
            visit(t * 0.5, n - 1, b, a)
            visit(t - 1, n - 1, a, a)

    a, b = [t], [t]
    visit(t, n, a, b)
    return a, b


@pytest.mark.parametrize(
    "function",
    [
        one_tensor_in_two_lists,
        in_either_of_two,
        items_of_one_in_the_other,
        one_list_under_two_names,
        a_name_given_in_the_loop,
        chosen_before_the_loop,
        in_recursion,
    ],
)
def test_as_in_eager(function: Callable[..., Any]) -> None:
    check(function, *CASES)


def test_an_item_that_is_written_in_place() -> None:
    def f(t: Tensor, n: Tensor) -> Any:
        a: list[Tensor] = []
        b: list[Tensor] = []
        t = t.clone()
        for _ in range(n):
            a.append(t)
            b.append(t)
            t.add_(1)
        return a, b

    assert "changed in place that may share memory" in str(refused(f, *CASES[0]))
