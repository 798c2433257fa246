"""`match` with several arms in loops of the Program."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import stretto


def of_numbers(x: Tensor, n: Tensor) -> Tensor:
    total = x
    for k in range(int(n)):
        match k:
            case 0:
                total = total + 1
            case 1 | 2:
                total = total * 2
            case other if other > 4:
                total = total - other
            case _:
                total = total / 3
    return total


def in_while(x: Tensor, n: Tensor) -> Tensor:
    while n > 0:
        match int(n) % 3, bool(n > 4):
            case 0, True:
                x = x + 3
            case 1, late:
                x = x * (2 if late else 5)
            case kind, False:
                x = x - kind
        n = n - 1
    return x


def nested(x: Tensor, n: Tensor) -> Tensor:
    for i in range(3):
        for k in range(int(n)):
            match i + k:
                case 1:
                    continue
                case 4:
                    break
                case 2 | 3 as found:
                    x = x * found
                case _:
                    x = x + 1
    return x


@pytest.mark.parametrize("function", [of_numbers, in_while, nested])
def test_as_eager(function: Any) -> None:
    compiled, x = stretto.compile(function), torch.tensor([1.0, -2.0])
    for n in range(7):
        wanted = function(x, torch.tensor(n))
        torch.testing.assert_close(compiled(x, torch.tensor(n)), wanted)
