"""Functions and methods of Python that compare items, over numbers and tensors that the run gives.

With NaN among them the outcome depends on which items Python compares, and in which order."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto

VALUES = (math.nan, math.nan, 0.0, -0.0, 1.0, 2.0, 2.0, -1.5, 3.25, math.inf)


def by_key_in_place(x: Tensor) -> Any:
    numbers = [v.item() for v in x]
    numbers.sort(key=lambda v: -v)
    others = numbers[:]
    others.sort(reverse=True)
    return numbers, others


def extremes(x: Tensor) -> Any:
    numbers = x.tolist()
    return (
        *(min(numbers), max(numbers), min(numbers, key=lambda v: -v)),
        *(max(range(len(x)), key=lambda i: x[i].item()), min(x[0].item(), x[1].item(), 0.5)),
        *(max(numbers, default=3), max((v for v in numbers), default=0)),
    )


def found(x: Tensor) -> Any:
    numbers = x.tolist()
    return (
        *(numbers.count(1.0), numbers.count(numbers[0]), tuple(numbers).count(0.0)),
        *(numbers[0] in numbers, 0.0 in numbers, x[0].item() in numbers),
        *(numbers.index(numbers[1]), tuple(numbers).index(numbers[0])),
    )


def of_dicts(x: Tensor) -> Any:
    table = {"a": x[0].item(), "b": x[1].item()}
    return max(table, key=table.get), min(table.values()), sorted(table.values())


def folded(x: Tensor) -> Any:
    numbers = x.tolist()
    truths = any(numbers), all(numbers), any(v > 1 for v in numbers), all(v == v for v in numbers)
    return sum(numbers), sum(numbers, 0.5), truths


def of_ints(x: Tensor) -> Any:
    signs = [int(v > 0) for v in x]
    return sorted(signs), sorted(signs, reverse=True), signs.count(1), max(signs), sum(signs)


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "sorted": lambda x: sorted(x.tolist()),
    "sorted downwards": lambda x: sorted(x.tolist(), reverse=True),
    "sorted by a key": lambda x: sorted(range(len(x)), key=lambda i: x[i].item(), reverse=True),
    "tensors": lambda x: sorted([x[i] * 1 for i in range(len(x))]),
    "in place": by_key_in_place,
    "extremes": extremes,
    "found": found,
    "of dicts": of_dicts,
    "folded": folded,
    "of ints": of_ints,
}


@pytest.mark.parametrize("size", [2, 3, 5, 12])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_python_compares(name: str, size: int) -> None:
    program, draw = PROGRAMS[name], random.Random(size)
    compiled = stretto.compile(program, backend="interpreter")
    for _ in range(8):
        x = torch.tensor([draw.choice(VALUES) for _ in range(size)])
        assert repr(compiled(x)) == repr(program(x)), x


@pytest.mark.parametrize("name", ["sorted", "sorted downwards", "found"])
def test_on_the_cpu(name: str) -> None:
    program, compiled = PROGRAMS[name], stretto.compile(PROGRAMS[name])
    for values in (
        [math.nan, 1.0, 0.0],
        [2.0, math.nan, 1.0],
        [3.0, 1.0, math.nan],
        [3.0, 1.0, 2.0],
    ):
        x = torch.tensor(values)
        assert repr(compiled(x)) == repr(program(x)), x


def test_what_is_not_in_a_list() -> None:
    compiled = stretto.compile(lambda x: x.tolist().index(2.0), backend="interpreter")
    assert compiled(torch.tensor([1.0, 2.0, 2.0])) == 1
    with pytest.raises(ValueError, match="not in list"):
        compiled(torch.tensor([1.0, math.nan, 3.0]))


def test_nan_among_many_numbers_is_sorted_by_python() -> None:
    compiled = stretto.compile(lambda x: sorted(x.tolist()), backend="interpreter")
    x = torch.randn(70)
    assert compiled(x) == sorted(x.tolist())
    x[3] = math.nan
    assert repr(compiled(x)) == repr(sorted(x.tolist()))
