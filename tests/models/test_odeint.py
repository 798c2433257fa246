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


class Counted(torch.nn.Module):
    """A field that counts its evaluations, by which steps that are rejected show."""

    def __init__(self) -> None:
        super().__init__()
        self.evaluations = 0

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        self.evaluations = self.evaluations + 1
        return torch.tanh(y @ W.to(y)) * torch.cos(4 * t) - 0.5 * y


ADAPTIVE = ["dopri5", "dopri8", "bosh3", "fehlberg2", "adaptive_heun"]


def check_adaptive(method: str, dtype: torch.dtype, backend: str) -> None:
    reason = "torchdiffeq is not installed"
    odeint: Any = pytest.importorskip("torchdiffeq", reason=reason).odeint
    counted = Counted()

    def solve(y: Tensor, t: Tensor, rtol: Tensor, atol: Tensor) -> Tensor:
        return odeint(counted, y, t, rtol=rtol, atol=atol, method=method)

    fast = stretto.compile(solve, backend=backend)
    for times in (torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.5])):
        for digits in (1, 3):
            tolerances = [torch.tensor(10.0**-n, dtype=torch.float64) for n in (digits, digits + 2)]
            found, wanted = [], []
            for function, results in ((fast, found), (solve, wanted)):
                counted.evaluations = 0
                with torch.no_grad():
                    results += [function(Y.to(dtype), times.to(dtype), *tolerances)]
                results += [counted.evaluations]
            close = {"rtol": 1e-3, "atol": 1e-3} if dtype is torch.float32 else {}
            torch.testing.assert_close(found[:1], wanted[:1], **close)
            assert found[1] == wanted[1]
            assert counted.evaluations > 5


@pytest.mark.whole
@pytest.mark.parametrize("method", sampled(ADAPTIVE, ["dopri5"]))
def test_solvers_that_choose_their_steps(method: str) -> None:
    check_adaptive(method, torch.float64, "interpreter")


@pytest.mark.whole
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_chosen_steps_on_the_cpu(dtype: torch.dtype) -> None:
    check_adaptive("dopri5", dtype, "cpu")


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
