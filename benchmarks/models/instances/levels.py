"""The binary trees of a batch in levels, as code written by hand for a batch of trees
needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

_SHIFT = 32  # a node's id has its height above this bit, and its place in the height below
_PLACE = (1 << _SHIFT) - 1


@dataclass(frozen=True, slots=True)
class Levels:
    """The nodes of all trees ordered by height, leaves first, one row each.

    nodes: the nodes of each height. starts: the first row of each height, and the number of rows.
    children: per height above 0 the rows of all left children, then those of all right ones.
    roots: the row of each tree's root.
    """

    nodes: list[list[Any]]
    starts: list[int]
    children: list[Tensor]
    roots: Tensor


def levels_of(trees: Sequence[Any]) -> Levels:
    """`trees` have nodes with `left` and `right`; a leaf has no `left`, or None."""
    nodes: list[list[Any]] = [[]]
    lefts: list[list[int]] = [[]]
    rights: list[list[int]] = [[]]
    leaves = nodes[0]

    def visit(node: Any) -> int:
        below = getattr(node, "left", None)
        if below is None:
            leaves.append(node)
            return len(leaves) - 1
        left, right = visit(below), visit(node.right)
        height = ((left if left > right else right) >> _SHIFT) + 1
        if height == len(nodes):
            nodes.append([])
            lefts.append([])
            rights.append([])
        level = nodes[height]
        level.append(node)
        lefts[height].append(left)
        rights[height].append(right)
        return (height << _SHIFT) + len(level) - 1

    roots = [visit(tree) for tree in trees]
    starts = np.cumsum([0, *map(len, nodes)])
    codes = [code for pair in zip(lefts, rights, strict=True) for side in pair for code in side]
    known = np.array(codes + roots, dtype=np.int64)
    rows = torch.from_numpy(starts[known >> _SHIFT] + (known & _PLACE))
    sizes = [2 * len(level) for level in nodes[1:]]
    *children, last = rows.split([*sizes, len(roots)])
    return Levels(nodes, starts.tolist(), list(children), last)
