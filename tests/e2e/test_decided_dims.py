"""Tensors of which data decide two dims, and views whose dims are decided, against eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import stretto


def both_masks(x: Tensor) -> Any:
    y = x[x[:, 0] > 0][:, x.sum(0) > 0]
    return y, y * 2 + 1, y.sum(0), y.sum(1), y.t()


def x_of(seed: int) -> Tensor:
    return torch.randn(7, 5, generator=torch.Generator().manual_seed(seed)) - seed / 3 + 1


@pytest.mark.parametrize("backend", ["interpreter", "emulator", "cpu"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_two_masks(backend: str, dynamic: bool) -> None:
    compiled = stretto.compile(both_masks, backend=backend, dynamic=dynamic)
    for seed in (0, 1, 2, 3, 6, -8):
        x = x_of(seed)
        torch.testing.assert_close(compiled(x), both_masks(x))
