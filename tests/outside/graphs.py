"""Networks on graphs, and equivariant ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.outside.registry import Case, program


def _graph(nodes: int, edges: int, features: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randn(nodes, features), torch.randint(0, nodes, (2, edges))


@program("torch_geometric")
def graph_convolutions() -> Case:
    from torch_geometric.nn import GCNConv, GINConv, SAGEConv

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GCNConv(6, 8), SAGEConv(8, 8)
            self.third = GINConv(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)))

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            x = self.first(x, edges).relu()
            return self.third(self.second(x, edges).relu(), edges)

    return Case(Net(), _graph(7, 12), _graph(11, 25))


@program("torch_geometric")
def graph_attention() -> Case:
    from torch_geometric.nn import GATv2Conv

    return Case(GATv2Conv(6, 4, heads=2).eval(), _graph(7, 12), _graph(11, 25))


@program("torch_geometric")
def graph_transformer() -> Case:
    from torch_geometric.nn import TransformerConv

    return Case(TransformerConv(6, 4, heads=2).eval(), _graph(7, 12), _graph(11, 25))


def _batched(*nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    count = sum(nodes)
    batch = torch.repeat_interleave(torch.arange(len(nodes)), torch.tensor(nodes))
    return *_graph(count, 3 * count), batch


@program("torch_geometric")
def top_k_pooling() -> Case:
    from torch_geometric.nn import GCNConv, TopKPooling, global_mean_pool

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.pool = GCNConv(6, 8), TopKPooling(8, ratio=0.5)

        def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
            x = self.conv(x, edges).relu()
            x, edges, _, batch, _, _ = self.pool(x, edges, batch=batch)
            return global_mean_pool(x, batch)

    return Case(Net(), _batched(5, 7), _batched(4, 9, 6))


@program("torch_geometric")
def attention_pooling() -> Case:
    from torch_geometric.nn import SAGPooling

    pool = SAGPooling(6, ratio=0.6)

    def pooled(x: Tensor, edges: Tensor, batch: Tensor) -> Any:
        x, edges, _, batch, kept, score = pool(x, edges, batch=batch)
        return x, edges, batch, kept, score

    return Case(pooled, _batched(5, 7), _batched(4, 9, 6), pool)


@program("torch_geometric")
def set_to_set() -> Case:
    from torch_geometric.nn import Set2Set

    pool = Set2Set(6, 3)

    def pooled(x: Tensor, batch: Tensor) -> Tensor:
        return pool(x, batch)

    first, second = ((x, batch) for x, _, batch in (_batched(5, 7), _batched(4, 9, 6)))
    return Case(pooled, first, second, pool)


@program("torch_geometric")
def gated_graph() -> Case:
    from torch_geometric.nn import GatedGraphConv

    return Case(GatedGraphConv(8, 3), _graph(7, 12), _graph(11, 25))


@program("torch_geometric")
def label_propagation() -> Case:
    from torch_geometric.nn import LabelPropagation

    model = LabelPropagation(4, 0.8)

    def spread(x: Tensor, edges: Tensor) -> Tensor:
        return model(x.argmax(1), edges)

    return Case(spread, _graph(7, 12), _graph(11, 25), model)


@program("e3nn")
def spherical_harmonics() -> Case:
    from e3nn import o3

    def harmonics(points: Tensor) -> Tensor:
        return o3.spherical_harmonics([0, 1, 2], points, normalize=True)

    return Case(harmonics, (torch.randn(5, 3),), (torch.randn(9, 3),))


@program("e3nn")
def tensor_product() -> Case:
    from e3nn import o3

    product = o3.FullyConnectedTensorProduct("2x0e+1x1o", "1x0e+1x1o", "2x0e+2x1o")
    first = (torch.randn(3, 5), torch.randn(3, 4))
    return Case(product, first, (torch.randn(6, 5), torch.randn(6, 4)))
