"""A rollout of reinforcement learning: a policy and its environment, a cart with a pole (Barto,
Sutton and Anderson, 1983), both in tensors, until the pole falls or time is over."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from .entry import Made, Phase, generator, recurrent_phase
from .weights import seed_weights

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, TICK = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    steps: int = 500
    hidden: int = 64

    @classmethod
    def full(cls) -> Self:
        return cls()

    @classmethod
    def small(cls) -> Self:
        return cls(steps=12, hidden=8)


class Policy(nn.Module):
    """state [4] -> the score of a push to the right, []."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(4, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.third = nn.Linear(hidden, 1)

    def forward(self, state: Tensor) -> Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(state))))
        # A controller that keeps the pole up; the network disturbs it.
        known = state @ state.new_tensor([0.1, 0.5, 10.0, 2.0])
        return known + 0.1 * self.third(x)[0]


class Rollout(nn.Module):
    """state [4]: position, velocity, angle and angular velocity -> (last state, reward)."""

    def __init__(self, config: RolloutConfig) -> None:
        super().__init__()
        self.steps = config.steps
        self.policy = Policy(config.hidden)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        reward = torch.zeros((), dtype=state.dtype)
        step = 0
        while state[0].abs() < 2.4 and state[2].abs() < 0.21 and step < self.steps:
            force = FORCE * torch.tanh(self.policy(state))
            state = moved(state, force)
            reward = reward + 1 - 0.01 * force.square()
            step += 1
        return state, reward


def moved(state: Tensor, force: Tensor) -> Tensor:
    """Return the state of the cart one tick later."""
    _, speed, angle, turn = state.unbind()
    mass = CART + POLE
    sine, cosine = torch.sin(angle), torch.cos(angle)
    push = (force + POLE * HALF_LENGTH * turn.square() * sine) / mass
    inertia = HALF_LENGTH * (4 / 3 - POLE * cosine.square() / mass)
    turned = (GRAVITY * sine - cosine * push) / inertia
    pushed = push - POLE * HALF_LENGTH * turned * cosine / mass
    rates = torch.stack([speed, pushed, turn, turned])
    return state + TICK * rates


def make(config: RolloutConfig, seed: int = 0) -> Made:
    model = Rollout(config)
    seed_weights(model, seed)
    state = 0.05 * torch.randn(4, generator=generator(seed + 1))
    return model, (state,)


def work(config: RolloutConfig) -> tuple[Phase, ...]:
    """The policy's products in each step, if the pole never falls."""
    hidden, steps = config.hidden, config.steps
    return (
        recurrent_phase("features", steps, 1, 5, hidden),
        recurrent_phase("hidden", steps, 1, hidden, hidden),
    )
