"""Branches that passes merge, share, convert or begin early, against eager: hard corners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.options import Debug, Options
from tests.e2e.machines import costs_of
from tests.frontends.python.checks import assert_same

Call = tuple[Any, ...]
X = torch.linspace(-1.0, 1.0, 12).view(3, 4)
YES, NO = torch.tensor(True), torch.tensor(False)


def number(value: int) -> Tensor:
    return torch.tensor(value)


def in_a_row(x: Tensor, flag: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    y = x
    if flag:
        y = y.sin()
    z = x.cos() + y
    if not flag:
        z = z * y
    elif other:
        z = z - 1
    if flag:
        y = z.exp()
    return y, z


def changed_in_place(x: Tensor, flag: Tensor) -> tuple[Tensor, Tensor]:
    y = x.clone()
    if flag:
        y[0] = 5
        x.mul_(2)
    z = y + x
    if flag:
        y += z
        x[1] -= y[0]
    else:
        x.zero_()
    return y, z


def aliases(x: Tensor, flag: Tensor) -> tuple[Tensor, Tensor]:
    if flag:
        y, z = x, x[0]
    else:
        y, z = x.t().t(), x[1]
    if flag:
        z = y[0]
    return y, z


def divided(n: Tensor, k: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    if k != 0:
        q = n // k
    else:
        q = n
    if x.sum() > 0:
        r = x.select(0, int(k) % 3)
    else:
        r = x[2]
    return q, r


def out_of_range(x: Tensor, i: Tensor) -> Tensor:
    if i < x.shape[0]:
        y = x[i]
    else:
        y = x[0] * 0
    if i < x.shape[0]:
        y = y + x.index_select(0, i.view(1))[0]
    return y


def not_a_number(x: Tensor, flag: Tensor) -> Tensor:
    if flag:
        y = (x - 2).log() + 1 / (x - x)
    else:
        y = x * 0.0
    return torch.where(flag, y * 0, y)


def raised(x: Tensor, flag: Tensor, other: Tensor) -> Tensor:
    if flag:
        x = x * 2
    if other:
        raise ValueError("other")
    if flag:
        x = x + 1
        if x.sum() > 0:
            raise KeyError("positive")
    return x


def drawn(x: Tensor, flag: Tensor) -> tuple[Tensor, Tensor]:
    y = x
    if flag:
        y = y + torch.rand_like(x)
    z = torch.rand(2)
    if flag:
        y = y * torch.rand(3, 1)
    else:
        y = y - torch.rand(3, 1)
    return y, z


def zero_trips(x: Tensor, n: Tensor, flag: Tensor) -> tuple[Tensor, list[Tensor]]:
    rows: list[Tensor] = []
    y = x
    for i in range(int(n)):
        if flag:
            y = y + i
            rows.append(y[0])
        else:
            rows.append(x[1])
        if flag:
            y = y.sin()
    return y, rows


def nested(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    if a:
        if b:
            y = x.sin() @ x.t()
        else:
            y = x.cos() @ x.t()
    else:
        if b:
            y = x.exp() @ x.t()
        elif a:
            y = x @ x.t() * 1000
        else:
            y = x @ x.t()
    return y


def down(x: Tensor, n: Tensor, flag: Tensor) -> Tensor:
    if n <= 0:
        return x
    if flag:
        x = x * 0.5
    y = down(x, n - 1, ~flag)
    if flag:
        return y + x
    return y - 1


def late(x: Tensor, y: Tensor) -> Tensor:
    s = x
    for _ in range(3):
        s = torch.tanh(s @ s.t() @ s)
    if s.sum() > 0:
        y = (y @ y.t()).relu() @ y
    else:
        y = y @ (y.t() @ y).sigmoid()
    return y + s


FLAGS = [(X, YES), (X, NO), (X * 0, YES)]
CASES: list[tuple[Callable[..., Any], Sequence[Call]]] = [
    (in_a_row, [(X, a, b) for a in (YES, NO) for b in (YES, NO)]),
    (changed_in_place, FLAGS),
    (aliases, FLAGS),
    (divided, [(number(7), number(k), sign * X + 1) for k in (0, 2, -3) for sign in (1, -9)]),
    (out_of_range, [(X, number(i)) for i in (0, 2, 3, 99)]),
    (not_a_number, FLAGS),
    (raised, [(s * X + s, a, b) for a in (YES, NO) for b in (NO, YES) for s in (1, -1)]),
    (drawn, FLAGS),
    (zero_trips, [(X, number(n), flag) for n in (0, 1, 3) for flag in (YES, NO)]),
    (nested, [(X, a, b) for a in (YES, NO) for b in (YES, NO)]),
    (down, [(X, number(n), flag) for n in (0, 1, 4) for flag in (YES, NO)]),
    (late, [(X + 0.5, X), (-X - 1, X), (X + 1, X * 2)]),
]


@pytest.mark.parametrize("dynamic", (False, True), ids=("fixed", "sizes"))
@pytest.mark.parametrize(("function", "calls"), CASES, ids=[f.__name__ for f, _ in CASES])
def test_as_eager(function: Callable[..., Any], calls: Sequence[Call], dynamic: bool) -> None:
    """With waits so dear that every branch that may be converted is."""
    options = Options(units=3, threads=3, debug=Debug(unroll=0))
    with torch.no_grad(), costs_of("emulator", wait_seconds=1e-4, wake_seconds=0.0):
        compiled = stretto.compile(function, backend="emulator", options=options, dynamic=dynamic)
        for call in calls:
            mine, theirs = ([item.clone() for item in call] for _ in range(2))
            torch.manual_seed(1)
            wanted, error = _outcome(function, theirs)
            state = torch.get_rng_state()
            torch.manual_seed(1)
            found, other = _outcome(compiled, mine)
            assert type(error) is type(other) or isinstance(other, type(error)), (error, other)
            if error is None:
                assert_same(found, wanted)
                assert torch.equal(torch.get_rng_state(), state)
            assert_same(mine, theirs)


def _outcome(function: Callable[..., Any], arguments: list[Tensor]) -> tuple[Any, Exception | None]:
    try:
        return function(*arguments), None
    except (ValueError, KeyError, IndexError, ZeroDivisionError, RuntimeError) as error:
        return None, error
