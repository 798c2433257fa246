"""Loops whose body raises in every iteration: they raise only if they are entered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto


def counted(k: Any) -> Iterator[Any]:
    while k > 0:
        yield k
        k = k - 1


def up_to(k: Any) -> Iterator[Any]:
    for position in range(int(k)):
        yield position + 1


def of_while(x: Tensor, n: Tensor) -> Tensor:
    while n > 0:
        raise ValueError("entered")
    return x + 1


def of_range(x: Tensor, n: Tensor) -> Tensor:
    for _ in range(int(n)):
        raise ValueError("entered")
    return x + 1


def of_filter(x: Tensor, n: Tensor) -> Tensor:
    for _ in filter(lambda item: item < n, torch.arange(3)):
        raise ValueError("entered")
    return x + 1


def of_generator(x: Tensor, n: Tensor) -> Tensor:
    for _ in counted(n):
        raise ValueError("entered")
    return x + 1


def of_generator_over_range(x: Tensor, n: Tensor) -> Tensor:
    for _ in up_to(n):
        raise ValueError("entered")
    return x + 1


def of_generator_in_map(x: Tensor, n: Tensor) -> Tensor:
    for _ in map(abs, counted(n)):
        raise ValueError("entered")
    return x + 1


def of_grown_list(x: Tensor, n: Tensor) -> Tensor:
    found = []
    for position in range(int(n)):
        found.append(position)
    for _ in reversed(found):
        raise ValueError("entered")
    return x + 1


def inner(x: Tensor, n: Tensor) -> Tensor:
    for position in range(3):
        for _ in counted(n - position):
            raise ValueError("entered")
        x = x + 1
    return x


FUNCTIONS = [
    of_while, of_range, of_filter, of_generator, of_generator_over_range, of_generator_in_map,
    of_grown_list, inner,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_raises_if_it_is_entered(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    compiled, x = stretto.compile(function), torch.ones(2)
    for _ in range(2):
        assert torch.equal(compiled(x, torch.tensor(0)), function(x, torch.tensor(0)))
        with pytest.raises(ValueError, match="entered"):
            compiled(x, torch.tensor(2))
