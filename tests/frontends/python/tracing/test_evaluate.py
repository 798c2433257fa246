"""Conditions that have the same value in every run are no branches: `evaluated`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stretto
from stretto.frontends.python import capture
from stretto.frontends.python.tracing.symbolic_sizes import SizePlan, SizeRange, SizeSource
from stretto.ir.ops import IfOp
from stretto.options import Options
from tests.frontends.python.checks import assert_same


def check(function: Callable[..., Any], *sizes: int) -> None:
    """Compares with eager; all sizes take one program, without a branch."""
    compiled = stretto.compile(function, backend="interpreter", dynamic=True)
    for size in sizes:
        x = torch.randn(1, size)
        assert_same(compiled(x), function(x))
    assert len(compiled.signatures) == 1
    plan = SizePlan.of({SizeSource(0, 1): SizeRange()})
    captured = capture(function, (torch.randn(1, 5),), {}, Options(), sizes=plan)
    assert not any(isinstance(op, IfOp) for op in captured.program.main.body.walk())


def masked(x: torch.Tensor) -> Any:
    """A mask that is all ones, because it is a product with a flag that is known."""
    has_padding = torch.tensor(0).bool()
    mask = x.ne(0).long() * has_padding + torch.ones(x.shape, dtype=torch.long) * ~has_padding
    return x * 2 if (mask == 1).all() else None


def test_a_mask_of_any_length_that_is_all_ones() -> None:
    check(masked, 5, 3, 0, 1, 17)


def test_any_of_zeros_of_any_length() -> None:
    check(lambda x: None if torch.zeros(x.shape[1]).gt(0).any() else x + 1, 5, 0, 1, 3)


@pytest.mark.parametrize("backend", ["interpreter", "emulator"])
def test_what_no_elements_answer_otherwise_stays_a_branch(backend: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sum() + 1 if torch.zeros(x.shape[1]).ge(1).all() else x.sum() - 1

    compiled = stretto.compile(function, backend=backend, dynamic=True)
    for size in (5, 0, 1, 3):
        x = torch.randn(1, size)
        assert_same(compiled(x), function(x))


def test_elements_that_differ_along_a_symbolic_dim_stay_a_branch() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if torch.arange(x.shape[1]).lt(4).all() else x - 1

    compiled = stretto.compile(function, backend="interpreter", dynamic=True)
    for size in (3, 5, 0, 4):
        x = torch.randn(1, size)
        assert_same(compiled(x), function(x))
