"""What a loop leaves behind has the type, the dtype and the shape of the way that was taken: with
no round at all those of before the loop, though a round gives others."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.frontends.python.checks import assert_same


def shift_register(xs: Tensor) -> Any:
    carry = [0.0, 0.0, 0.0]
    for x in xs:
        carry = [carry[0] + x, carry[1] + carry[0], carry[2] + carry[1]]
    return carry


def a_number_or_a_tensor(x: Tensor) -> Any:
    total, seen = 0, False
    for row in x:
        total += row.sum()
        seen = seen + (row.sum() > 0)
    return total, seen


def a_wider_dtype(x: Tensor, n: Tensor) -> Any:
    half, short = x.half(), torch.zeros(3, dtype=torch.int32)
    for _ in range(n):
        half = half + x
        short = short + x.long()
    return half, short, short // 2


def until(x: Tensor, n: Tensor) -> Any:
    total, count, steps = x.half(), torch.tensor(0), 0
    while count < n:
        total = total + x * 0.1
        count, steps = count + 1, steps + 0.5
    return total, count, steps


def broadcast(x: Tensor, n: Tensor) -> Any:
    total, scaled = torch.zeros(1), torch.zeros(1, 1)
    for _ in range(n):
        total = total + x
        scaled = scaled * 0.5 + x
    return total, scaled


def broadcast_until(x: Tensor, n: Tensor) -> Tensor:
    total = torch.zeros(1)
    while total.sum() < n:
        total = total + x.abs()
    return total


def refused_in_the_second_round(x: Tensor, n: Tensor) -> Tensor:
    y = torch.ones(3)
    for _ in range(n):
        y = x.double() * (torch.eye(3) @ y)
    return y


ROWS = [(torch.randn(n, 2),) for n in (3, 7, 0, 3)]
COUNTED = [(torch.randn(3) + 1, torch.tensor(n)) for n in (2, 0, 1, 4)]
PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "shift register": (shift_register, [(torch.randn(n),) for n in (6, 0, 9)]),
    "a number or a tensor": (a_number_or_a_tensor, ROWS),
    "a wider dtype": (a_wider_dtype, COUNTED),
    "until": (until, COUNTED),
    "broadcast": (broadcast, COUNTED),
    "broadcast until": (broadcast_until, COUNTED),
}


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, backend: str) -> None:
    function, calls = PROGRAMS[name]
    compiled = stretto.compile(function, backend=backend)
    for args in calls:
        assert_same(compiled(*args), function(*args))


def test_an_operator_that_eager_refuses_in_the_second_round() -> None:
    compiled = stretto.compile(refused_in_the_second_round, backend="interpreter")
    x = torch.randn(3)
    for n in (0, 1):
        assert_same(compiled(x, torch.tensor(n)), refused_in_the_second_round(x, torch.tensor(n)))
    with pytest.raises(RuntimeError, match="same dtype"):
        compiled(x, torch.tensor(2))


def test_a_loop_of_torch_gives_copies() -> None:
    def program(x: Tensor, n: Tensor) -> Any:
        i, y = torch.while_loop(lambda i, _: i < n, lambda i, y: (i + 1, y + 1), (n * 0, x))
        y.add_(1)
        return x, y, i

    for n in (0, 2):
        compiled = stretto.compile(program, backend="interpreter")
        x = torch.ones(3)
        outcome = compiled(x, torch.tensor(n))
        assert torch.equal(x, torch.ones(3))
        assert_same(outcome, (torch.ones(3), torch.full((3,), 2.0 + n), torch.tensor(n)))
