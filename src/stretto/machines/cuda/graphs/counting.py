"""How often each branch of a graph goes which way: words of the device, which the graph counts up.

A conditional node is decided by a list of operations on words, which counts as well. For predicated
branches a node of its own counts, beside the launches: nothing waits for it but the graph's end.
The host reads the words only when someone asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from stretto.device.expr import Reg
from stretto.device.plan import Action, Guard, Launch, arms, stretch
from stretto.device.tree import If, Node, Seq, is_predicated, leaves
from stretto.machines.cuda.graphs.words import Code, Operation

Words = Callable[[Reg], int]
"""The address of a register's word."""


@dataclass(frozen=True, slots=True)
class BranchCount:
    """first: how often the first arm was taken; total: how often the branch was come to."""

    first: int
    total: int


@dataclass(frozen=True, slots=True)
class CountCells:
    """The addresses of the two words of a branch."""

    first: int
    total: int


def counted(condition: CountCells) -> list[Operation]:
    """What counts a branch, behind the operation that has looked at its condition."""
    return [Operation(Code.COUNT, condition.first), Operation(Code.ADD, condition.total, 1)]


@dataclass(frozen=True, slots=True)
class PredicatedBranch:
    """A predicated branch of a stretch. guards: of the branches around it. number: of the first
    node of the stretch that is in one of its arms."""

    branch: If[Action]
    guards: tuple[Guard, ...]
    number: int

    @property
    def registers(self) -> set[str]:
        """What its count looks at."""
        found = {guard.register.name for guard in self.guards}
        return found | {self.branch.condition.name}

    def operations(self, cells: CountCells, word: Words) -> list[Operation]:
        found = [Operation(Code.ALWAYS, 0)]
        for guard in self.guards:
            code = Code.UNLESS if guard.negated else Code.ALSO
            found.append(Operation(code, word(guard.register)))
        found.append(Operation(Code.COUNT, cells.total))
        found.append(Operation(Code.ALSO, word(self.branch.condition)))
        found.append(Operation(Code.COUNT, cells.first))
        return found


def predicated_branches(sequence: Seq[Action]) -> list[PredicatedBranch]:
    """Those of a sequence's stretch."""
    return list(_predicated(sequence.children, (), 0))


def _predicated(
    nodes: Sequence[Node[Action]], guards: tuple[Guard, ...], number: int
) -> Iterator[PredicatedBranch]:
    for node in nodes:
        if isinstance(node, Seq):
            yield from _predicated(node.children, guards, number)
        elif is_predicated(node):
            yield PredicatedBranch(node, guards, number)
            inner = number
            for guard, arm in arms(node):
                yield from _predicated((arm,), (*guards, guard), inner)
                inner += len(stretch(arm))
        number += len(stretch(node))


def writes(node: Node[Action], registers: set[str]) -> bool:
    """Whether a launch of a node writes one of these registers."""
    launches = (body for body in leaves(node) if isinstance(body, Launch))
    results = (reg.name for launch in launches for reg in launch.program.tree.main.results)
    return not registers.isdisjoint(results)
