"""Leaves with kernels of their own for small sizes: a branch where it pays, and right in both."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import stretto
from stretto.call.entry import Entry
from stretto.device.tree import If, walk


class Convolutions(torch.nn.Module):
    """Three convolutions, of which one task per image is best for many images."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = torch.nn.Sequential(
            *(torch.nn.Conv2d(a, b, 3, padding=1) for a, b in ((3, 32), (32, 32), (32, 32)))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            x = torch.relu(conv(x))
        return x.mean((2, 3))


def branches(entry: Entry) -> list[str]:
    assert entry.stages.device is not None
    nodes = walk(entry.stages.device.tree.main.body)
    return [node.condition.name for node in nodes if isinstance(node, If)]


@pytest.mark.whole
@pytest.mark.parametrize("backend", ["cpu", "emulator"])
def test_one_image_of_a_batch_has_kernels_of_its_own(backend: str) -> None:
    module = Convolutions().eval()
    fast = stretto.compile(module, backend=backend, options=stretto.Options(threads=2))
    with torch.no_grad():
        for size in (5, 3, 1, 2, 0, 9):
            x = torch.randn(size, 3, 32, 32)
            torch.testing.assert_close(fast(x), module(x), rtol=1e-4, atol=1e-4)
    fixed, sized = fast.signatures
    assert branches(fixed) == []
    (condition,) = branches(sized)
    assert condition.startswith("s0 <= ") and int(condition.split()[-1]) < 16
    assert f"if {condition}" in fast.explain()


def test_one_unit_needs_no_branch() -> None:
    module = Convolutions().eval()
    fast = stretto.compile(module, backend="emulator", options=stretto.Options(threads=1))
    with torch.no_grad():
        for size in (5, 3):
            fast(torch.randn(size, 3, 32, 32))
    assert branches(fast.signatures[-1]) == []


def small_work(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1).tanh()


def many_rows(x: torch.Tensor) -> torch.Tensor:
    return x @ torch.ones(64, 64)


@pytest.mark.parametrize("function", [small_work, many_rows], ids=lambda f: f.__name__)
def test_what_gains_nothing_is_not_compiled_twice(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    fast = stretto.compile(function, backend="emulator", options=stretto.Options(threads=2))
    for size in (5, 3):
        fast(torch.randn(size, 64))
    assert branches(fast.signatures[-1]) == []
