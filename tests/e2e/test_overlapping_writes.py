"""Writes whose operands share elements in part: eager PyTorch refuses them, so must we."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import stretto

Function = Callable[[Tensor], Tensor]


def shifted(x: Tensor) -> Tensor:
    y = x * 2
    y[1:].add_(y[:-1])
    return y


def argument(x: Tensor) -> Tensor:
    x[1:].mul_(x[:-1])
    return x


def assigned(x: Tensor) -> Tensor:
    x = x.clone()
    x[1:] = x[:-1]
    return x


def augmented(x: Tensor) -> Tensor:
    x = x.clone()
    x[1:] += x[:-1]
    return x


def transposed(x: Tensor) -> Tensor:
    x = x.clone()
    x.add_(x.t())
    return x


def given_as_out(x: Tensor) -> Tensor:
    x = x.clone()
    torch.add(x[:-1], 1.0, out=x[1:])
    return x


def scattered(x: Tensor) -> Tensor:
    x = x.clone()
    x.index_copy_(0, torch.tensor([0, 1]), x[:2])
    return x


def repeated(x: Tensor) -> Tensor:
    x = x[0, :1].expand(4) + 0
    y = x[:1].expand(4)
    y.add_(1.0)
    return x


def in_a_loop(x: Tensor) -> Tensor:
    x = x.clone()
    while x.sum() < 200:
        x[1:].add_(x[:-1])
    return x


REFUSED = (
    *(shifted, argument, assigned, augmented, transposed, given_as_out),
    *(scattered, repeated, in_a_loop),
)


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize("function", REFUSED)
def test_what_eager_refuses_is_refused(function: Function, backend: str) -> None:
    x = torch.arange(1.0, 17.0).reshape(4, 4)
    with pytest.raises(RuntimeError) as wanted:
        function(x.clone())
    with pytest.raises(RuntimeError) as found:
        stretto.compile(function, backend=backend)(x.clone())
    assert str(wanted.value) in str(found.value)


def by_columns(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, 1:] += x[:, :-1]
    return x


def by_rows_reversed(x: Tensor) -> Tensor:
    x = x.clone()
    x[1:].t().mul_(x[:-1].t() + 0).t().add_(x[1:])
    x[:, 1:3].add_(x[:, :2])
    return x


@pytest.mark.parametrize("function", [by_columns, by_rows_reversed])
def test_what_eager_computes_in_some_order_is_refused(function: Function) -> None:
    x = torch.arange(1.0, 17.0).reshape(4, 4)
    with pytest.raises(stretto.CaptureError, match="depends on the order in which") as found:
        stretto.compile(function, backend="interpreter")(x)
    assert found.value.remedy == "call clone() on the tensor that is read"


def same(x: Tensor) -> Tensor:
    x = x.clone()
    x.add_(x)
    x[1:].mul_(x[1:])
    x.detach().sub_(x.view(4, 4))
    return x


def disjoint(x: Tensor) -> Tensor:
    x = x.clone()
    x[2:].add_(x[:2])
    x[:, 0].add_(x[:, 1])
    return x


def broken_apart(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, ::2].add_(x[:, 1::2])
    x[1:].add_(x[:-1].clone())
    x.diagonal().add_(x[0])
    x[:, 0].add_(x[0])
    return x


def at_positions(x: Tensor) -> Tensor:
    x = x.clone()
    best = x.sum(1).argmax()
    x[best].add_(x[best - 1])
    return x


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize("function", [same, disjoint, broken_apart, at_positions])
def test_what_eager_computes_is_computed(function: Function, backend: str) -> None:
    x = torch.arange(1.0, 17.0).reshape(4, 4)
    assert torch.equal(stretto.compile(function, backend=backend)(x), function(x))
