"""Loops over the pieces of a symbolic dim, the last of which may be shorter: one program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.test_dynamic import check, rows

SIZES = (5, 9, 0, 1, 2, 3, 4, 7, 8, 13)


def pieces_of_four(x: Tensor) -> Tensor:
    h = torch.zeros(4)
    for part in x.split(4):
        h = torch.tanh(h + part.sum(0))
    return h


def three_pieces(x: Tensor) -> Tensor:
    h = torch.zeros(4)
    for number, part in enumerate(x.chunk(3)):
        h = torch.tanh(h * 0.5 + part.sum(0) * number)
    return h


def two_loops(x: Tensor) -> Tensor:
    h = torch.zeros(4)
    for row in x:
        for part in x.chunk(2):
            h = torch.tanh(h * 0.5 + part.amax(0) - row)
    return h


def columns(x: Tensor) -> Tensor:
    h = torch.zeros(4, 1)
    for part in reversed(x.t().split(3, dim=1)):
        h = torch.tanh(h + (part * part.shape[1]).sum(1, keepdim=True))
    return h


def rows_of_pieces(x: Tensor) -> Tensor:
    h = torch.zeros(4)
    for part in torch.split(x * 2, 3):
        for row in part:
            h = torch.tanh(h * 0.5 + row)
    return h


def listed(x: Tensor) -> Any:
    found = [part.mean(0) for part in x.split(4)]
    return torch.stack(found), len(found)


def pairs(x: Tensor) -> Tensor:
    h = torch.zeros(4)
    for one, other in zip(x.split(2), x.exp().split(2), strict=True):
        h = torch.tanh(h + (one * other).sum(0))
    return h


@pytest.mark.parametrize(
    "function", [pieces_of_four, three_pieces, columns, rows_of_pieces, listed, pairs]
)
def test_pieces_of_any_size(function: Callable[..., Any]) -> None:
    """Without rows, `chunk` makes as many empty pieces as requested, which needs another
    program."""
    sizes = [size for size in SIZES if size or function is not three_pieces]
    check(function, rows(*sizes), programs=2)
    check(function, rows(0, 3, 0, 1), dynamic=True)


@pytest.mark.parametrize("function", [three_pieces, rows_of_pieces])
def test_pieces_in_the_emulator(function: Callable[..., Any]) -> None:
    check(function, rows(9, 5, 1, 2, 4), programs=1, backend="emulator", dynamic=True)


@pytest.mark.parametrize("function", [three_pieces, two_loops, listed])
def test_pieces_on_the_cpu(function: Callable[..., Any]) -> None:
    check(function, rows(9, 5, 1, 2, 3, 4, 33), programs=1, backend="cpu", dynamic=True)


def test_the_same_piece_by_a_number() -> None:
    def first_and_last(x: Tensor) -> Any:
        parts = x.split(4)
        return parts[0] * 2, parts[-1] + 1, len(parts)

    check(first_and_last, rows(*SIZES[:6]))
