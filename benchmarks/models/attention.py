"""Autoregressive attention: one token a step, a cache of keys and values that fills up.

As in Cocktailer's model, each head has its own 64 x 64 projections and a step attends to all
slots of the cache; slots not yet generated hold what the caller put there.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from .entry import FLOAT_BYTES, Made, Phase, generator
from .weights import seed_weights


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    heads: int = 12
    head_size: int = 64
    slots: int = 64
    start: int = 32
    batch: int = 1

    @classmethod
    def full(cls) -> Self:
        return cls()

    @classmethod
    def small(cls) -> Self:
        return cls(heads=2, head_size=4, slots=6, start=3)


class Attention(nn.Module):
    """(x [B, heads, 1, size], keys and values [B, heads, slots, size]) -> (x, keys, values)."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        shape = (config.heads, config.head_size, config.head_size)
        self.start = config.start
        self.slots = config.slots
        self.scale = config.head_size**-0.5
        self.query = nn.Parameter(torch.empty(shape))
        self.key = nn.Parameter(torch.empty(shape))
        self.value = nn.Parameter(torch.empty(shape))
        self.output = nn.Parameter(torch.empty(shape))

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keys = keys.clone()
        values = values.clone()
        for slot in range(self.start, self.slots):
            query = torch.matmul(x, self.query)
            keys[:, :, slot] = torch.matmul(x, self.key).squeeze(2)
            values[:, :, slot] = torch.matmul(x, self.value).squeeze(2)
            scores = torch.matmul(query, keys.transpose(2, 3)) * self.scale
            weights = torch.softmax(scores, dim=-1)
            x = torch.matmul(torch.matmul(weights, values), self.output)
        return x, keys, values


def make(config: AttentionConfig, seed: int = 0) -> Made:
    model = Attention(config)
    seed_weights(model, seed)
    with torch.no_grad():
        # seed_weights counts all of parameter[0] as fan in; a head's rows are one dimension less.
        for parameter in model.parameters():
            parameter.mul_(1.5 * config.head_size**0.5)
    source = generator(seed + 1)
    cache = (config.batch, config.heads, config.slots, config.head_size)
    x = torch.randn(config.batch, config.heads, 1, config.head_size, generator=source)
    keys = torch.randn(cache, generator=source)
    values = torch.randn(cache, generator=source)
    return model, (x, keys, values)


def work(config: AttentionConfig) -> tuple[Phase, ...]:
    steps = config.slots - config.start
    weights = 4.0 * config.heads * config.head_size**2
    cache = 2.0 * config.batch * config.heads * config.slots * config.head_size
    flops = 2.0 * steps * (config.batch * weights + cache)
    resident = (weights + cache) * FLOAT_BYTES
    return (Phase("steps", flops, steps * resident, resident),)
