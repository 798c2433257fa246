"""Generators whose values are taken one by one, that are sent values, or that return one."""

# ruff: noqa: B905, C417, UP028

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from tests.frontends.python.checks import assert_same, check, refused

X = torch.linspace(-1, 1, 12).reshape(3, 4)
CASES = ((X,), (X + 1,), (-X - 1,))


def in_expressions(x: Tensor) -> Any:
    def rows() -> Generator[Tensor, Any, Tensor]:
        y = (yield x) or 2
        z = [(yield x * y), (yield x + 1)]
        return x * len(z)

    def outer() -> Iterator[Any]:
        last = yield from rows()
        yield last + 1

    return list(rows()), list(outer())


def sent(x: Tensor) -> Any:
    def total() -> Generator[Tensor, Tensor | None, None]:
        found = torch.zeros(())
        while True:
            value = yield found
            if value is None:
                return
            found = found + value

    running = total()
    next(running)
    sums = [running.send(row.sum()) for row in x]
    try:
        running.send(None)
    except StopIteration as stop:
        return sums, stop.value
    return sums, 1


def returned(x: Tensor) -> Any:
    def halves(y: Tensor, times: int) -> Generator[Tensor, None, tuple[Tensor, int]]:
        for _ in range(times):
            yield y
            y = y * 0.5
        return y, times

    found = halves(x, 2)
    values = [next(found)]
    while True:
        try:
            values.append(next(found))
        except StopIteration as stop:
            return values, stop.value


def in_turns(x: Tensor) -> Any:
    """Two generators change one list, each in its turn."""
    log: list[Any] = []

    def rows(name: int) -> Iterator[Tensor]:
        for row in x:
            log.append(name)
            yield row * (len(log) + name)

    return [a - b for a, b in zip(rows(1), rows(2), strict=True)], log


def next_and_for(x: Tensor) -> Any:
    def numbers() -> Iterator[Tensor]:
        total = x.sum()
        for i in itertools.count():
            yield total + i

    found = numbers()
    first, second = next(found), next(found)
    out = []
    for value in found:
        out.append(value)
        if len(out) == 3:
            break
    return first, second, out, next(found), list(itertools.islice(numbers(), 1, 6, 2))


def closed(x: Tensor) -> Any:
    log: list[int] = []

    def rows() -> Iterator[Tensor]:
        try:
            for row in x:
                yield row
        finally:
            log.append(len(log))

    one, other = rows(), rows()
    first = next(one)
    one.close()  # type: ignore[attr-defined]
    rest = list(one)
    return first, rest, [*other], next(other, None), log


def thrown(x: Tensor) -> Any:
    log: list[Any] = []

    def rows() -> Generator[Tensor, None, None]:
        try:
            yield x
        finally:
            log.append(1)
        yield x + 1

    found = rows()
    next(found)
    try:
        found.throw(ValueError("stop"))
    except ValueError as error:
        log.append(str(error))
    return log, list(found)


def branches_between_yields(x: Tensor) -> Any:
    """Statements without a yield are branches and loops of the Program."""

    def values() -> Iterator[Tensor]:
        y = x
        for i in range(3):
            if y.sum() > i:
                y = y - 1
            else:
                y = y * -2
            while y.abs().max() > 3:
                y = y * 0.5
            yield y

    found = values()
    return next(found), next(found), next(found), next(found, 7)


def methods_and_modules(x: Tensor) -> Any:
    class Source:
        def __init__(self, x: Tensor) -> None:
            self.x, self.given = x, 0

        def __iter__(self) -> Iterator[Tensor]:
            for row in self.x:
                self.given += 1
                yield row * self.given

    source = Source(x)
    one, other = iter(source), iter(source)
    return next(one) + next(other), next(one), source.given


def first_of_some(x: Tensor) -> Any:
    first = next((row for row in x if row.sum() > 2), None)
    last = next((row for row in reversed(x) if row.sum() > 2), x[0] * 0)
    return x[0] * 0 if first is None else first, last


def some_and_every(x: Tensor) -> Any:
    return (
        any(row.sum() > 2 for row in x),
        all(row.sum() > -9 for row in x),
        any(bool(row.sum() > 2) for row in x if row[0] < 0),
        all(row[1] > row[0] for row in x if row.sum() < 0),
        sum(row.sum() for row in x if row[0] > 0),
    )


