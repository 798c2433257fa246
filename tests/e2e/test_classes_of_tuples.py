"""Tuples of the user's own classes: they keep their class, and their methods are the user's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import stretto

ONES = torch.ones(2)


class Degree(tuple[int, int]):
    """A pair that has no length and no truth, as some libraries write them."""

    __slots__ = ()

    def __new__(cls, degree: int, parity: int) -> Degree:
        return super().__new__(cls, (degree, parity))

    def __len__(self) -> int:
        raise NotImplementedError

    def __bool__(self) -> bool:
        raise NotImplementedError

    @property
    def width(self) -> int:
        return 2 * self[0] + 1


class Pair(tuple[Any, Any]):
    def both(self) -> Any:
        return self[0] + self[1]


class Degrees(tuple[tuple[int, Degree], ...]):
    __slots__ = ()

    def __new__(cls, counts: list[tuple[int, int]]) -> Degrees:
        return super().__new__(cls, [(count, Degree(degree, 1)) for count, degree in counts])

    def width(self) -> int:
        return sum(count * degree.width for count, degree in self)


def made_inside(x: Tensor, n: int) -> Tensor:
    return x * Degrees([(1, 0), (n, 1)]).width()


def chosen(x: Tensor, n: int) -> Tensor:
    degree = Degree(n, 1)
    if x.sum() > 0:
        degree = Degree(2, -1)
    return x * degree.width


KEPT = Degree(2, 1)


def kept_and_given(x: Tensor, degree: Degree) -> Tensor:
    return x * KEPT.width + degree.width


def given(x: Tensor, pair: Pair) -> Tensor:
    return pair.both() * x


def grown(x: Tensor, pair: Pair) -> Pair:
    for _ in range(int(x[0])):
        pair = Pair((pair[0] + x, pair[1] * 2))
    return pair


PAIRS = [(Pair((ONES, 2 * ONES)),), (Pair((3 * ONES, ONES)),)]


@pytest.mark.parametrize(
    ("function", "further"),
    [
        (made_inside, [(1,), (3,)]),
        (chosen, [(1,), (3,)]),
        (kept_and_given, [(Degree(1, 1),), (Degree(3, 1),)]),
        (given, [*PAIRS, (Pair((2, 3)),), (Pair((2, 4)),)]),
        (grown, PAIRS),
    ],
)
def test_classes_of_tuples(function: Any, further: list[tuple[Any, ...]]) -> None:
    fast = stretto.compile(function, backend="interpreter")
    for x in (ONES * 2, -ONES, ONES * 2):
        for args in further:
            wanted, found = function(x, *args), fast(x, *args)
            assert type(found) is type(wanted)
            torch.testing.assert_close(tuple(found), tuple(wanted), rtol=0, atol=0)
