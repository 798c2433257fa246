"""Attributes that only some runs set, their order, private names, annotations, and the handled
exception."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.frontends.python.interpreter.heap import PythonHeap
from stretto.frontends.python.interpreter.iterators import Iterators
from tests.frontends.python.checks import check

X = torch.ones(3)


class Plain:
    k: float


class WithDefault:
    k = 5.0


class WithHook:
    def __getattr__(self, name: str) -> float:
        return float(len(name))


class WithMethod:
    def k(self) -> float:
        return 2.0


def set_in_one_arm(x: Tensor) -> Tensor:
    held = WithDefault()
    if x.sum() > 0:
        held.k = 1.0
    return x + held.k


def deleted_in_one_arm(x: Tensor) -> Tensor:
    held = WithDefault()
    held.k = 7.0
    if x.sum() > 0:
        del held.k
    return x + held.k


def found_by_a_hook(x: Tensor) -> Tensor:
    held = WithHook()
    if x.sum() > 0:
        held.k = 9.0
    return x + held.k


def asked_for(x: Tensor) -> Any:
    held, other = Plain(), WithDefault()
    if x.sum() > 0:
        held.k = other.k = 3.0
    one = x + getattr(held, "k", 4.0), hasattr(held, "k")
    return *one, x + getattr(other, "k", 4.0), hasattr(other, "k")


@pytest.mark.parametrize(
    "function", [set_in_one_arm, deleted_in_one_arm, found_by_a_hook, asked_for]
)
def test_attributes_that_some_runs_set(function: Callable[[Tensor], Any]) -> None:
    check(function, (X,), (-X,))


def test_an_attribute_that_some_runs_do_not_have() -> None:
    def function(x: Tensor) -> Tensor:
        held = Plain()
        if x.sum() > 0:
            held.k = 1.0
        return x + held.k

    fast = stretto.compile(function, backend="interpreter")
    assert torch.equal(fast(X), function(X))
    with pytest.raises(AttributeError, match="'Plain' object has no attribute 'k'"):
        fast(-X)


def test_private_names_of_a_class_that_the_program_makes() -> None:
    def function(x: Tensor) -> Any:
        class A:
            __v = 2

            def __init__(self) -> None:
                self.__w = 3

            def __m(self, y: Tensor) -> Tensor:
                return y * self.__v + self.__w

            def get(self, y: Tensor) -> Tensor:
                return self.__m(y)

        class _B(A):
            __v = 4

            def own(self, __y: Tensor) -> Tensor:
                return __y * self.__v

        a = _B()
        names = sorted(n for n in [*vars(A), *vars(_B), *vars(a)] if n.startswith(("_A", "_B")))
        return a.get(x), a.own(x), a._A__m(x), names  # type: ignore[attr-defined]

    check(function, (X,))


def test_annotations_of_a_function_that_the_program_makes() -> None:
    def function(x: Tensor) -> Any:
        def g(a: int, /, b: str = "", *c: float, d: Tensor = x, **e: Any) -> Tensor:
            return d

        return list(g.__annotations__.items()), (lambda y: y).__annotations__, x

    check(function, (X,))


def test_the_exception_that_is_handled_in_finally() -> None:
    def function(x: Tensor) -> Any:
        seen: list[Any] = []
        try:
            try:
                raise KeyError
            finally:
                seen.append(sys.exc_info()[0])
                try:
                    raise ValueError
                except ValueError:
                    seen.append(sys.exc_info()[0])
                seen.append(sys.exc_info()[0])
        except KeyError:
            pass
        try:
            seen.append(sys.exc_info()[0])
        finally:
            seen.append(sys.exc_info()[0])
        return x, [None if kind is None else kind.__name__ for kind in seen]

    check(function, (X,))


def test_a_bare_raise_in_finally() -> None:
    def function(x: Tensor) -> Tensor:
        try:
            try:
                return [x][1]
            finally:
                raise
        except IndexError:
            return x * 2

    check(function, (X,))


class Several:
    def __init__(self) -> None:
        self.a: Any = 1
        self.c = torch.ones(2)
        self.b = 2


def deleted_and_set(held: Several, x: Tensor) -> Any:
    del held.a
    held.a = x
    return list(vars(held))


def set_to_what_it_was(held: Several, x: Tensor) -> Any:
    del held.a
    held.a = 1
    return x


def both_in_another_order(held: Several, x: Tensor) -> Any:
    del held.a, held.c
    held.c = held.b * x
    held.a = x
    return list(vars(held)), held.c


@pytest.mark.parametrize("function", [deleted_and_set, set_to_what_it_was, both_in_another_order])
def test_what_is_deleted_and_set_again_comes_last(function: Callable[..., Any]) -> None:
    ours, theirs = Several(), Several()
    fast = stretto.compile(function, backend="interpreter")
    for value in (1.0, -1.0, 2.0):
        x = torch.full((2,), value)
        assert repr(fast(ours, x)) == repr(function(theirs, x))
        assert repr(vars(ours)) == repr(vars(theirs))


def in_an_arm(held: Several, x: Tensor) -> Any:
    if x.sum() > 0:
        del held.c
        held.c = x
    return held.c


def test_an_order_that_depends_on_the_run_is_refused() -> None:
    with pytest.raises(stretto.CaptureError, match="decides the order of the attributes"):
        stretto.compile(in_an_arm, backend="interpreter")(Several(), X)


def asked_again(held: Several, x: Tensor) -> Any:
    seen = [repr(vars(held).get("a"))]
    held.a = 2
    seen.append(repr(vars(held).get("a")))
    del held.b
    seen.append(repr(vars(held).get("b")))
    held.b = 3
    seen += vars(held)
    y = x
    if x.sum() > 0:
        held.a = 4
        y = x + vars(held)["a"]
    return y + vars(held)["a"], seen


def test_all_attributes_are_read_anew_after_a_change() -> None:
    ours, theirs = Several(), Several()
    fast = stretto.compile(asked_again, backend="interpreter")
    for value in (1.0, -1.0):
        x = torch.full((2,), value)
        assert repr(fast(ours, x)) == repr(asked_again(theirs, x))
        assert repr(vars(ours)) == repr(vars(theirs))


class Careful:
    """Looks into all of its attributes when one is read."""

    def __init__(self) -> None:
        self.k = 1.0
        for number in range(100):
            setattr(self, f"other{number}", number)

    def __getattribute__(self, name: str) -> Any:
        assert "closed" not in super().__getattribute__("__dict__")
        return super().__getattribute__(name)


def test_attributes_are_not_all_read_again_for_each_one(monkeypatch: pytest.MonkeyPatch) -> None:
    held, field, read = Careful(), PythonHeap.field, list[Any]()

    def counted(heap: PythonHeap, holder: Any, key: Any) -> Any:
        read.append(key)
        return field(heap, holder, key)

    def function(x: Tensor) -> Tensor:
        for name in [f"other{number}" for number in range(50)]:
            x = x + getattr(held, name)
        return x

    monkeypatch.setattr(PythonHeap, "field", counted)
    check(function, (X,))
    assert read.count("other99") < 5


def test_iterating_over_a_dict_does_not_search_the_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = list[Any]()
    monkeypatch.setattr(Iterators, "_is_in_use", lambda *_: searched.append(1))

    def function(x: Tensor) -> Tensor:
        for name, value in {"a": 1, "b": 2}.items():
            x = x * value + len(name)
        return x

    check(function, (X,))
    assert not searched


class Guarded:
    """Reads each attribute by a method of its own."""

    def __init__(self) -> None:
        self.n = 3

    def __getattribute__(self, name: str) -> Any:
        if super().__getattribute__("__dict__").get("is_locked"):
            raise AttributeError(name)
        return super().__getattribute__(name)

    @property
    def doubled(self) -> int:
        return self.n * 2


def test_objects_with_getattribute_that_the_function_makes() -> None:
    outside = Guarded()

    def function(x: Tensor) -> Tensor:
        made, copied = Guarded(), copy.deepcopy(outside)
        made.n = 5
        are_same = made.__class__ is copied.__class__ is Guarded
        return x * made.doubled + copied.n * len(made.__dict__) + are_same

    check(function, (X,))
