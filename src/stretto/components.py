"""Parts of graphs: strongly connected components and reachable nodes of directed graphs, which are
given as the successors of each node, and sets of nodes that are joined."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

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


def reachable(starts: Iterable[N], successors: Mapping[N, Iterable[N]]) -> set[N]:
    """Return some nodes and all those they lead to. Nodes that are no keys have no successors."""
    found = set(starts)
    waiting = list(found)
    while waiting:
        new = {*successors.get(waiting.pop(), ())} - found
        found |= new
        waiting += new
    return found


class Partition(Generic[N]):
    """Disjoint sets of nodes. A node is alone in its set until it is joined to another one."""

    def __init__(self, nodes: Iterable[N] = ()) -> None:
        self._members = {node: [node] for node in nodes}

    def members(self, node: N) -> list[N]:
        """Return the nodes of a node's set, in the order in which they were joined."""
        return self._members.get(node) or [node]

    def root(self, node: N) -> N:
        """Return the node that stands for the set of a node: its first one."""
        return self.members(node)[0]

    def join(self, first: N, second: N) -> None:
        """Add the set of the second node to that of the first."""
        one, other = self.members(first), self.members(second)
        if one[0] != other[0]:
            one += other
            self._members |= dict.fromkeys((first, *other), one)

    def sets(self) -> list[list[N]]:
        """Return the sets, in the order of their first nodes as given."""
        return list({id(members): members for members in self._members.values()}.values())
