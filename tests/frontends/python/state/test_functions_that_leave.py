"""Functions and modules that a compiled function makes, and returns or keeps: each call makes new
ones, which compute what those of eager PyTorch do when they are called later."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from tests.frontends.python.checks import assert_same

KEPT: Any = None
CALLS = [torch.tensor(values) for values in ([1.0, -2.0], [0.5, 3.0], [1.0, -2.0], [4.0, 5.0, 6.0])]


class Keeper:
    made: Any


KEEPER = Keeper()


def of_a_variable(x: Tensor) -> Any:
    return lambda y: x + y  # type: ignore[no-any-return]


def kept(x: Tensor) -> Any:
    global KEPT
    KEPT = [lambda y: x * 2 + y]  # pyright: ignore
    return KEPT[0]


def with_shared_variables(x: Tensor) -> Any:
    total = x.sum()

    def add(y: Tensor, *, step: Tensor = x * 2, seen: list[int] = [1]) -> Any:  # noqa: B006
        nonlocal total
        total = total + step.sum()
        seen.append(2)
        return y + total, len(seen)

    def seen(y: Tensor) -> Any:
        return total + y

    def both(y: Tensor) -> Any:
        return add(y), seen(y), add.mark  # type: ignore[attr-defined]

    add.mark = x - 1  # type: ignore[attr-defined]
    return both


def recursive(x: Tensor) -> Any:
    def last(y: Tensor) -> Tensor:
        return x + y if len(y) < 2 else last(y[1:])

    return last


def one_of_two(x: Tensor) -> Any:
    return (lambda y: y + x) if x.sum() > 0 else (lambda y: y - x[0])


def of_a_decorator(x: Tensor) -> Any:
    def decorated(function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def made(y: Tensor) -> Any:
            return function(y) + x

        return made

    @decorated
    def doubled(y: Tensor) -> Any:
        return y * 2

    return doubled


def partial(x: Tensor) -> Any:
    return functools.partial(torch.add, x, alpha=x.shape[0])


def module(x: Tensor) -> Any:
    KEEPER.made = nn.Sequential(nn.ReLU(), nn.Flatten(0))
    return KEEPER.made


def module_with_a_buffer(x: Tensor) -> Any:
    made: Any = nn.ReLU()
    made.register_buffer("scale", x * 2)
    made.again = [made.scale]
    KEEPER.made = made
    return lambda y: made(y) + made.scale + made.again[0]


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize(
    "f",
    [
        of_a_variable, kept, with_shared_variables, recursive, one_of_two, of_a_decorator, partial,
        module, module_with_a_buffer,
    ],
)  # fmt: skip
def test_equals_eager(f: Callable[..., Any], backend: str) -> None:
    compiled = stretto.compile(f, backend=backend)
    pairs = [(compiled(x), f(x), x) for x in CALLS]
    for _ in range(2):
        for made, expected, x in pairs:
            assert type(made) is type(expected)
            assert getattr(made, "__qualname__", "") == getattr(expected, "__qualname__", "")
            assert_same(made(x), expected(x))
    assert len({id(made) for made, _, _ in pairs}) == len(pairs)


def test_kept_objects_are_new_in_each_call() -> None:
    found = list[Any]()
    for f in (kept, module):
        compiled = stretto.compile(f, backend="interpreter")
        for x in CALLS:
            found.append(compiled(x))
            assert found[-1] is (KEPT[0] if f is kept else KEEPER.made)
    assert len(set(map(id, found))) == len(found)
