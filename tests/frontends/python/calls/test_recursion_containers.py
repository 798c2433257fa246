"""Lists and dicts that a recursive function is given, and changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.frontends.python.checks import check, refused

A = torch.tensor([1.0, 2.0, 3.0])
CASES = [(A, torch.tensor(depth)) for depth in (3, 0, 1, 2)]


def items_set(t: Tensor, n: Tensor) -> Any:
    def visit(n: Tensor, st: list[Tensor]) -> None:
        if n > 0:
            st[0] = st[1] + st[0]
            visit(n - 1, st)
            st[1] = st[0] * 0.5
            visit(n - 1, st)

    st = [t, t * 2]
    visit(n, st)
    return st


def entries_set(t: Tensor, n: Tensor) -> Any:
    def visit(n: Tensor, d: dict[str, Any]) -> None:
        if n > 0:
            d["h"] = torch.tanh(d["h"] + d["c"][0])
            d["c"][1] = d["h"] * 2
            for i in range(n):
                visit(n - 1 - i, d)
                d["c"][0] = d["c"][0] + i

    d = {"h": t, "c": [t, t]}
    visit(n, d)
    return d


def popped_and_pushed(t: Tensor, n: Tensor) -> Any:
    def visit(n: Tensor, st: list[Tensor]) -> None:
        if n > 0:
            a, b = st.pop(), st.pop()
            st.append(a + b)
            st.append(a * 0.5)
            visit(n - 1, st)
            st[0] = a
            visit(n - 2, st)

    st = [t, t * 2]
    visit(n, st)
    return st


def appended_after_the_call(t: Tensor, n: Tensor) -> Any:
    def visit(t: Tensor, n: Tensor, out: list[Tensor]) -> None:
        if n > 0:
            visit(t * 0.5, n - 1, out)
            out.append(t)

    out = [t]
    visit(t, n, out)
    return out


def appended_behind_an_early_return(t: Tensor, n: Tensor) -> Any:
    def visit(t: Tensor, n: Tensor, out: list[Tensor]) -> Tensor:
        if n <= 0:
            return t
        total = visit(t * 0.5, n - 1, out) + visit(t * 0.25, n - 1, out)
        out.append(total)
        return torch.tanh(total)

    out: list[Tensor] = []
    return visit(t, n, out), out


def a_number_set(t: Tensor, n: Tensor) -> Any:
    def visit(n: Tensor, st: list[Any]) -> None:
        if n > 0:
            visit(n - 1, st)
            st[0] = 3.0

    st = [t.sum(), t * 2]
    visit(n, st)
    return st[1]


def two_that_trade_places(t: Tensor, n: Tensor) -> Any:
    def visit(n: Tensor, a: list[Tensor], b: list[Tensor]) -> None:
        if n > 0:
            a[0] = a[0] + b[1]
            visit(n - 1, b, a)
            b[1] = torch.tanh(b[1] + a[0])

    a, b = [t, t * 2], [t + 1, t]
    visit(n, a, b)
    return a, b


def one_given_twice(t: Tensor, n: Tensor) -> Any:
    def visit(n: Tensor, a: list[Tensor], b: list[Tensor]) -> None:
        if n > 0:
            a[0] = a[0] + b[1]
            visit(n - 1, b, a)

    a = [t, t * 2]
    visit(n, a, a)
    return a


def in_a_tuple(t: Tensor, n: Tensor) -> Any:
    def visit(n: Tensor, pair: tuple[Tensor, list[Tensor]]) -> None:
        q, st = pair
        if n > 0:
            st[0] = st[0] + q
            visit(n - 1, (q * 0.5, st))

    st = [t, t * 2]
    visit(n, (t, st))
    return st


def sometimes_another_list(t: Tensor, n: Tensor) -> Any:
    def visit(n: Tensor, out: list[Tensor]) -> None:
        if n > 0:
            out[0] = torch.tanh(out[0])
            visit(n - 1, [out[0], out[1] * 2])
            out[1] = out[1] + 1
            visit(n - 1, out)

    out = [t, t]
    visit(n, out)
    return out


def returned_as_it_is(t: Tensor, n: Tensor) -> Any:
    def visit(t: Tensor, n: Tensor, out: list[Tensor]) -> list[Tensor]:
        if n > 0:
            out.append(t)
            out = visit(t * 0.5, n - 1, out)
            out = visit(t * 0.25, n - 1, out)
        return out

    first: list[Tensor] = []
    found = visit(t, n, first)
    found.append(t)
    return first, found


def returned_and_changed_by_the_caller(t: Tensor, n: Tensor) -> Any:
    def visit(st: list[Tensor], n: Tensor) -> list[Tensor]:
        if n <= 0:
            return st
        st[0] = st[0] * 0.5
        return visit(st, n - 1)

    st = [t, t + 1]
    found = visit(st, n)
    found[0] = found[0] + 1
    return st, found


def another_one_returned(t: Tensor, n: Tensor) -> Any:
    def visit(st: list[Tensor], n: Tensor) -> list[Tensor]:
        if n <= 0:
            return st
        return visit([st[1], st[0] * 0.5], n - 1)

    return visit([t, t + 1], n)


def between_two_functions(t: Tensor, n: Tensor) -> Any:
    def one(t: Tensor, n: Tensor, out: list[Tensor]) -> None:
        if n > 0:
            other(t * 0.5, n - 1, out)
            out[0] = out[0] + t

    def other(t: Tensor, n: Tensor, out: list[Tensor]) -> None:
        if n > 0:
            out[1] = torch.tanh(out[1])
            one(t, n - 1, out)
            out[1] = out[0] * 0.1

    out = [t, t]
    one(t, n, out)
    return out


def set_in_one_arm_appended_in_the_other(t: Tensor, n: Tensor) -> Any:
    def visit(t: Tensor, n: Tensor, out: list[Tensor]) -> Tensor:
        if n <= 0:
            return t
        y = visit(t * 0.5, n - 1, out)
        if y.sum() > 1:
            out[0] = y
        else:
            out.append(y)
        return y + out[0]

    out = [t * 0]
    return visit(t, n, out), out


def another_shape_in_one_arm(t: Tensor, n: Tensor) -> Any:
    def visit(st: list[Tensor], n: Tensor) -> None:
        if n > 0:
            visit(st, n - 1)
            st[0] = st[0].sum()

    st = [t, t + 1]
    visit(st, n)
    return st[0].sum() + st[1]


@pytest.mark.parametrize(
    "function",
    [
        items_set,
        entries_set,
        popped_and_pushed,
        appended_after_the_call,
        appended_behind_an_early_return,
        a_number_set,
        two_that_trade_places,
        one_given_twice,
        in_a_tuple,
        sometimes_another_list,
        returned_as_it_is,
        returned_and_changed_by_the_caller,
        another_one_returned,
        between_two_functions,
        set_in_one_arm_appended_in_the_other,
        another_shape_in_one_arm,
    ],
)
def test_what_is_left(function: Callable[..., Any]) -> None:
    check(function, *CASES)


def test_the_argument_or_another_one() -> None:
    def f(t: Tensor, n: Tensor) -> Any:
        def visit(st: list[Tensor], n: Tensor) -> list[Tensor]:
            if n <= 0:
                return st
            return visit([st[1], st[0] * 0.5], n - 1)

        st = [t, t + 1]
        found = visit(st, n)
        found[0] = found[0] + 1
        return st, found

    assert "an object is changed that two variables may share" in str(refused(f, *CASES[0]))


def test_an_item_of_another_type() -> None:
    def f(t: Tensor, n: Tensor) -> Any:
        def visit(st: list[Tensor], n: Tensor) -> None:
            if n > 0:
                visit(st, n - 1)
            st[0] = st[1].sum()

        st = [t, t + 1]
        visit(st, n)
        return st

    check(f, *CASES)


def test_another_list_each_time() -> None:
    def f(t: Tensor, n: Tensor) -> Any:
        def visit(t: Tensor, n: Tensor, out: list[Tensor]) -> None:
            if n > 0:
                mine = list(out)
                visit(t * 0.5, n - 1, mine)
                out.append(mine[-1])

        out = [t]
        visit(t, n, out)
        return out

    check(f, *CASES)


def test_lists_of_different_length_returned() -> None:
    def leaves(t: Tensor, n: Tensor) -> list[Tensor]:
        if n <= 0:
            return [t]
        out = leaves(t * 0.5, n - 1)
        out.append(t)
        return out

    error = refused(leaves, *CASES[0])
    assert "returns values of different structure" in str(error)
    assert "pass a list as an argument and append to it" in str(error)


def test_a_list_of_tuples() -> None:
    def f(t: Tensor, n: Tensor) -> Any:
        def visit(t: Tensor, n: Tensor, out: list[tuple[Tensor, Tensor]]) -> None:
            if n > 0:
                out.append((t, n))
                visit(t * 0.5, n - 1, out)

        out: list[tuple[Tensor, Tensor]] = []
        visit(t, n, out)
        return out

    error = refused(f, *CASES[0])
    assert "a list grows or shrinks in a recursive function whose items are not" in str(error)
    assert "but a tuple of 2" in str(error)


def test_a_list_of_tuples_in_a_loop() -> None:
    def f(t: Tensor, n: Tensor) -> Any:
        out: list[tuple[Tensor, int]] = []
        for i in range(n):
            out.append((t, i))
        return out

    error = refused(f, *CASES[0])
    assert "a list grows or shrinks in a traced loop whose items are not" in str(error)
