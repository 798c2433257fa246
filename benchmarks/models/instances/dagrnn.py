"""A DAG-RNN (Shuai et al. 2015) labels the vertices of a graph without cycles.

h_v = tanh(U x_v + W (sum of h_p over the parents p of v) + b). Graphs are random: 20 to 40
vertices, each with up to 3 parents among the 6 before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..entry import Phase, generator
from ..weights import seed_weights
from .entry import InstanceEntry, ManyFunction, Wrap, chain_phase


@dataclass(frozen=True, slots=True)
class DAGRNNConfig:
    hidden: int = 256
    classes: int = 33
    fewest: int = 20
    most: int = 40


@dataclass
class Vertex:
    """feature: [hidden]. parents: indices of vertices earlier in the list."""

    feature: Tensor
    parents: list[int]


class DAGRNN(nn.Module):
    """Vertices in topological order -> for each the scores of its class, [classes]."""

    def __init__(self, config: DAGRNNConfig) -> None:
        super().__init__()
        self.input = nn.Linear(config.hidden, config.hidden)
        self.state = nn.Linear(config.hidden, config.hidden, bias=False)
        self.output = nn.Linear(config.hidden, config.classes)

    def forward(self, vertices: list[Vertex]) -> list[Tensor]:
        states: list[Tensor] = []
        for vertex in vertices:
            h = self.input(vertex.feature)
            if vertex.parents:
                total = states[vertex.parents[0]]
                for parent in vertex.parents[1:]:
                    total = total + states[parent]
                h = h + self.state(total)
            states.append(torch.tanh(h))
        return [self.output(h) for h in states]


def make(config: DAGRNNConfig, seed: int = 0) -> DAGRNN:
    model = DAGRNN(config)
    seed_weights(model, seed)
    return model


def instances(config: DAGRNNConfig, count: int, seed: int = 0) -> list[list[Vertex]]:
    source = generator(seed + 1)

    def vertex(place: int) -> Vertex:
        number = min(int(torch.randint(0, 4, (), generator=source)), place)
        near = torch.randperm(min(place, 6), generator=source)[:number]
        parents = sorted(place - 1 - int(back) for back in near)
        return Vertex(torch.randn(config.hidden, generator=source), parents)

    sizes = torch.randint(config.fewest, config.most + 1, (count,), generator=source)
    return [[vertex(place) for place in range(size)] for size in sizes.tolist()]


def heights(vertices: Sequence[Vertex]) -> list[int]:
    """Return the number of vertices on the longest path to each one, without itself."""
    found: list[int] = []
    for vertex in vertices:
        found.append(max([found[parent] + 1 for parent in vertex.parents], default=0))
    return found


def work(
    config: DAGRNNConfig, graphs: Sequence[list[Vertex]], results: Sequence[Any]
) -> tuple[Phase, ...]:
    vertices = sum(map(len, graphs))
    followed = sum(1 for graph in graphs for vertex in graph if vertex.parents)
    square, classes = config.hidden**2, config.hidden * config.classes
    deepest = max((max(heights(graph), default=0) for graph in graphs), default=0)
    return (
        chain_phase("inputs", 2.0 * vertices * square, square, 1),
        chain_phase("states", 2.0 * followed * square, square, deepest),
        chain_phase("outputs", 2.0 * vertices * classes, classes, 1),
    )


def batched(model: DAGRNN, wrap: Wrap) -> ManyFunction:
    """Vertices of one height in all graphs at once; sums over parents by `index_add`."""
    weight = model.state.weight.t().contiguous()
    step = wrap(_step)

    def many(graphs: Sequence[list[Vertex]]) -> list[list[Tensor]]:
        # The rows of each height, and pairs (place within the height, row of the parent).
        rows: list[list[int]] = []
        targets: list[list[int]] = []
        parents: list[list[int]] = []
        features: list[Tensor] = []
        for graph in graphs:
            offset = len(features)
            for vertex, height in zip(graph, heights(graph), strict=True):
                while height >= len(rows):
                    rows.append([])
                    targets.append([])
                    parents.append([])
                targets[height] += [len(rows[height])] * len(vertex.parents)
                parents[height] += [offset + parent for parent in vertex.parents]
                rows[height].append(len(features))
                features.append(vertex.feature)
        if not features:
            return [[] for _ in graphs]
        inputs = model.input(torch.stack(features))
        states = torch.tanh(inputs)
        for row, target, parent in zip(rows[1:], targets[1:], parents[1:], strict=True):
            places = torch.tensor(row)
            states[places] = step(
                *(inputs, states, places, torch.tensor(target), torch.tensor(parent), weight)
            )
        scores = model.output(states)
        return [list(part.unbind()) for part in scores.split([len(graph) for graph in graphs])]

    return many


def _step(
    inputs: Tensor, states: Tensor, rows: Tensor, targets: Tensor, parents: Tensor, weight: Tensor
) -> Tensor:
    total = states.new_zeros(rows.shape[0], states.shape[1])
    total = total.index_add(0, targets, states.index_select(0, parents))
    return torch.tanh(torch.addmm(inputs.index_select(0, rows), total, weight))


ENTRY = InstanceEntry(
    "dagrnn",
    "DAG-RNN over random graphs, a class per vertex",
    {
        "small": DAGRNNConfig(hidden=8, classes=3, fewest=1, most=12),
        "256": DAGRNNConfig(hidden=256),
        "512": DAGRNNConfig(hidden=512),
    },
    make,
    instances,
    steps=lambda vertices, result: len(vertices),
    mean_steps=(27.0, 33.0),
    work=work,
    batched=batched,
)
