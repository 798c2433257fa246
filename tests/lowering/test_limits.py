"""Limits of sizes that data decide: no value of the registers exceeds them."""

from __future__ import annotations

import random

import pytest

from stretto.device.expr import Index, Reg
from stretto.ir.size_bounds import maximum, minimum
from stretto.ir.sizes import Size, Symbol
from stretto.lowering.limits import Range, most

N, M = Symbol("n", 0, None), Symbol("m", 1, 40)
A, B, C = Reg("a"), Reg("b"), Reg("c")
RANGES: dict[Reg, Range] = {A: (0, Size.of(N)), B: (1, 7), C: (-3, Size.of(M) + 2)}


def formula(source: random.Random, depth: int) -> Index:
    """A random size over the symbols and registers."""
    if depth == 0:
        leaf = source.choice([A, B, C, N, M, source.randint(-5, 9)])
        return Index(const=leaf) if isinstance(leaf, int) else Index.of(leaf)
    first, second = (formula(source, depth - 1) for _ in range(2))
    positive = maximum(1, second)
    return source.choice(
        [
            lambda: first + second,
            lambda: first - second,
            lambda: first * source.randint(-3, 3),
            lambda: first * second,
            lambda: first // source.randint(1, 5),
            lambda: first % source.randint(1, 5),
            lambda: first // positive,
            lambda: first % positive,
            lambda: Index.of(maximum(first, second)),
            lambda: Index.of(minimum(first, second)),
        ]
    )()


@pytest.mark.parametrize("seed", range(400))
def test_a_limit_is_never_exceeded(seed: int) -> None:
    source = random.Random(seed)
    size = formula(source, source.randint(1, 3))
    limit = most(size, RANGES)
    if limit is None:
        return
    for _ in range(60):
        n, m = source.choice([0, 1, 2, 9, 33]), source.choice([1, 2, 39, 40])
        sizes = {N: n, M: m}
        registers = {
            reg: source.choice([low, high, source.randint(low, high)])
            for reg, (low, high) in {A: (0, n), B: (1, 7), C: (-3, m + 2)}.items()
        }
        value = size.evaluate({**sizes, **registers}.__getitem__)
        assert value <= limit.evaluate(sizes.__getitem__), (str(size), str(limit), registers, sizes)


def test_limits_that_are_known() -> None:
    a, b, n = Index.of(A), Index.of(B), Size.of(N)
    assert most(a, RANGES) == n
    assert most(a * 3 + b, RANGES) == 3 * n + 7
    assert most(a * b, RANGES) == 7 * n
    assert most(Index.of(minimum(a, b)), RANGES) == minimum(n, 7)
    assert most(5 - b, RANGES) == Size(const=4)
    assert most(Index.of(Reg("other")), RANGES) is None
