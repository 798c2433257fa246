"""Generators that are consumed in the function: each yield runs the body of the loop over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from stretto.ir.ops import ForOp, IfOp
from tests.frontends.python.checks import check, count, structure

X = torch.linspace(-1, 1, 12).reshape(3, 4)
CASES = ((X,), (X + 1,), (-X - 1,))


def doubled(x: Tensor, times: int = 3) -> Iterator[tuple[int, Tensor]]:
    for i in range(times):
        yield i, x * i


def of_a_module(x: Tensor) -> Any:
    return (
        {i: v + 1 for i, v in doubled(x)},
        [v for _, v in doubled(x, times=2)],
        dict(doubled(x, 1)),
    )


def to_builtins(x: Tensor) -> Any:
    def rows() -> Iterator[Tensor]:
        for row in x:
            yield row * 2

    sums = (
        sum(rows()),
        torch.stack(list(rows())),
        tuple(rows()),
        max(r.sum().item() for r in rows()),
    )
    pairs = [a + b for a, b in zip(rows(), rows(), strict=True)]
    return sums, pairs, [i * r for i, r in enumerate(rows())], [*rows()], next(rows())


def nested(x: Tensor) -> Any:
    def first() -> Iterator[Tensor]:
        yield x[0]
        yield x[1]

    def second() -> Iterator[Tensor]:
        yield from first()
        for row in first():
            yield row * 3
        yield x[2]

    total = x[0] * 0
    for row in second():
        total = total * 0.5 + row
    return total


def conditional(x: Tensor) -> Any:
    def rows() -> Iterator[Tensor]:
        for row in x:
            if row.sum() > 0:
                yield row
            elif row.sum() > -2:
                yield -row
                yield row * 3

    total, seen = x[0] * 0, 0
    for row in rows():
        total = total * 0.5 + row
        seen += 1
    return total, seen


def while_loop(x: Tensor, count: Tensor) -> Any:
    def powers() -> Iterator[Tensor]:
        i, v = 0, x[0]
        while i < count:
            yield v
            v = v * 0.5
            i += 1

    total = x[0] * 0
    for v in powers():
        total = total + v
    return total, torch.stack(list(powers()))


def leaves(x: Tensor) -> Any:
    def endless() -> Iterator[Tensor]:
        v = x
        try:
            while True:
                yield v
                v = v * 2
        finally:
            log.append(len(log))

    log: list[int] = []
    for v in endless():
        if v.abs().max() > 30:
            break
        x = v
    return x, log


def returns(x: Tensor) -> Any:
    for i, v in doubled(x):
        if v.sum() > 1:
            return v, i
        if i == 2:
            return v - 1, 7
    return x, 8


def passed_on(x: Tensor) -> Any:
    def total(values: Iterator[tuple[int, Tensor]]) -> Tensor:
        found = x * 0
        for i, v in values:
            found = found + v * i
        return found

    return total(doubled(x))


def expressions_in_an_arm(x: Tensor) -> Any:
    weights = (1, 2, 3)
    if x.sum() > 0:
        total = sum(weight * 10**place for place, weight in enumerate(weights))
        largest = max(a * b for a, b in zip(weights, reversed(weights), strict=True))
        x = x * total + largest
    return x


def shared_variables(x: Tensor) -> Any:
    count = 0

    def rows() -> Iterator[Tensor]:
        nonlocal count
        for row in x:
            count += 1
            got = yield row * count
            assert got is None

    out = []
    for row in rows():
        out.append(row + count)
        count += 10
    return out, count


@contextmanager
def scaled(log: list[Any], x: Tensor) -> Iterator[Tensor]:
    log.append(1)
    try:
        yield x * 2
    finally:
        log.pop()


def manager(x: Tensor) -> Any:
    @contextmanager
    def here() -> Iterator[Tensor]:
        yield x + 5

    log: list[Any] = []
    with scaled(log, x) as y, here() as z:
        return y + len(log) + z


@pytest.mark.parametrize(
    "fn",
    [
        of_a_module,
        to_builtins,
        nested,
        conditional,
        returns,
        expressions_in_an_arm,
        passed_on,
        shared_variables,
        manager,
    ],
)
def test_generators(fn: Any) -> None:
    check(fn, *CASES)


def test_a_generator_that_branches_runs_its_consumer_in_the_arms() -> None:
    assert count(check(conditional, *CASES), IfOp) >= 2


def test_a_generator_with_a_loop_that_stays_one() -> None:
    captured = check(while_loop, *((X, torch.tensor(n)) for n in (2, 1, 5)))
    assert structure(captured).get("while", 0) + count(captured, ForOp) >= 2


def test_leaving_the_loop_ends_the_generator() -> None:
    check(leaves, (X,), (X * 3,), (X * 40,))


def test_a_generator_that_yields_inside_a_try_with_handlers() -> None:
    def handles(x: Tensor) -> Any:
        def rows() -> Iterator[Tensor]:
            try:
                yield x
                yield x + [x][1]
            except IndexError:
                yield x * 2

        found = rows()
        return next(found), next(found), next(found, None), next(rows())

    check(handles, (X,))


def test_a_generator_that_is_consumed_twice() -> None:
    def twice(x: Tensor) -> Any:
        rows = doubled(x)
        return [v for _, v in list(rows)], [v for _, v in list(rows)]

    check(twice, (X,))
