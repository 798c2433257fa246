"""Each way to touch the state of a generator: bit for bit as eager, or refused with a remedy."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing._utils import wrapper_set_seed
from torch.utils.checkpoint import checkpoint

import stretto
from tests.frontends.python.checks import assert_same

X = torch.ones(3)


def seeded(number: int) -> None:
    torch.manual_seed(number)


def forked(x: Tensor) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        y = torch.rand(3)
    return x + y, torch.rand(3)


@torch.random.fork_rng()
def forked_by_decorator(x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return x + torch.rand(3)


def restored(x: Tensor) -> Any:
    state = torch.get_rng_state()
    y = torch.rand(3)
    torch.set_rng_state(state)
    return x + y, x + torch.rand(3)


def made_inside(x: Tensor) -> Tensor:
    return x + torch.rand(3, generator=torch.Generator().manual_seed(5))


def copied(x: Tensor) -> Tensor:
    return x + torch.rand(3, generator=torch.default_generator.clone_state())


def read(x: Tensor) -> Any:
    torch.manual_seed(4)
    return x, torch.initial_seed()


def in_nested_functions(x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        seeded(5)
        return y + torch.rand(3)

    return inner(x) + torch.rand(3)


def in_arms(x: Tensor) -> Tensor:
    if x.sum() > 0:
        seeded(6)
    else:
        torch.default_generator.manual_seed(7)
        x = x + torch.rand(3)
    return x + torch.rand(3)


def in_a_loop(x: Tensor) -> Tensor:
    n = 0
    while x.sum() < 20:
        torch.random.manual_seed(n)
        x = x + torch.rand(3)
        n = n + 1
    return x + torch.rand(3)


def numbers_of_python(x: Tensor) -> Tensor:
    return x * random.random() if x.sum() > 0 else x * random.randint(1, 9)


def numbers_of_numpy(x: Tensor) -> Tensor:
    return x * float(np.random.rand()) if x.sum() > 0 else x


def seeds_of_python(x: Tensor) -> Tensor:
    random.seed(3)
    return x * random.random()


def generator_of_numpy(x: Tensor) -> Tensor:
    return x * float(np.random.default_rng(3).random())


def seeded_by_torch(x: Tensor) -> Tensor:
    """Code of torch seeds the generator, and restores its state."""
    return wrapper_set_seed(torch.normal, x, 1.0) + torch.rand(3)


def checkpointed(x: Tensor) -> Tensor:
    """Code of torch reads the state of the generator, for a backward pass."""
    return checkpoint(torch.nn.functional.dropout, x, use_reentrant=False)


RIGHT: list[Callable[..., Any]] = [in_nested_functions, in_arms, in_a_loop, checkpointed]
REFUSED: list[Callable[..., Any]] = [
    forked, forked_by_decorator, restored, made_inside, copied, read, numbers_of_python,
    numbers_of_numpy, seeds_of_python, generator_of_numpy, seeded_by_torch,
]  # fmt: skip


def with_states(function: Callable[..., Any], x: Tensor) -> Any:
    """The result, and the states of all generators after the call."""
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    found = function(x)
    numbers = random.random(), float(np.random.rand())
    return found, torch.get_rng_state(), numbers


@pytest.mark.parametrize("function", RIGHT)
def test_states_are_those_of_eager(function: Callable[..., Any]) -> None:
    fast = stretto.compile(function, backend="interpreter")
    for x in (X, -X, X):
        assert_same(with_states(fast, x), with_states(function, x))


@pytest.mark.parametrize("function", REFUSED)
def test_others_are_refused_and_right_in_python(function: Callable[..., Any]) -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    with pytest.raises(stretto.CaptureError, match="remedy"):
        stretto.compile(function, backend="interpreter")(X)
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert_same(after, before)
    fast = stretto.compile(function, backend="interpreter", fallback=True)
    for x in (X, -X, X):
        assert_same(with_states(fast, x), with_states(function, x))
