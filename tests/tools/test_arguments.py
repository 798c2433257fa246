"""Names of the tensors of a call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from stretto.call.signatures import parameter_names
from stretto.tools.explain import tensor_names

X = torch.zeros(1)


def plain(x: Any, y: Any = None) -> None:
    pass


def several(x: Any, *more: Any, z: Any = None) -> None:
    pass


class Net(torch.nn.Module):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "names"),
    [
        (plain, (X, X), {}, ["x", "y"]),
        (plain, (X,), {"y": X}, ["x", "y"]),
        (plain, (3, X), {}, ["y"]),
        (plain, ([X, 2, {"k": X}],), {}, ["x[0]", "x[2]['k']"]),
        (several, (X, X, X), {"z": (X,)}, ["x", "more[0]", "more[1]", "z[0]"]),
        (Net(), (X,), {}, ["image"]),
        (functools.partial(plain, X), (X,), {}, ["y"]),
        (torch.add, (X, X), {}, ["argument 0", "argument 1"]),
        (plain, (), {}, []),
    ],
)
def test_names(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], names: list[str]
) -> None:
    assert tensor_names((args, kwargs), parameter_names(function)) == names
