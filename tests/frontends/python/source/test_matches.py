"""`match` statements on traced values, sequences, mappings and objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.frontends.python.checks import check

X = torch.tensor([1.0, -2.0, 3.0])
CASES = [(X, torch.tensor(k)) for k in (0, 1, 2, 5, 7, -3)]


@dataclass
class Point:
    x: Any
    y: Any = 0


class Circle:
    __match_args__ = ("radius",)

    def __init__(self, radius: Any) -> None:
        self.radius = radius


class Number(int):
    pass


def literals(x: Tensor, n: Tensor) -> Tensor:
    match int(n):
        case 0:
            return x
        case 1 | 2 | 5:
            x = x * 2
        case -3:
            x = x + 1
    return -x


def guards(x: Tensor, n: Tensor) -> Tensor:
    match n.item():
        case k if k > 6:
            y = x + k
        case 0 | 2 as k if x.sum() > k:
            y = x + 1 + k
        case _:
            y = x - 1
    return y


def a_failing_guard_has_bound(x: Tensor, n: Tensor) -> Tensor:
    k = 100
    match int(n):
        case k if k > 3:
            x = x + 1
        case 0:
            x = x * 2
    return x + k


def sequences(x: Tensor, n: Tensor) -> Tensor:
    match (x, int(n), [n > 1, "a"]):
        case (_, 0, _):
            return x
        case (y, 1, [flag, *rest]):
            return y * flag + len(rest)
        case [y, k, [True, "a" | "b" as name]]:
            return y + k + len(name)
        case [_, *others] if len(others) == 2:
            return x - others[0]
    return -x


def no_sequences(x: Tensor, n: Tensor) -> int:
    found = 0
    for item in (x, "ab", 3, None, {1: 2}, b"ab", range(2), (1, 2), [n, n]):
        match item:
            case [_, _]:
                found = found * 10 + 1
            case str() | None:
                found = found * 10 + 2
            case _:
                found = found * 10
    return found


def mappings(x: Tensor, n: Tensor) -> Tensor:
    match {"kind": int(n), "w": x, "b": 2}:
        case {"kind": 0}:
            return x
        case {"kind": 1 | 2 as k, "w": w, **rest}:
            return w * k + rest["b"] + len(rest)
        case {"missing": _}:
            return x * 100
        case {}:
            return x * 3
    return x


def objects(x: Tensor, n: Tensor) -> Tensor:
    match Point(n.item(), x.sum()):
        case Circle():
            return x
        case Point(0, y):
            return x + y
        case Point(x=1 | 2 as a, y=b):
            return x * a + b
        case Point(y=b) if b > 100:
            return x
        case Point(int(), float()):
            return x * 7
        case Point():
            return -x
    return x


def objects_in_objects(x: Tensor, n: Tensor) -> Tensor:
    match [Circle(Point(int(n))), n]:
        case [Circle(Point(0 as k)), _] | [Circle(Point(5 as k)), _]:
            return x + k
        case [Circle(radius=Point(y=1)), _]:
            return x * 100
        case [Circle(missing=1), _]:
            return x * 1000
        case [Circle(Point(z)), Tensor() as t]:
            return x * z + t
    return x


def classes_of_numbers(x: Tensor, n: Tensor) -> Tensor:
    for item in (n.item(), x[0].item(), bool(n > 1), n):
        match item:
            case bool(flag):
                x = x + (1 if flag else 2)
            case int(k):
                x = x * k
            case float(v) if v > 0:
                x = x - v
            case Tensor():
                x = x * 2
    return x


def singletons(x: Tensor, n: Tensor) -> Tensor:
    for item in (bool(n > 1), None, 1, int(n)):
        match item:
            case None:
                x = x + 1
            case True:
                x = x * 2
            case False:
                x = x * 3
            case _:
                x = x - 1
    return x


def in_a_loop(x: Tensor, n: Tensor) -> tuple[Tensor, int]:
    total, steps = torch.zeros(()), 0
    for v in x:
        match int(v) % 4, int(n):
            case 0, _:
                continue
            case 1, 0 | 1:
                total = total + v
            case _, 7:
                break
            case k, _:
                total = total - v * k
        steps += 1
    return total, steps


@pytest.mark.parametrize(
    "f",
    [
        literals, guards, a_failing_guard_has_bound, sequences, no_sequences, mappings, objects,
        objects_in_objects, classes_of_numbers, singletons, in_a_loop,
    ],
)  # fmt: skip
def test_equals_eager(f: Callable[..., Any]) -> None:
    check(f, *CASES)


def test_subclasses_of_numbers() -> None:
    def f(x: Tensor) -> Tensor:
        match Number(4):
            case Number(k):
                return x * k
        return x

    check(f, (X,))


def test_too_many_positional_patterns() -> None:
    def f(x: Tensor) -> Tensor:
        match Circle(x):
            case Circle(a, b):
                return a + b
        return x

    with pytest.raises(TypeError, match=r"accepts 1 positional sub-pattern \(2 given\)"):
        check(f, (X,))
