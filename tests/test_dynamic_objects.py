"""Objects that hold tensors which grow from call to call: one program for all their lengths."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from stretto.call.compiled import Compiled
from tests.test_dynamic import BACKENDS


class Cache:
    """Keys and values of attention, in the form that users write."""

    def __init__(self, length: int) -> None:
        self.keys = torch.randn(1, length, 4)
        self.values = torch.randn(1, length, 4)

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.keys = torch.cat([self.keys, keys], 1)
        self.values = torch.cat([self.values, values], 1)
        return self.keys, self.values


def attend(x: Tensor, cache: Cache) -> Tensor:
    keys, values = cache.update(x * 2, x + 1)
    return torch.softmax(x @ keys.transpose(1, 2), -1) @ values


def check_calls(
    compiled: Compiled, function: Callable[..., Any], cache: Any, lengths: list[int]
) -> None:
    """Call with a cache and, eager, with a copy of it; both must be equal after each call."""
    other = copy.deepcopy(cache)
    for length in lengths:
        x = torch.randn(1, length, 4)
        torch.testing.assert_close(compiled(x, cache), function(x, other))
        for name, expected in vars(other).items():
            found = vars(cache)[name]
            assert type(found) is type(expected)
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cache_that_grows_has_one_program_for_all_lengths(backend: str) -> None:
    compiled = stretto.compile(attend, backend=backend)
    check_calls(compiled, attend, Cache(3), [1] * 5)
    assert len(compiled.signatures) == 2


def test_prefill_and_steps_share_a_program() -> None:
    compiled = stretto.compile(attend)
    check_calls(compiled, attend, Cache(0), [5, 1, 1, 3, 1])
    assert len(compiled.signatures) == 2


def test_each_length_has_a_program_without_dynamic() -> None:
    compiled = stretto.compile(attend, backend="interpreter", dynamic=False)
    check_calls(compiled, attend, Cache(2), [1, 1, 1])
    assert len(compiled.signatures) == 3


def test_other_objects_of_the_class_share_the_programs() -> None:
    compiled = stretto.compile(attend)
    for length in (3, 4, 0, 7, 1, 12):
        check_calls(compiled, attend, Cache(length), [2, 1, 1])
    assert len(compiled.signatures) <= 4


def test_nothing_is_held_at_first() -> None:
    compiled = stretto.compile(attend, backend="interpreter")
    check_calls(compiled, attend, Cache(0), [0, 0, 1, 1, 2, 0, 1])
    assert len(compiled.signatures) <= 4


class Holding(nn.Module):
    """A module that stores what it has seen; at first None."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(4, 4)
        self.seen: Tensor | None = None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.scale(x)
        self.seen = x if self.seen is None else torch.cat([self.seen, x])
        return self.seen.mean(0), self.seen


def test_a_module_that_holds_what_it_has_seen() -> None:
    torch.manual_seed(0)
    module = Holding().eval()
    other = copy.deepcopy(module)
    compiled = stretto.compile(module, backend="interpreter")
    with torch.no_grad():
        for length in (2, 1, 1, 1, 4, 1):
            x = torch.randn(length, 4)
            found = compiled(x)
            torch.testing.assert_close(found, other(x))
            torch.testing.assert_close(module.seen, other.seen)
            assert found[1] is module.seen
    assert len(compiled.signatures) <= 3  # nothing held, the first length, all lengths


def test_one_window_over_what_is_held() -> None:
    class Window:
        def __init__(self) -> None:
            self.rows = torch.zeros(1, 0, 4)

    def last(x: Tensor, window: Window) -> Tensor:
        window.rows = torch.cat([window.rows, x], 1)[:, -4:]
        return window.rows.sum(1)

    compiled = stretto.compile(last, backend="interpreter")
    check_calls(compiled, last, Window(), [1] * 9)
    assert len(compiled.signatures) <= 3
    check_calls(compiled, last, Window(), [2, 0, 7, 1, 1, 3])
    assert len(compiled.signatures) <= 5


def test_tensors_that_grow_apart_get_symbols_of_their_own() -> None:
    class Pair:
        def __init__(self, one: int, other: int) -> None:
            self.one, self.other = torch.randn(1, one, 4), torch.randn(1, other, 4)

    def grow(x: Tensor, pair: Pair) -> Tensor:
        pair.one = torch.cat([pair.one, x], 1)
        pair.other = torch.cat([pair.other, x * 2, x], 1)
        return pair.one.sum(1) - pair.other.sum(1)

    compiled = stretto.compile(grow, backend="interpreter")
    check_calls(compiled, grow, Pair(3, 3), [1, 1, 2, 1])
    check_calls(compiled, grow, Pair(5, 1), [1, 1, 2, 1])
    assert len(compiled.signatures) <= 5


def test_sizes_of_arguments_and_of_what_is_held_are_compared() -> None:
    def masked(x: Tensor, cache: Cache, mask: Tensor) -> Tensor:
        keys, values = cache.update(x, x + 1)
        return torch.softmax(x @ keys.transpose(1, 2) + mask, -1) @ values

    compiled = stretto.compile(masked, backend="interpreter")
    cache = Cache(3)
    other = copy.deepcopy(cache)
    for length in (1, 1, 1, 2, 1):
        x = torch.randn(1, length, 4)
        mask = torch.randn(length, other.keys.shape[1] + length)
        torch.testing.assert_close(compiled(x, cache, mask), masked(x, other, mask))
    assert len(compiled.signatures) <= 3
    with pytest.raises(RuntimeError, match="must match"):
        compiled(x, cache, torch.randn(1, 3))
    torch.testing.assert_close(cache.keys, other.keys)


def test_numbers_and_changes_in_place_beside_what_grows() -> None:
    class Counting(Cache):
        def __init__(self, length: int) -> None:
            super().__init__(length)
            self.length, self.steps = length, 0

    def step(x: Tensor, cache: Counting) -> tuple[Tensor, int]:
        keys, values = cache.update(x, x * 2)
        cache.steps += 1
        cache.length = keys.shape[1]
        values[:, -1] += keys.mean()
        return values.sum(1), cache.length

    compiled = stretto.compile(step, backend="interpreter")
    check_calls(compiled, step, Counting(2), [1, 1, 2, 1, 1])
    assert len(compiled.signatures) <= 3


def test_a_condition_on_a_held_size_is_a_guard() -> None:
    def step(x: Tensor, cache: Cache) -> Tensor:
        keys, _ = cache.update(x, x)
        return keys.sum(1) if keys.shape[1] > 6 else keys.mean(1)

    compiled = stretto.compile(step, backend="interpreter")
    check_calls(compiled, step, Cache(2), [1] * 8)
    assert len(compiled.signatures) <= 3
