"""A bidirectional RNN that labels each token of a sentence."""

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
class BiRNNConfig:
    """Lengths are uniform in `shortest`..`longest`."""

    hidden: int = 256
    classes: int = 16
    shortest: int = 10
    longest: int = 40


class BiRNN(nn.Module):
    """Tokens, each [hidden] -> for each token the scores of its class, [classes]."""

    def __init__(self, config: BiRNNConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.hidden = hidden
        self.forwards = nn.Linear(2 * hidden, hidden)
        self.backwards = nn.Linear(2 * hidden, hidden)
        self.output = nn.Linear(2 * hidden, config.classes)

    def forward(self, tokens: list[Tensor]) -> list[Tensor]:
        before: list[Tensor] = []
        h = tokens[0].new_zeros(self.hidden)
        for x in tokens:
            h = torch.sigmoid(self.forwards(torch.cat([x, h])))
            before.append(h)
        after: list[Tensor] = []
        h = tokens[0].new_zeros(self.hidden)
        for x in reversed(tokens):
            h = torch.sigmoid(self.backwards(torch.cat([x, h])))
            after.append(h)
        after.reverse()
        return [self.output(torch.cat(pair)) for pair in zip(before, after)]  # noqa: B905


def make(config: BiRNNConfig, seed: int = 0) -> BiRNN:
    model = BiRNN(config)
    seed_weights(model, seed, gain=2.0)
    return model


def work(
    config: BiRNNConfig, sentences: Sequence[list[Tensor]], results: Sequence[Any]
) -> tuple[Phase, ...]:
    tokens = sum(map(len, sentences))
    square, classes = config.hidden**2, config.hidden * config.classes
    longest = max(map(len, sentences), default=0)
    return (
        chain_phase("inputs", 4.0 * tokens * square, 2 * square, 1),
        chain_phase("steps", 4.0 * tokens * square, 2 * square, longest),
        chain_phase("outputs", 4.0 * tokens * classes, 2 * classes, 1),
    )


def batched(model: BiRNN, wrap: Wrap) -> ManyFunction:
    """Sentences sorted by length, so that the ones still running are the first rows. Both
    directions step together, each from its own end; inputs and outputs in one product each."""
    hidden = model.hidden
    weights = (model.forwards.weight, model.backwards.weight)
    input_weight = torch.stack([w[:, :hidden].t() for w in weights]).contiguous()
    state_weight = torch.stack([w[:, hidden:].t() for w in weights]).contiguous()
    bias = torch.stack((model.forwards.bias, model.backwards.bias))[:, None]
    step, outputs = wrap(_step), wrap(_outputs)

    def many(sentences: Sequence[list[Tensor]]) -> list[list[Tensor]]:
        if not sentences:
            return []
        lengths = torch.tensor([len(tokens) for tokens in sentences])
        order = torch.argsort(lengths, descending=True)
        ordered = lengths[order]
        # running[t]: number of sentences that have a token t; their rows start at starts[t].
        longest = int(ordered[0])
        running = (ordered[None] > torch.arange(longest)[:, None]).sum(dim=1)
        starts = torch.cumsum(running, 0) - running
        x = torch.stack([x for tokens in sentences for x in tokens])
        offsets = torch.cumsum(lengths, 0) - lengths
        here = torch.arange(longest)[:, None].expand(-1, len(sentences))
        inside = here < ordered
        first = (offsets[order] + here)[inside]
        last = (offsets[order] + ordered - 1 - here)[inside]
        inputs = torch.baddbmm(
            bias, x.index_select(0, torch.cat((first, last))).view(2, len(x), hidden), input_weight
        )
        states = torch.empty_like(inputs)
        h = inputs.new_zeros(2, len(sentences), hidden)
        for start, count in zip(starts.tolist(), running.tolist(), strict=True):
            h = step(inputs[:, start : start + count], h[:, :count], state_weight)
            states[:, start : start + count] = h
        both = x.new_empty(len(x), 2 * hidden)
        both[first, :hidden] = states[0]
        both[last, hidden:] = states[1]
        scores = outputs(both, model.output.weight, model.output.bias)
        return [list(part.unbind()) for part in scores.split(lengths.tolist())]

    return many


def _step(inputs: Tensor, h: Tensor, weight: Tensor) -> Tensor:
    return torch.sigmoid(torch.baddbmm(inputs, h, weight))


def _outputs(both: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, both, weight.t())


ENTRY = InstanceEntry(
    "birnn",
    "bidirectional RNN, a class per token",
    {
        "small": BiRNNConfig(hidden=8, classes=4, shortest=1, longest=12),
        "256": BiRNNConfig(hidden=256),
        "512": BiRNNConfig(hidden=512),
    },
    make,
    random_sentences,
    steps=lambda tokens, result: len(tokens),
    mean_steps=(22.0, 28.0),
    work=work,
    batched=batched,
)
