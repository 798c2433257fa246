"""Modules and functions of TorchScript: recorded where they have no control flow on values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from tests.frontends.python.checks import assert_same


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            return self.linear(x)
        return x * 2


class Loop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        while bool(x.abs().max() > 0.5):
            x = x * 0.5
        return x


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y + 1 if y.sum() > 1 else y


@torch.jit.script
def chosen(x: Tensor, y: Tensor) -> Tensor:
    if bool(x.sum() > 0):
        return x + y
    return torch.sigmoid(x) * torch.tanh(y)


@torch.jit.script
def straight(x: Tensor, y: Tensor) -> Tensor:
    return torch.sigmoid(x) * torch.tanh(y) + x.size(0)


torch.manual_seed(0)
X = torch.randn(3, 4)
MODULES: dict[str, Any] = {
    "branch": lambda: torch.jit.script(Branch().eval()),
    "loop": lambda: torch.jit.script(Loop()),
    "inside": lambda: Outer(torch.jit.script(Branch())).eval(),
    "traced": lambda: Outer(torch.jit.trace(nn.Linear(4, 4), X)).eval(),
    "frozen": lambda: torch.jit.freeze(torch.jit.script(Branch().eval())),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")
@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    """Right, or refused with a remedy that is right."""
    with torch.no_grad():
        module = MODULES[name]()
        fast = stretto.compile(module, backend="interpreter")
        try:
            assert_same(fast(X), module(X))
        except stretto.CaptureError as error:
            assert error.location is not None or name in ("branch", "loop", "frozen")
        fast = stretto.compile(module, backend="interpreter", fallback=True)
        for x in (X, -X, X.abs(), X[:2]):
            assert_same(fast(x), module(x))


def test_functions() -> None:
    def straight_on(x: Tensor) -> Tensor:
        y = straight(x, x * 2)
        return y * 2 if y.sum() > 4 else y

    def deciding(x: Tensor) -> Tensor:
        return chosen(x, x * 2)

    fast = stretto.compile(straight_on, backend="interpreter")
    for x in (X, -X, X[:2], X[:1], X):
        assert_same(fast(x), straight_on(x))
    with pytest.raises(stretto.CaptureError, match="TorchScript code decides"):
        stretto.compile(deciding, backend="interpreter")(X)
    fast = stretto.compile(deciding, backend="interpreter", fallback=True)
    for x in (X, -X, X.abs()):
        assert_same(fast(x), deciding(x))
