"""Random cells of NASBench-101 (Ying et al., "NAS-Bench-101", 2019): graphs of at most seven nodes
and nine edges, whose inner nodes are 3x3 or 1x1 convolutions with a norm and a ReLU, or pooling."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

NODES, EDGES = 7, 9
CHANNELS, PIXELS = 128, 32
KINDS = ("conv3", "conv1", "pool")


def edges(rng: random.Random) -> list[tuple[int, int]]:
    """The edges of a random cell, from node 0, the input, to the last one; every node is on a way
    from the one to the other."""
    while True:
        pairs = [(a, b) for b in range(NODES) for a in range(b) if rng.random() < 0.5]
        kept = [(a, b) for a, b in pairs if _reaches(pairs, 0, a) and _reaches(pairs, b, NODES - 1)]
        if 1 <= len(kept) <= EDGES:
            return kept


def _reaches(pairs: list[tuple[int, int]], start: int, end: int) -> bool:
    found = {start}
    for a, b in sorted(pairs):
        if a in found:
            found.add(b)
    return end in found


class Cell(nn.Module):
    """One cell at batch 1: (1, CHANNELS, PIXELS, PIXELS), float32, to the same. An inner node adds
    up its inputs, those from the cell's input by a 1x1 convolution; the output joins the channels
    of its inputs."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = random.Random(seed)
        torch.manual_seed(seed)
        self.edges = edges(rng)
        inner = sorted({a for a, _ in self.edges} | {b for _, b in self.edges})
        ends = [a for a, b in self.edges if b == NODES - 1 and a]
        width = max(CHANNELS // max(len(ends), 1), 1)
        self.inner = [node for node in inner if 0 < node < NODES - 1]
        self.operations = nn.ModuleDict(
            {str(node): _operation(rng.choice(KINDS), width) for node in self.inner}
        )
        self.projections = nn.ModuleDict(
            {
                str(b): _convolution(CHANNELS, CHANNELS if b == NODES - 1 else width, 1)
                for a, b in self.edges
                if a == 0
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        values: dict[int, Tensor] = {}
        for node in self.inner:
            parts = [self._along(edge, x, values) for edge in self.edges if edge[1] == node]
            values[node] = self.operations[str(node)](sum(parts[1:], start=parts[0]))
        ends = [values[a] for a, b in self.edges if b == NODES - 1 and a]
        joined = torch.cat(ends, 1) if ends else None
        if (0, NODES - 1) not in self.edges:
            assert joined is not None
            return joined
        skipped = self.projections[str(NODES - 1)](x)
        return skipped if joined is None else skipped[:, : joined.shape[1]] + joined

    def _along(self, edge: tuple[int, int], x: Tensor, values: dict[int, Tensor]) -> Tensor:
        return self.projections[str(edge[1])](x) if edge[0] == 0 else values[edge[0]]


def _convolution(channels: int, width: int, size: int) -> nn.Module:
    parts = nn.Conv2d(channels, width, size, padding=size // 2, bias=False), nn.BatchNorm2d(width)
    return nn.Sequential(*parts, nn.ReLU())


def _operation(kind: str, width: int) -> nn.Module:
    if kind == "pool":
        return nn.MaxPool2d(3, 1, 1)
    return _convolution(width, width, 3 if kind == "conv3" else 1)


def cell(seed: int) -> tuple[nn.Module, tuple[Tensor]]:
    """A cell in evaluation mode, and its input."""
    model = Cell(seed).eval()
    drawn = torch.Generator().manual_seed(seed)
    return model, (torch.randn(1, CHANNELS, PIXELS, PIXELS, generator=drawn),)
