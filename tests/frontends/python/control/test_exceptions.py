"""Exceptions that the function raises in traced branches and handles itself."""

# ruff: noqa: E722
# bare handlers are what is tested

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.frontends.python.checks import assert_same, check, refused

X = torch.tensor([0.5, -1.0, 2.0, 0.25])
CASES = [(x, torch.tensor(k)) for x in (X, -X, X * 9) for k in (0, 5, -1, 2, 3)]


class Failed(Exception):
    pass


class FailedBadly(Failed):
    pass


class WithCode(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def one_handler(x: Tensor, n: Tensor) -> Tensor:
    try:
        if x.sum() > 0:
            raise Failed("large")
        y = x * 2
    except Failed:
        y = x * 3
    return y


def several_handlers(x: Tensor, n: Tensor) -> Tensor:
    try:
        if n > 3:
            raise Failed("a")
        if n < 0:
            raise KeyError("b")
        if n == 2:
            raise FailedBadly
        y = x
    except FailedBadly:
        y = x * 5
    except (KeyError, ValueError) as error:
        y = x + len(error.args)
    except Failed as error:
        y = x * len(str(error)) + 7
    else:
        y = y + 1
    finally:
        y = y * 2 if n != 3 else x
    return y


def handlers_inside_of_others(x: Tensor, n: Tensor) -> Tensor:
    try:
        try:
            if n > 3:
                raise Failed("a")
            if n == 2:
                raise KeyError("k")
            y = x
        except KeyError:
            y = x * 2
        y = y + 1
    except Failed:
        y = x * 3
    return y


def raised_again(x: Tensor, n: Tensor) -> Tensor:
    try:
        try:
            if n > 3:
                raise Failed("a")
            y = x
        except Failed:
            x = x + 1
            raise
    except Failed:
        y = x * 3
    return y


def around_a_loop(x: Tensor, n: Tensor) -> int:
    found = 0
    try:
        for v in x:
            if v > 1:
                raise Failed("x")
            found += 1
    except Failed:
        found = -found - 1
    return found


def in_a_loop(x: Tensor, n: Tensor) -> tuple[Tensor, int]:
    bad, total = 0, torch.zeros(())
    for v in x:
        try:
            if v < 0:
                raise ValueError("negative")
            total = total + v
        except ValueError:
            bad += 1
            continue
        total = total * 0.5
    return total, bad


def out_of_an_endless_loop(x: Tensor, n: Tensor) -> Tensor:
    try:
        while True:
            x = x * 1.5
            if x.abs().sum() > 50:
                raise Failed
            if n < 0:
                raise KeyError
            n = n - 1
    except Failed:
        return x
    except KeyError:
        return -x


def with_data(x: Tensor, n: Tensor) -> Tensor:
    try:
        if n > 3:
            raise WithCode(3)
        if n < 0:
            raise WithCode(5)
        y = x
    except WithCode as error:
        y = x * error.code
    return y


def assertions(x: Tensor, n: Tensor) -> Tensor:
    try:
        assert n < 3, "too large"
        y = x
    except AssertionError:
        y = x * 2
    return y


def returns(x: Tensor, n: Tensor) -> Tensor:
    try:
        if n > 3:
            raise Failed
        return x
    except Failed:
        return x * 2
    finally:
        x = x + 1


def tried_again(x: Tensor, n: Tensor) -> tuple[Tensor, int]:
    for k in range(4):  # noqa: B007
        try:
            x = x * 0.5
            if x.abs().sum() > 1:
                raise Failed("large")
            break
        except Failed:
            x = x - 0.01
    else:
        x = x + 100
    return x, k


def every_exception(x: Tensor, n: Tensor) -> Tensor:
    try:
        if n > 3:
            raise Failed
        y = x
    except:
        y = x * 3
    return y


def end_of_rows(x: Tensor, n: Tensor) -> Tensor:
    rows, total = iter(x), torch.zeros(())
    while True:
        try:
            row = next(rows)
        except StopIteration:
            break
        total = total * 0.5 + row
        if total > 3:
            break
    return total


def end_around_the_loop(x: Tensor, n: Tensor) -> Tensor:
    rows, total = iter(x), torch.zeros(())
    try:
        while True:
            first = next(rows)
            if first < 0:
                second = next(rows)
                total = total + first * second
            else:
                total = total + first
    except StopIteration:
        total = total * 2
    return total


def end_of_a_list(x: Tensor, n: Tensor) -> Tensor:
    items, total = iter([x[0], x[1]]), x[0] * 0
    try:
        for k in range(4):
            if k < n:
                total = total + next(items)
    except StopIteration:
        total = total - 100
    return total


def end_of_a_generator(x: Tensor, n: Tensor) -> Tensor:
    def doubled() -> Iterator[Tensor]:
        for row in x:
            yield row * 2

    items, total = doubled(), torch.zeros(())
    while True:
        try:
            item = next(items)
        except StopIteration:
            return total
        if item > 0:
            total = total * 0.5 + item


def ends_inside_of_expressions(x: Tensor, n: Tensor) -> Any:
    items, found, last = iter(x), list[Tensor](), x[0]
    try:
        while True:
            last += next(items) * next(items) + 1
            if next(items) > 0:
                found.append(next(items) + last)
    except StopIteration:
        return last, found


def ends_that_are_suppressed(x: Tensor, n: Tensor) -> Tensor:
    items, total = iter(x), torch.zeros(())
    with contextlib.suppress(StopIteration):
        while True:
            if next(items) > n:
                total = total + next(items)
            total = total - 1
    return total


def around_a_loop_over_a_generator(x: Tensor, n: Tensor) -> Tensor:
    def doubled() -> Iterator[Tensor]:
        for row in x:
            yield row * 2

    total = torch.zeros(())
    try:
        for item in doubled():
            if item > n:
                raise Failed
            total = total + item
    except Failed:
        total = total - 100
    return total


@pytest.mark.parametrize(
    "f",
    [
        one_handler, several_handlers, handlers_inside_of_others, raised_again, around_a_loop,
        in_a_loop, out_of_an_endless_loop, with_data, assertions, returns, tried_again,
        every_exception, end_of_rows, end_around_the_loop, end_of_a_list, end_of_a_generator,
        ends_inside_of_expressions, ends_that_are_suppressed, around_a_loop_over_a_generator,
    ],
)  # fmt: skip
def test_equals_eager(f: Callable[..., Any]) -> None:
    check(f, *CASES)


@pytest.mark.parametrize("f", [end_of_rows, end_around_the_loop])
def test_the_end_of_as_many_rows_as_a_call_has(f: Callable[..., Any]) -> None:
    compiled = stretto.compile(f, backend="interpreter")
    for size in (6, 3, 1, 9):
        x = torch.linspace(-1, 2, size)
        assert_same(compiled(x, CASES[0][1]), f(x, CASES[0][1]))


def test_an_exception_without_a_handler() -> None:
    def f(x: Tensor, n: Tensor) -> Tensor:
        try:
            if n > 3:
                raise Failed("a")
        except KeyError:
            x = x * 2
        return x

    check(f, CASES[0])
    with pytest.raises(Failed, match="a"):
        check(f, CASES[0], CASES[1])


def test_another_exception_from_a_handler() -> None:
    def f(x: Tensor, n: Tensor) -> Tensor:
        try:
            if n > 3:
                raise KeyError("a")
        except KeyError as error:
            raise Failed("converted") from error
        return x

    compiled = stretto.compile(f, backend="interpreter")
    assert_same(compiled(*CASES[0]), X)
    with pytest.raises(Failed, match="converted"):
        compiled(*CASES[1])


def test_what_a_called_function_raises_is_refused() -> None:
    def doubled(x: Tensor) -> Tensor:
        if x.sum() > 0:
            raise Failed("deep")
        return x * 2

    def f(x: Tensor) -> Tensor:
        try:
            return doubled(x)
        except Failed:
            return x * 3

    error = refused(f, X)
    assert "whether Failed is raised here depends on a tensor" in str(error)
    assert "fallback=True" in str(error)
    compiled = stretto.compile(f, backend="interpreter", fallback=True)
    for x in (X, -X, X):
        assert_same(compiled(x), f(x))


def in_a_comprehension(x: Tensor, key: str) -> Any:
    try:
        return [{"a": 1}[key] for row in x if row > 0]
    except KeyError:
        return x


def in_the_body_of_a_class(x: Tensor, key: str) -> Any:
    try:

        class Numbers:
            if x.sum() > 0:
                raise KeyError
            one = 1
    except KeyError:
        return x
    return x * Numbers.one


def in_a_function_that_goes_through_items(x: Tensor, key: str) -> Any:
    try:
        joined: Callable[..., Any] = operator.add
        return functools.reduce(joined, filter(lambda row: row > 0, [x[0], x[1]]), key)
    except TypeError:
        return x


@pytest.mark.parametrize(
    "f", [in_a_comprehension, in_the_body_of_a_class, in_a_function_that_goes_through_items]
)
def test_what_a_part_of_a_statement_raises_is_refused(f: Callable[..., Any]) -> None:
    assert "is raised here depends on a tensor" in str(refused(f, X, "b"))


def test_variables_that_a_handler_reads_are_joined_before_what_raises() -> None:
    def f(x: Tensor, key: str) -> Tensor:
        y = x
        try:
            if x.sum() > 0:
                y = x * 2
            {"a": 1}[key]
            y = x * 100
        except KeyError:
            y = y + 1
        return y

    check(f, (X, "b"), (-X, "b"))


def second_operand_raises(x: Tensor) -> Any:
    number, items = int(x[0]), [3]
    one = x + 1 if number < 1 and items[number + len(items)] > 0 else x
    other = x + 1 if number > 0 or {}["a"] > 0 else x
    return one, other


def of_a_loop(x: Tensor) -> Any:
    number, count, items = int(x[0]), 0, [5]
    while number > 0 and items.pop() > 0:
        number, count = number - 1, count + 1
    return x * count


@pytest.mark.parametrize("fn", [second_operand_raises, of_a_loop])
def test_an_operand_that_raises_wherever_it_is_reached(fn: Callable[[Tensor], Any]) -> None:
    compiled = stretto.compile(fn, backend="interpreter")
    for first in (1.0, 0.0, 2.0, 1.0):
        x = torch.tensor([first, 2.0])
        try:
            expected = fn(x)
        except LookupError as error:
            with pytest.raises(type(error)):
                compiled(x)
        else:
            assert_same(compiled(x), expected)
