"""Branches of which a program has one arm, and programs for calls that go the other way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import stretto
from stretto.errors import OtherProgram


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """The mask is dropped where it is of ones only; else it grows with what the loop collects,
    which cannot be captured for both."""
    if (mask == 1).all():
        mask = None
    found = x.mean()[None, None]
    while x.abs().sum() < 50:
        if mask is not None:
            mask = torch.cat([mask, torch.ones(1, 1)], 1)
        found = torch.cat([found, x.mean()[None, None]], 1)
        x = x * 1.5 + 0.1
    return found if mask is None else found + mask.sum() + 100 * mask.shape[1]


def twice(x: Tensor, mask: Tensor, other: Tensor) -> Tensor:
    if other.sum() > 0:
        other = None  # type: ignore[assignment]
    found = masked(x, mask)
    while found.sum() < 1000:
        if other is not None:
            other = torch.cat([other, found[:1, :1]], 1)
        found = found * 2
    return found if other is None else found.sum() + other


def ones(size: int, zeros: int = 0) -> Tensor:
    mask = torch.ones(1, size)
    mask[:, :zeros] = 0
    return mask


def inputs(size: int, zeros: int = 0) -> tuple[Tensor, Tensor]:
    return torch.linspace(0.5, 1, size)[None], ones(size, zeros)


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.whole
def test_each_way_has_a_program() -> None:
    fast = stretto.compile(masked, backend="cpu")
    for size, zeros in ((3, 0), (3, 1), (3, 0), (3, 3), (5, 0), (5, 2), (9, 0), (1, 1), (8, 7)):
        args = inputs(size, zeros)
        close(fast(*args), masked(*args))
    assert len(fast.signatures) == 4, "two ways, of one length and of any other"
    assert "a check settles that this condition is True" in fast.explain()


@pytest.mark.whole
def test_the_first_call_may_go_either_way() -> None:
    fast = stretto.compile(masked, backend="interpreter", dynamic=True)
    for size, zeros in ((3, 2), (4, 0), (5, 1), (6, 0)):
        close(fast(*inputs(size, zeros)), masked(*inputs(size, zeros)))
    assert len(fast.signatures) == 2


def test_two_conditions() -> None:
    fast = stretto.compile(twice, backend="interpreter", dynamic=False)
    for first, second in ((0, 1.0), (1, 1.0), (1, -1.0), (0, 1.0)):
        args = (*inputs(3, first), torch.full((1, 2), second))
        close(fast(*args), twice(*args))
    assert len(fast.signatures) == 3


def test_what_can_be_captured_for_both_ways_has_one_program() -> None:
    def either(x: Tensor) -> Tensor:
        mask = x if x.sum() > 0 else None
        return x + 1 if mask is None else x + mask

    fast = stretto.compile(either, backend="interpreter")
    for x in (torch.ones(3), -torch.ones(3)):
        close(fast(x), either(x))
    assert len(fast.signatures) == 1


def test_an_input_that_is_changed_before_the_check() -> None:
    """The run that stops has changed nothing."""

    def counted(x: Tensor, mask: Tensor) -> Tensor:
        mask += 1
        return masked(x, mask - 1)

    fast = stretto.compile(counted, backend="cpu", dynamic=False)
    for zeros in (0, 1, 0, 1):
        (x, one), (_, other) = inputs(3, zeros), inputs(3, zeros)
        close(fast(x, one), counted(x, other))
        close(one, other)


def test_random_numbers_are_drawn_once() -> None:
    """A branch behind a draw is not settled, since the run would be repeated."""

    def noisy(x: Tensor, mask: Tensor) -> Tensor:
        return masked(x + torch.rand(1), mask)

    with pytest.raises(stretto.CaptureError):
        stretto.compile(noisy, backend="interpreter")(*inputs(3))


def test_a_saved_function_has_the_programs_of_the_calls(tmp_path: Path) -> None:
    fast = stretto.compile(masked, backend="cpu", dynamic=False)
    for zeros in (0, 1):
        fast(*inputs(3, zeros))
    fast.save(tmp_path / "both")
    loaded = stretto.load(tmp_path / "both")
    for zeros in (1, 0, 2):
        close(loaded(*inputs(3, zeros)), masked(*inputs(3, zeros)))
    one = stretto.compile(masked, backend="cpu", dynamic=False)
    one(*inputs(3))
    one.save(tmp_path / "one")
    with pytest.raises(OtherProgram, match="condition 1 of those that choose a program"):
        stretto.load(tmp_path / "one")(*inputs(3, 1))
