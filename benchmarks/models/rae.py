"""A recursive autoencoder: a tree is encoded by recursion over arrays that describe it.

Nodes are numbered children first, so the root has the highest number. The arrays are padded to
`slots`, so trees of different size share one signature.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from .entry import Made, Phase, generator, matmul_phase
from .weights import seed_weights


@dataclass(frozen=True, slots=True)
class RAEConfig:
    """`shape` describes the tree: `.` is a leaf and `(LR)` an inner node; empty draws one."""

    hidden: int = 512
    leaves: int = 33
    slots: int = 127
    shape: str = ""

    @classmethod
    def full(cls) -> Self:
        return cls()

    @classmethod
    def small(cls) -> Self:
        return cls(hidden=8, leaves=4, slots=9)


@dataclass(frozen=True, slots=True)
class Tree:
    """Children of each node (0 for a leaf), children numbered before their parent."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    is_leaf: tuple[bool, ...]

    @property
    def root(self) -> int:
        return len(self.left) - 1


class RAE(nn.Module):
    """(leaves [slots, hidden], left, right [slots] int64, is_leaf [slots] bool, root) -> h."""

    def __init__(self, config: RAEConfig) -> None:
        super().__init__()
        self.encoder = nn.Linear(2 * config.hidden, config.hidden)

    def encode(
        self, node: Tensor, leaves: Tensor, left: Tensor, right: Tensor, is_leaf: Tensor
    ) -> Tensor:
        if is_leaf[node]:
            return leaves[node]
        first = self.encode(left[node], leaves, left, right, is_leaf)
        second = self.encode(right[node], leaves, left, right, is_leaf)
        return torch.tanh(self.encoder(torch.cat([first, second], dim=-1)))

    def forward(
        self, leaves: Tensor, left: Tensor, right: Tensor, is_leaf: Tensor, root: Tensor
    ) -> Tensor:
        return self.encode(root, leaves, left, right, is_leaf)


def tree_from_shape(shape: str) -> Tree:
    """Parse `.` and `(LR)`; raises ValueError on anything else."""
    left: list[int] = []
    right: list[int] = []
    is_leaf: list[bool] = []
    stack: list[int] = []
    depth = 0
    for character in shape:
        depth += {"(": 1, ")": -1, ".": 0}.get(character, -len(shape))
        if character == "(":
            continue
        leaf = character == "."
        if depth < 0 or (not leaf and len(stack) < 2):
            raise ValueError(f"not a tree: {shape!r}")
        right.append(0 if leaf else stack.pop())
        left.append(0 if leaf else stack.pop())
        is_leaf.append(leaf)
        stack.append(len(left) - 1)
    if len(stack) != 1 or depth != 0:
        raise ValueError(f"not a tree: {shape!r}")
    return Tree(tuple(left), tuple(right), tuple(is_leaf))


def random_shape(leaves: int, source: torch.Generator) -> str:
    """Draw a tree by splitting the leaves at a uniform place, recursively."""
    if leaves == 1:
        return "."
    split = int(torch.randint(1, leaves, (), generator=source))
    return f"({random_shape(split, source)}{random_shape(leaves - split, source)})"


def config_tree(config: RAEConfig) -> Tree:
    """Return the tree of a configuration; it does not depend on the seed of the weights."""
    return tree_from_shape(config.shape or random_shape(config.leaves, generator(7)))


def tree_inputs(config: RAEConfig, tree: Tree, seed: int) -> tuple[Tensor, ...]:
    """The model's inputs for one tree: arrays padded to `config.slots`, seeded leaf vectors."""
    padding = config.slots - len(tree.left)
    if padding < 0:
        raise ValueError(f"{len(tree.left)} nodes do not fit in {config.slots} slots")
    zeros = (0,) * padding
    leaves = torch.randn(config.slots, config.hidden, generator=generator(seed))
    left = torch.tensor(tree.left + zeros)
    right = torch.tensor(tree.right + zeros)
    is_leaf = torch.tensor(tree.is_leaf + (True,) * padding)
    return leaves, left, right, is_leaf, torch.tensor(tree.root)


def make(config: RAEConfig, seed: int = 0) -> Made:
    model = RAE(config)
    seed_weights(model, seed, gain=1.5)
    return model, tree_inputs(config, config_tree(config), seed + 1)


def work(config: RAEConfig) -> tuple[Phase, ...]:
    """One read of the weights per level: nodes whose children are done can share it."""
    tree = config_tree(config)
    inner = len(tree.left) - sum(tree.is_leaf)
    once = matmul_phase("nodes", inner, 2 * config.hidden, config.hidden)
    return (Phase(once.name, once.flops, once.bytes * _levels(tree), once.resident),)


def _levels(tree: Tree) -> int:
    heights: list[int] = []
    for left, right, leaf in zip(tree.left, tree.right, tree.is_leaf, strict=True):
        heights.append(0 if leaf else 1 + max(heights[left], heights[right]))
    return heights[-1]
