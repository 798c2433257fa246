"""Solvers of torchdiffeq, their code unchanged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.sampling import sampled

W = torch.linspace(-1, 1, 16).reshape(4, 4)
Y = torch.linspace(-1, 1, 8).reshape(2, 4)


def field(t: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(y @ W) - 0.5 * y * t


@pytest.mark.parametrize("method", sampled(["euler", "midpoint", "rk4"], ["euler"]))
def test_solvers_of_fixed_steps(method: str) -> None:
    reason = "torchdiffeq is not installed"
    odeint: Any = pytest.importorskip("torchdiffeq", reason=reason).odeint

    def solve(y: Tensor, t: Tensor) -> Tensor:
        return odeint(field, y, t, method=method)

    times = torch.linspace(0, 1, 4)
    with torch.no_grad():
        found = stretto.compile(solve, backend="interpreter")(Y, times)
        torch.testing.assert_close(found, solve(Y, times))
