"""Containers with methods of their own, and loops over one of several lists."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stretto


class Pair(tuple[int, int]):
    """Its length is not asked for."""

    __slots__ = ()

    def __len__(self) -> int:
        raise NotImplementedError


def found(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if Pair((1, 2)) in [Pair((1, 2))] else x


def backwards(x: torch.Tensor) -> torch.Tensor:
    history = []
    for step in range(3):
        history.append(x * step)
    total = x
    for item in reversed(history[: int(x[0])]):
        total = total * 2 + item
    return total


@pytest.mark.parametrize("function", [found, backwards])
def test_as_eager(function: Any) -> None:
    compiled: Any = stretto.compile(function, backend="interpreter")
    for first in (1.0, 3.0, 2.0, 0.0, 7.0):
        x = torch.tensor([first, 2.0])
        torch.testing.assert_close(compiled(x), function(x))
