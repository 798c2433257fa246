"""`fallback=True`: what cannot be captured runs in Python, its parts compiled."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from tests.frontends.python.checks import assert_same

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def settled(x: Tensor) -> Tensor:
    while x.abs().max() > 0.5:
        x = x * 0.5
    return x


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if x.sum() > 0 else x


class Inner(nn.Module):
    """Cannot be captured itself, but what it calls can."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale()
        self.names: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        y = self.scale(x)
        self.names.append(f"{y.sum().numpy():.3f}")
        return settled(y)


def outside(x: Tensor) -> Any:
    array = settled(x).numpy()
    if array.sum() > 0:
        return settled(x * 4), array.shape

    def local(y: Tensor) -> Tensor:
        return settled(y) + float(array[0, 0])

    return local(x * 8), array.shape


def models() -> tuple[Inner, Inner]:
    torch.manual_seed(0)
    one, other = Inner(), Inner()
    other.load_state_dict(one.state_dict())
    return one.eval().requires_grad_(False), other.eval().requires_grad_(False)


def test_a_function_runs_in_python_and_its_parts_are_compiled() -> None:
    fast = stretto.compile(outside, backend="emulator", fallback=True)
    for x in (X, X + 1, -X, X + 1):
        assert_same(fast(x), outside(x))
    text = fast.explain()
    assert "in Python: 4 calls" in text
    assert "a NumPy array is needed here" in text
    assert "settled: 1 signature compiled" in text


def test_modules_within_modules() -> None:
    one, other = models()
    fast = stretto.compile(one, backend="emulator", fallback=True)
    for x in (X, X + 1, -X):
        assert_same(fast(x), other(x))
    assert one.names == other.names
    assert "1 statement in Python, 3 runs" in fast.explain()
    assert re.search(r"forward, line \d+ to \d+: 1 signature compiled", fast.explain())


def test_what_can_be_captured_is() -> None:
    fast = stretto.compile(settled, backend="emulator", fallback=True)
    assert_same(fast(X * 3), settled(X * 3))
    assert len(fast.signatures) == 1
    assert "in Python" not in fast.explain()


def test_without_it_there_is_an_error() -> None:
    with pytest.raises(stretto.CaptureError, match="NumPy"):
        stretto.compile(outside, backend="emulator")(X)


def test_exceptions_of_the_function_come_out() -> None:
    def fails(x: Tensor) -> Tensor:
        if x.numpy().sum() < 0:
            raise ValueError("negative")
        return x

    fast = stretto.compile(fails, backend="emulator", fallback=True)
    with pytest.raises(ValueError, match="negative"):
        fast(-X - 1)
    assert_same(fast(X + 1), X + 1)
