"""A mixture of experts (Fedus et al. 2021): each token takes the expert that its router chose."""

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
class ExpertsConfig:
    """Lengths are uniform in `shortest`..`longest`; the inner width of an expert is 4 `hidden`."""

    hidden: int = 256
    experts: int = 8
    layers: int = 2
    shortest: int = 10
    longest: int = 40


class Expert(nn.Module):
    """x [hidden] -> [hidden]."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.expand = nn.Linear(hidden, 4 * hidden)
        self.contract = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(torch.relu(self.expand(x)))


class Routed(nn.Module):
    """x [hidden] -> x plus the output of the chosen expert, and the expert's number."""

    def __init__(self, config: ExpertsConfig) -> None:
        super().__init__()
        self.router = nn.Linear(config.hidden, config.experts)
        self.experts = nn.ModuleList([Expert(config.hidden) for _ in range(config.experts)])

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        probabilities = torch.softmax(self.router(x), dim=0)
        chosen = int(probabilities.argmax())
        return x + probabilities[chosen] * self.experts[chosen](x), chosen


class Experts(nn.Module):
    """Tokens, each [hidden] -> tokens, and the number of times that each expert was chosen."""

    def __init__(self, config: ExpertsConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Routed(config) for _ in range(config.layers)])
        self.experts = config.experts

    def forward(self, tokens: list[Tensor]) -> tuple[list[Tensor], list[int]]:
        chosen = [0] * self.experts
        results: list[Tensor] = []
        for x in tokens:
            for layer in self.layers:
                x, expert = layer(x)
                chosen[expert] += 1
            results.append(x)
        return results, chosen


def make(config: ExpertsConfig, seed: int = 0) -> Experts:
    model = Experts(config)
    seed_weights(model, seed, gain=1.5)
    return model


def work(
    config: ExpertsConfig, sentences: Sequence[list[Tensor]], results: Sequence[Any]
) -> tuple[Phase, ...]:
    """With many tokens, every layer reads all of its experts."""
    tokens = sum(map(len, sentences))
    square, router = config.hidden**2, config.hidden * config.experts
    read = min(config.experts, tokens)
    one = chain_phase("layer", 2.0 * tokens * (8 * square + router), 8 * square * read + router, 1)
    return (one,) * config.layers


def batched(model: Experts, wrap: Wrap) -> ManyFunction:
    """Sort the tokens of all instances by expert; each expert processes its tokens at once."""
    route, expert = wrap(_route), wrap(_expert)

    def layer(x: Tensor, routed: Any) -> tuple[Tensor, Tensor]:
        gates, chosen = route(x, routed.router.weight, routed.router.bias)
        order = torch.argsort(chosen)
        counts = torch.bincount(chosen, minlength=len(routed.experts)).tolist()
        result = torch.empty_like(x)
        for one, rows in zip(routed.experts, order.split(counts), strict=True):
            if len(rows):
                result[rows] = expert(
                    *(x.index_select(0, rows), gates.index_select(0, rows)),
                    *(one.expand.weight, one.expand.bias, one.contract.weight, one.contract.bias),
                )
        return result, chosen

    def many(sentences: Sequence[list[Tensor]]) -> list[tuple[list[Tensor], list[int]]]:
        if not any(sentences):
            return [([], [0] * model.experts) for _ in sentences]
        lengths = torch.tensor([len(tokens) for tokens in sentences])
        x = torch.stack([x for tokens in sentences for x in tokens])
        owner = torch.repeat_interleave(torch.arange(len(sentences)), lengths)
        used = torch.zeros(len(sentences) * model.experts, dtype=torch.int64)
        for routed in model.layers:
            x, chosen = layer(x, routed)
            used += torch.bincount(owner * model.experts + chosen, minlength=len(used))
        parts = x.split(lengths.tolist())
        counts = used.view(-1, model.experts).tolist()
        return [(list(part.unbind()), count) for part, count in zip(parts, counts, strict=True)]

    return many


def _route(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    gates, chosen = torch.softmax(torch.addmm(bias, x, weight.t()), dim=1).max(dim=1)
    return gates[:, None], chosen


def _expert(
    x: Tensor,
    gates: Tensor,
    expand: Tensor,
    expand_bias: Tensor,
    contract: Tensor,
    contract_bias: Tensor,
) -> Tensor:
    inside = torch.relu(torch.addmm(expand_bias, x, expand.t()))
    return x + gates * torch.addmm(contract_bias, inside, contract.t())


ENTRY = InstanceEntry(
    "experts",
    "mixture of 8 experts, routed per token by argmax",
    {
        "small": ExpertsConfig(hidden=8, experts=3, shortest=1, longest=8),
        "256": ExpertsConfig(hidden=256),
        "512": ExpertsConfig(hidden=512),
    },
    make,
    random_sentences,
    steps=lambda tokens, result: len(tokens),
    mean_steps=(22.0, 28.0),
    work=work,
    batched=batched,
    decides=True,
)
