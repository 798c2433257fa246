"""Branches and loops on traced values."""

from __future__ import annotations

import torch
from tests.capture.checks import check, structure

A, B = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-1.0, -2.0, 0.5])


def test_straight_line() -> None:
    check(lambda x: (x * 2 + 1).relu().sum(), (A,), (B,))


def test_if_on_a_tensor() -> None:
    def f(x):
        if x.sum() > 0:
            y = x * 2
        else:
            y = x - 1
        return y

    assert structure(check(f, (A,), (B,))) == {"if": 1}


def test_early_return() -> None:
    def f(x):
        if x.sum() > 0:
            return x * 2
        x = x + 1
        if x[0] > 3:
            return x
        return -x

    assert structure(check(f, (A,), (B,), (B - 5,))) == {"if": 2}


def test_while_on_a_tensor() -> None:
    def f(x):
        n = 0
        while x.sum() < 100:
            x = x * 2 + 1
            n += 1
        return x, n

    captured = check(f, (A,), (A * 100,), (A * 0,))
    assert structure(captured) == {"while": 1}


def test_for_range_is_kept() -> None:
    def f(x):
        for i in range(10):
            x = x * 0.5 + i
        return x

    assert structure(check(f, (A,))) == {"for": 1}


def test_list_append_in_a_static_loop() -> None:
    def f(x):
        out = []
        h = x[0]
        for i in range(8):
            h = torch.tanh(h + x[i])
            out.append(h)
        return torch.stack(out), out[-1], len(out)

    assert structure(check(f, (torch.randn(8, 3),))) == {"for": 1}


def test_list_append_in_a_traced_loop() -> None:
    def f(x):
        out = []
        while x.sum() < 50:
            x = x * 2
            out.append(x)
        return out

    assert structure(check(f, (A,), (A * 100,), (A * 3,))) == {"while": 1}
