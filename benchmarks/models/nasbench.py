"""Random cells of NASBench-101 (Ying et al., section 2): at most 7 vertices and 9 edges, each
vertex a 1x1 or 3x3 convolution or a 3x3 maximum pool."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from .entry import Made, generator
from .weights import seed_weights

MIN_VERTICES = 5
MAX_VERTICES = 7
MAX_EDGES = 9
OPERATORS = ("conv1x1", "conv3x3", "maxpool3x3")


@dataclass(frozen=True, slots=True)
class Cell:
    """An acyclic graph: edges (from, to) with from < to; vertex 0 is the input, the last one the
    output. operators: those of the other vertices."""

    edges: tuple[tuple[int, int], ...]
    operators: tuple[str, ...]

    @property
    def vertices(self) -> int:
        return len(self.operators) + 2

    def sources(self, vertex: int) -> tuple[int, ...]:
        return tuple(start for start, end in self.edges if end == vertex)


@dataclass(frozen=True, slots=True)
class NASBenchConfig:
    """cell: the seed of the cell's graph; weights and inputs have separate seeds."""

    cell: int = 0
    channels: int = 128
    image: int = 32
    batch: int = 1

    @classmethod
    def full(cls) -> Self:
        return cls()

    @classmethod
    def small(cls) -> Self:
        return cls(channels=12, image=6)


def sweep(count: int = 1000, **changes: int) -> Iterator[NASBenchConfig]:
    """Return the configurations of `count` random cells; `changes` replace fields."""
    return (NASBenchConfig(cell=seed, **changes) for seed in range(count))


def random_cell(seed: int) -> Cell:
    """Draw a valid cell: nine edges between seven vertices and their operators, with equal
    chances.

    Vertices on no path from input to output are removed. Cells of fewer than five
    vertices are drawn again: they would be frequent, although only 91 of the 423,624
    different cells are so small.
    """
    source = random.Random(seed)
    pairs = [(start, end) for end in range(MAX_VERTICES) for start in range(end)]
    while True:
        edges = [pairs[place] for place in sorted(source.sample(range(len(pairs)), MAX_EDGES))]
        operators = [source.choice(OPERATORS) for _ in range(MAX_VERTICES - 2)]
        cell = _pruned(edges, operators)
        if cell is not None and cell.vertices >= MIN_VERTICES:
            return cell


def _pruned(edges: list[tuple[int, int]], operators: list[str]) -> Cell | None:
    """Return the cell of the vertices on a path from input to output; None if there is none."""
    last = MAX_VERTICES - 1
    reached, needed = {0}, {last}
    for start, end in edges:  # ordered by the end
        if start in reached:
            reached.add(end)
    for start, end in sorted(edges, reverse=True):
        if end in needed:
            needed.add(start)
    kept = sorted(reached & needed)
    if not {0, last} <= set(kept):
        return None
    number = {vertex: place for place, vertex in enumerate(kept)}
    remaining = ((number[a], number[b]) for a, b in edges if a in number and b in number)
    return Cell(tuple(remaining), tuple(operators[vertex - 1] for vertex in kept[1:-1]))


def vertex_channels(cell: Cell, channels: int) -> list[int]:
    """Return the channels of each vertex's output: those leading to the output share its
    `channels`; any other has as many as the largest vertex that it leads to."""
    last = cell.vertices - 1
    found = [channels] * cell.vertices
    inner = [vertex for vertex in cell.sources(last) if vertex != 0]
    for place, vertex in enumerate(inner):
        found[vertex] = channels // len(inner) + (place < channels % len(inner))
    for vertex in range(last - 1, 0, -1):
        if vertex not in inner:
            ends = [end for start, end in cell.edges if start == vertex]
            found[vertex] = max(found[end] for end in ends)
    return found


def _convolved(inputs: int, outputs: int, kernel: int) -> nn.Module:
    conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())


class NASBenchCell(nn.Module):
    """image [B, C, H, W] -> [B, C, H, W]."""

    def __init__(self, cell: Cell, channels: int) -> None:
        super().__init__()
        self.cell = cell
        self.channels = vertex_channels(cell, channels)
        self.operators = nn.ModuleList()
        self.projections = nn.ModuleDict()
        for vertex, name in enumerate(cell.operators, start=1):
            width = self.channels[vertex]
            kernel = {"conv1x1": 1, "conv3x3": 3}.get(name)
            pool = nn.MaxPool2d(3, 1, 1)
            self.operators.append(_convolved(width, width, kernel) if kernel else pool)
        for start, end in cell.edges:
            if start == 0:
                self.projections[str(end)] = _convolved(channels, self.channels[end], 1)

    def forward(self, image: Tensor) -> Tensor:
        values = [image]
        last = self.cell.vertices - 1
        for vertex, operator in enumerate(self.operators, start=1):
            width = self.channels[vertex]
            sources = self.cell.sources(vertex)
            inputs = [values[source][:, :width] for source in sources if source != 0]
            if 0 in sources:
                inputs.append(self.projections[str(vertex)](image))
            total = inputs[0]
            for other in inputs[1:]:
                total = total + other
            values.append(operator(total))
        inner = [values[source] for source in self.cell.sources(last) if source != 0]
        if not inner:
            return self.projections[str(last)](image)
        joined = inner[0] if len(inner) == 1 else torch.cat(inner, dim=1)
        if 0 in self.cell.sources(last):
            joined = joined + self.projections[str(last)](image)
        return joined


def make(config: NASBenchConfig, seed: int = 0) -> Made:
    model = NASBenchCell(random_cell(config.cell), config.channels)
    seed_weights(model, seed)
    shape = (config.batch, config.channels, config.image, config.image)
    return model, (torch.randn(shape, generator=generator(seed + 1)),)
