"""A child-sum TreeLSTM (Tai et al. 2015) over binary trees with a word at each node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..entry import Phase, generator
from ..weights import seed_weights
from .entry import InstanceEntry, ManyFunction, Wrap, chain_phase
from .levels import levels_of
from .trees import folded, height, leaf_count, tree_shapes


@dataclass(frozen=True, slots=True)
class TreeLSTMConfig:
    """`shapes` is the path of a file of tree shapes; if it is empty, see `trees.py`."""

    hidden: int = 256
    words: int = 20_000
    shapes: str = ""


@dataclass
class Node:
    """A node of a parse tree; a leaf has no children. `word` is a row of the embedding."""

    left: Node | None
    right: Node | None
    word: int


class TreeLSTM(nn.Module):
    """A tree -> the hidden state of its root, [hidden]."""

    def __init__(self, config: TreeLSTMConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.embedding = nn.Embedding(config.words, hidden)
        self.input_gates = nn.Linear(hidden, 3 * hidden)
        self.state_gates = nn.Linear(hidden, 3 * hidden, bias=False)
        self.input_forget = nn.Linear(hidden, hidden)
        self.state_forget = nn.Linear(hidden, hidden, bias=False)

    def encode(self, node: Node) -> tuple[Tensor, Tensor]:
        x = self.embedding.weight[node.word]
        gates = self.input_gates(x)
        if node.left is None or node.right is None:
            i, o, u = gates.chunk(3)
            c = torch.sigmoid(i) * torch.tanh(u)
        else:
            left_h, left_c = self.encode(node.left)
            right_h, right_c = self.encode(node.right)
            i, o, u = (gates + self.state_gates(left_h + right_h)).chunk(3)
            forget = self.input_forget(x)
            left_f = torch.sigmoid(forget + self.state_forget(left_h))
            right_f = torch.sigmoid(forget + self.state_forget(right_h))
            c = torch.sigmoid(i) * torch.tanh(u) + left_f * left_c + right_f * right_c
        return torch.sigmoid(o) * torch.tanh(c), c

    def forward(self, tree: Node) -> Tensor:
        h, _ = self.encode(tree)
        return h


def make(config: TreeLSTMConfig, seed: int = 0) -> TreeLSTM:
    model = TreeLSTM(config)
    seed_weights(model, seed)
    return model


def instances(config: TreeLSTMConfig, count: int, seed: int = 0) -> list[Node]:
    """Trees with random words."""
    source = generator(seed + 1)

    def word() -> int:
        return int(torch.randint(config.words, (), generator=source))

    def leaf() -> Node:
        return Node(None, None, word())

    def inner(left: Node, right: Node) -> Node:
        return Node(left, right, word())

    return [folded(shape, leaf, inner) for shape in tree_shapes(count, seed, config.shapes)]


def work(
    config: TreeLSTMConfig, trees: Sequence[Node], results: Sequence[Any]
) -> tuple[Phase, ...]:
    """Projections of inputs in one product, then one read of the other weights per level."""
    leaves = sum(map(leaf_count, trees))
    inner = leaves - len(trees)
    square = config.hidden**2
    levels = max(map(height, trees), default=0)
    return (
        chain_phase("inputs", (6.0 * leaves + 8.0 * inner) * square, 4 * square, 1),
        chain_phase("levels", 10.0 * inner * square, 4 * square, levels),
    )


def batched(model: TreeLSTM, wrap: Wrap) -> ManyFunction:
    """Nodes of one height in all trees at once; the inputs of all nodes in one product."""
    weights = model.input_gates.weight, model.input_forget.weight
    input_weight = torch.cat(weights).t().contiguous()
    input_bias = torch.cat((model.input_gates.bias, model.input_forget.bias))
    state_weight = model.state_gates.weight.t().contiguous()
    forget_weight = model.state_forget.weight.t().contiguous()
    hidden = model.embedding.embedding_dim
    embedding = model.embedding.weight
    leaves, level = wrap(_leaves), wrap(_level)

    def many(trees: Sequence[Node]) -> list[Tensor]:
        if not trees:
            return []
        levels = levels_of(trees)
        words = torch.tensor([node.word for nodes in levels.nodes for node in nodes])
        x = embedding.index_select(0, words)
        first = levels.starts[1]
        h, c = torch.empty_like(x), torch.empty_like(x)
        # Leaves have no use for a forget gate.
        leaf_gates = torch.addmm(input_bias[: 3 * hidden], x[:first], input_weight[:, : 3 * hidden])
        h[:first], c[:first] = leaves(leaf_gates)
        gates = torch.addmm(input_bias, x[first:], input_weight)
        for number, rows in enumerate(levels.children):
            start, end = levels.starts[number + 1], levels.starts[number + 2]
            h[start:end], c[start:end] = level(
                gates[start - first : end - first], h, c, rows, state_weight, forget_weight
            )
        return list(h.index_select(0, levels.roots).unbind())

    return many


def _leaves(gates: Tensor) -> tuple[Tensor, Tensor]:
    i, o, u = gates.chunk(3, dim=1)
    c = torch.sigmoid(i) * torch.tanh(u)
    return torch.sigmoid(o) * torch.tanh(c), c


def _level(
    gates: Tensor, h: Tensor, c: Tensor, rows: Tensor, state_weight: Tensor, forget_weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute a level. `gates` [n, 4 hidden] come from the inputs; `rows` are n left, then n right
    children."""
    count, hidden = gates.shape[0], h.shape[1]
    below = h.index_select(0, rows)
    forget = torch.mm(below, forget_weight).view(2, count, hidden)
    forget = torch.sigmoid(forget + gates[:, 3 * hidden :])
    kept = (forget * c.index_select(0, rows).view(2, count, hidden)).sum(dim=0)
    total = below[:count] + below[count:]
    i, o, u = torch.addmm(gates[:, : 3 * hidden], total, state_weight).chunk(3, dim=1)
    new_c = torch.sigmoid(i) * torch.tanh(u) + kept
    return torch.sigmoid(o) * torch.tanh(new_c), new_c


ENTRY = InstanceEntry(
    "treelstm",
    "child-sum TreeLSTM over parse trees",
    {
        "small": TreeLSTMConfig(hidden=8, words=50),
        "256": TreeLSTMConfig(hidden=256),
        "512": TreeLSTMConfig(hidden=512),
    },
    make,
    instances,
    steps=lambda tree, result: 2 * leaf_count(tree) - 1,
    mean_steps=(34.0, 42.0),
    work=work,
    batched=batched,
)
