"""`explain()`: what ran at which depth, what the passes did and what they left, each with lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from stretto.batching.batched import Batched
from stretto.batching.explain import MOST_LINES
from stretto.batching.passes.pipeline import BatchPasses

A, B, C, OUT = (nn.Linear(4, 4) for _ in range(4))
X = [torch.linspace(-1, 1, 4) * n for n in range(1, 5)]
COUNTS = [3, 1, 0, 2]


def tagged(x: Tensor, n: int) -> list[Tensor]:
    states: list[Tensor] = []
    for _ in range(n):
        x = torch.tanh(A(x))
        states.append(x)
    return [OUT(state) for state in states]


def staged(x: Tensor, n: int) -> Tensor:
    for _ in range(n):
        x = torch.tanh(A(x))
    stretto.phase()
    return B(x)


def skipped(x: Tensor, n: int) -> Tensor:
    if n > 1:
        x = torch.tanh(A(x))
    y = B(x)
    for _ in range(n):
        y = C(y)
    return y


def decided(x: Tensor, n: int) -> Tensor:
    y = torch.tanh(A(x))
    if y.sum() > 0:
        n += 1
    return B(y) * n


def explained(function: Callable[..., Any], passes: BatchPasses | None = None) -> str:
    many = Batched(function, passes=passes)
    many(X, COUNTS)
    return many.explain()


@pytest.mark.whole
def test_phases_and_depths() -> None:
    found = explained(tagged)
    assert "a phase begins" in found and "found: operators need what a recurrence" in found
    assert "1 to 3  tanh0: 3, 2, 1" in found and "4  linear1: 6" in found
    assert "asserted by `stretto.phase()`" in explained(staged)


@pytest.mark.whole
def test_ghosts() -> None:
    assert "a ghost operator" in explained(skipped)
    assert "a ghost operator" not in explained(skipped, BatchPasses(ghosts=False))


def test_why_two_blocks_are_not_one() -> None:
    found = explained(decided)
    assert "a decision on a tensor between them needs what the first makes" in found
    assert "test_explain.py:" in found


@pytest.mark.whole
def test_products() -> None:
    def layered(x: Tensor, n: int) -> Tensor:
        h = torch.zeros(4)
        for _ in range(n):
            h = torch.tanh(A(x) + B(x) + C(h))
        return h

    assert "3 products of tensors run as 2" in explained(layered)


@pytest.mark.whole
def test_long_lists_are_cut() -> None:
    def long(x: Tensor, n: int) -> Tensor:
        for _ in range(n * 30):
            x = torch.tanh(A(x))
            if x.sum() > 100:
                return x
        return x

    found = explained(long)
    shown, _, _ = found.partition("the program of an instance")
    assert "more" in shown and len(shown.splitlines()) < 90


@pytest.mark.whole
def test_lines_are_cut() -> None:
    def many_decisions(x: Tensor, n: int) -> Tensor:
        y = A(x)
        if y.sum() > 0:
            n += 1
        y = B(y) * n
        if y.sum() > 0:
            n += 1
        y = C(y) * n
        if y.sum() > 0:
            n += 1
        y = A(y) * n
        if y.sum() > 0:
            n += 1
        y = B(y) * n
        if y.sum() > 0:
            n += 1
        return OUT(y) * n

    found = explained(many_decisions)
    (line,) = (line for line in found.splitlines() if "two blocks, not one" in line)
    assert line.count(".py:") == MOST_LINES and line.endswith(", ...")
