"""NASRNN: the recurrent cell found by neural architecture search, over a long sequence."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from .entry import Made, Phase, generator, matmul_phase, recurrent_phase
from .weights import seed_weights


@dataclass(frozen=True, slots=True)
class NASRNNConfig:
    length: int = 1000
    hidden: int = 256
    batch: int = 1

    @classmethod
    def full(cls) -> Self:
        return cls()

    @classmethod
    def small(cls) -> Self:
        return cls(length=5, hidden=8)


class NASRNN(nn.Module):
    """x [T, hidden] or [T, B, hidden] -> h after the last step."""

    def __init__(self, config: NASRNNConfig) -> None:
        super().__init__()
        self.input_map = nn.Linear(config.hidden, 8 * config.hidden, bias=False)
        self.hidden_map = nn.Linear(config.hidden, 8 * config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x[0])
        c = torch.zeros_like(x[0])
        for t in range(x.shape[0]):
            gates = self.input_map(x[t]) + self.hidden_map(h)
            g0, g1, g2, g3, g4, g5, g6, g7 = gates.chunk(8, dim=-1)
            p0 = torch.tanh(torch.sigmoid(g0) * torch.relu(g1))
            p1 = torch.tanh(torch.sigmoid(g2) + torch.relu(g3))
            p2 = torch.tanh(torch.tanh(g4) * torch.sigmoid(g5))
            p3 = torch.sigmoid(torch.tanh(g6) + torch.sigmoid(g7))
            c = torch.tanh(p0 + c) * p1
            h = torch.tanh(c * torch.tanh(p2 + p3))
        return h


def make(config: NASRNNConfig, seed: int = 0) -> Made:
    model = NASRNN(config)
    seed_weights(model, seed)
    rows = () if config.batch == 1 else (config.batch,)
    x = torch.randn(config.length, *rows, config.hidden, generator=generator(seed + 1))
    return model, (x,)


def work(config: NASRNNConfig) -> tuple[Phase, ...]:
    rows, hidden = config.length * config.batch, config.hidden
    return (
        matmul_phase("inputs", rows, hidden, 8 * hidden),
        recurrent_phase("recurrence", config.length, config.batch, hidden, 8 * hidden),
    )
