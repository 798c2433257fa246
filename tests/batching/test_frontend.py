"""The front end of batching: what it makes of per-instance functions, run by the interpreter."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from stretto.batching.frontend import Evaluation, Observer, evaluate
from stretto.batching.interpreter import interpret
from stretto.batching.passes.coarsen import Coarsen
from stretto.errors import CaptureError


@dataclass
class Node:
    left: Node | None
    right: Node | None
    word: int


class Tree(nn.Module):
    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        self.table = nn.Embedding(10, hidden)
        self.join = nn.Linear(2 * hidden, hidden)
        self.hidden = hidden

    def forward(self, node: Node | None) -> torch.Tensor:
        if node is None:
            return torch.zeros(self.hidden)
        if node.left is None:
            return self.table.weight[node.word]
        left = self(node.left)
        right = self.forward(node.right)
        return torch.tanh(self.join(torch.cat([left, right])))


def tree(depth: int) -> Node:
    if depth == 0 or random.random() < 0.3:
        return Node(None, None, random.randrange(10))
    return Node(tree(depth - 1), tree(depth - 1), 0)


class TwoWays(nn.Module):
    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        self.forth, self.back = nn.GRUCell(hidden, hidden), nn.GRUCell(hidden, hidden)
        self.out = nn.Linear(2 * hidden, 3)
        self.hidden = hidden

    def run(self, cell: nn.Module, items: Any) -> list[torch.Tensor]:
        h = torch.zeros(self.hidden)
        found = []
        for x in items:
            h = cell(x, h)
            found.append(h)
        return found

    def forward(self, items: list[torch.Tensor]) -> list[torch.Tensor]:
        first, second = self.run(self.forth, items), self.run(self.back, reversed(items))
        second.reverse()
        pairs = zip(first, second, strict=False)
        return [self.out(torch.cat([a, b])).log_softmax(-1) for a, b in pairs]


class Halting(nn.Module):
    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        self.cell, self.halt = nn.RNNCell(hidden, hidden), nn.Linear(hidden, 1)
        self.hidden = hidden

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        h = torch.zeros(self.hidden)
        total, steps = 0.0, 0
        while total < 0.99 and steps < 10:
            h = self.cell(x, h)
            total += torch.sigmoid(self.halt(h)).item()
            steps += 1
        return h, steps


@dataclass
class Number:
    value: float


@dataclass
class Negated:
    inner: Any


@dataclass
class Pair:
    op: str
    left: Any
    right: Any


def value_of(item: Any) -> float:
    match item:
        case Number(v):
            return v
        case Negated(x):
            return -value_of(x)
        case Pair("+", a, b):
            return value_of(a) + value_of(b)
        case Pair("*", a, b):
            return value_of(a) * value_of(b)
        case Pair(op="-", left=a, right=b) if a is not b:
            return value_of(a) - value_of(b)
        case _:
            raise ValueError("unknown")


def expression(depth: int) -> Any:
    draw = random.random()
    if depth == 0 or draw < 0.2:
        return Number(random.random())
    if draw < 0.35:
        return Negated(expression(depth - 1))
    return Pair(random.choice("+*-"), expression(depth - 1), expression(depth - 1))


@dataclass
class Made:
    state: torch.Tensor
    children: list[Made]


class Generator(nn.Module):
    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        self.step, self.more = nn.Linear(hidden, hidden), nn.Linear(hidden, 1)

    def forward(self, h: torch.Tensor, depth: int = 0) -> Made:
        if depth >= 3:
            return Made(h, [])
        children = []
        while torch.sigmoid(self.more(h)).item() > 0.5 and len(children) < 2:
            h = torch.tanh(self.step(h))
            children.append(self(h, depth + 1))
        return Made(h, children)


def calculator(tokens: list[int | str]) -> int:
    stack = []
    for token in tokens:
        if isinstance(token, str):
            b = stack.pop()
            a = stack.pop()
            stack.append(a + b if token == "+" else a * b)
        else:
            stack.append(token)
    return stack[-1]


def closures(count: int) -> tuple[int, list[int]]:
    found = []

    def walk(n: int, total: int) -> int:
        if n == 0:
            found.append(total)
            return total
        return walk(n - 1, total + n) + 1

    result = walk(count, 0)
    return result, found


def loops(items: list[int]) -> tuple[int, int | None, list[tuple[int, int]]]:
    best, seen = None, []
    for i, x in enumerate(items):
        if x < 0:
            continue
        for y in items[i + 1 :]:
            if y == 0:
                break
            if best is None or x * y > best:
                best = x * y
        else:
            seen.append((i, x))
    return len(seen), best, seen


def same(a: Any, b: Any) -> bool:
    if torch.is_tensor(a):
        return torch.is_tensor(b) and torch.allclose(a, b, atol=1e-6)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return isinstance(b, float) and abs(a - b) < 1e-6
    if hasattr(a, "__dataclass_fields__"):
        return all(same(getattr(a, name), getattr(b, name)) for name in a.__dataclass_fields__)
    return type(a) is type(b) and a == b


def check(function: Callable[..., Any], *columns: list[Any]) -> None:
    """The program of a function gives for each instance what the function gives."""
    evaluation = Evaluation()
    observer = Observer(evaluation)
    parameters = [
        (f"p{number}", observer.observe(column, number, f"argument {number}"))
        for number, column in enumerate(columns)
    ]
    with torch.no_grad():
        program = evaluate(function, parameters, evaluation)
        for args in zip(*columns, strict=True):
            wanted = function(*args)
            found = interpret(program, args)
            assert same(wanted, found), (wanted, found)
        Coarsen().apply(program)
        for args in zip(*columns, strict=True):
            found = interpret(program, args)
            assert same(function(*args), found)


def _cases() -> dict[str, tuple[Callable[..., Any], list[Any]]]:
    torch.manual_seed(0)
    random.seed(0)
    return {
        "tree": (Tree(), [tree(4) for _ in range(8)]),
        "two_ways": (TwoWays(), [[torch.randn(4) for _ in range(n)] for n in (3, 0, 1, 4)]),
        "halting": (Halting(), [torch.randn(4) for _ in range(8)]),
        "match": (value_of, [expression(4) for _ in range(12)]),
        "generation": (Generator(), [torch.randn(4) for _ in range(8)]),
        "stack": (calculator, [[1, 2, "+", 3, "*"], [4, 5, "*"], [7]]),
        "closures": (closures, [3, 0, 5]),
        "loops": (loops, [[1, 2, 0, 3], [], [-1, 4], [2, 3, 4], [0]]),
    }


@pytest.mark.parametrize("name", sorted(_cases()))
def test_programs_give_what_functions_give(name: str) -> None:
    function, column = _cases()[name]
    check(function, column)


def test_what_is_not_understood_names_the_line() -> None:
    def yields(x: int) -> Any:
        yield x

    with pytest.raises(CaptureError, match="generator") as caught:
        check(yields, [1, 2])
    assert caught.value.location is not None
    assert caught.value.location.line == yields.__code__.co_firstlineno + 1
