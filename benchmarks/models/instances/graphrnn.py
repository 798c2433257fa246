"""GraphRNN (You et al. 2018): one RNN adds nodes to a graph, one inside it decides on edges.

An edge is there where its probability is above a half (the original draws it), and the graph is
complete when the probability of another node falls below a half, or the limit is reached. With seed
0 a graph has 10 to 11 nodes on average, and 24 at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..entry import Phase, generator
from ..weights import seed_weights
from .entry import InstanceEntry, ManyFunction, Wrap, chain_phase


@dataclass(frozen=True, slots=True)
class GraphRNNConfig:
    """A new node may have edges to the `back` nodes before it. `more` and `edge` are the biases of
    the layers that decide on another node and on an edge."""

    hidden: int = 256
    edge_hidden: int = 64
    back: int = 6
    most: int = 24
    more: float = 0.1
    edge: float = 0.5


@dataclass
class Graph:
    """edges: pairs (new node, earlier node). state: of the graph's RNN at the end, [hidden]."""

    nodes: int
    edges: list[tuple[int, int]]
    state: Tensor


class GraphRNN(nn.Module):
    """x [hidden] -> a graph."""

    def __init__(self, config: GraphRNNConfig) -> None:
        super().__init__()
        self.back = config.back
        self.most = config.most
        self.nodes = nn.GRUCell(config.back, config.hidden)
        self.more = nn.Linear(config.hidden, 1)
        self.start = nn.Linear(config.hidden, config.edge_hidden)
        self.edges = nn.GRUCell(1, config.edge_hidden)
        self.edge = nn.Linear(config.edge_hidden, 1)

    def forward(self, x: Tensor) -> Graph:
        state = x
        row = x.new_ones(self.back)
        edges: list[tuple[int, int]] = []
        count = 1
        while count < self.most:
            state = self.nodes(row, state)
            if torch.sigmoid(self.more(state)).item() < 0.5:
                break
            h = self.start(state)
            bit = x.new_ones(1)
            bits: list[Tensor] = []
            for distance in range(1, self.back + 1):
                if distance > count:
                    bits.append(x.new_zeros(1))
                    continue
                h = self.edges(bit, h)
                if bool(torch.sigmoid(self.edge(h)) > 0.5):
                    edges.append((count, count - distance))
                    bit = x.new_ones(1)
                else:
                    bit = x.new_zeros(1)
                bits.append(bit)
            row = torch.cat(bits)
            count += 1
        return Graph(count, edges, state)


def make(config: GraphRNNConfig, seed: int = 0) -> GraphRNN:
    model = GraphRNN(config)
    seed_weights(model, seed, gain=2.0)
    with torch.no_grad():
        model.more.bias.fill_(config.more)
        model.edge.bias.fill_(config.edge)
    return model


def instances(config: GraphRNNConfig, count: int, seed: int = 0) -> list[Tensor]:
    return list(torch.randn(count, config.hidden, generator=generator(seed + 1)).unbind())


def work(
    config: GraphRNNConfig, inputs: Sequence[Tensor], results: Sequence[Graph]
) -> tuple[Phase, ...]:
    hidden, edge, back = config.hidden, config.edge_hidden, config.back
    node_weights = 3 * hidden * (hidden + back) + hidden + hidden * edge
    edge_weights = 3 * edge * (edge + 1) + edge
    # A graph that did not reach the limit has taken one more step of the graph's RNN.
    steps = sum(min(graph.nodes, config.most - 1) for graph in results)
    decided = sum(sum(min(back, node) for node in range(1, graph.nodes)) for graph in results)
    largest = max((graph.nodes for graph in results), default=0)
    return (
        chain_phase("nodes", 2.0 * steps * node_weights, node_weights, largest),
        chain_phase("edges", 2.0 * decided * edge_weights, edge_weights, largest * back),
    )


def batched(model: GraphRNN, wrap: Wrap) -> ManyFunction:
    """All graphs take a step together; complete ones leave the batch."""
    nodes, edges = model.nodes, model.edges
    node_weights = (nodes.weight_ih, nodes.weight_hh, nodes.bias_ih, nodes.bias_hh)
    edge_weights = (edges.weight_ih, edges.weight_hh, edges.bias_ih, edges.bias_hh)
    node_step, edge_step = wrap(_node_step), wrap(_edge_step)

    def many(inputs: Sequence[Tensor]) -> list[Graph]:
        graphs: list[Graph | None] = [None] * len(inputs)
        found: list[list[tuple[int, int]]] = [[] for _ in inputs]
        live = list(range(len(inputs)))
        if not live:
            return []
        state = torch.stack(list(inputs))
        row = state.new_ones(len(live), model.back)
        for count in range(1, model.most):
            state, more = node_step(row, state, *node_weights, model.more.weight, model.more.bias)
            if not more.all():
                kept: list[int] = []
                for place, goes_on in enumerate(more.tolist()):
                    if goes_on:
                        kept.append(place)
                        continue
                    graph = live[place]
                    graphs[graph] = Graph(count, found[graph], state[place])
                live = [live[place] for place in kept]
                state = state[torch.tensor(kept, dtype=torch.int64)]
            if not live:
                break
            h = model.start(state)
            row = state.new_zeros(len(live), model.back)
            bit = state.new_ones(len(live), 1)
            for distance in range(1, min(model.back, count) + 1):
                h, bit = edge_step(bit, h, *edge_weights, model.edge.weight, model.edge.bias)
                row[:, distance - 1 : distance] = bit
            for place, distance in row.nonzero().tolist():
                found[live[place]].append((count, count - distance - 1))
        for place, graph in enumerate(live):
            graphs[graph] = Graph(model.most, found[graph], state[place])
        return [graph for graph in graphs if graph is not None]

    return many


def _node_step(
    row: Tensor,
    state: Tensor,
    input_weight: Tensor,
    state_weight: Tensor,
    input_bias: Tensor,
    state_bias: Tensor,
    weight: Tensor,
    bias: Tensor,
) -> tuple[Tensor, Tensor]:
    new = torch.gru_cell(row, state, input_weight, state_weight, input_bias, state_bias)
    return new, torch.sigmoid(torch.addmv(bias, new, weight[0])) >= 0.5


def _edge_step(
    bit: Tensor,
    h: Tensor,
    input_weight: Tensor,
    state_weight: Tensor,
    input_bias: Tensor,
    state_bias: Tensor,
    weight: Tensor,
    bias: Tensor,
) -> tuple[Tensor, Tensor]:
    new = torch.gru_cell(bit, h, input_weight, state_weight, input_bias, state_bias)
    return new, (torch.sigmoid(torch.addmm(bias, new, weight.t())) > 0.5).to(h.dtype)


ENTRY = InstanceEntry(
    "graphrnn",
    "GraphRNN: an RNN over nodes with one over edges inside",
    {
        "small": GraphRNNConfig(hidden=8, edge_hidden=4, back=3, most=8, more=0.3),
        "256": GraphRNNConfig(hidden=256),
        "512": GraphRNNConfig(hidden=512, edge_hidden=128, more=0.0, edge=0.2),
    },
    make,
    instances,
    steps=lambda x, result: result.nodes,
    mean_steps=(8.0, 13.0),
    work=work,
    batched=batched,
    decides=True,
)
