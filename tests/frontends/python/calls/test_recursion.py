"""Recursion on traced values becomes functions; on Python values it is unrolled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from tests.frontends.python.checks import check, refused, structure

W = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))

LEFT = torch.tensor([1, 3, 0, 0, 0])
RIGHT = torch.tensor([2, 4, 0, 0, 0])
LEAF = torch.tensor([False, False, True, True, True])


def test_tree_by_a_closure() -> None:
    def f(values: Tensor, left: Tensor, right: Tensor, leaf: Tensor, root: Tensor) -> Tensor:
        def visit(node: Tensor) -> Tensor:
            if leaf[node]:
                return values[node]
            a, b = visit(left[node]), visit(right[node])
            return torch.tanh(W @ torch.cat([a, b]))

        return visit(root)

    values = torch.randn(5, 3)
    cases = [(values, LEFT, RIGHT, LEAF, torch.tensor(k)) for k in (0, 1, 4)]
    assert structure(check(f, *cases)) == {"if": 1, "call": 3}


def test_number_as_argument() -> None:
    def fact(n: int) -> int:
        return 1 if n <= 1 else n * fact(n - 1)

    def f(n: Tensor) -> int:
        return fact(n.item())

    captured = check(f, *[(torch.tensor(k),) for k in (6, 0, 1)])
    assert structure(captured) == {"if": 1, "call": 2}


def test_several_results() -> None:
    def walk(x: Tensor, n: Tensor) -> tuple[Tensor, dict[str, Tensor], int]:
        if n == 0:
            return x, {"s": x.sum()}, 0
        y, table, depth = walk(x * 0.5, n - 1)
        return y + x, {"s": table["s"] + 1}, depth + 1

    cases = [(torch.randn(3), torch.tensor(k)) for k in (3, 0, 1)]
    assert structure(check(walk, *cases))["call"] == 2


def test_mutual_recursion() -> None:
    def even(x: Tensor, n: Tensor) -> Tensor:
        return x if n == 0 else odd(x + 1, n - 1)

    def odd(x: Tensor, n: Tensor) -> Tensor:
        if n == 0:
            return -x
        return even(x * 2, n - 1)

    check(even, *[(torch.randn(3), torch.tensor(k)) for k in (3, 0, 1, 4)])


def test_loops_and_branches_in_recursion() -> None:
    def walk(x: Tensor, n: Tensor) -> Tensor:
        if n <= 0:
            return x
        total = torch.zeros(3)
        for i in range(5):
            if x[0] > i * 0.1:
                total = total + walk(x * 0.5 - 0.1, n - 2)
        while total.sum() > 1:
            total = total / 2
        return total + walk(x - 1, n - 1)

    check(walk, *[(torch.rand(3), torch.tensor(k)) for k in (3, 0, 1)])


def test_recursion_in_a_loop_in_a_branch() -> None:
    def down(x: Tensor, n: Tensor) -> Tensor:
        return x if n < 1 else down(x * 0.9, n - 1) + 1

    def f(x: Tensor, n: Tensor) -> Tensor:
        if x.sum() > 0:
            for i in range(4):
                x = down(x, n) - i
        return x

    x = torch.rand(3)
    check(f, (x, torch.tensor(2)), (-x, torch.tensor(3)), (x, torch.tensor(0)))


def test_values_collected_in_a_list() -> None:
    def f(values: Tensor, left: Tensor, right: Tensor, leaf: Tensor) -> list[Tensor]:
        out: list[Tensor] = []

        def visit(node: Tensor) -> None:
            if not leaf[node]:
                visit(left[node])
                visit(right[node])
            out.append(values[node] * 2)

        visit(torch.tensor(0))
        return out

    check(f, (torch.randn(5, 3), LEFT, RIGHT, LEAF))


def test_list_passed_as_an_argument() -> None:
    def visit(x: Tensor, n: Tensor, out: list[Tensor]) -> None:
        out.append(x)
        if n > 0:
            visit(x * 2, n - 1, out)

    def f(x: Tensor, n: Tensor) -> list[Tensor]:
        out: list[Tensor] = []
        visit(x, n, out)
        return out

    check(f, *[(torch.randn(3), torch.tensor(k)) for k in (3, 0, 1)])


def test_nonlocal_counter() -> None:
    def f(x: Tensor, n: Tensor) -> tuple[Tensor, int]:
        calls = 0

        def walk(x: Tensor, n: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            if n <= 0:
                return x
            return walk(x + 1, n - 1) + walk(x * 2, n - 2)

        return walk(x, n), calls

    check(f, *[(torch.randn(3), torch.tensor(k)) for k in (3, 0, 1)])


def test_in_place_writes_in_recursion() -> None:
    def f(x: Tensor, n: Tensor) -> Tensor:
        out = torch.zeros(8)

        def walk(n: Tensor) -> None:
            if n > 0:
                out[n] = x[n] * 2
                walk(n - 1)

        walk(n)
        return out

    check(f, *[(torch.randn(8), torch.tensor(k)) for k in (3, 0, 7)])

    def fill(buffer: Tensor, n: Tensor) -> Tensor:
        if n >= 0:
            buffer[n] += 1
            fill(buffer, n - 1)
        return buffer

    check(fill, *[(torch.randn(8), torch.tensor(k)) for k in (3, 0, 7)])


@dataclass
class Tree:
    value: Tensor
    children: tuple[Tree, ...] = ()


def test_recursion_on_python_values_is_unrolled() -> None:
    def total(tree: Tree) -> Tensor:
        result = tree.value
        for child in tree.children:
            result = result + total(child).tanh()
        return result

    leaf = Tree(torch.randn(3))
    tree = Tree(torch.randn(3), (leaf, Tree(torch.randn(3), (leaf, leaf))))
    assert structure(check(lambda x: total(tree) * x, (torch.randn(3),))) == {}

    def power(x: Tensor, n: int) -> Tensor:
        return x if n == 0 else power(x, n - 1) * x

    assert structure(check(power, (torch.randn(3), 5))) == {}


def test_method_of_a_module() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Linear(3, 3)

        def step(self, x: Tensor, n: Tensor) -> Tensor:
            if n <= 0:
                return x
            return self.step(torch.tanh(self.map(x)), n - 1)

        def forward(self, x: Tensor, n: Tensor) -> Tensor:
            return self.step(x, n)

    assert structure(check(Model(), (torch.randn(3), torch.tensor(4)))) == {"if": 1, "call": 2}


def test_no_base_case() -> None:
    def endless(x: Tensor) -> Tensor:
        return endless(x + 1)

    assert "has no base case" in str(refused(endless, torch.zeros(3)))


def test_base_case_that_is_never_reached() -> None:
    def endless(x: Tensor, n: Tensor) -> Tensor:
        return x if n < 0 else endless(x, n + 1)

    check(endless, (torch.zeros(3), torch.tensor(-1)))


def test_depth_counters_become_numbers_of_the_program() -> None:
    def deep(x: Tensor, n: int) -> Tensor:
        if x.sum() > 1e9:
            return x
        return deep(x * 2, n + 1)

    check(deep, (torch.ones(3), 0), (torch.full((3,), 1e9), 0))


@pytest.mark.parametrize("limit", [3, 9, 40])
def test_two_recursive_calls_with_a_depth_counter(limit: int) -> None:
    def bisect(low: Tensor, high: Tensor, depth: int = 0) -> Tensor:
        middle = (low + high) / 2
        if high - low < 1e-4 or depth > limit:
            return middle
        if middle**3 > 2:
            return bisect(low, middle, depth + 1)
        return bisect(middle, high, depth + 1)

    def f(low: Tensor, high: Tensor) -> Tensor:
        return bisect(low, high)

    size = len(str(check(f, (torch.zeros(()), torch.full((), 2.0))).program))
    assert size < 20_000


def test_a_budget_and_a_tolerance_by_name() -> None:
    def area(low: Tensor, high: Tensor, *, error: float, left: int) -> Tensor:
        middle = (low + high) / 2
        whole = (high - low) * torch.sin(middle)
        halves = (high - low) / 2 * (torch.sin((low + middle) / 2) + torch.sin((middle + high) / 2))
        if left == 0 or (whole - halves).abs() < error:
            return halves
        first = area(low, middle, error=error / 2, left=left - 1)
        return first + area(middle, high, error=error / 2, left=left - 1)

    def f(low: Tensor, high: Tensor) -> Tensor:
        return area(low, high, error=1e-3, left=5)

    check(f, (torch.zeros(()), torch.full((), 2.0)), (torch.zeros(()), torch.full((), 0.1)))


def test_a_depth_counter_that_python_needs_is_refused_in_time() -> None:
    def grow(x: Tensor, n: int) -> Tensor:
        if x.sum() > 1e9:
            return x
        name = ("left", "right")[n % 2] * n
        return grow(x * len(name), n + 1) + grow(x + 1, n + 2)

    error = refused(grow, torch.ones(3), 1)
    assert "as a tensor" in str(error) and "fallback=True" in str(error)


def test_an_index_into_a_heap_of_weights() -> None:
    def search(x: Tensor, w: Tensor, node: int, level: int) -> Tensor:
        if level == 6:
            return torch.as_tensor(node)
        if (w[node] * x).sum() > 0:
            return search(x, w, 2 * node + 1, level + 1)
        return search(x, w, 2 * node + 2, level + 1)

    def f(x: Tensor, w: Tensor) -> Tensor:
        return search(x, w, 0, 0)

    check(f, *((torch.randn(4), torch.randn(127, 4)) for _ in range(3)))


def test_tensors_whose_size_data_decide() -> None:
    def sort(x: Tensor) -> Tensor:
        if len(x) <= 1:
            return x
        pivot = x[0]
        return torch.cat([sort(x[x < pivot]), x[x == pivot], sort(x[x > pivot])])

    check(sort, (torch.randn(9),), (torch.arange(9.0),), (torch.zeros(9),))


def test_a_position_among_as_many_as_data_decide() -> None:
    def select(x: Tensor, k: int) -> Tensor:
        low, high = x[x < x[0]], x[x > x[0]]
        if k < low.numel():
            return select(low, k)
        if k >= x.numel() - high.numel():
            return select(high, k - (x.numel() - high.numel()))
        return x[0]

    x = torch.randn(9)
    check(select, (x, 3))
    check(select, (x, 8))


def test_a_write_to_a_tensor_whose_size_data_decide() -> None:
    def peel(x: Tensor) -> Tensor:
        if len(x) <= 1:
            return x
        x += 1
        return peel(x[x > x[0]])

    assert "changes one of them in place" in str(refused(peel, torch.arange(5.0)))


def test_a_list_that_grows_while_it_is_gone_through_is_refused_in_time() -> None:
    def f(x: Tensor) -> Tensor:
        items, total = [x], torch.zeros(())
        for item in items:
            total = total + item.sum()
            items.append(item * 0.5)
            if total > 3:
                break
        return total

    assert "comes to no end" in str(refused(f, torch.ones(3)))


def test_results_of_different_structure() -> None:
    def walk(x: Tensor, n: Tensor) -> object:
        if n <= 0:
            return x
        return (walk(x, n - 1), x)

    def caller(x: Tensor, n: Tensor) -> object:
        y = x * 2
        return walk(y, n)

    for function in (walk, caller):
        error = refused(function, torch.ones(3), torch.tensor(2))
        assert "the recursive function 'walk' returns values of different structure" in str(error)
        assert "    def walk(x: Tensor, n: Tensor) -> object:" in str(error)


def test_a_variable_outside_of_the_recursion_that_changes_its_shape() -> None:
    def caller(x: Tensor, n: Tensor) -> Tensor:
        h = x

        def grow(n: Tensor) -> Tensor:
            nonlocal h
            h = torch.cat([h, h])
            return grow(n - 1) if n > 0 else n

        grow(n)
        return h

    check(caller, *((torch.ones(2), torch.tensor(n)) for n in (2, 0, 3)))


def test_a_size_that_the_body_of_a_recursion_settles() -> None:
    def visit(node: Tensor, values: Tensor, left: Tensor, right: Tensor, leaf: Tensor) -> Tensor:
        if leaf[node]:
            return values[node]
        a = visit(left[node], values, left, right, leaf)
        b = visit(right[node], values, left, right, leaf)
        return torch.tanh(W @ torch.cat([a, b]))  # the rows of `values` have three numbers

    fast = stretto.compile(visit, backend="interpreter", dynamic=True)
    for count in (5, 7, 9):
        nodes = [torch.cat([x, x.new_zeros(count - 5)]) for x in (LEFT, RIGHT, LEAF)]
        arguments = (torch.tensor(0), torch.ones(count, 3), *nodes)
        torch.testing.assert_close(fast(*arguments), visit(*arguments))
    assert len(fast.signatures) == 1


def test_a_variable_outside_of_the_recursion_that_gets_more_dims() -> None:
    def caller(x: Tensor, n: Tensor) -> Tensor:
        h = x

        def grow(n: Tensor) -> Tensor:
            nonlocal h
            h = torch.stack([h, h])
            return grow(n - 1) if n > 0 else n

        grow(n)
        return h

    error = str(refused(caller, torch.ones(2), torch.tensor(2)))
    assert "a variable of an outer function is a tensor float32[2, " in error
    assert "before a recursive function is called" in error


class _Adder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = [1]

    def go(self, a: Tensor) -> Tensor:
        return a if a.sum() > 10 else self.go(a + self.steps[0])

    def forward(self, x: Tensor) -> Tensor:
        first = self.go(x)
        self.steps[0] = 5
        second = self.go(x)
        self.steps[0] = 1
        return first + second


def _changed_in_place(x: Tensor) -> Tensor:
    y = x * 1

    def go(a: Tensor) -> Tensor:
        return a if a.sum() > 10 else go(a + y)

    first = go(x)
    y.add_(1)
    return first + go(x)


def _bound_anew(x: Tensor) -> Tensor:
    step, y = 1, x * 1

    def go(a: Tensor) -> Tensor:
        return a if a.sum() > 10 else go(a + y * step)

    first = go(x)
    step, y = 5, y + 1
    return first + go(x)


@pytest.mark.parametrize("fn", [_Adder(), _changed_in_place, _bound_anew])
def test_a_function_sees_what_changed_between_its_calls(fn: Callable[[Tensor], Tensor]) -> None:
    check(fn, (torch.ones(3),), (torch.rand(3),))


def test_a_function_that_sees_nothing_new_is_traced_once() -> None:
    def go(a: Tensor) -> Tensor:
        return a if a.sum() > 10 else go(a + 1)

    def f(x: Tensor) -> Tensor:
        return go(x) + go(x * 2)

    captured = check(f, (torch.ones(3),))
    assert len(captured.program.functions) == 2


def test_arguments_that_share_memory() -> None:
    def go(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        if b.sum() < 20:
            return go(a, b)
        return b * 1

    def f(x: Tensor) -> Tensor:
        y = x * 1
        return go(y, y)

    assert "in place" in refused(f, torch.ones(3)).message


def falls(x: Tensor, n: Tensor) -> Tensor:
    if n <= 0:
        return x
    return rises(x + 1, n - 1)


def rises(x: Tensor, n: Tensor) -> Tensor:
    """Calls itself and `falls`, which is not finished when this one is made a function."""
    if n <= 0:
        return x * 2
    if x.sum() > 10:
        return rises(x * 0.5, n - 1)
    return turns(x * 3, n - 1)


def turns(x: Tensor, n: Tensor) -> Tensor:
    if n <= 0:
        return -x
    if x.sum() < 0:
        return turns(-x, n - 1) + 1
    return falls(x, n - 1) if x[0] > 2 else rises(x + 2, n - 1)


@pytest.mark.parametrize("function", [falls, rises, turns])
def test_functions_that_call_each_other(function: Callable[..., Any]) -> None:
    """No arm of one is lost that calls another one whose result was not known at first."""
    fast = stretto.compile(lambda x, n: function(x, n), backend="interpreter")
    for number in range(9):
        n = torch.tensor(number)
        for x in (torch.ones(3), 5 * torch.ones(3), -torch.ones(3)):
            torch.testing.assert_close(fast(x, n), function(x, n))
