"""Recurrent models of fixed lengths (Rammer, table 1): LSTM-TC and Seq2Seq-NMT."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from .entry import Made, Phase, generator, matmul_phase, recurrent_phase
from .lstm import LSTMCell, LSTMConfig
from .weights import seed_weights


class GateCell(nn.Module):
    """One step of one layer whose four gates have separate products."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.input_maps = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(4))
        self.hidden_maps = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(4))

    def forward(self, y: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        maps = zip(self.input_maps, self.hidden_maps, strict=True)
        i, f, g, o = [inputs(y) + hidden(h) for inputs, hidden in maps]
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class LSTMByGates(nn.Module):
    """x [T, hidden] or [T, B, hidden] -> the last layer's h after the last step."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.cells = nn.ModuleList(GateCell(config.hidden) for _ in range(config.layers))

    def forward(self, x: Tensor) -> Tensor:
        h = [torch.zeros_like(x[0]) for _ in self.cells]
        c = [torch.zeros_like(x[0]) for _ in self.cells]
        for t in range(x.shape[0]):
            y = x[t]
            for layer, cell in enumerate(self.cells):
                h[layer], c[layer] = cell(y, h[layer], c[layer])
                y = h[layer]
        return h[-1]


def make_lstm_tc(config: LSTMConfig, seed: int = 0) -> Made:
    model = LSTMByGates(config)
    seed_weights(model, seed, gain=1.5)
    rows = () if config.batch == 1 else (config.batch,)
    shape = (config.length, *rows, config.hidden)
    return model, (torch.randn(shape, generator=generator(seed + 1)),)


@dataclass(frozen=True, slots=True)
class NMTConfig:
    hidden: int = 128
    encoder_layers: int = 8
    encoder_steps: int = 100
    decoder_layers: int = 4
    decoder_steps: int = 30
    batch: int = 1

    @classmethod
    def full(cls) -> Self:
        return cls()

    @classmethod
    def small(cls) -> Self:
        return cls(hidden=8, encoder_layers=3, encoder_steps=4, decoder_layers=2, decoder_steps=3)


class NMT(nn.Module):
    """words [T, B, hidden] -> the decoder's outputs [decoder_steps, B, hidden]. The decoder starts
    from the states of the encoder's last layers, and its input is its own last output."""

    def __init__(self, config: NMTConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.steps = config.decoder_steps
        self.encoder = nn.ModuleList(LSTMCell(hidden, hidden) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(LSTMCell(hidden, hidden) for _ in range(config.decoder_layers))

    def forward(self, words: Tensor) -> Tensor:
        h = [torch.zeros_like(words[0]) for _ in self.encoder]
        c = [torch.zeros_like(words[0]) for _ in self.encoder]
        for t in range(words.shape[0]):
            y = words[t]
            for layer, cell in enumerate(self.encoder):
                h[layer], c[layer] = cell(y, h[layer], c[layer])
                y = h[layer]
        h, c = h[-len(self.decoder) :], c[-len(self.decoder) :]
        y = h[-1]
        outputs = []
        for _ in range(self.steps):
            for layer, cell in enumerate(self.decoder):
                h[layer], c[layer] = cell(y, h[layer], c[layer])
                y = h[layer]
            outputs.append(y)
        return torch.stack(outputs)


def make_nmt(config: NMTConfig, seed: int = 0) -> Made:
    model = NMT(config)
    seed_weights(model, seed, gain=1.5)
    shape = (config.encoder_steps, config.batch, config.hidden)
    return model, (torch.randn(shape, generator=generator(seed + 1)),)


def nmt_work(config: NMTConfig) -> tuple[Phase, ...]:
    """Encoder: one product for all inputs of a layer, then its recurrence. Decoder: both products
    of a cell depend on the step before."""
    hidden, rows, layers = config.hidden, config.batch, config.encoder_layers
    steps, cells = config.encoder_steps, config.decoder_steps * config.decoder_layers
    return (
        matmul_phase("inputs", steps * rows, hidden, 4 * hidden, repeat=layers),
        recurrent_phase("encoder", steps * layers, rows, hidden, 4 * hidden),
        recurrent_phase("decoder", cells, rows, 2 * hidden, 4 * hidden),
    )
