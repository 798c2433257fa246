"""Chains of many operators, of which each reads the last: work on expressions is recursive."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stretto
from tests.frontends.python.checks import defined

CHAINS = {
    "ints": ("n = int(x[0]) % 100", "n = n * 3 % 7 + 1", "x * n"),
    "flags": ("n = x[0] > 0", "n = (n | (x[1] > 2)) ^ (x[2] > 1)", "x * n"),
    "floats": ("n = float(x[0])", "n = n * 0.5 + 1.25", "x * n"),
    "0-d tensors": ("n = x[0]", "n = n * 0.5 + n.abs()", "x * n"),
    "tensors": ("n = x * 1", "n = torch.tanh(n) * 0.5 + x", "n"),
    "shifted": ("n = x * 1", "n = torch.cat([n[1:], n[:1]]) * 0.5 + x", "n"),
}


@pytest.mark.parametrize("backend", ["cpu", "emulator"])
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain(name: str, backend: str, tmp_path: Any) -> None:
    first, step, result = CHAINS[name]
    source = "\n    ".join(["def f(x):", first, *[step] * 150, f"return {result}\n"])
    space = defined(source, {"torch": torch}, tmp_path)
    compiled = stretto.compile(space["f"], backend=backend)
    for values in ([1.0, 2.0, 3.0], [5.0, -1.0, 0.0]):
        x = torch.tensor(values)
        torch.testing.assert_close(compiled(x), space["f"](x))
