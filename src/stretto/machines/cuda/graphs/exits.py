"""Branches of a graph that leave it: their unlikely arm is the host's, who then replays the rest.

Where such a branch goes the unlikely way the graph says so in a word, *left*, and does nothing
more of what depends on the branch: the rest of each stretch around it is in a conditional node that
looks at the word, and so do the loops around it. The host looks at the word behind the replay,
executes the arm, and replays another graph, of what the first one left out (`Recorder.rest`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stretto.device.plan import Action, arms, is_unlikely, stretch, unlikely_guard
from stretto.device.tree import If, Node, Seq, children, walk


@dataclass(frozen=True, slots=True)
class ExitCells:
    """Addresses of words. left: the number of the exit that was taken, 0 for none. numbers: words
    with the numbers 0, 1, 2, ..."""

    left: int
    numbers: int

    def number(self, exit_number: int, word_bytes: int = 8) -> int:
        """The address of a word with this number."""
        return self.numbers + exit_number * word_bytes


def graph_walk(node: Node[Action]) -> Iterator[Node[Action]]:
    """The node and everything below it that is in a graph: no unlikely arm."""
    yield node
    below = (likely_arm(node),) if is_unlikely(node) else children(node)
    for child in below:
        yield from graph_walk(child)


def exits_of(nodes: Sequence[Node[Action]]) -> tuple[If[Action], ...]:
    """The branches that leave the graph of some nodes; numbered from 1 on, in this order."""
    return tuple(inner for node in nodes for inner in graph_walk(node) if is_unlikely(inner))


def leaves_graph(node: Node[Action]) -> bool:
    return any(map(is_unlikely, graph_walk(node)))


def likely_arm(branch: If[Action]) -> Node[Action]:
    return next(arm for guard, arm in arms(branch) if guard != unlikely_guard(branch))


def unlikely_arm(branch: If[Action]) -> Node[Action]:
    return next(arm for guard, arm in arms(branch) if guard == unlikely_guard(branch))


def contains(node: Node[Action], branch: If[Action]) -> bool:
    return any(inner is branch for inner in walk(node))


def place_of(branch: If[Action], sequence: Seq[Action], numbers: Sequence[int]) -> int:
    """Which of some nodes of a sequence's stretch the branch is in."""
    parts = stretch(sequence)
    return next(number for number in numbers if contains(parts[number], branch))


def rest_of(
    number: int,
    numbers: Sequence[int],
    after: Sequence[Sequence[int]],
    nodes: Sequence[Node[Action]],
) -> list[int]:
    """Which of some nodes of a stretch come behind a node that may leave: those that depend on it,
    and others that may leave, so that no two do at once. numbers: in an order that `after`
    allows."""
    rest: set[int] = {number}
    behind = numbers[numbers.index(number) + 1 :]
    for later in behind:
        if not rest.isdisjoint(after[later]) or leaves_graph(nodes[later]):
            rest.add(later)
    return [later for later in behind if later in rest]
