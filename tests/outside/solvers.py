"""Solvers of differential equations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.outside.registry import Case, program


class Field(nn.Module):
    """A vector field on states of three numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.layers(y) * torch.cos(t)


def _states(rows: int, times: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 3), torch.linspace(0.0, 1.0, times)


@program("torchdiffeq", fast=True)
def adaptive_steps() -> Case:
    from torchdiffeq import odeint

    field = Field()

    def solve(y: Tensor, times: Tensor) -> Tensor:
        return odeint(field, y, times, rtol=1e-4, atol=1e-5, method="dopri5")

    return Case(solve, _states(2, 4), _states(5, 6), field)


@program("torchdiffeq", fast=True)
def fixed_steps() -> Case:
    from torchdiffeq import odeint

    field = Field()

    def solve(y: Tensor, times: Tensor) -> Tensor:
        return odeint(field, y, times, method="rk4", options={"step_size": 0.15})

    return Case(solve, _states(2, 4), _states(5, 6), field)


@program("torchdiffeq")
def event_of_a_solver() -> Case:
    from torchdiffeq import odeint, odeint_event

    def fall(t: Tensor, y: Tensor) -> Tensor:
        return torch.stack([y[1], torch.full_like(y[1], -9.81)])

    def bounce(y: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        return odeint_event(fall, y, start, event_fn=lambda t, y: y[0], odeint_interface=odeint)

    first = (torch.tensor([2.0, 0.0]), torch.tensor(0.0))
    return Case(bounce, first, (torch.tensor([5.0, 1.0]), torch.tensor(0.5)))


class Drift(nn.Module):
    """A stochastic differential equation with a noise for each number of the state."""

    noise_type, sde_type = "diagonal", "ito"

    def __init__(self) -> None:
        super().__init__()
        self.drift, self.diffusion = nn.Linear(3, 3), nn.Linear(3, 3)

    def f(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(self.drift(y)) - t * y

    def g(self, t: Tensor, y: Tensor) -> Tensor:
        return 0.1 * torch.sigmoid(self.diffusion(y))


def _stochastic(method: str, **options: Any) -> Case:
    import torchsde

    equation = Drift()

    def solve(y: Tensor, times: Tensor) -> Tensor:
        noise = torchsde.BrownianInterval(0.0, 1.0, size=y.shape, entropy=7)
        return torchsde.sdeint(equation, y, times, bm=noise, method=method, dt=0.2, **options)

    first = (torch.randn(2, 3), torch.linspace(0.0, 1.0, 3))
    return Case(solve, first, (torch.randn(4, 3), torch.linspace(0.0, 0.8, 4)), equation)


@program("torchsde")
def stochastic_euler() -> Case:
    return _stochastic("euler")


@program("torchsde")
def stochastic_adaptive() -> Case:
    return _stochastic("milstein", adaptive=True, rtol=1e-2, atol=1e-2)


@program("torchcde")
def controlled_equation() -> Case:
    import torchcde

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 8)

        def forward(self, t: Tensor, z: Tensor) -> Tensor:
            return torch.tanh(self.linear(z)).view(*z.shape, 2)

    field = Field()

    def solve(path: Tensor, z: Tensor) -> Tensor:
        spline = torchcde.CubicSpline(
            torchcde.hermite_cubic_coefficients_with_backward_differences(path)
        )
        return torchcde.cdeint(spline, field, z, spline.interval, method="rk4", adjoint=False)

    first = (torch.randn(2, 5, 2), torch.randn(2, 4))
    return Case(solve, first, (torch.randn(3, 8, 2), torch.randn(3, 4)), field)
