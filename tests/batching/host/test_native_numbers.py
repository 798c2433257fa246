"""Numbers of an instance are plain variables of the C++ program where their type is known."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stretto.batching.host.printer import print_program
from stretto.batching.host.tables import layout
from stretto.batching.passes.pipeline import run_passes
from tests.batching.agree import program_of


def declared(function: Callable[..., Any], *columns: list[Any]) -> list[str]:
    """The C++ types of the variables and parameters of a function, in the order of the text."""
    program = program_of(function, *columns)
    run_passes(program)
    text = print_program(program, layout(program)).text
    return re.findall(r"^ *(\w+) v\d+ = ", text, re.MULTILINE)


def test_counters_sums_and_tests() -> None:
    def count(x: Tensor, n: int, scale: float) -> Tensor:
        total, weight = 0, 1.0
        for i in range(n):
            total += i * i
            weight = weight * scale + total / 2
            if total > 7 and not weight < 0.0:
                x = torch.tanh(x) * weight
        return x

    found = declared(count, [torch.ones(4)], [3], [0.5])
    assert {"int64_t", "double", "bool", "Tensor"} == set(found)


def test_numbers_that_are_read() -> None:
    def decide(x: Tensor) -> tuple[Tensor, int]:
        steps = 0
        while x.sum().item() < 3.0:
            x = x + 1
            steps += 1
        return x, steps + int(x.argmax())

    found = declared(decide, [torch.ones(4)])
    assert found.count("Value") <= 1  # the tuple that is returned
    assert "double" in found and "int64_t" in found


def test_arguments_of_recursive_calls() -> None:
    def down(x: Tensor, n: int, scale: float) -> Tensor:
        return x if n == 0 else down(x * scale, n - 1, scale + 1.0)

    assert "Value" not in declared(down, [torch.ones(4)], [3], [0.5])
