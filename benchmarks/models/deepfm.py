"""DeepFM (Guo et al., 2017): a factorization machine beside a perceptron, on shared embeddings."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor, nn

from .entry import Made, generator
from .weights import seed_weights


@dataclass(frozen=True, slots=True)
class DeepFMConfig:
    categories: int = 32
    numbers: int = 16
    vocabulary: int = 1000
    embedding: int = 8
    layers: tuple[int, ...] = (256, 128)
    batch: int = 1

    @classmethod
    def full(cls) -> Self:
        return cls()

    @classmethod
    def small(cls) -> Self:
        return cls(categories=3, numbers=2, vocabulary=7, embedding=4, layers=(8, 4))


class DeepFM(nn.Module):
    """(categories [B, C] of int64, numbers [B, N]) -> probability [B]."""

    def __init__(self, config: DeepFMConfig) -> None:
        super().__init__()
        vocabulary, size = config.vocabulary, config.embedding
        fields = range(config.categories)
        self.first = nn.ModuleList(nn.Embedding(vocabulary, 1) for _ in fields)
        self.second = nn.ModuleList(nn.Embedding(vocabulary, size) for _ in fields)
        self.first_numbers = nn.Linear(config.numbers, 1)
        self.second_numbers = nn.Parameter(torch.empty(config.numbers, size))
        sizes = ((config.categories + config.numbers) * size, *config.layers)
        self.deep = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        self.output = nn.Linear(sizes[-1], 1)

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        columns = categories.unbind(dim=1)
        linear = self.first_numbers(numbers)
        embedded = list[Tensor]()
        for column, first, second in zip(columns, self.first, self.second, strict=True):
            linear = linear + first(column)
            embedded.append(second(column))
        scaled = numbers[:, :, None] * self.second_numbers
        features = torch.cat([torch.stack(embedded, dim=1), scaled], dim=1)
        pairs = features.sum(dim=1).square() - features.square().sum(dim=1)
        x = features.flatten(1)
        for layer in self.deep:
            x = torch.relu(layer(x))
        return torch.sigmoid(linear + 0.5 * pairs.sum(dim=1, keepdim=True) + self.output(x))[:, 0]


@torch.no_grad()
def make(config: DeepFMConfig, seed: int = 0) -> Made:
    model = DeepFM(config)
    seed_weights(model, seed)
    for table in (*model.first, *model.second):  # a sum over all pairs of fields stays near one
        table.weight.mul_(0.1)
    source = generator(seed + 1)
    shape = (config.batch, config.categories)
    categories = torch.randint(config.vocabulary, shape, generator=source)
    return model, (categories, torch.randn(config.batch, config.numbers, generator=source))
