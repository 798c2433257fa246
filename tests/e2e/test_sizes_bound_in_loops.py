"""Loops of several recurrences in which data decide sizes: passes may not separate these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.frontends.python.checks import assert_same

torch.manual_seed(0)
X, W, V = torch.randn(24, 4), torch.randn(4, 4) / 2, torch.randn(4, 4) / 2


def left_context(x: Tensor) -> Tensor:
    """A fixed buffer of which as many rows are used as a tensor says."""
    buffer, past = torch.zeros(6, 4), torch.zeros(1, dtype=torch.int32)
    outs: list[Tensor] = []
    for i in range(6):
        part = x[4 * i : 4 * i + 4]
        left = buffer[6 - min(6, int(past[0].item())) :]
        keys = torch.cat([part, left])
        mask = torch.zeros(4, keys.shape[0], dtype=torch.bool)
        mask[-1, : left.shape[0]] = True
        weights = torch.softmax((part @ W @ keys.t()).masked_fill(mask, -1e8), -1)
        every = torch.cat([buffer, part])
        buffer, past = every[every.shape[0] - 6 :], past + 4
        outs.append(weights @ keys)
    return torch.cat(outs)


def two_layers(x: Tensor) -> tuple[Tensor, Tensor]:
    h, g = torch.zeros(4), torch.zeros(4)
    for row in x:
        h = torch.tanh(row + h)
        kept = h[h > 0]
        g = torch.tanh(h @ W + g * kept.sum() + kept.numel())
    return h, g


def two_products(x: Tensor) -> tuple[Tensor, Tensor]:
    h, g = torch.zeros(4, 4), torch.zeros(4, 4)
    for i in range(6):
        part = x[4 * i : 4 * i + 4]
        h = torch.tanh(h + part)
        rows = part[part[:, 0] > 0]
        one, other = rows @ W, rows @ V
        g = torch.tanh(g @ W + one.sum(0) * other.mean() + h)
    return h, g


def positions(x: Tensor) -> tuple[Tensor, Tensor, int]:
    h, g, count = torch.zeros(4), torch.zeros(4), 0
    for row in x:
        h = torch.tanh(row + h @ W)
        found = torch.nonzero(h > 0.1).flatten()
        count += found.numel()
        g = g + W[found].sum(0) @ V
    return h, g, count


def prefix(x: Tensor) -> tuple[Tensor, Tensor]:
    total, g = torch.zeros((), dtype=torch.int64), torch.ones(4)
    for i in range(len(x)):
        total = (total + (x[i].sum() > 0)) % 5
        n = int(total)
        g = torch.tanh(g @ W + x[:n].sum(0))
    return total, g


def of_first_loop(x: Tensor) -> tuple[Tensor, Tensor]:
    """The size of one recurrence is that of another one's result."""
    h, g = torch.zeros(4), torch.zeros(4)
    for row in x:
        h = torch.tanh(row + h)
        n = int((h > 0).sum())
        a = torch.ones(n, 4) @ (W * h)
        g = torch.tanh(g @ V + a.sum(0)) + torch.arange(n).sum()
    return h, g


PROGRAMS: tuple[Callable[[Tensor], Any], ...] = (
    left_context, two_layers, two_products, positions, prefix, of_first_loop,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_each_as_eager(program: Callable[[Tensor], Any]) -> None:
    fast = stretto.compile(program, backend="emulator")
    for x in (X, -X, X.abs(), X):
        assert_same(fast(x), program(x))
