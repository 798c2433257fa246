"""Loops whose variables are sometimes the memory of others, and are written in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from stretto.options import Debug, Options
from tests.frontends.python.checks import check, refused


def swapped(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 0.5
    for _ in range(5):
        x, y = y, x
        x[0] = x.sum()
        y.mul_(0.5)
    return x, y


def rotated(x: Tensor) -> tuple[Tensor, ...]:
    """All that may be what is known after as many rounds as there are variables."""
    a, b, c = x, x + 1, x + 2
    for _ in range(4):
        a, b, c = b, c, a
    a.mul_(2)
    return a, b, c, x


def initial_state_from_the_caller(x: Tensor) -> Tensor:
    h = x
    for i in range(5):
        h.mul_(2)
        h = torch.tanh(h + i)
    return h


def memory_of_a_round_under_two_names(x: Tensor) -> tuple[Tensor, ...]:
    a, b = x, x * 2
    for i in range(6):
        b.add_(1)
        if b.sum() > i:
            a = b * 0.5
            b = a
        else:
            b = b * 2
    a.mul_(3)
    return a, b, x


def view_of_another_variable(x: Tensor) -> tuple[Tensor, ...]:
    a, v = x * 1, x[1:]
    for i in range(4):
        v.mul_(0.5)
        a.add_(1)
        if a[0] > i:
            a = a * 2
            v = a[:-1]
    v.zero_()
    return a, v, x


def row_at_a_traced_position(x: Tensor) -> tuple[Tensor, ...]:
    rows = torch.stack([x, x + 1, x - 1])
    last = x
    n = 0
    while last.sum() < 6 and n < 6:
        n += 1
        last.add_(0.5)
        last = rows[(last.sum().long().abs() + n) % 3]
    last.mul_(2)
    return last, rows, x


def row_chosen_in_a_branch(x: Tensor) -> tuple[Tensor, ...]:
    rows = torch.stack([x, x + 1, x - 1])
    kept = rows[0]
    for row in rows:
        if row.sum() > kept.sum():
            kept = row
        kept.add_(0.25)
    return kept, rows


def written_only_behind_the_loop(x: Tensor) -> tuple[Tensor, ...]:
    h, n = x, 0
    while h.sum() > 0.5:
        n += 1
        h = h * 0.5
    h.add_(1)
    return h, x


def nested(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    for i in range(3):
        while y.sum() > i:
            x, y = y, x
            y.sub_(0.5)
            x = x - 0.75
        x.add_(0.25)
    return x, y


def returned_from_the_middle(x: Tensor) -> tuple[Tensor, Tensor]:
    total = x * 1
    n = 0
    while True:
        n += 1
        if n > 4 or total.sum() > 9:
            break
        x[n % 3] += 1.0
        total = total + x
        if total[0] > 5:
            return x, total
    x.mul_(2)
    return total, x


def shared_without_the_first_of_three(x: Tensor) -> tuple[Tensor, ...]:
    a = b = c = x
    for i in range(5):
        c.add_(1)
        made = b * 0.5 + i
        if made.sum() > 2:
            a = made
        b = c = made
        b[1] = a.sum()
    c.mul_(2)
    return a, b, c, x


def two_views_of_what_is_gone(x: Tensor) -> tuple[Tensor, ...]:
    a = b = x[1:]
    for i in range(4):
        a.add_(1)
        made = torch.cat([b, x[:1]]) * 0.5
        a = made[1:]
        b = a if made[0] > i else made[:-1]
        b.mul_(2)
    b[0] = 5
    return a, b, x


def in_a_container(x: Tensor) -> tuple[Tensor, ...]:
    state = {"h": x, "c": x * 2}
    for i in range(5):
        state["h"].mul_(0.5)
        if state["h"].sum() > 0.1:
            state["h"], state["c"] = state["c"], state["h"] + i
    return state["h"], state["c"], x


def transposed_in_each_round(x: Tensor) -> tuple[Tensor, ...]:
    m = torch.outer(x, x + 1)
    view = m
    for i in range(3):
        view[0].add_(i)
        view = view.t() if x.sum() > 0 else view * 1
    view.mul_(2)
    return m, view


@pytest.mark.parametrize("unroll", [0, 8])
@pytest.mark.parametrize(
    "fn",
    [
        swapped,
        rotated,
        initial_state_from_the_caller,
        memory_of_a_round_under_two_names,
        view_of_another_variable,
        row_at_a_traced_position,
        row_chosen_in_a_branch,
        written_only_behind_the_loop,
        nested,
        returned_from_the_middle,
        shared_without_the_first_of_three,
        in_a_container,
    ],
)
def test_memory_is_followed_around_loops(fn: Callable[[Tensor], object], unroll: int) -> None:
    cases = [(1.0, 1.0, 1.0), (0.1, 1.0, 0.0), (-1.0, 0.5, 0.0), (0.7, -2.0, 0.0), (2.0, 3.0, 1.0)]
    check(
        fn, *[(torch.tensor(case),) for case in cases], options=Options(debug=Debug(unroll=unroll))
    )


def test_two_views_that_overlap() -> None:
    cases = [(torch.full((3,), value),) for value in (1.0, 9.0, 0.0, -3.0, 0.1)]
    check(two_views_of_what_is_gone, *cases, options=Options(debug=Debug(unroll=0)))


def test_views_of_views_without_end_are_refused() -> None:
    error = refused(transposed_in_each_round, torch.ones(3), options=Options(debug=Debug(unroll=0)))
    assert "in place" in error.message
