"""Corners of batches from end to end: those that made a dynamic batcher wrong, and data that
kernels take other ways for. On one unit and on two."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import stretto
from checks.fuzz.compare import differences
from checks.fuzz.observe import observe
from stretto.options import Options
from tests.sampling import every

torch.manual_seed(0)
LAYER = nn.Linear(3, 3).requires_grad_(False)
WORDS = nn.Embedding(50, 3).requires_grad_(False)
BIAS = torch.randn(3)
ZEROS, ONES = torch.zeros(2), torch.ones(2)


def same(wanted: Any, found: Any) -> bool:
    """The same structure, types, shapes and dtypes, and the same numbers beyond rounding."""
    return next(differences(observe(found), observe(wanted)), None) is None


def assert_batches(
    function: Callable[..., Any], *columns: list[Any], units: int = 2, backend: str = "cpu"
) -> list[Any]:
    """Batches of all instances, some of them, one and none, in two orders, give what each gives."""
    many = stretto.batch(function, backend=backend, options=Options(threads=units, units=units))
    with torch.no_grad():
        wanted = [function(*items) for items in zip(*columns, strict=True)]
    count = len(wanted)
    shuffled = random.Random(0).sample(range(count), count)
    found: list[Any] = []
    for chosen in (range(count), shuffled, shuffled[:2], [count - 1], []):
        found = many(*([column[k] for k in chosen] for column in columns))
        for place, (k, item) in enumerate(zip(chosen, found, strict=True)):
            assert same(wanted[k], item), (len(found), place, wanted[k], item)
    return many(*columns)


def with_context(items: list[torch.Tensor], place: int) -> list[torch.Tensor]:
    made = [torch.tanh(LAYER(x)) for x in items]
    context = made[place]
    return [x * context + (x * context).sum() for x in made]


@pytest.mark.parametrize("units", [1, 2])
def test_an_operand_that_is_not_the_first_of_its_batch(units: int) -> None:
    """It was computed with others, and all rows of the next step use it."""
    items = [[torch.randn(3) for _ in range(n)] for n in (4, 2, 7, 1, 5)]
    assert_batches(with_context, items, [2, 1, 6, 0, 3], units=units)


@dataclass(eq=False)
class Node:
    word: int
    children: list[Any]


def state_of(node: Node) -> torch.Tensor:
    total = WORDS.weight[node.word]
    for child in node.children:
        total = total + torch.tanh(LAYER(state_of(child)))
    return total


def test_parts_that_instances_share() -> None:
    common = Node(3, [Node(4, []), Node(5, [Node(6, [])])])
    first = Node(1, [common, Node(2, []), common])
    assert_batches(state_of, [first, Node(2, [common]), common, first, Node(7, [first, first])])


@pytest.mark.whole
def test_a_reduction_over_10000_lookups() -> None:
    def summed(words: list[int]) -> torch.Tensor:
        total = torch.zeros(3)
        for word in words:
            total = total + WORDS.weight[word]
        return total

    def stacked(words: list[int]) -> torch.Tensor:
        return torch.stack([BIAS, *[WORDS.weight[word] for word in words]]).mean(0)

    draw = random.Random(0)
    words = [[draw.randrange(50) for _ in range(n)] for n in (10_000, 3, 0, 10_000)]
    for function in (summed, stacked):
        wanted = [function(item) for item in words]
        for one, other in zip(stretto.batch(function)(words), wanted, strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


def decides(items: list[torch.Tensor]) -> tuple[torch.Tensor, int]:
    state, left = torch.zeros(3), 0
    for x in items:
        state = torch.tanh(LAYER(state) + x)
        if state.sum() > 0:
            state = state * 2 - BIAS
            left += 1
        elif state.max() < 0.1:
            break
        state = state + x
    return state, left


@pytest.mark.whole
@pytest.mark.parametrize("units", [1, 2])
def test_a_decision_in_the_middle(units: int) -> None:
    items = [[torch.randn(3) for _ in range(n)] for n in (4, 0, 7, 1, 5, 2, 9)]
    assert_batches(decides, items, units=units)


def walked(node: Node, deep: bool) -> list[torch.Tensor]:
    """Recursion inside a loop inside a branch."""
    found: list[torch.Tensor] = []
    if deep:
        for child in node.children:
            for state in walked(child, child.word > 1):
                found.append(LAYER(state))
    else:
        found.append(WORDS.weight[node.word])
    return found


def test_recursion_in_a_loop_in_a_branch() -> None:
    leaf, other = Node(1, []), Node(2, [])
    tree = Node(9, [leaf, other, Node(3, [leaf, leaf]), Node(0, [other])])
    items = [tree, leaf, Node(5, []), Node(5, [tree, leaf]), tree]
    assert_batches(walked, items, [True, False, True, True, False])


def given_back(x: torch.Tensor, items: list[torch.Tensor]) -> Any:
    return x, LAYER.weight, BIAS, items, items[1], x[1:], x * 1


def test_results_that_are_what_came_in() -> None:
    base = torch.randn(12)
    columns = [base[1:4], torch.randn(3), base[2:8:2]], [[base[:2], base]] * 3
    results = assert_batches(given_back, *columns)
    for x, items, result in zip(*columns, results, strict=True):
        assert result[3] is items
        assert result[0].data_ptr() == x.data_ptr() or torch.equal(result[0], x)
    before = base.clone()
    results[0][-1].add_(1)
    assert torch.equal(base, before) and torch.equal(results[1][-1], columns[0][1])


def test_an_object_in_two_columns() -> None:
    def both(first: Node, second: Node) -> Any:
        return first is second, state_of(first) + state_of(second), [first, second]

    one, other = Node(1, [Node(2, [])]), Node(3, [])
    found = assert_batches(both, [one, one, other], [one, other, one])
    assert found[0][2][0] is found[0][2][1] is one


def compared(x: torch.Tensor, n: int) -> Any:
    return (x > n).sum(), ZEROS != ONES, ZEROS == ONES, (ZEROS != 0).any() or n > 1


def test_tensors_that_all_instances_share_are_compared() -> None:
    assert_batches(compared, [torch.randn(3), torch.randn(3)], [0, 2])


def looked_up(x: torch.Tensor, n: int) -> torch.Tensor:
    x[n]
    return x * 2


def test_a_position_is_checked_where_nothing_uses_the_result() -> None:
    many = stretto.batch(looked_up, backend="cpu")
    x = torch.randn(3)
    assert same(many([x, x], [2, -3]), [x * 2, x * 2])
    with pytest.raises(IndexError, match="out of bounds for dimension 0 with size 3"):
        many([x, x], [1, 3])
    assert same(many([x], [0]), [x * 2])


def of_any_dtype(x: torch.Tensor, n: int) -> Any:
    total = x
    for k in range(n):
        total = total + x * k
    picked = torch.where(x > 0, x, total)
    return total, picked, x.sum(), x.to(torch.float64).sum(), x == total


KINDS = [
    (dtype, shape)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)
    for shape in ((), (0,), (3, 0), (33,), (2, 5))
]


@pytest.mark.whole
@pytest.mark.parametrize(("first", "units"), every(4, range(7), [2, 1]))
def test_dtypes_and_shapes_in_one_batch(first: int, units: int) -> None:
    """Zero-size tensors, tensors without dims, odd sizes; views with offsets, turned ones and such
    of one element."""
    items: list[torch.Tensor] = []
    for dtype, shape in KINDS[first::7][:2]:
        count = torch.Size(shape).numel()
        flat = torch.randint(-3, 4, (count + 3,)).to(dtype)
        items.append(flat[3:].view(shape))
        items.append(
            flat[3:].reshape(shape[::-1]).T if len(shape) == 2 else flat[:count].view(shape)
        )
        items.append(flat[0].expand(shape))
    assert_batches(of_any_dtype, items, [k % 3 for k in range(len(items))], units=units)
