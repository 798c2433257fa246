"""Filters, `continue` and branches do not keep the iterations of a loop from waiting together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from stretto.batching.batched import Batched
from stretto.batching.instance_program import InstanceProgram
from stretto.batching.passes.concurrent import Concurrent
from stretto.batching.passes.pipeline import BatchPasses, passes
from stretto.ir.data import ForkLoopOp
from tests.batching.passes.checking import check

ALL = tuple(passes(BatchPasses()))
X = [torch.linspace(-1, 1, 4) * n + 0.1 * n for n in range(1, 5)]
COLUMNS = [[X, X[:1], [], X[:3], X], [0, 0, 1, 2, 7]]


def slow(x: Tensor) -> Tensor:
    y = torch.tanh(x)
    return y * 2 if y.sum() > 0.5 else slow(y + 1)


def filtered(xs: list[Tensor], n: int) -> list[Tensor]:
    return [slow(x) for i, x in enumerate(xs) if i != n]


def filtered_by_a_tensor(xs: list[Tensor], n: int) -> list[Tensor]:
    return [slow(x) * n for x in xs if x.sum() > 0.5]


def continued(xs: list[Tensor], n: int) -> list[Tensor]:
    out: list[Tensor] = []
    for i, x in enumerate(xs):
        if i == n:
            continue
        out.append(slow(x))
    return out


def continued_twice(xs: list[Tensor], n: int) -> list[Tensor]:
    out: list[Tensor] = []
    for i, x in enumerate(xs):
        if i == n:
            out.append(x)
            continue
        y = slow(x)
        if n > 1:
            continue
        out.append(slow(y - 1))
    return out


def in_both_arms(xs: list[Tensor], n: int) -> list[Tensor]:
    out: list[Tensor] = []
    for i, x in enumerate(xs):
        if i == n:
            y = slow(x)
            out.append(y)
        else:
            y = slow(x - 1)
            out.append(y * 2)
            out.append(x)
    return out


def in_branches_of_branches(xs: list[Tensor], n: int) -> list[Tensor]:
    out: list[Tensor] = []
    for i, x in enumerate(xs):
        if i != n:
            if i > 0:
                out.append(slow(x))
            else:
                out.append(x)
    return out


def summed(xs: list[Tensor], n: int) -> Tensor:
    total = torch.zeros(4)
    for i, x in enumerate(xs):
        if i != n:
            total = total + slow(x)
    return total


def last_one(xs: list[Tensor], n: int) -> Tensor:
    """What a branch makes is used after the loop: it is not handed on, so nothing is parted."""
    y = torch.zeros(4)
    for i, x in enumerate(xs):
        if i != n:
            y = slow(x)
    return y


def condition_changes(xs: list[Tensor], n: int) -> list[Tensor]:
    out: list[Tensor] = []
    for x in xs:
        flag = n > 0
        if flag:
            flag = bool(slow(x).sum() > 2.2)
            out.append(x * 2)
        flag = not flag
        if flag:
            out.append(slow(x + 1))
    return out


def continued_inside(xs: list[Tensor], n: int) -> list[Tensor]:
    """A `continue` in an arm of an arm skips what follows both."""
    out: list[Tensor] = []
    for i, x in enumerate(xs):
        if i < n:
            if i == 1:
                continue
            out.append(slow(x))
        out.append(x)
    return out


def raising(xs: list[Tensor], n: int) -> list[Tensor]:
    out: list[Tensor] = []
    for i, x in enumerate(xs):
        if i != n:
            y = slow(x)
            if i == 2:
                raise ValueError(f"item {i}")
            out.append(y)
    return out


CONCURRENT = [
    filtered, filtered_by_a_tensor, continued, continued_twice, in_both_arms,
    in_branches_of_branches, summed,
]  # fmt: skip
OTHERS = [last_one, condition_changes, continued_inside, raising]


def loops(program: InstanceProgram) -> int:
    return sum(isinstance(s, ForkLoopOp) for s in program.walk())


@pytest.mark.parametrize("function", CONCURRENT)
def test_iterations_wait_together(function: Callable[..., Any]) -> None:
    assert loops(check(function, COLUMNS, *ALL)) == 1
    assert loops(check(function, COLUMNS, Concurrent(finds=False))) == 0


@pytest.mark.parametrize("function", OTHERS)
def test_the_oracle_agrees(function: Callable[..., Any]) -> None:
    check(function, COLUMNS, *ALL)
    check(function, COLUMNS, Concurrent(always=True))


@pytest.mark.parametrize("function", [continued_twice, in_both_arms])
def test_end_to_end(function: Callable[..., Any]) -> None:
    launches: list[int] = []
    wanted = [function(*args) for args in zip(*COLUMNS, strict=True)]
    for switches in (BatchPasses(), BatchPasses(concurrent=False)):
        many = Batched(function, passes=switches)
        torch.testing.assert_close(many(*COLUMNS), wanted, rtol=1e-4, atol=1e-5)
        last = many._last  # pyright: ignore[reportPrivateUsage]
        assert last is not None and last.compiled is not None
        launches.append(last.compiled.times.launches)
    assert launches[0] < launches[1]
