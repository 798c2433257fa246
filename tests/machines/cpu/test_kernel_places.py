"""Kernels that differ only in where in their buffers they begin are one function."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stretto
from stretto.machines.cpu.machine import source_of

LAYERS, HEADS, WIDTH = 4, 3, 8


class Steps(nn.Module):
    """A decoder's step, each layer of which reads and writes its part of one cache."""

    def __init__(self) -> None:
        super().__init__()
        size = HEADS * WIDTH
        self.inner = nn.ModuleList(nn.Linear(size, 3 * size) for _ in range(LAYERS))
        self.outer = nn.ModuleList(nn.Linear(size, size) for _ in range(LAYERS))

    def forward(self, x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        grown = list[Tensor]()
        for inner, outer, kept in zip(self.inner, self.outer, cache.unbind(1), strict=True):
            q, k, v = inner(x).view(3, HEADS, 1, WIDTH).unbind(0)
            both = torch.cat([kept, torch.stack([k, v])], 2)
            grown.append(both)
            weights = torch.softmax(q @ both[0].transpose(1, 2), 2)
            x = x + outer((weights @ both[1]).reshape(1, -1)).tanh()
        return x, torch.stack(grown, 1)


def functions_of(fast: stretto.call.compiled.Compiled) -> set[str]:
    """The functions of the kernels of the program that was compiled last."""
    text = source_of(fast.signatures[-1].stages).text
    return set(re.findall(r"void (k\d+_\w+)\(", text))


@pytest.mark.whole
@pytest.mark.parametrize("dynamic", [False, True])
def test_layers_that_read_their_part_of_a_cache(dynamic: bool) -> None:
    module = Steps().eval()
    fast = stretto.compile(module, dynamic=dynamic)
    sizes = (5, 1, 9) if dynamic else (5,)
    with torch.no_grad():
        for size in sizes:
            given = torch.randn(1, HEADS * WIDTH), torch.randn(2, LAYERS, HEADS, size, WIDTH)
            for wanted, made in zip(module(*given), fast(*given), strict=True):
                torch.testing.assert_close(made, wanted, atol=1e-5, rtol=1e-5)
    found = functions_of(fast)
    assert len(found) == 8, found  # 14 if each layer had its own


def test_two_places_of_one_buffer_keep_their_distance() -> None:
    """The second of the two places is before the first in the last call."""

    def f(x: Tensor) -> Tensor:
        a = F.softmax(x[0] * 2 - x[1], 0)
        b = F.softmax(x[1] * 2 - x[2], 0)
        c = F.softmax(x[4] * 2 - x[3], 0)
        return torch.stack([a, b, c])

    fast = stretto.compile(f)
    for size in (1, 7, 300):
        x = torch.randn(5, size)
        torch.testing.assert_close(fast(x), f(x))


def test_numbers_of_the_position_itself_are_not_moved() -> None:
    """What a kernel computes from its position is no place in a buffer."""

    def f(x: Tensor) -> Tensor:
        rows = [x[n] * torch.arange(x.shape[1]) + torch.where(x[n] > 0, n, -n) for n in range(4)]
        return torch.cat([row.cumsum(0) for row in rows])

    fast = stretto.compile(f)
    for size in (2, 33):
        x = torch.randn(4, size, dtype=torch.float64)
        torch.testing.assert_close(fast(x), f(x))


def test_gathered_rows_behind_an_offset() -> None:
    def f(table: Tensor, at: Tensor) -> Tensor:
        return sum(table[n][at[n]].sum(0) * (n + 1) for n in range(3))  # type: ignore[return-value]

    fast = stretto.compile(f)
    for size in (1, 4):
        table, at = torch.randn(3, 6, 5), torch.randint(0, 6, (3, size))
        torch.testing.assert_close(fast(table, at), f(table, at))
    with pytest.raises(IndexError):
        fast(table, at.fill_(6))
