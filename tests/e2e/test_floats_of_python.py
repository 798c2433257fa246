"""Floats of Python that come from tensors: they have 64 bits, as in Python, and count as numbers of
Python where they meet tensors. Bit by bit as eager."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto


def summed(x: Tensor) -> Any:
    total = 0.0
    for i in range(3):
        total += x[i].item()
    return x * total, total


def summed_at_run_time(x: Tensor) -> Any:
    time, steps = 0.0, 0
    while time < 1.0:
        time = time + x[0].item()
        steps += 1
    return x + steps, time


def halved(x: Tensor, number: float) -> Any:
    if number < 1e-3:
        return number
    return halved(x, number * x[0].item()) / 3


def set_item(x: Tensor) -> Any:
    y, ints = x.clone(), torch.zeros(3, dtype=torch.int64)
    y[1] = x[0].item() * 0.3
    ints[0] = x[1].item() * 1e9
    ints[1:].fill_(x[2].item() * 1e9)
    return y, ints, ints.masked_fill(y > 1, x[1].item() * 1e9)


def in_an_arm(x: Tensor) -> Any:
    number = 0.1
    if x.sum() > 0:
        number = x[0].item()
    return x * number, number * 3, number == 0.1


def in_a_list(x: Tensor) -> Any:
    numbers = [0.1]
    for i in range(int(x[1].item())):
        numbers.append(x[i].item() * 0.7)
    total = torch.tensor(sum(numbers))  # since Python 3.12 a sum of floats is rounded once
    return total, torch.tensor(numbers), torch.tensor(numbers, dtype=torch.float64)


INTS = torch.tensor([3, 5])

PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "compared": lambda x: x * 2 if x[0].item() > 0.1 else x * 3,
    "equal": lambda x: x[0].item() == 0.1,
    "times a number": lambda x: x * (x[0].item() * 0.1),
    "beyond float32": lambda x: x + (x[0].item() * 1e30 * 1e30 * 1e-59),
    "returned": lambda x: x[0].item(),
    "float of a tensor": lambda x: float(x[0]) / 3,
    "float of an int": lambda x: float(int(x[1])) / 3,
    "an int and a float": lambda x: (
        int(x[1]) / 3,
        int(x[1]) * 0.1,
        0.1 - int(x[1]),
        1 / int(x[1]),
    ),
    "an int that is large": lambda x: (int(x[1] * 1e9) + 0.5, int(x[1] * 1e9) > 2299999949.5),
    "powers of ints": lambda x: (
        int(x[1]) ** 0.3,
        int(x[1]) ** -1,
        0.3 ** int(x[1]),
        2 ** int(x[1]),
    ),
    "functions of ints": lambda x: (math.sqrt(int(x[1])), math.log(int(x[2])), math.exp(int(x[1]))),
    "rounded": lambda x: (int(x[0].item() * 1e9), round(x[1].item() * 1.5), x.mean().item()),
    "math": lambda x: (math.sqrt(x[1].item()), math.exp(x[1].item()), math.floor(x[1].item())),
    "math of two": lambda x: (
        math.hypot(x[1].item(), 0.3),
        math.atan2(int(x[1]), 7),
        math.sqrt(x[1]),
    ),
    "modulo": lambda x: (x[1].item() // 0.1, x[1].item() % 0.1, x[1].item() ** 0.3),
    "larger": lambda x: (max(x[0].item(), 0.1), min(0.1, x[0].item()), abs(-x[0].item())),
    "sums": lambda x: (sum([x[0].item(), 0.1, x[1].item()]), sum(x.tolist())),
    "half": lambda x: (x.half() * (x[0].half().item() * 0.3), x[1].half() * x[0].item()),
    "bfloat16": lambda x: x.bfloat16() + x[0].bfloat16().item() * 0.3,
    "double": lambda x: (x.double() * (x[0].item() / 3), x[1].double() + x[0].item() / 3),
    "without dims": lambda x: (x[1] * x[0].item(), x[1] / x[0].item(), x[1] > x[0].item()),
    "ints": lambda x: (INTS * x[0].item(), INTS[0] * x[0].item(), x[1].item() < INTS),
    "divided by a tensor": lambda x: (x[1].item() / x, x[1].item() / x[0], x[1].item() / INTS),
    "powers": lambda x: (x ** x[1].item(), x[1].item() ** x, INTS ** x[0].item()),
    "clamp": lambda x: (x.clamp(min=x[0].item()), INTS.clamp(max=x[1].item())),
    "where": lambda x: (torch.where(x > 1, x[0].item(), 1.0), torch.where(x > 1, x, x[0].item())),
    "where of scalars": lambda x: torch.where(x > 1, x[1], x[0].item()),
    "filled": lambda x: (torch.zeros(3).fill_(x[0].item()), x.masked_fill(x > 1, x[0].item())),
    "made": lambda x: (torch.tensor(x[0].item() / 3), torch.full((2,), x[0].item())),
    "made of several": lambda x: torch.tensor([x[0].item(), 2.1]),
    "made of doubles": lambda x: torch.tensor([x[0].item() / 3, 2.1], dtype=torch.float64),
    "made of a list": lambda x: (torch.tensor(x.tolist()), torch.as_tensor(x[0].item())),
    "made like": lambda x: (x.new_tensor(x[0].item()), torch.full_like(INTS, x[1].item() * 1e9)),
    "sum": summed,
    "sum at run time": summed_at_run_time,
    "recursion": lambda x: halved(x, x[2].item()),
    "set": set_item,
    "in an arm": in_an_arm,
    "in a list": in_a_list,
}


def assert_same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, Tensor):
        assert found.dtype is wanted.dtype and torch.equal(found, wanted), (found, wanted)
    elif isinstance(wanted, float):  # torch's square roots of float64 are not always the nearest
        assert found == pytest.approx(wanted, rel=4e-16, abs=0.0, nan_ok=True)
    else:
        assert found == wanted


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, backend: str) -> None:
    program = PROGRAMS[name]
    compiled = stretto.compile(program, backend=backend)
    for first in (0.1, 0.30000001):
        x = torch.tensor([first, 2.3, 7.0])
        assert_same(compiled(x), program(x))
