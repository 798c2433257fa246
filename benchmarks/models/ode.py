"""An adaptive solver of a neural ordinary differential equation (Chen et al.).

It is Dormand and Prince's method of orders 5 and 4, with steps as long as the error allows
(Hairer et al., II.4).
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from .entry import Made, Phase, generator, recurrent_phase
from .weights import seed_weights

STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
"""Weights of the earlier stages; the last row is the solution of order 5."""
DIFFERENCE = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)
"""The solution of order 5 minus that of order 4."""


@dataclass(frozen=True, slots=True)
class ODEConfig:
    size: int = 32
    hidden: int = 64
    end: float = 5.0
    tolerance: float = 1e-4
    batch: int = 1

    @classmethod
    def full(cls) -> Self:
        return cls()

    @classmethod
    def small(cls) -> Self:
        return cls(size=4, hidden=8, end=0.5, tolerance=1e-3)


class ODE(nn.Module):
    """x at time 0, [B, size] -> (x at the end, number of steps tried)."""

    def __init__(self, config: ODEConfig) -> None:
        super().__init__()
        self.end, self.tolerance = config.end, config.tolerance
        self.first = nn.Linear(config.size, config.hidden)
        self.second = nn.Linear(config.hidden, config.size)

    def field(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        time = torch.zeros((), dtype=x.dtype)
        step = torch.full((), 0.05, dtype=x.dtype)
        tried = torch.zeros((), dtype=torch.int64)
        slope = self.field(x)
        while time < self.end:
            step = torch.minimum(step, self.end - time)
            slopes = [slope]
            y = x
            for weights in STAGES:
                total = weights[0] * slopes[0]
                for weight, one in zip(weights[1:], slopes[1:], strict=True):
                    total = total + weight * one
                y = x + step * total
                slopes.append(self.field(y))
            error = DIFFERENCE[0] * slopes[0]
            for weight, one in zip(DIFFERENCE[1:], slopes[1:], strict=True):
                error = error + weight * one
            scale = self.tolerance * (1 + torch.maximum(x.abs(), y.abs()))
            ratio = (step * error / scale).square().mean().sqrt()
            if ratio <= 1:
                time = time + step
                x, slope = y, slopes[-1]
            step = step * (0.9 * ratio.clamp(min=1e-6) ** -0.2).clamp(0.2, 5.0)
            tried = tried + 1
        return x, tried


def make(config: ODEConfig, seed: int = 0) -> Made:
    model = ODE(config)
    seed_weights(model, seed, gain=2.0)
    return model, (torch.randn(config.batch, config.size, generator=generator(seed + 1)),)


def work(config: ODEConfig) -> tuple[Phase, ...]:
    """Two products per slope: six in each step that is tried, and the first one."""
    model, inputs = make(config)
    with torch.no_grad():
        slopes = 6 * int(model(*inputs)[1]) + 1
    return (recurrent_phase("slopes", slopes, config.batch, config.size, 2 * config.hidden),)
