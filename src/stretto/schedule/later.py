"""Which buffers a function may still access after each of its leaves: the others need no record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from stretto.kernels.tree import Call, For, If, Leaf, Node, Seq, While, walk

L = TypeVar("L")

Names = frozenset[str]


def later_names(
    body: Node[L], names: Callable[[L], Iterable[str]], *, returns: bool
) -> Callable[[L], Names | None]:
    """For the body of a leaf, names of the buffers accessed after it, on any way; None: all.

    A call may access anything, and so may the caller when the function `returns`. Buffers that
    rotate are accessed under each other's names.
    """
    finder = _Finder(names)
    finder.visit(body, None if returns else frozenset())
    return lambda leaf: finder.after[id(leaf)]


class _Finder(Generic[L]):
    def __init__(self, names: Callable[[L], Iterable[str]]) -> None:
        self._names = names
        self.after: dict[int, Names | None] = {}

    def visit(self, node: Node[L], after: Names | None) -> Names | None:
        """Names accessed from the start of the node on, given those accessed after it."""
        match node:
            case Leaf(body):
                self.after[id(body)] = _union(self.after.get(id(body), frozenset()), after)
                return _union(after, frozenset(self._names(body)))
            case Seq(children):
                for child in reversed(children):
                    after = self.visit(child, after)
                return after
            case For(body=body):
                after = _union(after, self._all(node))
                self.visit(body, after)
                return after
            case While(head=head, body=body):
                after = _union(after, self._all(node))
                self.visit(head, after)
                self.visit(body, after)
                return after
            case If(then=then, orelse=orelse):
                return _union(self.visit(then, after), self.visit(orelse, after))
            case Call():
                return None

    def _all(self, loop: For[L] | While[L]) -> Names | None:
        """All that a loop accesses."""
        found: set[str] = set()
        for node in walk(loop):
            match node:
                case Leaf(body):
                    found.update(self._names(body))
                case For() | While():
                    found.update(buffer.name for pair in node.rotate for buffer in pair)
                case Call():
                    return None
                case _:
                    pass
        return frozenset(found)


def _union(a: Names | None, b: Names | None) -> Names | None:
    return None if a is None or b is None else a | b
