"""Strongly connected components of directed graphs, given as the successors of each node."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

N = TypeVar("N", bound=Hashable)


def components(successors: Mapping[N, Iterable[N]]) -> list[list[N]]:
    """Return the strongly connected components (Tarjan 1972, without recursion), each after
    all those it leads to.

    The components of acyclic graphs are single nodes in postorder. Successors that are no
    keys are nodes without successors.
    """
    found: list[list[N]] = []
    index: dict[N, int] = {}
    low: dict[N, int] = {}
    done: set[N] = set()
    stack: list[N] = []
    work: list[tuple[N, Iterator[N]]] = []

    def enter(node: N) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        work.append((node, iter(successors.get(node, ()))))

    for root in successors:
        if root in index:
            continue
        enter(root)
        while work:
            node, others = work[-1]
            for other in others:
                if other not in index:
                    enter(other)
                    break
                if other not in done:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    start = stack.index(node)
                    found.append(stack[start:])
                    done.update(stack[start:])
                    del stack[start:]
    return found


def cyclic(members: list[N], successors: Mapping[N, Iterable[N]]) -> bool:
    """True if a component has a cycle: several nodes, or one that leads to itself."""
    return len(members) > 1 or members[0] in successors.get(members[0], ())
