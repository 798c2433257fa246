"""Tensors of which data decide two dims, and views whose dims are decided, against eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.errors import CodegenError, RunError


def both_masks(x: Tensor) -> Any:
    y = x[x[:, 0] > 0][:, x.sum(0) > 0]
    return y, y * 2 + 1, y.sum(0), y.sum(1), y.t()


def x_of(seed: int) -> Tensor:
    return torch.randn(7, 5, generator=torch.Generator().manual_seed(seed)) - seed / 3 + 1


@pytest.mark.parametrize("backend", ["interpreter", "emulator", "cpu"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_two_masks(backend: str, dynamic: bool) -> None:
    compiled = stretto.compile(both_masks, backend=backend, dynamic=dynamic)
    for seed in (0, 1, 2, 3, 6, -8):
        x = x_of(seed)
        torch.testing.assert_close(compiled(x), both_masks(x))


def viewed(x: Tensor, n: Tensor) -> Any:
    k = int(n)
    return x.view(k, -1) * 2, x.reshape(-1, k).sum(0), x.view(3, 4)[:, : k % 5].flatten()


def split_by_a_size(x: Tensor, n: Tensor) -> Any:
    total = x.new_zeros(())
    for part in x.split(n.item()):
        total = total * 0.5 + part.sum()
    return total, torch.stack([part.amax() for part in torch.split(x, int(n))])


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize("function", [viewed, split_by_a_size])
def test_sizes_of_views_and_pieces(function: Any, backend: str) -> None:
    compiled = stretto.compile(function, backend=backend)
    x = torch.randn(12)
    for number in (2, 3, 5, 12, 20, 1, 0, -1):
        n = torch.tensor(number)
        try:
            wanted = function(x, n)
        except RuntimeError:
            with pytest.raises(
                RuntimeError, match="invalid for input|size|one dimension"
            ) as caught:
                compiled(x, n)
            if isinstance(caught.value, RunError):  # else it ran in Python
                assert caught.value.location is not None
                assert caught.value.location.file == __file__
            continue
        torch.testing.assert_close(compiled(x, n), wanted)


def windows(x: Tensor, n: Tensor) -> Any:
    i = n.item()
    y = x * 2
    y[i : i + 3] = 7
    return x[i : i + 3], y, x.view(3, 4)[:, i : i + 2].sum(1)


def chunks_in_a_loop(x: Tensor, n: Tensor) -> Any:
    i, total = 0, x.sum() * 0
    while i < x.shape[0]:
        total = total * 0.5 + x[i : i + 5].sum()
        i += max(int(n), 1)
    return total


def window_of_an_arm(x: Tensor, n: Tensor) -> Any:
    y = x
    if x.sum() > n:
        y = x[n : n + 4] * 2
    return y.sum()


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize("function", [windows, chunks_in_a_loop, window_of_an_arm])
def test_slices_that_reach_beyond_the_end(function: Any, backend: str) -> None:
    """Such a slice has a static length until a call shows that it is cut; also from -1 to 2."""
    compiled = stretto.compile(function, backend=backend)
    x = torch.arange(12.0)
    for number in (0, 4, 9, 10, 11, 12, 40, -1, -2, -3, -4, -12, -20):
        n = torch.tensor(number)
        torch.testing.assert_close(compiled(x, n), function(x, n))
    assert len(compiled.signatures) == 1
    assert compiled.signatures[0].builds <= 4


def test_narrow_raises_beyond_the_end() -> None:
    def part(x: Tensor, n: Tensor) -> Tensor:
        return x.narrow(0, n, 3) * 2

    compiled = stretto.compile(part, backend="cpu")
    x = torch.arange(12.0)
    torch.testing.assert_close(compiled(x, torch.tensor(9)), part(x, torch.tensor(9)))
    with pytest.raises(RuntimeError, match="exceeds dimension size"):
        compiled(x, torch.tensor(10))


def test_two_decided_dims_without_a_limit() -> None:
    def made(n: Tensor) -> Tensor:
        return torch.ones(n.item(), (n * 2).item()) + 1

    with pytest.raises(CodegenError, match="two dims that data decide") as caught:
        stretto.compile(made, backend="cpu")(torch.tensor(3))
    assert caught.value.location is not None
    assert caught.value.location.file == __file__
