"""Numbers of tensors as keys: they have no hash, and are compared where that is what is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.frontends.python.checks import assert_same

TABLE = {3: "three", 5: "five"}


@pytest.mark.parametrize(
    "asked",
    [
        lambda x: int(x) in TABLE,
        lambda x: int(x) not in TABLE,
        lambda x: int(x) in TABLE.keys(),  # noqa: SIM118
        lambda x: int(x) in {3, 4},
        lambda x: int(x) in frozenset((3, 4)),
        lambda x: x.item() in {3: 1, 4.0: 2},
        lambda x: int(x) in (3, 4),
        lambda x: (type(int(x)) is int, type(x.item()) is float, type(x > 3) is torch.Tensor),
        lambda x: (x.__class__ is Tensor, (x + 1).__class__ is Tensor),
        lambda x: [type(value).__name__ for value in (x, x.item(), int(x), bool(x > 3))],
    ],
)
def test_what_is_asked_of_numbers(asked: Callable[[Tensor], Any]) -> None:
    fast = stretto.compile(asked, backend="interpreter")
    for number in (3.0, 4.0, 7.0):
        assert_same(fast(torch.tensor(number)), asked(torch.tensor(number)))


@pytest.mark.parametrize(
    "keyed",
    [
        lambda x: {int(x): 1},
        lambda x: {x.item()},
        lambda x: TABLE.get(int(x)),
        lambda x: Counter([int(x), 3]),
        lambda x: hash(x.item()),
    ],
)
def test_a_key_is_an_error_without_fallback(keyed: Callable[[Tensor], Any]) -> None:
    fast = stretto.compile(keyed, backend="interpreter")
    with pytest.raises(stretto.CaptureError, match="a Python number for a key is needed here"):
        fast(torch.tensor(3.0))
    cut = stretto.compile(keyed, backend="interpreter", fallback=True)
    assert_same(cut(torch.tensor(3.0)), keyed(torch.tensor(3.0)))
