"""What is guarded: what the code that ran may have read, and no more; and what a check costs."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.frontends.python.guards.guards import (
    GuardedEntries,
    GuardedItems,
    Guards,
    check_of,
)
from stretto.options import Options

X = torch.ones(3)
_factor = 2.0
_unused = 3.0
_getter = 5.0


def _scaled(x: Tensor) -> Tensor:
    return x * _factor


def _never_called(x: Tensor) -> Tensor:
    return x * _unused


class _Holder:
    kind = "scaled"

    @property
    def offset(self) -> float:
        return _getter

    def __len__(self) -> int:
        return int(_unused)


def chosen(x: Tensor, holder: _Holder) -> Tensor:
    if holder.kind == "scaled":
        return _scaled(x) + holder.offset
    return _never_called(x) + len(holder)


def _compiled() -> Any:
    return stretto.compile(chosen, backend="interpreter", options=Options(threads=1))


def _builds(fast: Any) -> int:
    return sum(entry.builds for entry in fast.signatures)


@pytest.mark.parametrize(("name", "rebuilds"), [("_factor", 1), ("_getter", 1), ("_unused", 0)])
def test_only_code_that_ran_is_guarded(
    name: str, rebuilds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, holder = _compiled(), _Holder()
    fast(X, holder)
    before = _builds(fast)
    monkeypatch.setitem(globals(), name, 7.0)
    assert torch.equal(fast(X, holder), chosen(X, holder))
    assert _builds(fast) == before + rebuilds


def test_under_a_profiler_as_much_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, holder = _compiled(), _Holder()
    cProfile.Profile().runcall(fast, X, holder)
    for name in ("_factor", "_getter"):
        monkeypatch.setitem(globals(), name, 7.0)
        assert torch.equal(fast(X, holder), chosen(X, holder))


class _Fresh:
    """A descriptor whose value is another object at each reading."""

    value = 1000.0

    def __get__(self, instance: object, owner: type) -> float:
        return self.value + 0.5


class _WithFresh:
    number = _Fresh()


def _guards_of(values: Any) -> Guards:
    subject = _WithFresh()
    place = GuardedEntries("a _WithFresh", subject, False, {"number": subject.number})
    box = GuardedItems(values, None, list(values))
    return Guards({}, (place,), (), (), ((values, len(values)),), (box,), (), ())


@pytest.mark.parametrize("change", ["descriptor", "list"])
def test_a_value_that_is_a_new_object_each_time_is_compared_by_value(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [float("2.5")]
    guards = _guards_of(values)
    assert guards.hold()
    values[0] = float("2.5")
    assert guards.hold()
    assert guards.hold()
    if change == "descriptor":
        monkeypatch.setattr(_Fresh, "value", 1001.0)
    else:
        values[0] = 3.0
    assert not guards.hold()


def test_the_check_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Guards]()
    original: Callable[[Guards], Callable[[], bool]] = check_of

    def counted(guards: Guards) -> Callable[[], bool]:
        made.append(guards)
        return original(guards)

    monkeypatch.setattr("stretto.frontends.python.guards.guards.check_of", counted)
    guards = _guards_of([1.0])
    for _ in range(5):
        assert guards.hold()
    assert len(made) == 2, "the descriptor's value is known to be another object from then on"
