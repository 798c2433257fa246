"""Phases and hoisting: what runs as one for a whole batch, and the same values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from stretto.batching.passes.pipeline import BatchPasses, passes
from stretto.batching.passes.recurrences import Cell, Result, recurrent
from stretto.batching.printer import print_function
from stretto.batching.program import InstanceProgram, Phase, walk
from tests.batching.passes.checking import check, program_of, records

ALL = tuple(passes(BatchPasses(hoist=True)))
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
    return sum(isinstance(item, Phase) for item in walk(program.functions[0].body))


class Tagger(nn.Module):
    def __init__(self, cell: str) -> None:
        super().__init__()
        self.kind = cell
        self.cell = getattr(nn, cell)(4, 4) if hasattr(nn, cell) else nn.Linear(8, 4)
        self.x, self.h, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def step(self, x: Tensor, state: Any) -> Any:
        if self.kind == "LSTMCell":
            return self.cell(x, state)
        if self.kind in ("GRUCell", "RNNCell"):
            return self.cell(x, state)
        if self.kind == "cat":
            return torch.tanh(self.cell(torch.cat([x, state])))
        if self.kind == "cat of three":
            joined = torch.cat((state[:2], x, state[2:]), dim=-1)
            return torch.tanh(functional.linear(joined, self.cell.weight, self.cell.bias))
        return torch.tanh(self.x(x) + self.h(state))

    def forward(self, items: list[Tensor]) -> list[Tensor]:
        zero = torch.zeros(4)
        state = (zero, zero) if self.kind == "LSTMCell" else zero
        states = []
        for x in items:
            state = self.step(x, state)
            states.append(state[0] if self.kind == "LSTMCell" else state)
        return [self.out(h) for h in states]


WANTED = {
    "LSTMCell": ["cell_inputs", "lstm_state", "Linear"],
    "GRUCell": ["cell_inputs", "gru_state", "Linear"],
    "RNNCell": ["cell_inputs", "rnn_state", "Linear"],
    "cat": ["linear_columns", "linear_rest tanh", "Linear"],
    "cat of three": ["linear_columns", "getitem getitem linear_rest tanh", "Linear"],
    "layers": ["Linear", "Linear add tanh", "Linear"],
}


@pytest.mark.parametrize("cell", sorted(WANTED))
def test_the_projection_of_inputs_is_a_block_of_its_own(cell: str) -> None:
    torch.manual_seed(0)
    program = check(Tagger(cell), [SENTENCES], *ALL)
    assert records(program) == WANTED[cell]
    assert phases(program) == 1


def test_a_relu_cell_without_bias() -> None:
    relu = nn.RNNCell(4, 4, nonlinearity="relu", bias=False)

    def states(cell: nn.Module, items: list[Tensor]) -> Tensor:
        h = torch.zeros(4)
        for x in items:
            h = cell(x, h)
        return h

    program = check(lambda items: states(relu, items), [SENTENCES], *ALL)
    assert records(program) == ["cell_inputs", "rnn_state"]


def test_a_tree_has_its_inputs_at_depth_0() -> None:
    x_part, left_part, right_part = (nn.Linear(4, 4) for _ in range(3))

    def state(node: Node) -> Tensor:
        x = x_part(node.value)
        if node.left is None or node.right is None:
            return torch.tanh(x)
        return torch.tanh(x + left_part(state(node.left)) + right_part(state(node.right)))

    program = check(state, [[tree(0), tree(1), tree(3)]], *ALL)
    for number in range(1, len(program.functions)):
        assert records(program, number) == ["Linear tanh", "Linear", "Linear add Linear add tanh"]
    assert len(program.blocks) == 3


def test_the_layer_on_the_root_of_a_tree_is_a_phase() -> None:
    left_part, out = nn.Linear(4, 4), nn.Linear(4, 2)

    def state(node: Node) -> Tensor:
        if node.left is None or node.right is None:
            return node.value
        return torch.tanh(left_part(state(node.left)) + state(node.right))

    program = check(lambda node: out(state(node)), [[tree(0), tree(3)]], *ALL)
    assert phases(program) == 1
    assert print_function(program, 0).index("phase 1") < print_function(program, 0).index("block")


def test_stacked_layers_are_phases_and_each_has_its_projection() -> None:
    first, second = nn.GRUCell(4, 4), nn.GRUCell(4, 4)

    def states(cell: nn.Module, items: list[Tensor]) -> list[Tensor]:
        h, found = torch.zeros(4), []
        for x in items:
            h = cell(x, h)
            found.append(h)
        return found

    program = check(lambda items: states(second, states(first, items)), [SENTENCES], *ALL)
    assert records(program) == ["cell_inputs", "gru_state"] * 2
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

    program = program_of(Tagger("GRUCell"), [SENTENCES])
    main = program.functions[0]
    main.body = (Phase(3), *main.body)
    FindPhases().apply(program)
    assert phases(program) == 1


def test_where_an_instance_waits_nothing_is_hoisted() -> None:
    cell, halt = nn.RNNCell(4, 4), nn.Linear(4, 1)

    def function(x: Tensor) -> Tensor:
        h, steps = torch.zeros(4), 0
        while steps < 4:
            h = cell(x, h)
            steps += 1
            if torch.sigmoid(halt(h)).item() > 0.6:
                break
        return h

    program = check(function, [[torch.randn(4) for _ in range(4)]], *ALL)
    assert records(program) == ["RNNCell Linear sigmoid"]


def test_a_recurrence_is_found_through_lists_records_and_calls() -> None:
    def through_list(items: list[Tensor]) -> Tensor:
        stack = [torch.zeros(4)]
        for x in items:
            stack.append(torch.tanh(stack.pop() + x))
        return stack[-1]

    program = program_of(through_list, [SENTENCES])
    found = recurrent(program, [program.functions[0].body])
    cells = {node.number for node in found if isinstance(node, Cell)}
    assert len(cells) == 1

    def depth(node: Node | None) -> Tensor:
        return torch.zeros(4) if node is None else torch.tanh(depth(node.left) + node.value)

    program = program_of(depth, [[tree(2)]])
    found = recurrent(program, [program.functions[0].body])
    assert any(isinstance(node, Result) for node in found)


def test_without_a_recurrence_nothing_is_recurrent() -> None:
    layer = nn.Linear(4, 4)

    def function(items: list[Tensor]) -> list[Tensor]:
        return [torch.tanh(layer(x)) for x in items]

    program = check(function, [SENTENCES], *ALL)
    assert recurrent(program, [program.functions[0].body]) == set()
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
    for off in (None, "phases", "hoist", "tidy", "branches", "coarsen"):
        options = BatchPasses(**({"hoist": True} | ({off: False} if off else {})))
        check(state, columns, *passes(options))
