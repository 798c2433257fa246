"""An RNN with adaptive computation time (Graves 2016): it ponders each token until it halts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..entry import Phase
from ..weights import seed_weights
from .entry import InstanceEntry, ManyFunction, Wrap, chain_phase
from .sentences import random_sentences


@dataclass(frozen=True, slots=True)
class ACTConfig:
    """Lengths are uniform in `shortest`..`longest`; a token takes at most `most` steps. The
    halting layer's `bias` gives about 4.5 steps per token."""

    hidden: int = 256
    shortest: int = 5
    longest: int = 20
    most: int = 10
    bias: float = -1.0


class ACT(nn.Module):
    """Tokens, each [hidden] -> the last state [hidden], the steps of each, and the ponder cost."""

    def __init__(self, config: ACTConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.most = config.most
        self.input = nn.Linear(hidden, hidden)
        self.first = nn.Parameter(torch.empty(hidden))
        self.state = nn.Linear(hidden, hidden, bias=False)
        self.halt = nn.Linear(hidden, 1)

    def ponder(self, x: Tensor, h: Tensor) -> tuple[Tensor, int, float]:
        mean = torch.zeros_like(h)
        halted = 0.0
        steps = 0
        inputs = self.input(x)
        while True:
            flag = self.first if steps == 0 else torch.zeros_like(h)
            h = torch.tanh(inputs + flag + self.state(h))
            p = torch.sigmoid(self.halt(h)).item()
            steps += 1
            if halted + p >= 0.99 or steps == self.most:
                remainder = 1.0 - halted
                return mean + remainder * h, steps, steps + remainder
            halted += p
            mean = mean + p * h

    def forward(self, tokens: list[Tensor]) -> tuple[Tensor, list[int], float]:
        h = torch.zeros_like(self.first)
        counts: list[int] = []
        cost = 0.0
        for x in tokens:
            h, steps, ponder = self.ponder(x, h)
            counts.append(steps)
            cost += ponder
        return h, counts, cost


def make(config: ACTConfig, seed: int = 0) -> ACT:
    model = ACT(config)
    seed_weights(model, seed)
    with torch.no_grad():
        model.halt.bias.fill_(config.bias)
    return model


def work(
    config: ACTConfig, sentences: Sequence[list[Tensor]], results: Sequence[Any]
) -> tuple[Phase, ...]:
    tokens = sum(map(len, sentences))
    square = config.hidden**2
    steps = sum(sum(counts) for _, counts, _ in results)
    chain = max((sum(counts) for _, counts, _ in results), default=0)
    return (
        chain_phase("inputs", 2.0 * tokens * square, square, 1),
        chain_phase("steps", 2.0 * steps * square, square, chain),
    )


def batched(model: ACT, wrap: Wrap) -> ManyFunction:
    """Each instance is at its own token and step; all take their next step at once."""
    step = wrap(_step)
    weight = model.state.weight.t().contiguous()

    def many(sentences: Sequence[list[Tensor]]) -> list[tuple[Tensor, list[int], float]]:
        if not sentences:
            return []
        lengths = torch.tensor([len(tokens) for tokens in sentences])
        inputs = model.input(torch.stack([x for tokens in sentences for x in tokens]))
        ends = torch.cumsum(lengths, 0)
        hidden, total = inputs.shape[1], len(sentences)
        result = inputs.new_zeros(total, hidden)
        token_steps = torch.zeros(len(inputs), dtype=torch.int64)
        costs = torch.zeros(total, dtype=torch.float64)
        # Per running instance: its number, its next token, and the state of that token's steps.
        rows, place = torch.arange(total), ends - lengths
        h, mean = result.clone(), result.clone()
        halted = torch.zeros(total, dtype=torch.float64)
        steps = torch.zeros(total, dtype=torch.int64)
        while len(rows):
            start = (steps == 0)[:, None]
            h, p = step(
                *(inputs, place, start, h, model.first, weight),
                *(model.halt.weight, model.halt.bias),
            )
            steps = steps + 1
            p = p.double()
            done = (halted + p >= 0.99) | (steps == model.most)
            part = torch.where(done, 1.0 - halted, p)
            mean = mean + part[:, None].to(h.dtype) * h
            halted = halted + p
            if done.any():
                token_steps[place[done]] = steps[done]
                costs[rows[done]] += (steps + part)[done]
                result[rows[done]] = mean[done]
                h = torch.where(done[:, None], mean, h)
                mean = mean.masked_fill(done[:, None], 0.0)
                halted, steps = halted.masked_fill(done, 0.0), steps.masked_fill(done, 0)
                place = place + done
                over = place == ends[rows]
                if over.any():
                    left = (~over).nonzero()[:, 0]
                    rows, place, h, mean, halted, steps = (
                        v.index_select(0, left) for v in (rows, place, h, mean, halted, steps)
                    )
        parts = token_steps.split(lengths.tolist())
        return [
            (one, counts.tolist(), cost)
            for one, counts, cost in zip(result.unbind(), parts, costs.tolist(), strict=True)
        ]

    return many


def _step(
    inputs: Tensor,
    place: Tensor,
    start: Tensor,
    h: Tensor,
    first: Tensor,
    weight: Tensor,
    halt_weight: Tensor,
    halt_bias: Tensor,
) -> tuple[Tensor, Tensor]:
    x = inputs.index_select(0, place) + start * first
    new = torch.tanh(torch.addmm(x, h, weight))
    return new, torch.sigmoid(torch.addmv(halt_bias, new, halt_weight[0]))


ENTRY = InstanceEntry(
    "act",
    "RNN with adaptive computation time per token",
    {
        "small": ACTConfig(hidden=8, shortest=1, longest=6),
        "256": ACTConfig(hidden=256),
        "512": ACTConfig(hidden=512),
    },
    make,
    random_sentences,
    steps=lambda tokens, result: sum(result[1]) / len(result[1]),
    mean_steps=(3.0, 5.0),
    work=work,
    batched=batched,
    decides=True,
)
