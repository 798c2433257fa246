"""Operators whose results nothing uses raise what eager raises, for the instance that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import stretto
from tests.sampling import sampled

W = torch.arange(12.0).view(3, 4)


def embedded(item: Tensor, n: int) -> Any:
    F.embedding(item, W)
    return n


def indexed(item: Tensor, n: int) -> Any:
    W[item]
    return n


def row(item: Tensor, n: int) -> Any:
    torch.ones(2, 3)[n]
    return item


def column(item: Tensor, n: int) -> Any:
    torch.ones(2, 3)[0, n]
    return n


def used_by_unused(item: Tensor, n: int) -> Any:
    v = W[n]
    v + 1
    return n


def beside_used(item: Tensor, n: int) -> Any:
    W[n]
    return item * 2.0


def divided(item: Tensor, n: int) -> Any:
    torch.arange(4) // item
    return n


def one_hot(item: Tensor, n: int) -> Any:
    F.one_hot(item, 3)
    return n


def in_an_arm(item: Tensor, n: int) -> Any:
    if n > 1:
        W[item] * 2
    return n


def in_a_loop(item: Tensor, n: int) -> Any:
    for _ in range(n):
        W[item]
    return n


def before_a_decision(item: Tensor, n: int) -> Any:
    v = W[item]
    if v.sum() > 1e9:
        return 3
    W[n]
    return n


def before_another_end(item: Tensor, n: int) -> Any:
    v = W[item]
    if n > 2:
        return 0
    return v.sum()


def of_one_arm(item: Tensor, n: int) -> Any:
    v = W[item]
    return W.sum() if n > 2 else v.sum()


def of_one_arm_and_later(item: Tensor, n: int) -> Any:
    v = W[item]
    if n > 2:
        return W.sum()
    x = v * 2.0 if n > 1 else W
    return x.sum() + v.sum()


def before_a_break(item: Tensor, n: int) -> Any:
    for _ in range(3):
        v = W[item]
        if n > 2:
            break
        n = n + int(v.sum() > 100)
    return n


FUNCTIONS: list[Callable[[Tensor, int], Any]] = [
    embedded, indexed, row, column, used_by_unused, beside_used, divided, one_hot, in_an_arm,
    in_a_loop, before_a_decision, before_another_end, of_one_arm,
    of_one_arm_and_later, before_a_break,
]  # fmt: skip
INSTANCES = [(torch.tensor([one]), n) for one in (1, 5, 0) for n in (1, 5, 2, 0)]


@pytest.mark.parametrize("backend", sampled(["interpreter", "cpu"], ["interpreter"]))
@pytest.mark.parametrize("function", FUNCTIONS)
def test_as_eager(function: Callable[[Tensor, int], Any], backend: str) -> None:
    many = stretto.batch(function, backend=backend)
    raised = 0
    for item, n in INSTANCES:
        try:
            wanted = function(item, n)
        except (IndexError, RuntimeError) as error:
            raised += 1
            with pytest.raises(type(error)):
                many([item, torch.tensor([1])], [n, 1])
        else:
            assert torch.equal(torch.as_tensor(many([item], [n])[0]), torch.as_tensor(wanted))
    assert raised
