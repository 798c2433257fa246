"""`with` whose context may handle what is raised inside, depending on the run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto

ROWS = [1.0, 2.0]


class Ignores:
    """Handles a class of exceptions, and counts how often it was left."""

    def __init__(self, kind: type[Exception]) -> None:
        self.kind, self.left = kind, 0

    def __enter__(self) -> Ignores:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.left += 1
        return kind is not None and issubclass(kind, self.kind)


class Counts:
    """Handles nothing."""

    def __init__(self) -> None:
        self.left = 0

    def __enter__(self) -> Counts:
        return self

    def __exit__(self, *_: object) -> None:
        self.left += 1


@contextlib.contextmanager
def ignoring() -> Generator[int]:
    try:
        yield 5
    except (IndexError, ValueError) as error:
        assert error.args


@contextlib.contextmanager
def suppressing() -> Generator[int]:
    with contextlib.suppress(IndexError):
        yield 5


@contextlib.contextmanager
def noting(lines: list[int]) -> Generator[None]:
    try:
        yield
    finally:
        lines.append(1)


def stack() -> contextlib.ExitStack:
    made = contextlib.ExitStack()
    made.enter_context(contextlib.suppress(IndexError))
    return made


@pytest.mark.parametrize(
    "make",
    [
        *(lambda: contextlib.suppress(IndexError), lambda: Ignores(IndexError)),
        *(ignoring, suppressing, stack),
    ],
)
def test_what_a_context_may_handle_is_refused(make: Callable[[], Any]) -> None:
    def looked_up(x: Tensor) -> Tensor:
        found = 0.0
        with make():
            found = ROWS[int(x.sum())]
        return x + found

    with pytest.raises(stretto.CaptureError, match="a with or loop may"):
        stretto.compile(looked_up, backend="interpreter")(torch.zeros(2))
    fast = stretto.compile(looked_up, backend="interpreter", fallback=True)
    for values in ([0.0, 0.0], [1.0, 0.0], [2.0, 3.0], [0.0, 0.0]):
        assert torch.equal(fast(torch.tensor(values)), looked_up(torch.tensor(values)))


def test_a_branch_that_raises_where_a_context_may_handle_it() -> None:
    def checked(x: Tensor) -> Tensor:
        found = 0.0
        with Ignores(ValueError):
            if x.sum() > 2:
                raise ValueError("too large")
            found = 1.0
        return x + found

    fast = stretto.compile(checked, backend="interpreter")
    for value in (1.0, 3.0, 0.0):
        x = torch.full((2,), value)
        assert torch.equal(fast(x), checked(x))


def test_contexts_that_handle_nothing() -> None:
    """The exception of the run is that of the call."""
    counts, lines = Counts(), list[int]()

    def looked_up(x: Tensor) -> Tensor:
        with counts, torch.no_grad(), noting(lines), contextlib.nullcontext(3.0) as three:
            return x + ROWS[int(x.sum())] + three

    fast = stretto.compile(looked_up, backend="interpreter")
    assert torch.equal(fast(torch.zeros(2)), torch.full((2,), 4.0))
    assert (counts.left, lines) == (1, [1])
    with pytest.raises(IndexError, match="list index out of range"):
        fast(torch.ones(2))


def test_what_is_raised_in_any_case_is_handled() -> None:
    ignores = Ignores(IndexError)

    def looked_up(x: Tensor) -> Tensor:
        with contextlib.suppress(ValueError):
            raise ValueError
        with ignores, Counts():
            x = x + ROWS[7]
        return x + 1

    fast = stretto.compile(looked_up, backend="interpreter")
    for left in (1, 2):
        assert torch.equal(fast(torch.zeros(2)), torch.ones(2))
        assert ignores.left == left


def test_a_context_between_a_raise_and_its_handler() -> None:
    def handled(x: Tensor, make: Callable[[], Any]) -> Tensor:
        found = 0.0
        try:
            with make():
                if x.sum() > 2:
                    raise ValueError("too large")
                found = 1.0
            found += 1.0
        except ValueError:
            found = 5.0
        return x + found

    for make in (torch.no_grad, lambda: Ignores(ValueError), lambda: Ignores(KeyError)):
        fast = stretto.compile(lambda x, make=make: handled(x, make), backend="interpreter")
        for value in (0.0, 3.0):
            x = torch.full((2,), value)
            assert torch.equal(fast(x), handled(x, make))
