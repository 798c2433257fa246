"""While a function is captured, calls of the user's functions by others come to the tracer."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import sympy
import torch
from torch import Tensor, nn

import stretto
from stretto.frontends.python.source.redirected import Redirected, code_of, redirected
from stretto.frontends.python.tracing.locations import is_user_file
from tests.frontends.python.checks import assert_same

X = torch.tensor([1.0, 2.0, 3.0])


def test_what_torch_computes_sizes_with_is_not_traced() -> None:
    """The tracer itself calls it: a shape that an object keeps would make it trace itself."""
    for function in (sympy.Symbol.__eq__, sympy.Expr.is_number.fget, mpmath.mp.quad):
        assert not is_user_file(function.__code__.co_filename)


def signed(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * 2
    return x - 3


class Held:
    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __add__(self, other: Tensor) -> Tensor:
        return signed(self.x) + other

    @property
    def shown(self) -> Tensor:
        return signed(self.x)

    @functools.cached_property
    def kept(self) -> Tensor:
        return signed(self.x)

    def scaled(self, scale: float, /, x: Tensor, *rest: int, least: int, **named: int) -> Any:
        return [scale, signed(x), rest, least, named]

    half = functools.partialmethod(scaled, 0.5)


FUNCTIONS = [signed, Held.__init__, Held.__add__, Held.shown.fget, Held.scaled]


def codes() -> list[Any]:
    return [function.__code__ for function in FUNCTIONS if function is not None]


@pytest.mark.parametrize("fails", [False, True])
def test_the_code_is_as_it_was_afterwards(fails: bool) -> None:
    before = codes()

    def fn(x: Tensor) -> Any:
        if codes() == before and fails:  # what the user sees of it
            raise ValueError(x.shape)
        return Held(x) + x

    fast = stretto.compile(fn, backend="interpreter")
    with pytest.raises(ValueError, match="Size") if fails else contextlib.nullcontext():
        fast(X)
    assert codes() == before


def test_signatures_stay() -> None:
    expected = [inspect.signature(function) for function in (signed, Held.scaled, Held)]
    with redirected({1: signed, 2: Held}):
        assert Held.scaled.__code__ is not code_of(Held.scaled)
        assert [inspect.signature(item) for item in (signed, Held.scaled, Held)] == expected
        assert inspect.getsource(signed).startswith("def signed")


def test_all_kinds_of_parameters() -> None:
    def given(x: Tensor) -> Any:
        held = Held(x)
        return [*held.half(x, 1, 2, least=3, other=4), *map(len, held.scaled(2.0, x, least=1)[1:3])]

    assert_same(stretto.compile(given, backend="interpreter")(X), given(X))


def test_other_threads_run_the_code_itself() -> None:
    results = list[Any]()

    def others() -> None:
        results.append(Held(X) + X)
        results.append(Held(-X).kept)

    with redirected({1: signed, 2: Held}):
        thread = threading.Thread(target=others)
        thread.start()
        thread.join()
    assert_same(results, [Held(X) + X, Held(-X).kept])


def test_functions_that_stay() -> None:
    """Code of the standard library, generators, and code that does the same when it is
    rewritten."""

    class Plain:
        def __del__(self) -> None:
            print(signed(X))

        @property
        def x(self) -> Tensor:
            return self._x

        def parts(self) -> Any:
            yield from (1, 2)

        def made(self) -> Any:
            return signed(X)

    found = Redirected({1: Plain, 2: functools.reduce, 3: inspect.getsource})
    found.update()
    try:
        assert found.functions == [Plain.made]
    finally:
        found.leave(Plain.made)


CALLS: list[Callable[[Tensor], Any]] = [
    lambda x: functools.reduce(lambda one, other: signed(one) + other, [x, x, -x]),
    lambda x: list(map(signed, [x, -x])),
    lambda x: [*sorted([2, 1, 3], key=rank), rank(1)],
    lambda x: nn.Sequential(Layer(), nn.ReLU(), Layer())(x),
    lambda x: nn.ModuleList([Layer()])[0](x) + torch.stack([*map(Layer(), [x, -x])]).sum(0),
    lambda x: Held(x).kept + Held(x).kept,
    lambda x: torch.utils.checkpoint.checkpoint(signed, x, use_reentrant=False),
]


def rank(item: int) -> int:
    return -item if item > 1 else item


class Layer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return signed(x)


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_calls_by_others(number: int) -> None:
    fast = stretto.compile(CALLS[number], backend="interpreter")
    for x in (X, -X, X):
        with torch.no_grad():
            assert_same(fast(x), CALLS[number](x))


class Twice(nn.Module):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) * 2

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def test_own_call_of_a_module_that_is_cut() -> None:
    class Loud(Twice):
        def __call__(self, x: Tensor) -> Tensor:
            y = super().__call__(x)
            y.numpy()
            return y * 3

    assert_same(stretto.compile(Loud().eval(), fallback=True)(X), Loud()(X))


def test_own_call_of_a_module_in_a_batch() -> None:
    with pytest.raises(stretto.CaptureError, match="has a '__call__' of its own"):
        stretto.batch(Twice())([X, X])
