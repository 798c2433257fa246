"""`and`, `or` and chains of comparisons give one of their operands, of its own type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.frontends.python import capture
from stretto.ir.ops import IfOp
from stretto.options import Options
from tests.frontends.python.checks import assert_same

OPERANDS: dict[str, Callable[[Tensor], Any]] = {
    "bool tensor": lambda x: x.sum() > 2,
    "bool tensor of one": lambda x: x[:1] > 2,
    "tensor": lambda x: x[0],
    "vector of one": lambda x: x[:1],
    "bool": lambda x: bool(x[1] > 2),
    "int": lambda x: int(x[0]),
    "float": lambda x: x[1].item(),
    "None": lambda _: None,
    "True": lambda _: True,
    "text": lambda _: "text",
}
FIRST = ("bool tensor", "bool tensor of one", "tensor", "bool", "int")
VALUES = [(3.0, 1.0), (0.0, 0.0), (0.0, 3.0), (1.0, 0.0)]


@pytest.mark.parametrize("second", OPERANDS)
@pytest.mark.parametrize("first", FIRST)
def test_the_type_is_that_of_the_operand(first: str, second: str) -> None:
    one, other = OPERANDS[first], OPERANDS[second]

    def both(x: Tensor) -> Any:
        return one(x) and other(x)

    def either(x: Tensor) -> Any:
        return one(x) or other(x)

    def of_three(x: Tensor) -> Any:
        return (one(x) and other(x)) or x

    for function in (both, either, of_three):
        fast = stretto.compile(function, backend="interpreter")
        for values in VALUES:
            x = torch.tensor(values)
            assert_same(fast(x), function(x))


def chained(x: Tensor) -> Any:
    return -1 < x[0] < x[1] < 2


def chained_numbers(x: Tensor) -> Any:
    return -1 < x[0].item() < x[1].item() < 2


def chained_and_used(x: Tensor) -> Any:
    return (0 < x[0] < 4) * x


def gathered(x: Tensor) -> Any:
    found = False
    for item in x:
        found = found or item > 1.5
    return found


def written(x: Tensor) -> Any:
    flag = x.sum() > 2
    found = flag and x
    found.logical_not_()
    return found, flag, x


def deciding(x: Tensor) -> Any:
    y = x if (x[0] > 1 and 0 < x[1] < 2) or not (x[0] and x[1]) else x + 1
    while y.sum() < 20 and not (y[0] > 5 or y[1] > 9):
        y = y + 1
    return y, [v for v in (1, 2, 3) if v > 1 and x.sum() < 9], any((x[0] > 0, x[1] > 0))


@pytest.mark.parametrize(
    "function", [chained, chained_numbers, chained_and_used, gathered, written, deciding]
)
def test_operands_in_programs(function: Callable[[Tensor], Any]) -> None:
    fast = stretto.compile(function, backend="interpreter")
    for values in VALUES:
        x, again = torch.tensor(values), torch.tensor(values)
        assert_same(fast(x), function(again))
        assert_same(x, again)


def test_a_test_of_tensors_takes_no_branch() -> None:
    def function(x: Tensor) -> Tensor:
        return x + 1 if x[0] > 1 and x[1] > 1 else x

    program = capture(function, (torch.tensor(VALUES[0]),), {}, Options()).program
    assert sum(isinstance(op, IfOp) for op in program.main.body.walk()) == 1


def number_or_size(x: Tensor) -> Tensor:
    n, m = int(x[0]), len(x)
    return x if n < m or m > 3 else -x


def number_and_size(x: Tensor) -> Tensor:
    n, m = int(x[0]), len(x)
    if n < 2 and m > 3:
        return x
    return -x


def loop_over_both(x: Tensor) -> Tensor:
    n, m = int(x[0]), len(x)
    while m > 3 or n > 2:
        n, m = n - 1, m - 1
    return x * n


def values_of_both(x: Tensor) -> Any:
    b, m = bool(x.sum() > 2), len(x)
    return b or m > 3, b and m > 3, m > 3 and b, m > 3 or b, not (b and m > 3), not b or m > 3


def float_and_size(x: Tensor) -> Any:
    a, b = x[1].item(), len(x) - 2
    return 7 if a and b else 8, 7 if not a or b else 8


def loop_while_both(x: Tensor) -> int:
    k = 0
    while x[1] > k and len(x) - 2:
        k += 1
    return k


def size_beside_one_of_two(x: Tensor) -> int:
    a, b = len(x), (1 if x[0] > 1 else 2.5)
    return 7 if a > b else 8


def kept_condition(x: Tensor) -> Any:
    """A line of the branch decides by sizes again: the condition becomes a guard."""
    m = len(x)
    is_long = m / 2 > 1.5
    if is_long:
        return f"{m} {m - 2 > 1}"
    elif float(x[0]) > 0:
        return max(m, int(x[0]))
    return [k * 2 for k in range(m)]


def texts_of_bools(x: Tensor) -> Any:
    a, b = bool(x[0] > 1), bool(x[1] > 1)
    return str(a) == str(b), str(a) == str(a > 0), str(a) != str(not a), f"{a}" == str(b)


@pytest.mark.parametrize(
    "function",
    [
        number_or_size, number_and_size, loop_over_both, values_of_both, float_and_size,
        loop_while_both, size_beside_one_of_two, kept_condition, texts_of_bools,
    ],
)  # fmt: skip
def test_traced_numbers_beside_sizes(function: Any) -> None:
    """The sizes differ from call to call, so that the conditions on them are of the program."""
    compiled = stretto.compile(function, backend="interpreter")
    for values in ([1.0, -3.0], [1, 2.0], [5, 2, 3.0], [1, 2, 3, 4, 5.0], [7, 2, 3, 4, 5.0]):
        x = torch.tensor(values)
        assert_same(compiled(x), function(x))
