"""Items that are set or deleted at an index, or to a value, that is one of two kinds of things."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.frontends.python.checks import assert_same


def value_of_two_shapes(x: Tensor) -> Tensor:
    x[1] = x[:1] if x.sum() > 0 else x.new_ones(())
    return x


def value_that_does_not_fit(x: Tensor) -> Tensor:
    x[0] = x[:1] if x.sum() > 0 else x[1:]
    return x


def value_of_one_row(x: Tensor) -> Tensor:
    """Which part has one row depends on the same flag as the length of the tensor."""
    if x.abs().max() > 3:
        x = torch.cat([x, x[-1:] * 0.5])
    x[-1 % x.shape[0]] = x.tensor_split(3)[-1]
    return x


def number_or_tensor(x: Tensor) -> Tensor:
    x[1] = 2.0 if x.sum() > 0 else x[:1]
    return x


def row_or_rows(x: Tensor) -> Tensor:
    x[1 if x.sum() > 0 else slice(0, 2)] = 5.0
    return x


def part_of_an_index(x: Tensor) -> Tensor:
    x[1 if x.sum() > 0 else slice(0, 2), None] = 5.0
    return x


def bound_of_a_slice(x: Tensor) -> Tensor:
    x[(None if x.sum() > 0 else 1) :] = 5.0
    return x


def index_and_value(x: Tensor) -> Tensor:
    index = 1 if x.sum() > 0 else slice(0, 2)
    value = x[:1] if x.sum() > 0 else x[:2]
    whole = x * 1 if x.max() > 3 else x[1:] * 1
    whole[index] = value
    return whole


def method(x: Tensor) -> Tensor:
    x.__setitem__(1 if x.sum() > 0 else slice(0, 2), 7.0 if x.sum() > 0 else x[:2] * 2)
    return x


def part_of_a_list(x: Tensor) -> list[Tensor]:
    items = [x, x + 1, x + 2]
    items[(None if x.sum() > 0 else 1) :] = [x * 2, x * 3]
    return items


def deleted_part_of_a_list(x: Tensor) -> list[Tensor]:
    items = [x, x + 1, x + 2]
    del items[(None if x.sum() > 0 else 1) : 2]
    return items


def deleted_item_or_items(x: Tensor) -> list[Tensor]:
    items = [x, x + 1, x + 2]
    del items[1 if x.sum() > 0 else slice(0, 2)]
    return items


FUNCTIONS = [
    *(value_of_two_shapes, value_that_does_not_fit, value_of_one_row, number_or_tensor),
    *(row_or_rows, part_of_an_index, bound_of_a_slice, index_and_value, method),
    *(part_of_a_list, deleted_part_of_a_list, deleted_item_or_items),
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_index_or_value_of_two_kinds(function: Callable[[Tensor], Any]) -> None:
    fast = stretto.compile(function, backend="interpreter")
    for x in (torch.arange(1.0, 5.0), -torch.arange(1.0, 5.0), torch.ones(2), torch.ones(4)):
        try:
            wanted = function(x.clone())
        except (RuntimeError, IndexError) as error:
            with pytest.raises(type(error)):
                fast(x.clone())
        else:
            assert_same(fast(x.clone()), wanted)
