"""Tidying, motion around branches, and coarsening: fewer and larger blocks, the same values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stretto.batching.passes.coarsen import Coarsen
from stretto.batching.passes.pipeline import BatchPasses, passes
from stretto.batching.passes.tails import MoveAroundBranches
from stretto.batching.passes.tidy import Tidy
from stretto.batching.printer import print_block, print_function
from tests.batching.passes.checking import check, records

ALL = (Tidy(), MoveAroundBranches(), Tidy(), Coarsen())


@dataclass
class Node:
    left: Node | None
    right: Node | None
    value: Tensor


def tree(depth: int) -> Node:
    if depth == 0:
        return Node(None, None, torch.randn(3))
    return Node(tree(depth - 1), tree(0), torch.randn(3))


WEIGHT = torch.randn(3, 3)


def test_operators_are_one_block_over_what_they_do_not_need() -> None:
    def function(items: list[Tensor]) -> tuple[Tensor, int]:
        first, second = items
        a = torch.tanh(first)
        count = len(items)
        b = a * second
        items = [*items, second]
        return b + first, count + len(items)

    columns = [[[torch.randn(3), torch.randn(3)] for _ in range(2)]]
    program = check(function, columns, Coarsen())
    assert print_block(program.blocks[0]) == (
        "block @add0(%0: f32[3], %1: f32[3]) {\n"
        "  %2 = operate $tanh(%0) : f32[3]\n"
        "  %3 = operate $mul(%2, %1) : f32[3]\n"
        "  %4 = operate $add(%3, %0) : f32[3]\n"
        "  return %4\n"
        "}\n"
    )
    assert len(program.blocks) == 1


def test_equal_blocks_are_one_and_different_weights_are_not() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)

    def function(x: Tensor, n: int) -> Tensor:
        if n == 0:
            return first(x).tanh()
        if n == 1:
            return first(x).tanh()
        return second(x).tanh()

    program = check(function, [[torch.randn(3)] * 3, [0, 1, 2]], Coarsen())
    assert len(program.blocks) == 2


def test_without_joining_each_operator_is_a_block() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.tanh(x) * 2 + 1

    program = check(function, [[torch.randn(3)]], Coarsen(joins=False))
    assert records(program) == ["tanh", "mul", "add"]


def test_a_loop_is_passed_by_what_it_does_not_use() -> None:
    def function(x: Tensor, n: int) -> tuple[Tensor, int]:
        y = torch.tanh(x)
        total = 0
        for i in range(n):
            if i == 3:
                break
            total += i
        return torch.sigmoid(y), total

    program = check(function, [[torch.randn(3)] * 3, [0, 2, 5]], Coarsen())
    assert records(program) == ["tanh sigmoid"]


def test_what_is_used_behind_a_break_is_recorded_before_it() -> None:
    def function(x: Tensor, n: int) -> Tensor:
        y = x
        while True:
            y = torch.tanh(y)
            z = y * 2
            n -= 1
            if n < 0:
                break
            y = torch.sigmoid(z) + y
        return z + y

    for options in (BatchPasses(), BatchPasses(tidy=False, branches=False)):
        check(function, [[torch.randn(3)] * 3, [0, 1, 4]], *passes(options))


def test_a_variable_that_is_assigned_again_keeps_its_value() -> None:
    def function(x: Tensor, n: int) -> list[Tensor]:
        found = [x]
        h = x
        for i in range(n):
            before = h
            h = torch.tanh(h) + i
            found.append(before * h)
            if i == 1:
                h = before
        return [*found, h]

    check(function, [[torch.randn(3)] * 3, [0, 1, 4]], *ALL)


def test_recursion_has_one_block_per_kind_of_node() -> None:
    def sum_of(node: Node | None) -> Tensor:
        if node is None:
            return torch.zeros(3)
        x = torch.tanh(node.value)
        if node.left is None:
            h = torch.sigmoid(x)
        else:
            h = x + sum_of(node.left) * sum_of(node.right)
        return h * 2

    columns = [[tree(0), tree(1), tree(3)]]
    program = check(sum_of, columns, *ALL)
    assert records(program, 1) == ["tanh sigmoid mul", "tanh mul add mul"]
    alone = check(sum_of, columns, Coarsen())
    assert records(alone, 1) == ["tanh", "sigmoid", "mul add", "mul"]


def test_equal_operators_are_computed_once() -> None:
    def function(x: Tensor, n: int) -> Tensor:
        y = torch.tanh(x)
        if n > 0:
            return torch.tanh(x) + torch.tanh(y)
        return torch.tanh(y) - y

    program = check(function, [[torch.randn(3)] * 2, [0, 1]], Tidy())
    text = print_function(program.main)
    assert text.count("tanh(%p0)") == 1 and text.count("tanh(%") == 3


def test_numbers_of_other_types_are_other_operands() -> None:
    def function(x: Tensor, n: int) -> Tensor:
        return x * n + x * 1.0 * (x * 1)

    for x in (torch.randn(3), torch.arange(3)):
        check(function, [[x, x], [2, 3]], Tidy(), Coarsen())


def test_shared_tensors_are_read_once_for_a_batch() -> None:
    bias = torch.randn(3)

    def function(x: Tensor, n: int) -> Tensor:
        h = bias
        y = x + h
        for _ in range(n):
            y = y * h
        return y

    program = check(function, [[torch.randn(3)] * 2, [0, 2]], *ALL)
    assert records(program) == ["add", "mul"]
    assert all(block.inputs == (program.blocks[0].inputs[0],) for block in program.blocks)
    assert "shared" not in print_function(program.main)


def test_tensors_of_constant_content_are_shared() -> None:
    def function(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
        h = torch.zeros_like(x)
        for _ in range(n):
            h = torch.tanh(h + x)
        return h, x.new_full((2,), 3.0)

    program = check(function, [[torch.randn(3)] * 2, [0, 2]], *ALL)
    assert records(program) == ["add tanh"]


def test_what_nothing_uses_is_gone() -> None:
    def function(x: Tensor) -> Tensor:
        y = torch.tanh(x)
        _ = torch.sigmoid(y)
        return x

    assert records(check(function, [[torch.randn(3)]], Tidy(), Coarsen())) == []
    assert records(check(function, [[torch.randn(3)]], Coarsen())) == []


def test_an_arm_that_assigns_an_operand_keeps_the_operator_before_it() -> None:
    def function(x: Tensor, n: int) -> Tensor:
        h = x
        for i in range(n):
            y = h * 2
            if i == 1:
                h = torch.tanh(x)
            h = h + torch.sigmoid(y)
        return h

    check(function, [[torch.randn(3)] * 3, [0, 2, 5]], *ALL)


def test_branches_in_branches_and_ways_that_end() -> None:
    def function(x: Tensor, n: int) -> Tensor:
        y = torch.tanh(x)
        z = torch.sigmoid(y) * 2
        if n < 0:
            if n < -5:
                raise ValueError("low")
            out = y
        elif n == 0:
            return z * 3
        else:
            out = z + y
            if n == 2:
                out = out * y
        return out + 1

    columns = [[torch.randn(3)] * 4, [-1, 0, 1, 2]]
    program = check(function, columns, *ALL)
    assert records(program) == [
        "tanh add",
        "tanh sigmoid mul mul",
        "tanh sigmoid mul add mul add",
        "tanh sigmoid mul add add",
    ]


def test_decisions_stay_where_they_are() -> None:
    def function(x: Tensor, n: int) -> tuple[Tensor, int]:
        h, steps = x, 0
        while steps < n:
            h = torch.tanh(h) * 1.5
            steps += 1
            if h.sum() > 0:
                h = h - 0.5
            else:
                h = h + 0.5
        return h, steps

    check(function, [[torch.randn(3) for _ in range(4)], [0, 1, 3, 5]], *ALL)


@pytest.mark.parametrize("off", ["tidy", "branches", "coarsen"])
def test_each_pass_can_be_off(off: str) -> None:
    options: dict[str, Any] = {off: False}

    def function(x: Tensor, n: int) -> Tensor:
        h = torch.zeros_like(x)
        for i in range(n):
            h = torch.tanh(h) + (x if i == 1 else x * 2)
        return h

    columns = [[torch.randn(3)] * 3, [0, 1, 4]]
    check(function, columns, *passes(BatchPasses(**options)))
