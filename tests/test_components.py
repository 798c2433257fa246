"""Tests of `stretto.components`, against reachability by definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stretto.components import Partition, components, cyclic, reachable

GRAPHS = st.dictionaries(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=4), max_size=10)


def reached(graph: dict[int, list[int]], start: int) -> set[int]:
    """Return the nodes that can be reached over at least one edge."""
    found: set[int] = set()
    waiting = [start]
    while waiting:
        for node in graph.get(waiting.pop(), ()):
            if node not in found:
                found.add(node)
                waiting.append(node)
    return found


@given(GRAPHS)
def test_components(graph: dict[int, list[int]]) -> None:
    found = components(graph)
    nodes = [node for group in found for node in group]
    assert len(nodes) == len(set(nodes))
    assert set(nodes) == {*graph, *(node for others in graph.values() for node in others)}
    ends = {node: reached(graph, node) for node in nodes}
    place = {node: number for number, group in enumerate(found) for node in group}
    for one in nodes:
        for other in nodes:
            together = one == other or (other in ends[one] and one in ends[other])
            assert (place[one] == place[other]) == together
            if other in ends[one]:
                assert place[other] <= place[one], "what a component leads to comes first"
    for group in found:
        assert cyclic(group, graph) == (group[0] in ends[group[0]])


@given(GRAPHS)
def test_reachable_nodes_are_the_starts_and_what_they_lead_to(graph: dict[int, list[int]]) -> None:
    assert reachable((), graph) == set()
    assert reachable((3, 5), graph) == {3, 5} | reached(graph, 3) | reached(graph, 5)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_joined_nodes_are_those_that_edges_connect(edges: list[tuple[int, int]]) -> None:
    groups = Partition(range(10))
    for edge in edges:
        groups.join(*edge)
    both = {node: [a + b - node for a, b in edges if node in (a, b)] for node in range(10)}
    for node in range(10):
        assert set(groups.members(node)) == reachable((node,), both)
        assert {groups.root(other) for other in groups.members(node)} == {groups.root(node)}
    assert sorted(node for found in groups.sets() for node in found) == [*range(10)]


def test_long_chains_need_no_deep_stack() -> None:
    chain = {node: [node + 1] for node in range(20_000)}
    assert components(chain) == [[node] for node in range(20_000, -1, -1)]
