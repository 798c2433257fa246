"""MV-RNN (Socher et al. 2012): each node of a parse tree has a vector and a matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ..entry import Phase, generator
from ..weights import seed_weights
from .entry import InstanceEntry, ManyFunction, Wrap, chain_phase
from .levels import levels_of
from .trees import folded, height, leaf_count, tree_shapes


@dataclass(frozen=True, slots=True)
class MVRNNConfig:
    """`words` is the size of the lexicon. A word that occurs again uses the same two tensors."""

    hidden: int = 64
    words: int = 200
    shapes: str = ""


@dataclass
class Word:
    """vector: [hidden]. matrix: [hidden, hidden], the word's effect on its neighbour."""

    vector: Tensor
    matrix: Tensor


@dataclass
class Phrase:
    left: Tree
    right: Tree


Tree: TypeAlias = Word | Phrase


class MVRNN(nn.Module):
    """v = tanh(W [v_l M_r ; v_r M_l] + b), M = W_m [M_l ; M_r] + b_m; returns both of the root."""

    def __init__(self, config: MVRNNConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.vector = nn.Linear(2 * hidden, hidden)
        self.matrix_weight = nn.Parameter(torch.empty(hidden, 2 * hidden))
        self.matrix_bias = nn.Parameter(torch.empty(hidden, hidden))

    def forward(self, tree: Tree) -> tuple[Tensor, Tensor]:
        if isinstance(tree, Word):
            return tree.vector, tree.matrix
        left_vector, left_matrix = self.forward(tree.left)
        right_vector, right_matrix = self.forward(tree.right)
        changed = torch.cat([left_vector @ right_matrix, right_vector @ left_matrix])
        vector = torch.tanh(self.vector(changed))
        matrix = self.matrix_weight @ torch.cat([left_matrix, right_matrix]) + self.matrix_bias
        return vector, matrix


def make(config: MVRNNConfig, seed: int = 0) -> MVRNN:
    model = MVRNN(config)
    seed_weights(model, seed)
    with torch.no_grad():
        # As small as the entries of a word's matrix, or it would dominate them.
        model.matrix_bias.mul_(0.1)
    return model


def instances(config: MVRNNConfig, count: int, seed: int = 0) -> list[Tree]:
    source = generator(seed + 1)
    hidden = config.hidden
    lexicon = [
        Word(
            torch.randn(hidden, generator=source),
            torch.randn(hidden, hidden, generator=source) / math.sqrt(hidden),
        )
        for _ in range(config.words)
    ]

    def word() -> Tree:
        return lexicon[int(torch.randint(config.words, (), generator=source))]

    return [folded(shape, word, Phrase) for shape in tree_shapes(count, seed, config.shapes)]


def work(config: MVRNNConfig, trees: Sequence[Tree], results: Sequence[Any]) -> tuple[Phase, ...]:
    hidden = config.hidden
    inner = sum(map(leaf_count, trees)) - len(trees)
    flops = inner * (8.0 * hidden**2 + 4.0 * hidden**3)
    weights = 4 * hidden**2
    return (chain_phase("levels", flops, weights, max(map(height, trees), default=0)),)


def batched(model: MVRNN, wrap: Wrap) -> ManyFunction:
    """Compute nodes of one height at once. Matrices, also those of words, are not moved: only the
    pairs [M_l ; M_r] of a level are copied from them."""
    vector_weight = model.vector.weight.t().contiguous()
    level = wrap(_level)

    def many(trees: Sequence[Tree]) -> list[tuple[Tensor, Tensor]]:
        if not trees:
            return []
        levels = levels_of(trees)
        first, last = levels.starts[1], levels.starts[-1]
        vectors = vector_weight.new_empty(last, vector_weight.shape[1])
        torch.stack([word.vector for word in levels.nodes[0]], out=vectors[:first])
        matrices = [word.matrix for word in levels.nodes[0]]
        for number, sides in enumerate(levels.children):
            start, end = levels.starts[number + 1], levels.starts[number + 2]
            rows = sides.view(2, -1).t().flatten()
            pairs = torch.stack([matrices[row] for row in rows.tolist()])
            vectors[start:end], made = level(
                *(vectors, pairs, rows, vector_weight, model.vector.bias),
                *(model.matrix_weight, model.matrix_bias),
            )
            matrices += made.unbind()
        roots = vectors.index_select(0, levels.roots).unbind()
        # Copies, so that a result does not hold the matrices of its level.
        ends = [matrices[row].clone() for row in levels.roots.tolist()]
        return list(zip(roots, ends, strict=True))

    return many


def _level(
    vectors: Tensor,
    matrices: Tensor,
    rows: Tensor,
    vector_weight: Tensor,
    vector_bias: Tensor,
    matrix_weight: Tensor,
    matrix_bias: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute a level. `rows`: the n left and right children, alternating; `matrices`: their
    matrices, [2 n, hidden, hidden]."""
    count, hidden = rows.shape[0] // 2, vectors.shape[1]
    below = vectors.index_select(0, rows).view(count, 2, 1, hidden)
    pairs = matrices.view(count, 2, hidden, hidden)
    changed = torch.cat(
        (torch.bmm(below[:, 0], pairs[:, 1]), torch.bmm(below[:, 1], pairs[:, 0])), dim=2
    )
    vector = torch.tanh(torch.addmm(vector_bias, changed.squeeze(1), vector_weight))
    both = matrices.view(count, 2 * hidden, hidden)
    weights = matrix_weight.expand(count, -1, -1)
    return vector, torch.baddbmm(matrix_bias.expand(count, -1, -1), weights, both)


ENTRY = InstanceEntry(
    "mvrnn",
    "MV-RNN over parse trees: a vector and a matrix per node",
    {
        "small": MVRNNConfig(hidden=8, words=20),
        "64": MVRNNConfig(hidden=64),
        "128": MVRNNConfig(hidden=128),
    },
    make,
    instances,
    steps=lambda tree, result: 2 * leaf_count(tree) - 1,
    mean_steps=(34.0, 42.0),
    work=work,
    batched=batched,
)
