"""Operators whose results nothing reads raise what eager PyTorch raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.frontends.python import capture
from stretto.options import Options
from stretto.passes.manager import run_passes
from stretto.passes.pipeline import pipeline


def of_decided_sizes(x: Tensor) -> Tensor:
    few = x[x > 3.0]
    x - few
    return x + 1


def in_a_loop(x: Tensor) -> Tensor:
    k = 0
    while k < x[0]:
        k += 1
        few = torch.masked_select(x, x > k + 2.0)
        (x * few).sum()
    return x + k


def in_an_arm(x: Tensor) -> Tensor:
    if x.sum() > 6:
        few = x[x > 3.0]
        few @ x
    return x + 1


def divided(x: Tensor) -> Tensor:
    torch.tensor([1, 2, 3]) // x.to(torch.int64)
    return x + 1


def divided_in_an_arm(x: Tensor) -> Tensor:
    if x.sum() > 6:
        torch.tensor([1, 2, 3]).remainder_(x.to(torch.int64))
    return x + 1


def factorized(x: Tensor) -> Tensor:
    torch.linalg.cholesky((x - 1).diag())
    return x + 1


def called(x: Tensor, depth: int = 2) -> Tensor:
    x - x[x > 3.0]
    return x if depth == 0 or x.sum() > 100 else called(x + 1, depth - 1)


FUNCTIONS: list[Callable[[Tensor], Tensor]] = [
    of_decided_sizes, in_a_loop, in_an_arm, divided, divided_in_an_arm, factorized, called,
]  # fmt: skip
VALUES = [(2.0, 2.0, 2.0), (4.0, 4.0, 4.0), (1.0, 4.0, 0.0), (5.0, 0.0, 0.0), (9.0, 9.0, 0.0)]


def outcome(function: Callable[[Tensor], Any], x: Tensor) -> Any:
    try:
        return function(x)
    except (RuntimeError, stretto.RunError) as error:
        return type(error)


@pytest.mark.parametrize("backend", ["interpreter", "cpu", "emulator"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_error_of_an_operator_that_nothing_reads(
    function: Callable[[Tensor], Tensor], backend: str
) -> None:
    fast = stretto.compile(function, backend=backend)
    for values in (*VALUES, VALUES[0]):
        expected = outcome(function, torch.tensor(values))
        found = outcome(fast, torch.tensor(values))
        if isinstance(expected, type):
            assert isinstance(found, type) and issubclass(found, RuntimeError)
        else:
            torch.testing.assert_close(found, expected)


def test_operators_that_cannot_fail_are_dropped() -> None:
    """Comparisons of sizes that the guards have made, and a divisor that is a number."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        x + y
        torch.arange(3) // 2
        return x * 2

    sizes = capture(function, (torch.ones(3), torch.ones(3)), {}, Options()).program
    assert "evaluate" not in str(run_passes(sizes, pipeline()))
