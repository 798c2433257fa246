"""Which arguments share a program: equal values do, and objects that can change do not."""

from __future__ import annotations

import enum
import gc
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import stretto
from stretto.options import Options
from tests.frontends.python.checks import assert_same

A = torch.tensor([1.0, 2.0, 3.0])


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


class Pair(NamedTuple):
    first: float
    second: Any


@dataclass(frozen=True)
class Config:
    scale: float = 2.0
    inner: Any = None


@dataclass(frozen=True, slots=True)
class Slotted:
    scale: float
    sizes: tuple[int, ...] = ()


def used(x: torch.Tensor, value: Any) -> Any:
    return x + len(repr(value)), repr(value)


VALUES: list[tuple[Any, Any]] = [
    (lambda: 3, 4),
    (lambda: 3.0, 3),
    (lambda: 0.0, -0.0),
    (lambda: True, 1),
    (lambda: "ab", "abc"),
    (lambda: b"ab", b"abc"),
    (lambda: 1 + 2j, 1 - 2j),
    (lambda: None, False),
    (lambda: range(0, 9, 2), range(9)),
    (lambda: slice(0, 9, 2), slice(0, 9)),
    (lambda: torch.Size([2, 3]), torch.Size([2, 4])),
    (lambda: torch.float32, torch.float64),
    (lambda: torch.device("cpu"), torch.device("cuda")),
    (lambda: Mode.FAST, Mode.SLOW),
    (lambda: frozenset([1, 2]), frozenset([1, 3])),
    (lambda: np.float32(2.5), np.float32(3.5)),
    (lambda: np.int64(2), np.int32(2)),
    (lambda: Pair(2.0, "a"), Pair(2.0, "b")),
    (lambda: Config(), Config(3.0)),
    (lambda: Config(1.0, (1, Config(2.0, Mode.FAST))), Config(1.0, (1, Config(2.0, Mode.SLOW)))),
    (lambda: Slotted(2.0, (1, 2)), Slotted(2.0, (1, 3))),
    (lambda: {"a": [Config()]}, {"a": [Config(3.0)]}),
]


@pytest.mark.parametrize("make", [make for make, _ in VALUES])
def test_equal_values_share_a_program(make: Any) -> None:
    fast = stretto.compile(used, backend="interpreter", options=Options(threads=1))
    other = next(other for one, other in VALUES if one is make)
    with torch.no_grad():
        for _ in range(3):
            assert_same(fast(A, make()), used(A, make()))
        assert len(fast.signatures) == 1
        assert fast.signatures[0].builds == 1
        assert_same(fast(A, other), used(A, other))
        assert len(fast.signatures) == 2


class Plain:
    def __init__(self, scale: float) -> None:
        self.scale = scale


@pytest.mark.whole
def test_a_new_object_is_never_taken_for_a_dead_one() -> None:
    fast = stretto.compile(lambda x, box: x * box[0].scale, backend="interpreter")
    with torch.no_grad():
        for scale in range(6):
            box = [Plain(float(scale))]
            assert_same(fast(A, box), A * scale)
            box.clear()
            gc.collect()


def test_an_input_that_the_function_also_knows_otherwise() -> None:
    """What was the same tensor at the first call need not be at the next one."""
    known = torch.ones(3)

    @stretto.compile(backend="interpreter")
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + known

    @stretto.compile(backend="interpreter")
    def returned(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return known, x * 2

    for x in (known, torch.zeros(3), known, torch.full((3,), 5.0)):
        torch.testing.assert_close(f(x), x * 2 + 1)
        assert returned(x)[0] is known
    assert len(f.signatures) == 2


def test_a_kept_tensor_that_another_attribute_holds_too() -> None:
    class Kept:
        def __init__(self) -> None:
            self.a = torch.zeros(3)
            self.b = self.a

    kept, x = Kept(), torch.ones(3)

    @stretto.compile(backend="interpreter")
    def step(x: torch.Tensor) -> torch.Tensor:
        result = kept.b + x
        kept.a = kept.a + x
        return result

    for number in range(3):
        torch.testing.assert_close(step(x), x)
        torch.testing.assert_close(kept.a, x * (number + 1))
        assert not kept.b.any()
