"""Level programs against eager PyTorch, row by row."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stretto.batching.levels import LevelProgram
from stretto.batching.program import Block
from tests.batching.levels import block_of, chain_of, check, f32, launch

BACKENDS = ("interpreter", "cpu")


class Cell(nn.Module):
    """A binary TreeLSTM cell on one node."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gates = nn.Linear(size, 3 * size)
        self.forget = nn.Linear(size, size)

    def forward(self, hl: Any, cl: Any, hr: Any, cr: Any) -> tuple[Any, Any]:
        i, o, u = self.gates(hl + hr).chunk(3)
        c = torch.sigmoid(i) * torch.tanh(u)
        c = c + torch.sigmoid(self.forget(hl)) * cl + torch.sigmoid(self.forget(hr)) * cr
        return torch.sigmoid(o) * torch.tanh(c), c


def tree_blocks(size: int = 8) -> list[Block]:
    torch.manual_seed(0)
    h = f32(size)
    leaf = nn.Linear(size, size)
    return [
        block_of("leaf", (h,), lambda x: torch.tanh(leaf(x))),
        block_of("cell", (h, h, h, h), Cell(size)),
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_cells_of_trees(backend: str) -> None:
    program = LevelProgram(tree_blocks(), backend=backend)
    rng = random.Random(0)
    check(program, launch(program, [(0, 7), (1, 3), (1, 2), (0, 0), (1, 1), (1, 0)], rng))
    check(program, launch(program, [(1, 4)], rng))
    check(program, launch(program, [(0, 0)], rng))
    check(program, launch(program, [], rng))


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_steps_of_many_blocks(backend: str) -> None:
    torch.manual_seed(1)
    layers = [nn.Linear(4, 4) for _ in range(5)]
    blocks = [
        chain_of(f"b{n}", (f32(4), f32(4)), (layer, 0), (torch.mul, 2, 1), (F.relu, 3))
        for n, layer in enumerate(layers)
    ]
    program = LevelProgram(blocks, backend=backend)
    rng = random.Random(1)
    for _ in range(3):
        counts = [(rng.randrange(5), rng.choice((0, 1, 2, 7, 20))) for _ in range(12)]
        check(program, launch(program, counts, rng))
