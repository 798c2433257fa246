"""Which buffers a function may still access after each of its leaves: the others need no record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from stretto.device.flow import Backward
from stretto.device.tree import Call, Node, Rotation, swaps

L = TypeVar("L")

BufferNames = frozenset[str]


def later_names(
    body: Node[L], names: Callable[[L], Iterable[str]], *, returns: bool
) -> Callable[[L], BufferNames | None]:
    """For the body of a leaf, names of the buffers accessed after it, on any way; None: all.

    A call may access anything, and so may the caller when the function `returns`. Buffers that
    rotate are accessed under each other's names.
    """
    later = _Later(names)
    later.visit(body, None if returns else frozenset())
    return lambda leaf: later.found[id(leaf)]


class _Later(Backward[L, BufferNames | None]):
    def __init__(self, names: Callable[[L], Iterable[str]]) -> None:
        self._names = names
        self.found: dict[int, BufferNames | None] = {}

    def leaf(self, body: L, after: BufferNames | None) -> BufferNames | None:
        self.found[id(body)] = self.merge(self.found.get(id(body), frozenset()), after)
        return self.merge(after, frozenset(self._names(body)))

    def call(self, call: Call[L], after: BufferNames | None) -> BufferNames | None:
        return None

    def merge(self, a: BufferNames | None, b: BufferNames | None) -> BufferNames | None:
        return None if a is None or b is None else a | b

    def rotate(self, state: BufferNames | None, pairs: Rotation) -> BufferNames | None:
        if state is None:
            return None
        return state | {other.name for name, other in swaps(pairs).items() if name in state}
