"""squeeze() of dims whose size data decide: the rank of the result depends on the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.frontends.python.checks import check

X = torch.arange(16.0).view(4, 4)
CASES = [(X, torch.tensor(flags)) for flags in ([1, 0, 1, 0], [0, 0, 1, 0], [0] * 4, [1] * 4)]


def positions(x: Tensor, flags: Tensor) -> tuple[Tensor, Tensor]:
    places = (flags > 0).nonzero().squeeze()
    return x[places], flags[places]


def one_dim(x: Tensor, flags: Tensor) -> Tensor:
    return x[(flags > 0).nonzero().squeeze(1)]


def computed_with(x: Tensor, flags: Tensor) -> Tensor:
    return x[(flags > 0).nonzero().squeeze()].sum(0) * 2


def rank(x: Tensor, flags: Tensor) -> tuple[int, Tensor]:
    rows = torch.squeeze(x[flags > 0], 0)
    return rows.dim(), rows


def repaired(x: Tensor, flags: Tensor) -> Tensor:
    places = (flags > 0).nonzero().squeeze(dim=-1).squeeze()
    return x[places.unsqueeze(0) if places.dim() == 0 else places]


def as_a_list(x: Tensor, flags: Tensor) -> list[int] | int:
    return (flags > 0).nonzero().squeeze().tolist()


@pytest.mark.parametrize("f", [positions, one_dim, computed_with, rank, repaired, as_a_list])
def test_equals_eager(f: Callable[..., Any]) -> None:
    check(f, *CASES)
