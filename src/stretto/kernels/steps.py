"""Replaces operators by several steps, with new buffers between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from stretto.device.expr import Buffer
from stretto.device.forms import Items, LeafItem
from stretto.device.operator import Operator
from stretto.device.tree import Tree, TreeFunction, map_leaves


@dataclass(slots=True)
class NewBuffers:
    """The new locals of one function."""

    function: str
    buffers: list[Buffer] = field(default_factory=list[Buffer])

    def name(self, hint: str) -> str:
        """Of the next one."""
        return f"{self.function}.{hint}{len(self.buffers)}"


def replace_operators(
    tree: Tree[Items], steps: Callable[[Operator, NewBuffers], tuple[LeafItem, ...]]
) -> Tree[Items]:
    """The tree with what `steps` gives in place of each operator."""

    def function(old: TreeFunction[Items]) -> TreeFunction[Items]:
        new = NewBuffers(old.name)

        def leaf(items: Items) -> Items:
            lists = (steps(i, new) if isinstance(i, Operator) else (i,) for i in items)
            return tuple(step for found in lists for step in found)

        body = map_leaves(old.body, leaf)
        return replace(old, locals=(*old.locals, *new.buffers), body=body)

    return Tree(tuple(function(old) for old in tree.functions), tree.externals)
