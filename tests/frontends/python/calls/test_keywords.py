"""Names of NumPy for the arguments of torch's functions, and arguments that a function has not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.frontends.python.calls.arguments import OF_NUMPY
from stretto.frontends.python.calls.builtins import RULES
from tests.frontends.python.checks import assert_same

X = torch.tensor([1.0, 2.0, 3.0])


def rows(x: Tensor) -> list[Tensor]:
    """A list whose length the content of a tensor decides."""
    found: list[Tensor] = []
    count = torch.zeros(())
    while count < x.sum():
        found.append(x * count)
        count = count + 1
    return found


def is_flat(x: Tensor) -> int:
    return int(x[0] > 0)


CALLS: list[Callable[[Tensor], Any]] = [
    lambda x: torch.cat((x, x), axis=0),
    lambda x: torch.stack((x, x), axis=-1),
    lambda x: torch.cat(tensors=(x, x), axis=0),
    lambda x: torch.concatenate((x, x), axis=0),
    lambda x: torch.stack(tensors=rows(x), axis=1),
    lambda x: torch.unbind(x, axis=0)[1] + x.unbind(axis=0)[0],
    lambda x: torch.chunk(x, 2, axis=0)[0],
    lambda x: torch.narrow(x, axis=0, start=is_flat(x), length=1),
    lambda x: torch.topk(a=x, k=is_flat(x) + 1, axis=0)[0],
    lambda x: torch.select(x1=x, axis=0, index=is_flat(x)),
    lambda x: torch.full_like(x=x, fill_value=is_flat(x), dtype=torch.int64),
    lambda x: x * torch.equal(x1=x, x2=x),
    lambda x: x.sum(axis=0, keepdims=True) + torch.mean(x, axis=0, keepdims=True),
    lambda x: torch.max(x, axis=0)[0] + torch.softmax(x, axis=0),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_names_of_numpy(number: int) -> None:
    fast = stretto.compile(CALLS[number], backend="interpreter")
    for x in (X, torch.tensor([-1.0, 5.0, 2.0]), X):
        assert_same(fast(x), CALLS[number](x))


WRONG: list[Callable[[Tensor], Any]] = [
    lambda x: torch.cat((x, x), places=0),
    lambda x: torch.stack((x, x), keepdims=True),
    lambda x: torch.split(x, 2, axis=0),
    lambda x: torch.full((2,), 1.0, places=3),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_the_error_of_torch(number: int) -> None:
    with pytest.raises(TypeError) as expected:
        WRONG[number](X)
    with pytest.raises(TypeError) as found:
        stretto.compile(WRONG[number], backend="interpreter")(X)
    assert str(found.value) == str(expected.value)


def test_torch_takes_the_names_of_the_table() -> None:
    for name, own in OF_NUMPY.items():
        given = {"dim": {"input": X}, "keepdim": {"input": X, "dim": 0}}.get(own, {})
        if own == "other":
            assert torch.equal(input=X, **{name: X})
        else:
            value = {"dim": 0, "keepdim": True, "input": X}[own]
            torch.sum(**given, **{name: value})
    assert torch.cat in RULES
