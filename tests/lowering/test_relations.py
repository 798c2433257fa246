"""Sizes that data decide are compared in the run, where an op needs them to fit together."""

from __future__ import annotations

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
    with pytest.raises(RuntimeError, match="must match"):
        _sum_of_lists(x, uneven)
    with pytest.raises(RuntimeError, match=r"aten.add.Tensor needs sizes with \w+ == \w+; found"):
        compiled(x, uneven)
