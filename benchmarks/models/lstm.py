"""A stack of LSTM layers written as a plain loop over time with a loop over layers inside."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from .entry import Made, Phase, generator, matmul_phase, recurrent_phase
from .weights import seed_weights


@dataclass(frozen=True, slots=True)
class LSTMConfig:
    length: int = 64
    layers: int = 10
    hidden: int = 256
    batch: int = 1

    @classmethod
    def full(cls) -> Self:
        return cls()

    @classmethod
    def small(cls) -> Self:
        return cls(length=4, layers=2, hidden=8)


class LSTMCell(nn.Module):
    """One step of one layer: (y, h, c) -> (h, c), over vectors or rows of a batch."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.input_map = nn.Linear(inputs, 4 * hidden)
        self.hidden_map = nn.Linear(hidden, 4 * hidden)

    def forward(self, y: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        gates = self.input_map(y) + self.hidden_map(h)
        i, f, g, o = gates.chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, c


class LSTM(nn.Module):
    """x [T, hidden] or [T, B, hidden] -> the last layer's h after the last step."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.cells = nn.ModuleList(
            LSTMCell(config.hidden, config.hidden) for _ in range(config.layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = [torch.zeros_like(x[0]) for _ in self.cells]
        c = [torch.zeros_like(x[0]) for _ in self.cells]
        for t in range(x.shape[0]):
            y = x[t]
            for layer, cell in enumerate(self.cells):
                h[layer], c[layer] = cell(y, h[layer], c[layer])
                y = h[layer]
        return h[-1]


def make(config: LSTMConfig, seed: int = 0) -> Made:
    model = LSTM(config)
    # A gain above one keeps ten stacked layers from forgetting their input.
    seed_weights(model, seed, gain=1.5)
    rows = () if config.batch == 1 else (config.batch,)
    x = torch.randn(config.length, *rows, config.hidden, generator=generator(seed + 1))
    return model, (x,)


def work(config: LSTMConfig) -> tuple[Phase, ...]:
    """Layer by layer: one product for all inputs of a layer, then its recurrence."""
    rows, hidden = config.length * config.batch, config.hidden
    recurrence = recurrent_phase(
        "recurrence", config.length * config.layers, config.batch, hidden, 4 * hidden
    )
    return (matmul_phase("inputs", rows, hidden, 4 * hidden, repeat=config.layers), recurrence)
