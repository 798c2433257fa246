"""Other objects of the same classes at each call: they need no program each."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.e2e.objects import State, content
from tests.frontends.python.checks import assert_same


@dataclass(frozen=True)
class Batch:
    x: Tensor
    scale: float = 2.0


@dataclass
class Masked:
    x: Tensor
    mask: Tensor


class Cache(State):
    def update(self, x: Tensor) -> Tensor:
        self.h = torch.tanh(self.h + x)
        self.n += 1
        self.pair[0] = self.pair[0] + x
        if x.sum() > 0:
            self.pair[1] = self.pair[1] * 2 + 1
        return self.h * self.n


def update(cache: Any, x: Tensor) -> Tensor:
    return cache.update(x)


def read(cache: Any, x: Tensor) -> Tensor:
    return cache.h + x


def scaled(cache: Batch, x: Tensor) -> Tensor:
    return cache.x * cache.scale + x


def masked(cache: Masked, x: Tensor) -> Tensor:
    return torch.where(cache.mask, cache.x, x)


def new_batch(x: Tensor) -> Batch:
    return Batch(x)


def new_masked(x: Tensor) -> Masked:
    return Masked(x * 2, x > 0)


CASES = [
    (update, lambda x: Cache()),
    (read, lambda x: State()),
    (scaled, new_batch),
    (masked, new_masked),
]


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize(("step", "make"), CASES)
def test_new_objects(step: Any, make: Any, backend: str) -> None:
    """The second object leads to a program for all further ones; where the objects are changed, the
    first does."""
    fast = stretto.compile(step, backend=backend)
    torch.manual_seed(0)
    for _ in range(4):
        x = torch.randn(3)
        mine, other = make(x), make(x)
        for _ in range(2):
            assert_same(fast(mine, x), step(other, x))
            assert_same(content(mine), content(other)) if isinstance(mine, State) else None
    assert [entry.builds for entry in fast.signatures] == [1] * (1 if step is update else 2)


def test_what_they_hold_is_part_of_the_signature() -> None:
    """Numbers and shapes in objects lead to programs of their own, which are found again."""
    fast = stretto.compile(scaled, backend="interpreter")
    x = torch.ones(3)
    for scale in (1.0, 2.0, 3.0, 2.0, 3.0):
        assert_same(fast(Batch(x, scale), x), x * scale + x)
    assert_same(fast(Batch(torch.ones(1), 3.0), x), x * 4)
    assert len(fast.signatures) == 4


def kept(cache: State, x: Tensor) -> Tensor:
    KEPT.append(cache)
    return x + len(KEPT)


KEPT: list[Any] = []


def test_objects_that_are_kept_are_the_ones_that_were_passed() -> None:
    fast = stretto.compile(kept, backend="interpreter")
    given = [State() for _ in range(4)]
    for number, cache in enumerate(given):
        assert_same(fast(cache, torch.zeros(3)), torch.full((3,), number + 1.0))
    assert all(one is other for one, other in zip(KEPT, given, strict=True))
    KEPT.clear()


def namespaces(x: Tensor) -> Any:
    found = types.SimpleNamespace(n=0, h=x)
    while x.sum() < 8:
        found = types.SimpleNamespace(n=found.n + 1, h=x * 2)
        x = x.abs() + 1
    return found, [types.SimpleNamespace(v=v) for v in x]


def test_namespaces_that_each_call_makes() -> None:
    fast = stretto.compile(namespaces, backend="interpreter")
    for x in (torch.ones(3), torch.ones(3) * 9, -torch.ones(3)):
        (one, items), (other, expected) = fast(x), namespaces(x)
        assert all(type(item) is types.SimpleNamespace for item in (one, *items))
        assert_same(vars(one), vars(other))
        assert_same(list(map(vars, items)), list(map(vars, expected)))


class Failure(Exception):
    def __init__(self, n: Any) -> None:
        super().__init__("failed", n)
        self.n = n


def failures(x: Tensor) -> Any:
    found = Failure(0)
    if x.sum() > 0:
        found = Failure(1)
    return found


def test_an_exception_holds_more_than_its_attributes() -> None:
    with pytest.raises(stretto.CaptureError, match="holds more than attributes"):
        stretto.compile(failures)(torch.ones(3))
