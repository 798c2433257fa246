"""BERxiT (Xin et al. 2021): BERT that exits early; all layers share one set of weights.

The published benchmark exits after each layer equally often: 6.5 of 12 layers run on
average, and 9.5 of 18 in the large model. Here 6.6 and 9.6 run, with seed 0 and 16 and 10
instances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..entry import Phase, generator
from ..weights import seed_weights
from .entry import InstanceEntry, ManyFunction, Wrap, chain_phase


@dataclass(frozen=True, slots=True)
class BerxitConfig:
    """`confidence` is the threshold; `layers` the maximum number that run."""

    hidden: int = 768
    heads: int = 12
    layers: int = 12
    length: int = 128
    words: int = 30_522
    classes: int = 16
    confidence: float = 0.71


@dataclass
class Exit:
    """scores: [classes]. layers: the number of layers that ran."""

    scores: Tensor
    layers: int


class Layer(nn.Module):
    """x [length, hidden] -> the same; normalised after each of its halves, as in BERT."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden)
        self.expand = nn.Linear(hidden, 4 * hidden)
        self.contract = nn.Linear(4 * hidden, hidden)
        self.norm = nn.LayerNorm(hidden)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], self.heads, -1).transpose(0, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(x.shape)
        x = self.attention_norm(x + self.output(mixed))
        return self.norm(x + self.contract(F.gelu(self.expand(x))))


class Berxit(nn.Module):
    """Words, [length] int64 -> the scores of the first layer that is confident."""

    def __init__(self, config: BerxitConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.layers = config.layers
        self.threshold = config.confidence
        self.words = nn.Embedding(config.words, hidden)
        self.positions = nn.Parameter(torch.empty(config.length, hidden))
        self.embedding_norm = nn.LayerNorm(hidden)
        self.layer = Layer(hidden, config.heads)
        self.exit = nn.Linear(hidden, 1)
        self.classifier = nn.Linear(hidden, config.classes)

    def forward(self, words: Tensor) -> Exit:
        x = self.embedding_norm(self.words(words) + self.positions)
        layers = 0
        while layers < self.layers:
            x = self.layer(x)
            layers += 1
            if torch.sigmoid(self.exit(x[0])).item() > self.threshold:
                break
        return Exit(self.classifier(x[0]), layers)


def make(config: BerxitConfig, seed: int = 0) -> Berxit:
    model = Berxit(config)
    seed_weights(model, seed)
    with torch.no_grad():
        for norm in (model.embedding_norm, model.layer.attention_norm, model.layer.norm):
            norm.weight.add_(1.0)
    return model


def instances(config: BerxitConfig, count: int, seed: int = 0) -> list[Tensor]:
    drawn = torch.randint(config.words, (count, config.length), generator=generator(seed + 1))
    return list(drawn.unbind())


def work(
    config: BerxitConfig, inputs: Sequence[Tensor], results: Sequence[Exit]
) -> tuple[Phase, ...]:
    layers = sum(result.layers for result in results)
    weights = 12 * config.hidden**2
    flops = 2.0 * config.length * weights + 4.0 * config.length**2 * config.hidden
    longest = max((result.layers for result in results), default=0)
    return (chain_phase("layers", layers * flops, weights, longest),)


def batched(model: Berxit, wrap: Wrap) -> ManyFunction:
    """Instances pass through the layer together; those that exit leave the batch."""
    layer = model.layer
    attended = (layer.query, layer.key, layer.value)
    weight = torch.cat([linear.weight for linear in attended])
    bias = torch.cat([linear.bias for linear in attended])

    def layer_of_all(x: Tensor) -> tuple[Tensor, Tensor]:
        count, length, _ = x.shape
        mixed = F.linear(x, weight, bias).view(count, length, 3, layer.heads, -1)
        q, k, v = mixed.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = layer.attention_norm(x + layer.output(mixed))
        x = layer.norm(x + layer.contract(F.gelu(layer.expand(x))))
        return x, torch.sigmoid(model.exit(x[:, 0]))[:, 0] > model.threshold

    step = wrap(layer_of_all)

    def many(inputs: Sequence[Tensor]) -> list[Exit]:
        if not inputs:
            return []
        x = model.embedding_norm(model.words(torch.stack(list(inputs))) + model.positions)
        ends = torch.empty_like(x[:, 0])
        counts = torch.full((len(inputs),), model.layers)
        rows = torch.arange(len(inputs))
        for number in range(1, model.layers + 1):
            x, done = step(x)
            if number == model.layers:
                ends[rows] = x[:, 0]
            elif done.any():
                ends[rows[done]] = x[done, 0]
                counts[rows[done]] = number
                rows, x = rows[~done], x[~done]
                if not len(rows):
                    break
        scores = model.classifier(ends).unbind()
        return [Exit(score, count) for score, count in zip(scores, counts.tolist(), strict=True)]

    return many


ENTRY = InstanceEntry(
    "berxit",
    "BERT with a shared layer and early exit",
    {
        "small": BerxitConfig(
            hidden=8, heads=2, layers=6, length=5, words=50, classes=4, confidence=0.51
        ),
        "base": BerxitConfig(),
        "large": BerxitConfig(hidden=1024, heads=16, layers=18, confidence=0.397),
    },
    make,
    instances,
    steps=lambda words, result: result.layers,
    mean_steps=(5.5, 7.5),
    work=work,
    batched=batched,
    decides=True,
)
