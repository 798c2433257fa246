"""A greedy decoder: it feeds its own argmax back until that is the end token.

How the weights make it stop: hidden unit 0 is a counter. Its biases hold its forget, input
and output gates open and its candidate at about 0.25, so each step adds that to its cell;
the logit of the end token is the counter's output times a large weight. The caller's cell
state starts the counter below zero by the number of steps that the sentence is to have,
about 10, so the end token wins the argmax when the counter changes sign. All other weights
are random.
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from .entry import Made, Phase, generator, recurrent_phase
from .lstm import LSTMCell
from .weights import seed_weights

EOS = 0
SOS = 1
COUNT_STEP = 0.25


@dataclass(frozen=True, slots=True)
class Seq2SeqConfig:
    vocabulary: int = 3797
    hidden: int = 256
    max_length: int = 50
    mean_length: int = 10
    batch: int = 1

    @classmethod
    def full(cls) -> Self:
        return cls()

    @classmethod
    def small(cls) -> Self:
        return cls(vocabulary=13, hidden=8, max_length=6, mean_length=3)


class Seq2Seq(nn.Module):
    """(h [B, hidden], c [B, hidden]) -> (tokens [max_length, B], 0 after the end; last h)."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.max_length = config.max_length
        self.embedding = nn.Embedding(config.vocabulary, config.hidden)
        self.cell = LSTMCell(config.hidden, config.hidden)
        self.output = nn.Linear(config.hidden, config.vocabulary)

    def forward(self, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        batch = h.shape[0]
        token = torch.full((batch,), SOS, dtype=torch.int64, device=h.device)
        tokens = torch.full((self.max_length, batch), EOS, dtype=torch.int64, device=h.device)
        step = 0
        while (token != EOS).any() and step < self.max_length:
            h, c = self.cell(self.embedding(token), h, c)
            token = self.output(h).argmax(dim=-1)
            tokens[step] = token
            step += 1
        return tokens, h


def make(config: Seq2SeqConfig, seed: int = 0) -> Made:
    model = Seq2Seq(config)
    seed_weights(model, seed)
    _install_counter(model, config.hidden)
    source = generator(seed + 1)
    h = 0.5 * torch.randn(config.batch, config.hidden, generator=source)
    c = 0.5 * torch.randn(config.batch, config.hidden, generator=source)
    c[:, 0] = COUNT_STEP * (0.5 - draw_lengths(config, seed + 2))
    return model, (h, c)


def draw_lengths(config: Seq2SeqConfig, seed: int) -> Tensor:
    """Return the steps per sentence, [B]: the mean for a single one, spread about it for a
    batch."""
    mean = float(config.mean_length)
    if config.batch == 1:
        return torch.tensor([mean])
    noise = torch.randn(config.batch, generator=generator(seed))
    return (mean + noise * mean / 4).round().clamp(2, config.max_length)


@torch.no_grad()
def _install_counter(model: Seq2Seq, hidden: int) -> None:
    biases = (6.0, 9.0, math.atanh(COUNT_STEP), 6.0)  # input, forget, candidate, output gate
    for gate, bias in enumerate(biases):
        row = gate * hidden
        model.cell.input_map.weight[row] *= 0.01
        model.cell.hidden_map.weight[row] *= 0.01
        model.cell.input_map.bias[row] = bias
        model.cell.hidden_map.bias[row] = 0.0
    model.output.weight[:, 0] = 0.0
    model.output.weight[EOS] = 0.0
    model.output.weight[EOS, 0] = 80.0
    model.output.bias[EOS] = 0.0


def work(config: Seq2SeqConfig) -> tuple[Phase, ...]:
    lengths = draw_lengths(config, 2)
    columns = 8 * config.hidden + config.vocabulary
    return (recurrent_phase("steps", int(lengths.max()), config.batch, config.hidden, columns),)
