"""Identity of tensors: a tensor is one thing, whichever way the program comes to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from stretto.errors import CaptureError


class Held:
    """A tensor that outlives the call: in one test the argument itself."""

    x: Any = None


class Buffers(nn.Module):
    w: Tensor
    v: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.ones(3))
        self.register_buffer("v", torch.zeros(3))


HELD, M = Held(), Buffers()


def of_an_argument(x: Tensor) -> Any:
    return x is HELD.x, HELD.x is x, HELD.x is not x, x in [HELD.x], HELD.x in (x, 1)


def as_keys(x: Tensor) -> Any:
    return {HELD.x: 1}.get(x), {x: 1}.get(HELD.x), len({HELD.x, x}), id(x) == id(HELD.x)


def of_a_constant(x: Tensor) -> Any:
    y = M.w.mul_(1)
    return y is M.w, y in {M.w: 1}, len({y, M.w}), [M.w].index(y), id(y) == id(M.w)


def chosen(x: Tensor) -> Any:
    y = M.w if x.sum() > 0 else M.v
    return y is M.w, M.w is y, y is M.v, y is not M.v, y in {M.w: 1}, {M.w: 1, M.v: 2}[y]


def perhaps_none(x: Tensor) -> Any:
    y = M.w if x.sum() > 0 else None
    return y is M.w, y is None, M.w is y, any(y is item for item in (M.v, M.w))


def chosen_with_an_argument(x: Tensor) -> Any:
    y = x if x.sum() > 0 else M.v
    return y is x, y is HELD.x, M.v is y


@pytest.mark.parametrize(
    "fn",
    [of_an_argument, as_keys, of_a_constant, chosen, perhaps_none, chosen_with_an_argument],
)
def test_equals_eager(fn: Callable[[Tensor], Any]) -> None:
    def outcome(called: Callable[[Tensor], Any], x: Tensor) -> Any:
        try:
            return called(x)
        except RuntimeError as error:  # the truth of a tensor of several elements
            return str(error)

    fast = stretto.compile(fn, backend="interpreter")
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        for held in (x, x.clone(), x):
            HELD.x = held
            assert outcome(fast, x) == outcome(fn, x)


def test_the_id_of_one_of_several_is_refused() -> None:
    def number(x: Tensor) -> Any:
        y = M.w if x.sum() > 0 else M.v
        return id(y) == id(M.w)

    with pytest.raises(CaptureError, match="only the run knows"):
        stretto.compile(number, backend="interpreter")(torch.ones(3))


class Pair:
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.items = x, [x, y]


def test_objects_that_hold_arguments() -> None:
    """An object may hold an argument in one call, and another tensor in the next one."""

    def step(pair: Pair, x: Tensor, y: Tensor) -> Any:
        pair.x.add_(1)
        return pair.x is x, pair.items[0] is y, pair.x * x + pair.items[1]

    fast = stretto.compile(step, backend="interpreter")
    for trial in range(12):
        results = []
        for function in (fast, step):
            x, y = torch.arange(3.0), torch.ones(3)
            pair = Pair((x, y, torch.ones(3))[trial % 3], y)
            pair.items[0] = (x, y)[trial // 3 % 2]
            results.append((*function(pair, x, y)[:2], x, y, pair.x, *pair.items))
        assert str(results[0]) == str(results[1])
