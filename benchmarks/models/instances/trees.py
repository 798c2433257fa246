"""Shapes of parse trees: those of a file, or random ones with the same statistics.

A shape is a string: `.` is a leaf and `(LR)` an inner node. The published benchmark takes the
trees of the Stanford Sentiment Treebank's dev split: 19.3 leaves on average and 49 at most, 10.9
nodes from the root to the deepest leaf on average and 28 at most. Random trees have 19.5 and 10.9.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from ..entry import generator
from ..rae import tree_from_shape

SHAPES_VARIABLE = "STRETTO_TREE_SHAPES"
"""Environment variable with the path of a file of shapes, one per line."""

T = TypeVar("T")


def tree_shapes(count: int, seed: int, path: str = "") -> list[str]:
    """Return `count` shapes, drawn by `seed` from the lines of a file; random shapes if neither
    `path` nor the environment names one. No shape of a file is repeated before all have been
    used."""
    source = generator(seed)
    found = path or os.environ.get(SHAPES_VARIABLE, "")
    if not found:
        return [random_tree_shape(source) for _ in range(count)]
    lines = Path(found).read_text().split()
    drawn: list[str] = []
    while len(drawn) < count:
        order = torch.randperm(len(lines), generator=source).tolist()
        drawn += [lines[i] for i in order]
    return drawn[:count]


def random_tree_shape(source: torch.Generator) -> str:
    """Draw a shape with as many leaves as in the treebank; parse trees of English lean to the
    right."""
    leaves = round(float(torch.empty(()).normal_(19.3, 9.3, generator=source)))
    return _leaning(min(max(leaves, 2), 49), source)


def _leaning(leaves: int, source: torch.Generator) -> str:
    if leaves == 1:
        return "."
    place = float(torch.rand((), generator=source)) ** 4.4
    split = 1 + int(place * (leaves - 1))
    return f"({_leaning(split, source)}{_leaning(leaves - split, source)})"


def folded(shape: str, leaf: Callable[[], T], inner: Callable[[T, T], T]) -> T:
    """Build the data that a shape describes, children before their parents."""
    tree = tree_from_shape(shape)
    made: list[T] = []
    for left, right, is_leaf in zip(tree.left, tree.right, tree.is_leaf, strict=True):
        made.append(leaf() if is_leaf else inner(made[left], made[right]))
    return made[-1]


def height(node: object) -> int:
    """Return the height of a binary tree; a leaf has no `left`, or None."""
    left = getattr(node, "left", None)
    if left is None:
        return 0
    return 1 + max(height(left), height(getattr(node, "right", None)))


def leaf_count(node: object) -> int:
    """Return the number of leaves of a binary tree."""
    left = getattr(node, "left", None)
    return 1 if left is None else leaf_count(left) + leaf_count(getattr(node, "right", None))
