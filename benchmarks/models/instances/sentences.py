"""Random sentences: lists of tokens, each a vector."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..entry import generator


class SentenceConfig(Protocol):
    """Lengths are uniform in `shortest`..`longest`; a token is [hidden]."""

    @property
    def hidden(self) -> int: ...
    @property
    def shortest(self) -> int: ...
    @property
    def longest(self) -> int: ...


def random_sentences(config: SentenceConfig, count: int, seed: int = 0) -> list[list[Tensor]]:
    source = generator(seed + 1)
    lengths = torch.randint(config.shortest, config.longest + 1, (count,), generator=source)
    return [
        [torch.randn(config.hidden, generator=source) for _ in range(length)]
        for length in lengths.tolist()
    ]
