"""A wide graph, such as planners of parallel training create.

Every product of a transformer's layers is cut into shards, each a separate operator, joined
by sums and concatenations.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from .entry import Made, generator
from .weights import seed_weights


@dataclass(frozen=True, slots=True)
class WideConfig:
    """shards: pieces of the heads and of the hidden features; a head belongs to one piece."""

    layers: int = 4
    shards: int = 8
    head: int = 64
    hidden: int = 512
    tokens: int = 32
    batch: int = 1

    @classmethod
    def full(cls) -> Self:
        return cls()

    @classmethod
    def small(cls) -> Self:
        return cls(layers=1, shards=3, head=4, hidden=8, tokens=5)


class Head(nn.Module):
    """x [B, T, hidden] -> this head's part of the sum [B, T, hidden]."""

    def __init__(self, hidden: int, head: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(hidden, head) for _ in range(3))
        self.output = nn.Linear(head, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        weights = torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1)
        return self.output(weights @ v)


class Piece(nn.Module):
    """x [B, T, hidden] -> the part of the perceptron's sum from some of its features."""

    def __init__(self, hidden: int, features: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, features)
        self.down = nn.Linear(features, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class Wide(nn.Module):
    """x [B, T, hidden] -> [B, T, hidden]."""

    def __init__(self, config: WideConfig) -> None:
        super().__init__()
        hidden, shards = config.hidden, config.shards
        self.layers = nn.ModuleList()
        for _ in range(config.layers):
            heads = nn.ModuleList(Head(hidden, config.head) for _ in range(shards))
            pieces = nn.ModuleList(Piece(hidden, 4 * hidden // shards) for _ in range(shards))
            self.layers += [nn.LayerNorm(hidden), heads, nn.LayerNorm(hidden), pieces]

    def forward(self, x: Tensor) -> Tensor:
        for place in range(0, len(self.layers), 2):
            norm, shards = self.layers[place], self.layers[place + 1]
            assert isinstance(shards, nn.ModuleList)
            normed = norm(x)
            for part in [shard(normed) for shard in shards]:
                x = x + part
        return x


def make(config: WideConfig, seed: int = 0) -> Made:
    model = Wide(config)
    seed_weights(model, seed, gain=0.5)
    shape = (config.batch, config.tokens, config.hidden)
    return model, (torch.randn(shape, generator=generator(seed + 1)),)
