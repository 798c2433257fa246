"""Lists whose items have a size that data decide, in loops that end when data say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.frontends.python.checks import assert_same

torch.manual_seed(0)
X = torch.rand(3, 6)
COUNTS = [torch.tensor(n) for n in (4, 6, 1, 0, 4)]


def stacked(x: Tensor, n: Tensor) -> Tensor:
    part = x[:, : int(n)]
    kept: list[Tensor] = []
    for _ in range(12):
        part = torch.softmax(part * 1.5, 0)
        kept.append(part)
        if (part > 0.6).any():
            break
    return torch.stack(kept)


def by_position(x: Tensor, n: Tensor) -> tuple[Tensor, int]:
    part, kept = x[0, : int(n)], [x[1, : int(n)]]
    while part.sum() > 0.1:
        part = part * 0.5
        kept.append(part + kept[-1])
    return kept[len(kept) // 2], len(kept)


def popped(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    part, kept = x[:, : int(n)], list[Tensor]()
    while part.sum() > 0.5:
        part = part * 0.6
        kept.append(part)
        kept.append(part.cos())
        if part.sum() > 2:
            kept.pop()
    total = x[:, : int(n)] * 0
    while len(kept) > 0:
        total = total * 0.5 + kept.pop()
    return total, part


def in_branches(x: Tensor, n: Tensor) -> Tensor:
    part, one, other = x[0, : int(n)], list[Tensor](), list[Tensor]()
    for i in range(9):
        part = part * 0.8
        if part.sum() * i > 1:
            one.append(part)
        else:
            other.append(part * i)
    chosen = one if len(one) > len(other) else other
    return torch.stack(chosen).sum(0) + torch.stack(other).sum()


def set_items(x: Tensor, n: Tensor) -> Tensor:
    part = x[0, : int(n)]
    kept = [part, part * 2, part * 3]
    for i in range(7):
        kept[i % 3] = kept[(i + 1) % 3] * 0.5 + i
        if kept[0].sum() > 100:
            break
    return torch.stack(kept)


def by_mask(x: Tensor, n: Tensor) -> Tensor:
    rows = x[x[:, 0] > 0.3 * n.sign()]
    kept: list[Tensor] = []
    while len(kept) < 3 or (rows.numel() > 0 and rows.max() > 0.5):
        rows = rows * 0.7
        kept.append(rows)
    return torch.stack(kept)


PROGRAMS: tuple[Callable[[Tensor, Tensor], Any], ...] = (
    stacked, by_position, popped, in_branches, set_items, by_mask,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_each_as_eager(program: Callable[[Tensor, Tensor], Any]) -> None:
    fast = stretto.compile(program, backend="emulator")
    for n in COUNTS:
        assert_same(fast(X, n), program(X, n))


def test_on_the_cpu() -> None:
    fast = stretto.compile(stacked)
    for n in COUNTS:
        assert_same(fast(X, n), stacked(X, n))


def unbounded(x: Tensor, n: Tensor) -> Tensor:
    part, kept = torch.ones(int(n)), list[Tensor]()
    while part.sum() > 0.5:
        part = part * x.max()
        kept.append(part)
    kept.append(part)
    return torch.stack(kept)


def test_a_size_that_nothing_bounds_is_refused() -> None:
    text = r"a list of tensors(.|\n)*remedy.*fallback=True"
    with pytest.raises(stretto.CaptureError, match=text):
        stretto.compile(unbounded, backend="emulator")(X, COUNTS[0])
    fast = stretto.compile(unbounded, backend="emulator", fallback=True)
    for n in COUNTS:
        assert_same(fast(X, n), unbounded(X, n))
