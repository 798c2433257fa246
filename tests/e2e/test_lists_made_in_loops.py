"""Lists, and tensors whose number of rows changes, that each iteration of a loop makes anew,
extends by a number of items of its own, or takes items from. No loop is unrolled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto


def selected_again(x: Tensor) -> Any:
    for _ in range(2):
        x = x[x > 1.0] - 1
    return x[x > 1.0], len(x)


def selected_until_few(x: Tensor) -> Any:
    for _ in range(2):
        while len(x) > 2:
            x = x[x > x.mean()]
    return x[x > 2.0], len(x)


def extended_by_data(x: Tensor) -> Any:
    found = [x[0]]
    for k in range(3):
        for row in x[x > float(k)]:
            found.append(row)
    return torch.stack(found), len(found)


def made_anew(x: Tensor) -> Any:
    last = [x[0]]
    for k in range(int(x[0])):
        last = [x[1] * k]
        last.append(last[0] + 1)
    return torch.stack(last), len(last)


def made_anew_in_a_branch(x: Tensor) -> Any:
    last = [x[0]]
    for k in range(4):
        if x[k] > 2:
            last = [x[k]]
        else:
            last.append(x[k])
    return torch.stack(last), len(last)


def of_the_round_before(x: Tensor) -> Any:
    before = [x[0]]
    for k in range(4):
        now = [row * 2 for row in before]
        now.append(x[k])
        before = now
    return torch.stack(before), len(before)


def nested(x: Tensor) -> Any:
    kept = [x[0]]
    for k in range(3):
        inner = [x[k]]
        for j in range(int(x[k])):
            inner.append(x[k] * j)
        for row in inner:
            kept.append(row)
    return torch.stack(kept), len(kept)


def taken_from(x: Tensor) -> Any:
    kept = [x[0], x[1], x[2], x[3]]
    for k in range(3):
        if x[k] > 2:
            kept.pop()
    return torch.stack(kept), len(kept)


FUNCTIONS = [
    selected_again,
    selected_until_few,
    extended_by_data,
    made_anew,
    made_anew_in_a_branch,
    of_the_round_before,
    nested,
    taken_from,
]
CALLS = ([2.0, 3, 2, 5, 7, 3], [1.0, 3, 2, 0, -1, 4], [0.0, 1, 1, 3, 3, 0], [3.0, 3, 3, 3, 3, 3])


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_lengths_are_those_of_eager(function: Callable[..., Any], backend: str) -> None:
    options = stretto.Options(debug=stretto.Debug(unroll=0))
    compiled = stretto.compile(function, backend=backend, options=options)
    for numbers in CALLS:
        x = torch.tensor(numbers)
        torch.testing.assert_close(compiled(x), function(x))
