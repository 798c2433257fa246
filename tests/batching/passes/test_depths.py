"""Phases: what runs as one for a whole batch, and the same values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stretto.batching.instance_program import InstanceProgram
from stretto.batching.passes.pipeline import BatchPasses, passes
from stretto.batching.passes.recurrences import CellNode, ResultNode, recurrent
from stretto.batching.printer import print_function
from stretto.ir.data import PhaseOp
from tests.batching.passes.checking import check, program_of, records

ALL = tuple(passes(BatchPasses()))
SENTENCES = [[torch.randn(4) for _ in range(n)] for n in (3, 0, 1, 5)]


@dataclass
class Node:
    left: Node | None
    right: Node | None
    value: Tensor


def tree(depth: int) -> Node:
    if depth == 0:
        return Node(None, None, torch.randn(4))
    return Node(tree(depth - 1), tree(0), torch.randn(4))


def phases(program: InstanceProgram) -> int:
    return sum(isinstance(item, PhaseOp) for item in program.main.body.walk())


def test_the_layer_on_the_root_of_a_tree_is_a_phase() -> None:
    left_part, out = nn.Linear(4, 4), nn.Linear(4, 2)

    def state(node: Node) -> Tensor:
        if node.left is None or node.right is None:
            return node.value
        return torch.tanh(left_part(state(node.left)) + state(node.right))

    program = check(lambda node: out(state(node)), [[tree(0), tree(3)]], *ALL)
    assert phases(program) == 1
    assert print_function(program.main).index("phase 1") < print_function(program.main).index(
        "= record"
    )


def test_stacked_layers_are_phases() -> None:
    first, second = nn.GRUCell(4, 4), nn.GRUCell(4, 4)

    def states(cell: nn.Module, items: list[Tensor]) -> list[Tensor]:
        h, found = torch.zeros(4), []
        for x in items:
            h = cell(x, h)
            found.append(h)
        return found

    program = check(lambda items: states(second, states(first, items)), [SENTENCES], *ALL)
    assert records(program) == ["GRUCell"] * 2
    assert phases(program) == 1


def test_what_is_independent_shares_a_phase() -> None:
    cell = nn.GRUCell(4, 4)

    def state(items: list[Tensor]) -> Tensor:
        h = torch.zeros(4)
        for x in items:
            h = cell(x, h)
        return h

    def function(a: list[Tensor], b: list[Tensor]) -> tuple[Tensor, Tensor]:
        return state(a), state(b)

    program = check(function, [SENTENCES, SENTENCES[::-1]], *ALL)
    assert phases(program) == 0


def test_a_program_with_phases_of_its_own_keeps_them() -> None:
    from stretto.batching.passes.phases import FindPhases

    cell, out = nn.GRUCell(4, 4), nn.Linear(4, 2)

    def tagged(items: list[Tensor]) -> list[Tensor]:
        h, found = torch.zeros(4), []
        for x in items:
            h = cell(x, h)
            found.append(h)
        return [out(h) for h in found]

    program = program_of(tagged, [SENTENCES])
    main = program.main
    main.body.ops.insert(0, PhaseOp(3))
    FindPhases().apply(program)
    assert phases(program) == 1


def test_a_recurrence_is_found_through_lists_records_and_calls() -> None:
    def through_list(items: list[Tensor]) -> Tensor:
        stack = [torch.zeros(4)]
        for x in items:
            stack.append(torch.tanh(stack.pop() + x))
        return stack[-1]

    program = program_of(through_list, [SENTENCES])
    found = recurrent(program, [program.main.body.ops])
    cells = {node.number for node in found if isinstance(node, CellNode)}
    assert len(cells) == 1

    def depth(node: Node | None) -> Tensor:
        return torch.zeros(4) if node is None else torch.tanh(depth(node.left) + node.value)

    program = program_of(depth, [[tree(2)]])
    found = recurrent(program, [program.main.body.ops])
    assert any(isinstance(node, ResultNode) for node in found)


def test_without_a_recurrence_nothing_is_recurrent() -> None:
    layer = nn.Linear(4, 4)

    def function(items: list[Tensor]) -> list[Tensor]:
        return [torch.tanh(layer(x)) for x in items]

    program = check(function, [SENTENCES], *ALL)
    assert recurrent(program, [program.main.body.ops]) == set()
    assert records(program) == ["Linear tanh"]


def test_a_loop_in_a_branch_in_a_recursion() -> None:
    cell, join = nn.GRUCell(4, 4), nn.Linear(8, 4)

    def state(node: Node, items: list[Tensor]) -> Tensor:
        h = node.value
        if node.left is not None and node.right is not None:
            for x in items:
                h = cell(x, h)
            both = torch.cat([state(node.left, items), state(node.right, items)])
            h = torch.tanh(join(both) * h)
        return h

    columns = [[tree(0), tree(2), tree(1), tree(3)], SENTENCES]
    for off in (None, "phases", "tidy", "branches", "coarsen"):
        options = BatchPasses(**({off: False} if off else {}))
        check(state, columns, *passes(options))
