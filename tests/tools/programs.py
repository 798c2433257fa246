"""Small programs that the tests of the tools compile. Goldens show their line numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def decay(x: Tensor, weight: Tensor) -> Tensor:
    """A loop, a branch in it, a contraction."""
    for _ in range(6):
        if x.sum() > 0:
            x = torch.tanh(x @ weight)
        else:
            x = x * 0.5 + 1.0
    return x


def depth(x: Tensor, count: Tensor) -> Tensor:
    """Recursion whose depth an input decides."""
    if count <= 0:
        return x
    return torch.tanh(depth(x * 0.5, count - 1) + x)


def until_small(x: Tensor) -> Tensor:
    """A loop whose number of trips the values decide."""
    while x.abs().max() > 1.0:
        x = x * 0.5
    return x


def inverted(x: Tensor) -> Tensor:
    """One operator that no kernel is there for."""
    return torch.linalg.inv(x) + 1.0


def blocks(x: Tensor, keep: Tensor) -> Tensor:
    """Branches that look the same, one after the other."""
    for i in range(3):
        if keep[i]:
            x = torch.sigmoid(x)
    return x


DECAY = (
    torch.linspace(-1.0, 1.0, 64 * 256).view(64, 256),
    torch.linspace(-0.1, 0.1, 256 * 256).view(256, 256),
)
DEPTH = (torch.ones(8), torch.tensor(5))
