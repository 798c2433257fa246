"""Sizes that data decide are compared in the run, where an op needs them to fit together."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stretto


def _sum_of_lists(x: torch.Tensor, uneven: torch.Tensor) -> torch.Tensor:
    first, second = [x], [x]
    while x.sum() < 40:
        x = x * 2
        first.append(x)
        second.append(x + 1)
        if uneven:
            first.append(x)
    return torch.stack(first) + torch.stack(second)


def test_lists_of_unequal_length_do_not_add_up() -> None:
    x, even, uneven = torch.ones(3), torch.tensor(False), torch.tensor(True)
    compiled = stretto.compile(_sum_of_lists, (x, even), backend="emulator")
    torch.testing.assert_close(compiled(x, even), _sum_of_lists(x, even))
    for function in (_sum_of_lists, compiled):
        with pytest.raises(RuntimeError, match="must match"):
            function(x, uneven)


def _sum_of_chosen(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[x > 0] + y


def _power_of_chosen(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[x > 0] ** y


def _dot_with_chosen(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[x > 0] @ y


@pytest.mark.parametrize("backend", ["interpreter", "cpu", "emulator"])
@pytest.mark.parametrize("function", [_sum_of_chosen, _power_of_chosen, _dot_with_chosen])
def test_a_size_of_1_that_data_decide_is_broadcast(function: Any, backend: str) -> None:
    """Of a fixed size and another one that the run tells, Python shows what eager PyTorch does."""
    compiled: Any = stretto.compile(function, backend=backend)
    y = torch.tensor([1.0, 2.0])
    for x in ([1.0, -1.0, 3.0], [-1.0, 2.0, -1.0], [1.0, 2.0, 3.0], [4.0, 5.0, -1.0]):
        wanted, found = (_outcome(one, torch.tensor(x), y) for one in (function, compiled))
        assert found == wanted if isinstance(wanted, str) else torch.allclose(found, wanted)


def _outcome(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except RuntimeError as error:
        return str(error)
