"""Parts of an expanded tensor that are views of what was expanded, read and written."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.frontends.python.checks import check


def new_dim(x: Tensor) -> tuple[Tensor, ...]:
    y = x.clone()
    v = y.expand(2, *y.shape)
    v[0].mul_(2)
    v[1][0] = 5
    return y, v[1] + 1


def swapped(x: Tensor) -> tuple[Tensor, ...]:
    y = x.clone()
    v = y.expand(2, 3, *y.shape)
    v[0][2], v[-1][1] = v[-1][0].clone() + 1, v[0][1].clone() * 2
    return y, v


def old_dim(x: Tensor) -> tuple[Tensor, ...]:
    y = x.clone()
    v = y[:, :1].expand(3, 4)
    v[:, 3].add_(1)
    v.select(1, 0)[1:] = 7
    return y, v


def a_row_of_it(x: Tensor) -> tuple[Tensor, ...]:
    y = x.clone()
    v = y[:, None].expand(3, 2, 4)
    v[1][1] -= 3
    v[0, 0, 2] = 9
    return y, v, v[:, 1].sum(0)


def same_shape(x: Tensor) -> tuple[Tensor, ...]:
    y = x.clone()
    y.expand(3, 4).mul_(2)
    y.expand(1, 3, -1)[0, 1].zero_()
    y.expand(1, 1, 3, 4).add_(1)
    return y, y.expand_as(x)


def unbound(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    last = y.expand(2, *y.shape).unbind(0)[-1]
    if x.sum() > 0:
        y, last = last, y
    y.masked_fill_(y > 0.5, 0.25)
    return y, last


def at_a_position(x: Tensor) -> tuple[Tensor, ...]:
    y = x.clone()
    v = y.expand(2, *y.shape)
    best = (x[0, 0] > 0).to(torch.int64)
    v[best][best] = 3
    w = y[:, :1].expand(3, 4)
    w[best].sum()
    return y, v[best], w[:, best], w[best]


@pytest.mark.parametrize(
    "function", [new_dim, swapped, old_dim, a_row_of_it, same_shape, unbound, at_a_position]
)
@pytest.mark.parametrize("sign", [1, -1])
def test_parts_of_expanded_tensors(function: Callable[..., tuple[Tensor, ...]], sign: int) -> None:
    x = torch.arange(12.0).reshape(3, 4) + 1
    check(function, (x * sign,))
