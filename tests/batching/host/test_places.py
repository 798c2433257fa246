"""Fields that are read from an object's memory are those that Python gives."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import pytest
import torch

from stretto.batching.host.host_program import HostProgram, OtherInstance
from stretto.batching.host.places import ASK, IN_OBJECT, IN_VALUES, places_of, version_at
from stretto.batching.instance_program import ClassInfo, instance_program
from stretto.ir.core import Block, Variable
from stretto.ir.data import AssignOp, InstanceFunction, RecordOp, ReturnOp
from stretto.ir.types import RecordType, RowsType, Scalar, TupleType
from tests.batching.host.execution import Executor
from tests.batching.programs import block, f32


@dataclass
class Plain:
    a: int
    b: int


@dataclass(slots=True)
class Slots:
    a: int
    b: int


@dataclass(frozen=True)
class Frozen:
    a: int
    b: int


@dataclass(frozen=True, slots=True)
class FrozenSlots:
    a: int
    b: int


@dataclass(slots=True)
class HalfSlots:
    a: int


@dataclass
class Both(HalfSlots):
    b: int


@dataclass
class Defaults:
    a: int = 7
    b: int = field(default=8)


class Ordinary:
    def __init__(self, a: int, b: int) -> None:
        self.other = None
        self.b, self.a = b, a


class Computed:
    def __init__(self, a: int, b: int) -> None:
        self.a = a
        self._b = b

    @property
    def b(self) -> int:
        return self._b


class Cached:
    def __init__(self, a: int, b: int) -> None:
        self.a = a
        self._b = b

    @cached_property
    def b(self) -> int:
        return self._b


class Hidden:
    """What its objects hold is not what they show."""

    def __init__(self, a: int, b: int) -> None:
        self.__dict__.update(a=-1, b=b - 1)

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        return found + 1 if name == "b" else abs(found) + 0 if name == "a" else found


class Missing:
    def __init__(self, a: int, b: int) -> None:
        self.a = a
        self.__dict__["hidden"] = b

    def __getattr__(self, name: str) -> Any:
        if name == "b":
            return self.hidden
        raise AttributeError(name)


class Wide:
    """More attributes than CPython keeps outside of a dict."""

    def __init__(self, a: int, b: int) -> None:
        for n in range(40):
            setattr(self, f"other{n}", n)
        self.a, self.b = a, b


class WithEnd:
    ended = 0

    def __init__(self, a: int, b: int) -> None:
        self.a, self.b = a, b

    def __del__(self) -> None:
        WithEnd.ended += 1


CLASSES = [
    *(Plain, Slots, Frozen, FrozenSlots, Both, Defaults, Ordinary, Computed, Cached, Missing),
    *(Wide, WithEnd),
]


@cache
def reader(python: type) -> Executor:
    """f(x) = (x.a, x.b)"""
    x, pair = Variable("x", RecordType(0)), Variable("pair", TupleType((Scalar.INT,) * 2))
    a, b = Variable("a", Scalar.INT), Variable("b", Scalar.INT)
    body = (
        AssignOp("get", (x,), "a", results=(a,)),
        AssignOp("get", (x,), "b", results=(b,)),
        AssignOp("tuple", (a, b), results=(pair,)),
        ReturnOp(pair),
    )
    info = ClassInfo(python, "object", ("a", "b"), (0, 0))
    return Executor(
        HostProgram(
            instance_program(
                [InstanceFunction("f", Block((x,), list(body)), pair.type)], [info], [Scalar.INT]
            )
        )
    )


def as_it_is(_: Any) -> None: ...


def with_dict(x: Any) -> None:
    getattr(x, "__dict__", None)


def with_other_dict(x: Any) -> None:
    if hasattr(x, "__dict__"):
        object.__setattr__(x, "__dict__", dict(reversed(x.__dict__.items())))


def with_more(x: Any) -> None:
    if hasattr(x, "__dict__"):
        vars(x)["more"] = 1


def with_many_more(x: Any) -> None:
    if hasattr(x, "__dict__"):
        for n in range(40):
            vars(x)[f"more{n}"] = n


def with_numbers_as_keys(x: Any) -> None:
    if hasattr(x, "__dict__"):
        vars(x)[5] = 6  # type: ignore[index]


@pytest.mark.parametrize(
    "change",
    [as_it_is, with_dict, with_other_dict, with_more, with_many_more, with_numbers_as_keys],
)
@pytest.mark.parametrize("python", CLASSES)
def test_fields_are_those_that_python_gives(python: Any, change: Callable[[Any], None]) -> None:
    executor = reader(python)
    objects = [python(n, 1000 + n) for n in range(40)]
    for x in objects[::2]:
        change(x)
    expected = [(x.a, x.b) for x in objects]
    assert executor([objects]) == expected
    assert executor([objects[::-1]]) == expected[::-1]


def test_an_own_way_to_give_attributes() -> None:
    objects = [Hidden(1, n) for n in range(5)]
    assert reader(Hidden)([objects]) == [(1, n) for n in range(5)]
    assert places_of(Hidden, ("a", "b")).version == 0


def test_attributes_that_were_deleted() -> None:
    executor = reader(Defaults)
    one, two = Defaults(1, 2), Defaults(3, 4)
    del one.a
    vars(two)
    del two.b
    assert executor([[one, two, Defaults()]]) == [(7, 2), (3, 8), (7, 8)]
    plain = Plain(1, 2)
    del plain.a
    with pytest.raises(OtherInstance, match="'Plain' object has no attribute 'a'"):
        reader(Plain)([[Plain(0, 0), plain]])


def test_a_class_that_changes_later() -> None:
    python: Any = type("Later", (Plain,), {})
    executor = reader(python)
    objects = [python(1, 2), python(3, 4)]
    assert executor([objects]) == [(1, 2), (3, 4)]
    python.b = property(lambda self: 10 * vars(self)["b"])
    assert executor([objects]) == [(1, 20), (3, 40)]
    del python.b
    assert executor([objects]) == [(1, 2), (3, 4)]
    python.__getattribute__ = lambda self, name: 5
    assert executor([objects]) == [(5, 5), (5, 5)]


def test_a_base_that_changes_later() -> None:
    base: Any = type("Base", (), {})
    python: Any = type("Child", (base,), {"__init__": Ordinary.__init__})
    executor = reader(python)
    assert executor([[python(1, 2)]]) == [(1, 2)]
    base.a = property(lambda self: 9, lambda self, value: None)
    assert executor([[python(1, 2)]]) == [(9, 2)]


@pytest.mark.skipif(not version_at(), reason="objects of this Python are asked for their fields")
def test_places_of_fields() -> None:
    gc.collect()
    names, ended = ("a", "b"), WithEnd.ended
    assert [place for place, _ in places_of(Plain, names).fields] == [IN_VALUES] * 2
    assert [place for place, _ in places_of(Slots, names).fields] == [IN_OBJECT] * 2
    in_dict = IN_VALUES if sys.version_info < (3, 13) else ASK  # values are beside no slots there
    assert [place for place, _ in places_of(Both, names).fields] == [IN_OBJECT, in_dict]
    assert [place for place, _ in places_of(Computed, names).fields] == [IN_VALUES, ASK]
    assert places_of(WithEnd, names).version == 0
    gc.collect()
    assert WithEnd.ended == ended


def test_memory_behind_the_values_is_no_place_of_a_field() -> None:
    """A property stores nothing, so that its mark may be found only where it is by chance."""
    around = list[object]()
    for size in range(2000):
        around = [*around[-50:], [None] * (size % 12)]
        assert places_of(Computed, ("a", "b")).fields[1] == (ASK, 0)


def test_the_first_of_several_other_instances_is_named() -> None:
    executor = reader(Plain)
    good: Any = Plain(1, 2)
    bad: Any = Plain("x", 2)  # type: ignore[arg-type]
    for instances in ([good] * 20 + [bad, None, bad], [good, bad, None, *[good] * 40, bad]):
        with pytest.raises(OtherInstance) as raised:
            executor([instances])
        assert raised.value.instance == next(n for n, x in enumerate(instances) if x is not good)


def doubler() -> Executor:
    """f(t, rows) = (2 * t, the same, 2 * rows, t)"""
    t, rows, result = Variable("t", f32(2)), Variable("rows", RowsType(f32(2))), None
    made, several = Variable("made", f32(2)), Variable("several", RowsType(f32(2)))
    result = Variable("result", TupleType((f32(2), f32(2), RowsType(f32(2)), f32(2))))
    body = (
        RecordOp(0, (t,), results=(made,)),
        RecordOp(1, (rows,), results=(several,)),
        AssignOp("tuple", (made, made, several, t), results=(result,)),
        ReturnOp(result),
    )
    blocks = [
        block(lambda x: 2 * x, (f32(2),), f32(2)),
        block(lambda x: 2 * x, (RowsType(f32(2)),), RowsType(f32(2))),
    ]
    function = InstanceFunction("f", Block((t, rows), list(body)), result.type)
    return Executor(HostProgram(instance_program([function], blocks=blocks)))


@pytest.mark.gradients
def test_tensors_of_results_have_memory_of_their_own() -> None:
    executor = doubler()
    tensors, rows = list(torch.rand(5, 2)), [torch.rand(n, 2) for n in range(5)]
    weight = torch.ones(2, requires_grad=True)
    results = executor([tensors, rows])
    for (made, same, several, given), tensor, row in zip(results, tensors, rows, strict=True):
        assert made is same and given is tensor
        assert made.untyped_storage().nbytes() == 8
        assert several.untyped_storage().nbytes() == 8 * len(row) and several.is_contiguous()
        torch.testing.assert_close(made, 2 * tensor)
        torch.testing.assert_close(several, 2 * row)
    product = (results[1][0] * weight).sum()
    results[0][0].fill_(-1)
    results[0][0].resize_(4).fill_(-2)
    results[2][0].add_(weight)  # a result may become part of a graph
    product.backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, 2 * tensors[1])
    torch.testing.assert_close(results[1][0], 2 * tensors[1])
    torch.testing.assert_close(executor([tensors, rows])[0][0], 2 * tensors[0])


def test_nothing_is_kept_alive() -> None:
    executor = reader(Plain)
    kept = Plain(1, 2)
    executor([[kept]])
    count = sys.getrefcount(kept), sys.getrefcount(Plain), sys.getrefcount(Scalar)
    for n in range(300):
        one = Plain(n, n + 300)
        gone = weakref.ref(one)
        assert executor([[one, kept, kept]]) == [(n, n + 300), (1, 2), (1, 2)]
        del one
        assert gone() is None
        with pytest.raises(OtherInstance):
            executor([[kept, "x"]])
    gc.collect()
    now = sys.getrefcount(kept), sys.getrefcount(Plain), sys.getrefcount(Scalar)
    assert all(abs(a - b) < 10 for a, b in zip(count, now, strict=True))


def test_tensors_are_not_kept_alive() -> None:
    executor = doubler()
    for _ in range(100):
        tensor, rows = torch.rand(2), torch.rand(3, 2)
        [result] = executor([[tensor], [rows]])
        gone = [weakref.ref(x) for x in (tensor, rows, result[0], result[2])]
        counts = sys.getrefcount(tensor), sys.getrefcount(result[2])
        assert counts == (3, 2)  # in the result, and as the argument
        del tensor, rows, result
        assert [x() for x in gone] == [None] * 4
