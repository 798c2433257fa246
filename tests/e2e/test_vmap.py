"""`torch.vmap` in a captured function, and the in-place changes of shape that its kernels make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from tests.frontends.python.checks import assert_same

vmap: Any = torch.vmap
X = torch.linspace(-1, 1, 20).reshape(5, 4)
W = torch.linspace(1, -1, 12).reshape(4, 3)
LINEAR = nn.Linear(4, 3).requires_grad_(False)
DEEP = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2, bias=False)).requires_grad_(False)


def linear(x: Tensor) -> Any:
    return vmap(LINEAR)(x), vmap(DEEP)(x)


def products(x: Tensor) -> Any:
    pairs = vmap(lambda row: vmap(lambda other: row @ other)(x))(x)
    return vmap(lambda row: row @ W)(x), vmap(lambda row: row[None] @ W)(x), pairs


def numbers(x: Tensor) -> Any:
    counts = vmap(lambda row: (row > 0).long() * 2 + 1)(x)
    half = vmap(lambda row: (row > 0).long() * 2.5)(x)
    sums = vmap(lambda row: torch.add(row.sum(), 2, alpha=3), in_dims=1)(x)
    return (
        counts,
        half,
        sums,
        vmap(lambda row: (row > 0) * True)(x),
        vmap(vmap(lambda t: t * 2))(x),
    )


def in_control_flow(x: Tensor) -> Any:
    if x.sum() > 0:
        x = vmap(LINEAR)(x) @ W.t()
    for _ in range(9):
        x = x + vmap(lambda row: row / 2 - vmap(lambda r: r @ row)(x).mean())(x)  # noqa: B023
    return x


def new_tensors(x: Tensor) -> Any:
    y = (x[None] * 2).squeeze_(0)
    z = (y + 1).unsqueeze_(1)
    other = z
    if x.sum() > 0:
        v = y[None] + 1
        v.squeeze_(0)
        y = v * 2
    return y, z, other.shape


def views_stay(x: Tensor) -> Any:
    y = x[None] * 2
    v = y[:, 0]
    y.squeeze_(0)
    v += 1
    return y, v


@pytest.mark.parametrize(
    "function", [linear, products, numbers, in_control_flow, new_tensors, views_stay]
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_vmap_and_changes_of_shape(function: Callable[..., Any], dynamic: bool) -> None:
    fast = stretto.compile(function, backend="interpreter", dynamic=dynamic)
    for x in (X, -X.abs(), X + 2):
        assert_same(fast(x), function(x))


@pytest.mark.parametrize("writes", [False, True])
def test_the_shape_of_an_older_tensor_is_not_changed(writes: bool) -> None:
    def changed(x: Tensor) -> Tensor:
        y = x[None] * 2
        if x.sum() > 0:
            if writes:
                y.add_(1)
            y.squeeze_(0)
        return y.sum(0)

    with pytest.raises(stretto.CaptureError, match="changes the shape of a tensor in place"):
        stretto.compile(changed, backend="interpreter")(X + 1)
