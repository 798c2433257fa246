"""A doubly recurrent network (Alvarez-Melis and Jaakkola 2017) grows a tree from a vector.

A node's state comes from its parent's and from that of its previous sibling. Two
probabilities of the state decide whether the node has children and whether another sibling
follows. No node is deeper than 3, and one of depth d has at most 3 - d children. The
published benchmark draws the number of children uniformly from 0..3 - d, which gives 4.75
nodes on average; with seed 0 there are 4.8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..entry import Phase, generator
from ..weights import seed_weights
from .entry import InstanceEntry, ManyFunction, Wrap, chain_phase

THRESHOLD = 0.5


@dataclass(frozen=True, slots=True)
class DRNNConfig:
    """`bias` is that of the layer that decides on children and siblings."""

    hidden: int = 256
    deepest: int = 3
    bias: float = -0.2


@dataclass
class Grown:
    """A node of the tree that was generated; `value` is a distribution, [hidden]."""

    value: Tensor
    children: list[Grown]


class DRNN(nn.Module):
    """x [hidden] -> the root of a tree."""

    def __init__(self, config: DRNNConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.deepest = config.deepest
        self.ancestor = nn.Linear(2 * hidden, hidden)
        self.sibling = nn.Linear(2 * hidden, hidden)
        self.predict = nn.Linear(2 * hidden, hidden, bias=False)
        self.topology = nn.Linear(hidden, 2)
        self.dense = nn.Linear(hidden, hidden)
        self.with_children = nn.Parameter(torch.empty(hidden))
        self.with_sibling = nn.Parameter(torch.empty(hidden))

    def node(
        self, x: Tensor, above: Tensor, beside: Tensor, depth: int
    ) -> tuple[Grown, Tensor, bool]:
        """Return the node with its subtree, its sibling state, and True if another sibling
        follows. `x` is the value of the parent."""
        above = torch.sigmoid(self.ancestor(torch.cat([x, above])))
        beside = torch.sigmoid(self.sibling(torch.cat([x, beside])))
        h = torch.tanh(self.predict(torch.cat([above, beside])))
        p = torch.sigmoid(self.topology(h))
        value = torch.softmax(
            self.dense(h) + p[0] * self.with_children + p[1] * self.with_sibling, 0
        )
        children: list[Grown] = []
        if p[0].item() > THRESHOLD:
            children = self.siblings(value, above, depth + 1)
        return Grown(value, children), beside, bool(p[1] > THRESHOLD)

    def siblings(self, x: Tensor, above: Tensor, depth: int) -> list[Grown]:
        grown: list[Grown] = []
        beside = torch.zeros_like(x)
        more = True
        while more and len(grown) < self.deepest - depth + 1:
            child, beside, more = self.node(x, above, beside, depth)
            grown.append(child)
        return grown

    def forward(self, x: Tensor) -> Grown:
        root, _, _ = self.node(x, torch.zeros_like(x), torch.zeros_like(x), 0)
        return root


def make(config: DRNNConfig, seed: int = 0) -> DRNN:
    model = DRNN(config)
    seed_weights(model, seed)
    with torch.no_grad():
        model.dense.weight.mul_(3.0)
        # States are sigmoids, so near a half: subtract their mean and enlarge the differences.
        model.predict.weight.sub_(model.predict.weight.mean(dim=1, keepdim=True)).mul_(6.0)
        model.topology.weight.sub_(model.topology.weight.mean(dim=1, keepdim=True)).mul_(2.0)
        model.topology.bias.fill_(config.bias)
    return model


def instances(config: DRNNConfig, count: int, seed: int = 0) -> list[Tensor]:
    return list((2.0 * torch.randn(count, config.hidden, generator=generator(seed + 1))).unbind())


def size(grown: Grown) -> int:
    """Return the number of nodes of a tree."""
    return 1 + sum(map(size, grown.children))


def work(
    config: DRNNConfig, inputs: Sequence[Tensor], results: Sequence[Grown]
) -> tuple[Phase, ...]:
    nodes = sum(map(size, results))
    weights = 7 * config.hidden**2
    return (
        chain_phase("nodes", 2.0 * nodes * weights, weights, max(map(_chain, results), default=0)),
    )


def _chain(grown: Grown) -> int:
    """Return the longest path of nodes that depend on each other; a sibling depends on the
    previous one."""
    below = (place + _chain(child) for place, child in enumerate(grown.children))
    return 1 + max(below, default=0)


def batched(model: DRNN, wrap: Wrap) -> ManyFunction:
    """Depth by depth: the k-th children of all parents of one depth at once."""
    hidden = model.dense.in_features
    parts = [layer.weight.t() for layer in (model.ancestor, model.sibling)]
    # The parent's part of both states is one product, shared by all of its children.
    input_weight = torch.cat([part[:hidden] for part in parts], dim=1).contiguous()
    input_bias = torch.cat((model.ancestor.bias, model.sibling.bias))
    above_weight, beside_weight = (part[hidden:].contiguous() for part in parts)
    shared, node = wrap(_shared), wrap(_node)
    output_weight = torch.cat((model.dense.weight, model.topology.weight)).t().contiguous()
    output_bias = torch.cat((model.dense.bias, model.topology.bias))
    rest = (model.predict.weight.t().contiguous(), output_weight, output_bias)
    extra = torch.stack((model.with_children, model.with_sibling))

    def many(inputs: Sequence[Tensor]) -> list[Grown]:
        if not inputs:
            return []
        x = torch.stack(list(inputs))
        above = torch.zeros_like(x)
        roots: list[list[Grown]] = [[] for _ in inputs]
        lists = roots
        for depth in range(model.deepest + 1):
            x, above, lists = grow(x, above, lists, 1 if depth == 0 else model.deepest - depth + 1)
            if not lists:
                break
        return [nodes[0] for nodes in roots]

    def grow(
        x: Tensor, above: Tensor, lists: list[list[Grown]], most: int
    ) -> tuple[Tensor, Tensor, list[list[Grown]]]:
        """Fill the lists of children; return the nodes that have children themselves."""
        above, inputs = shared(x, above, input_weight, input_bias, above_weight)
        beside = torch.zeros_like(above)
        values, aboves, parents = [], [], []
        for _ in range(most):
            beside, value, chosen = node(inputs, above, beside, beside_weight, *rest, extra)
            decisions = chosen.tolist()
            has: list[int] = []
            for row, (nodes, one, (children, _)) in enumerate(
                zip(lists, value.unbind(), decisions, strict=True)
            ):
                grown = Grown(one, [])
                nodes.append(grown)
                if children:
                    has.append(row)
                    parents.append(grown.children)
            if has:
                rows = torch.tensor(has)
                values.append(value.index_select(0, rows))
                aboves.append(above.index_select(0, rows))
            more = [row for row, (_, sibling) in enumerate(decisions) if sibling]
            if not more:
                break
            lists = [lists[row] for row in more]
            rows = torch.tensor(more)
            inputs, above, beside = (v.index_select(0, rows) for v in (inputs, above, beside))
        if not parents:
            return x, above, []
        return torch.cat(values), torch.cat(aboves), parents

    return many


def _shared(
    x: Tensor, above: Tensor, weight: Tensor, bias: Tensor, above_weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what all children of a node have in common: the ancestors' state, and the input's
    part of the siblings' state."""
    hidden = x.shape[1]
    inputs = torch.addmm(bias, x, weight)
    state = torch.sigmoid(torch.addmm(inputs[:, :hidden], above, above_weight))
    return state, inputs[:, hidden:]


def _node(
    inputs: Tensor,
    above: Tensor,
    beside: Tensor,
    beside_weight: Tensor,
    predict_weight: Tensor,
    output_weight: Tensor,
    output_bias: Tensor,
    extra: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    hidden = inputs.shape[1]
    new = torch.sigmoid(torch.addmm(inputs, beside, beside_weight))
    h = torch.tanh(torch.mm(torch.cat((above, new), dim=1), predict_weight))
    scores = torch.addmm(output_bias, h, output_weight)
    p = torch.sigmoid(scores[:, hidden:])
    value = torch.softmax(torch.addmm(scores[:, :hidden], p, extra), dim=1)
    return new, value, p > THRESHOLD


ENTRY = InstanceEntry(
    "drnn",
    "doubly recurrent network: grows a tree by computed probabilities",
    {
        "small": DRNNConfig(hidden=8, bias=0.3),
        "256": DRNNConfig(hidden=256),
        "512": DRNNConfig(hidden=512, bias=0.12),
    },
    make,
    instances,
    steps=lambda x, result: size(result),
    mean_steps=(4.0, 5.5),
    work=work,
    batched=batched,
    decides=True,
)
