"""How often the functions of a program are taken to run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from stretto.device.costs import HOST_COSTS
from stretto.device.runs import tree_seconds
from stretto.frontends.python import capture
from stretto.lowering.lower_program import lower
from stretto.options import Options


def chain(k: Tensor, x: Tensor) -> Tensor:
    if k <= 0:
        return x
    return chain(k - 1, x * 2.0)


def searched(k: Tensor, x: Tensor) -> Tensor:
    """One of two calls runs."""
    if k <= 0:
        return x
    if x.sum() > 0:
        return searched(k - 1, x - 1.0)
    return searched(k - 2, x + 1.0)


def tree(k: Tensor, x: Tensor) -> Tensor:
    if k <= 0:
        return x
    return tree(k - 1, x) + tree(k - 2, x)


def looped(k: Tensor, x: Tensor) -> Tensor:
    """One call, in a loop whose trips the data decide."""
    while x.sum() > k:
        x = looped(k + 1, x) - 1.0
    return x


TIMES = [
    (chain, HOST_COSTS.unknown_trips),
    (searched, HOST_COSTS.unknown_trips),
    (tree, HOST_COSTS.unknown_activations),
    (looped, HOST_COSTS.unknown_activations),
]


@pytest.mark.parametrize(("function", "times"), TIMES)
def test_activations(function: Callable[..., Tensor], times: int) -> None:
    """Each costs a call; a function that calls itself several times is taken to walk a tree."""
    with torch.no_grad():
        inputs = torch.tensor(3), torch.randn(4)
        program = lower(capture(function, inputs, {}, Options()).program)
    seconds = tree_seconds(program.tree.functions, lambda _: 0.0, HOST_COSTS)
    assert seconds == pytest.approx(times * HOST_COSTS.activation_seconds)