OF_ITERTOOLS: list[Any] = [
    lambda x: list(itertools.takewhile(lambda row: bool(row.sum() > 0), x)),
    lambda x: list(itertools.dropwhile(lambda row: bool(row.sum() > 0), x)),
    lambda x: list(filter(lambda row: bool(row.sum() > 0), x)),
    lambda x: list(itertools.filterfalse(lambda row: row.sum() > 0, x)),
    lambda x: list(map(lambda row: row if row.sum() > 0 else -row, x)),
    lambda x: list(map(lambda a, b: a - b if a.sum() > 0 else b, x, x.flip(0))),
    lambda x: list(itertools.accumulate(x, lambda a, b: a * 0.5 + b)),
    lambda x: list(itertools.accumulate(x, torch.maximum, initial=x[1])),
    lambda x: list(map(lambda a, b: a if a.sum() > b else -a, x, range(3))),
    lambda x: functools.reduce(lambda a, b: a + b if a.sum() > 0 else b, x),
]
"""Functions and conditions that are given to iterators of the library."""


def lockstep(x: Tensor) -> Any:
    out = []
    for a, b in zip((r for r in x if r.sum() > 0), (r for r in x + 3), strict=False):
        out.append(a * b)
    return torch.stack(out) if out else x


def endless(x: Tensor) -> Any:
    def rates(y: Tensor) -> Iterator[Tensor]:
        rate = y.abs().max()
        while rate > 0.1:
            yield rate
            rate = rate * 0.5
        return

    y = x
    for rate in rates(x):
        y = y - rate * y
        if y.norm() < 0.05:
            break
    return y


PROGRAMS = (
    in_expressions, sent, returned, in_turns, next_and_for, closed, thrown, branches_between_yields,
    methods_and_modules, first_of_some, some_and_every, lockstep, endless,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_each_as_eager(program: Any) -> None:
    check(program, *CASES)


@pytest.mark.parametrize("number", range(len(OF_ITERTOOLS)))
def test_iterators_of_the_library(number: int) -> None:
    fast = stretto.compile(OF_ITERTOOLS[number], backend="interpreter")
    for x in (X, X + 1, -X - 1):
        assert_same(fast(x), OF_ITERTOOLS[number](x))


def of_modules(x: Tensor) -> Any:
    layers = nn.ModuleList([nn.Tanh(), nn.ReLU()])
    return list(map(layers[0], x)), [layer(x) for layer in filter(None, layers)]


def test_modules_as_functions() -> None:
    check(of_modules, *CASES)


def doubled(x: Tensor) -> Iterator[Tensor]:
    for i in range(3):
        yield x * i


LEAVING = {
    "generator function": doubled,
    "generator expression": lambda x: (x * i for i in range(3)),
    "expression with a condition": lambda x: (x * i for i in range(3) if i),
    "of another function": lambda x: {"values": doubled(x)},
    "zip": lambda x: zip(x, x),
    "map": lambda x: map(torch.sin, x),
    "iter": lambda x: iter([x, x + 1]),
    "enumerate": lambda x: [enumerate(x)],
}


@pytest.mark.parametrize("name", LEAVING)
def test_a_generator_that_leaves_the_function_is_refused(name: str) -> None:
    fn = LEAVING[name]
    assert "leaves the compiled function" in refused(fn, X).message
    fast = stretto.compile(fn, backend="emulator", fallback=True)
    assert_same(_values(fast(X)), _values(fn(X)))


def _values(found: Any) -> Any:
    match found:
        case dict():
            return {key: list(value) for key, value in found.items()}  # type: ignore[misc]
        case list():
            return [list(value) for value in found]
        case _:
            return list(found)


def test_a_generator_from_outside_a_traced_loop_is_not_advanced_inside() -> None:
    def advanced(x: Tensor) -> Tensor:
        values = doubled(x)
        while x.sum() < 9:
            x = x + next(values)
        return x

    def in_an_arm(x: Tensor) -> Any:
        values = doubled(x)
        y = next(values) if x.sum() > 0 else x
        return y, next(values)

    assert "advanced in a traced branch or loop" in refused(advanced, X + 1).message
    assert "advanced in a traced branch or loop" in refused(in_an_arm, X + 1).message


@pytest.mark.parametrize("wrap", [lambda it: map(lambda k: k + 0, it), enumerate, iter])
def test_an_iterator_that_a_loop_wraps_again(wrap: Callable[[Any], Any]) -> None:
    """Each round makes another structure: right, or refused."""

    def function(x: Tensor) -> Tensor:
        it = iter([1, 2, 3, 4])
        while x.mean() < 1.0:
            it = itertools.chain(wrap(it), [7])
            x = x + 0.5
        return x

    fast = stretto.compile(function, backend="interpreter")
    try:
        found = fast(torch.zeros(3))
    except stretto.CaptureError as error:
        assert re.search("'it'|of an iterator|keep changing", str(error))
    else:
        assert_same(found, function(torch.zeros(3)))
