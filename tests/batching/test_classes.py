"""What objects get from their classes: slots of bases, class attributes, methods, descriptors."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from stretto.errors import CaptureError
from tests.batching.test_frontend import same


def assert_same(many: Callable[..., Any], function: Callable[..., Any], items: list[Any]) -> None:
    with torch.no_grad():
        assert same([function(item) for item in items], many(items))


class Slots:
    __slots__ = ("__mine", "x")

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.__mine = 3

    def own(self) -> Tensor:
        return self.x * self.__mine


class MoreSlots(Slots):
    __slots__ = ("y",)

    def __init__(self, x: Tensor) -> None:
        super().__init__(x)
        self.y = x + 1


class SlotsAndDict(Slots):
    def __init__(self, x: Tensor) -> None:
        super().__init__(x)
        self.z = x - 1


def of_slots(item: Slots) -> Tensor:
    if isinstance(item, MoreSlots):
        return item.own() + item.y
    return item.own() * item.z if isinstance(item, SlotsAndDict) else item.own()


def test_slots_of_bases() -> None:
    x = torch.ones(2)
    assert_same(
        stretto.batch(of_slots), of_slots, [Slots(x), MoreSlots(x * 2), SlotsAndDict(x * 3)]
    )


class Item:
    scale = 2

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def value(self) -> Tensor:
        return self.x * self.scale

    @staticmethod
    def more(x: Tensor) -> Tensor:
        return x + 1


class Part(Item): ...


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.before(x))

    def before(self, x: Tensor) -> Tensor:
        return x * 2


@pytest.mark.whole
def test_what_changes_in_a_class_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(item: Item) -> Any:
        return item.more(item.value()), hasattr(item, "later")

    many, items = stretto.batch(function), [Part(torch.ones(2)), Part(torch.ones(2) * 2)]
    assert_same(many, function, items)
    changes: list[tuple[type, str, Any]] = [
        (Item, "scale", 5),
        (Part, "scale", 7),
        (Part, "value", lambda self: self.x - self.scale),
        (Item, "more", staticmethod(lambda x: x - 3)),
        (Item, "later", 1),
    ]
    for owner, name, value in changes:
        monkeypatch.setattr(owner, name, value, raising=False)
        assert_same(many, function, items)


class OwnDict(Item):
    """Its objects have been asked for their dicts, and have names that are not shared."""

    def __init__(self, x: Tensor) -> None:
        super().__init__(x)
        vars(self)["a name, no identifier"] = 1


class OwnWay(Item):
    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


@pytest.mark.parametrize("python", [Part, OwnDict, OwnWay, Slots])
def test_an_object_may_hide_what_its_class_has(python: Any) -> None:
    def scaled(item: Any) -> Any:
        return item.x * item.scale if hasattr(item, "scale") else item.own()

    def made(count: int = 3) -> list[Any]:
        return [python(torch.full((2,), n + 1.0)) for n in range(count)]

    many = stretto.batch(scaled)
    assert_same(many, scaled, made())
    if python is Slots:  # whose objects can hide nothing
        return
    items = made()
    items[1].other = 1
    vars(items[2])
    assert_same(many, scaled, items)
    items[1].scale = 9
    vars(items[2])["scale"] = 11
    assert_same(many, scaled, items)
    items[0].scale = 0.5
    assert_same(many, scaled, items)
    del items[1].scale, items[0].scale
    assert_same(many, scaled, [*items, *made()])


def test_a_method_of_one_object_is_refused() -> None:
    def function(item: Item) -> Any:
        return item.value()

    many, items = stretto.batch(function), [Part(torch.ones(2)), Part(torch.ones(2) * 2)]
    assert_same(many, function, items)
    items[1].value = lambda: items[1].x * 100  # type: ignore[method-assign]
    with pytest.raises(CaptureError, match=r"item\[1\]\.value is an object of class function"):
        many(items)
    del items[1].value
    assert_same(many, function, items)


def test_what_could_not_be_compiled_does_not_count_later() -> None:
    def function(item: Any) -> Any:
        return item.x * item.scale

    many, items = stretto.batch(function), [Part(torch.ones(2)), Part(torch.ones(2) * 2)]
    for bad in ("text", object()):
        items[0].scale = bad  # type: ignore[assignment]
        with pytest.raises(CaptureError):
            many(items)
        items[0].scale = 3
        assert_same(many, function, items)
        assert_same(many, function, [Part(torch.ones(2))])


@pytest.mark.whole
def test_methods_of_modules_that_change_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer().eval()
    many, items = stretto.batch(layer), [torch.ones(2), torch.ones(2) * 2]
    assert_same(many, layer, items)
    monkeypatch.setattr(Layer, "before", lambda self, x: x - 1)
    assert_same(many, layer, items)
    monkeypatch.setattr(layer.linear, "forward", lambda x: x * 3)
    assert_same(many, layer, items)
    monkeypatch.setattr(Layer, "forward", lambda self, x: self.linear(x) + 1)
    assert_same(many, layer, items)
    monkeypatch.setattr(layer, "forward", lambda x: x + 4)
    assert_same(many, layer, items)


@pytest.mark.whole
def test_code_and_defaults_that_change_are_noticed() -> None:
    def helper(x: Tensor, scale: int = 2, *, more: int = 1) -> Tensor:
        return x * scale + more

    def function(x: Tensor) -> Tensor:
        return helper(x)

    def other(x: Tensor, scale: int = 2, *, more: int = 1) -> Tensor:
        return x - scale - more

    assert isinstance(helper, FunctionType)
    many, items = stretto.batch(function), [torch.ones(2), torch.ones(2) * 2]
    assert_same(many, function, items)
    helper.__defaults__ = (5,)
    assert_same(many, function, items)
    helper.__kwdefaults__ = {"more": 9}
    assert_same(many, function, items)
    helper.__code__ = other.__code__
    assert_same(many, function, items)


class Asked:
    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __getattr__(self, name: str) -> int:
        if name == "y":
            return 7
        raise AttributeError(name)


def test_attributes_that_a_class_makes() -> None:
    def read(item: Asked) -> Tensor:
        return item.x * item.y

    assert_same(stretto.batch(read), read, [Asked(torch.ones(2)), Asked(torch.ones(2) * 2)])
    for function in (lambda a: hasattr(a, "y"), lambda a: a.x * getattr(a, "y", 1)):
        with pytest.raises(CaptureError, match="__getattr__"):
            stretto.batch(function)([Asked(torch.ones(2))])


class Doubled:
    def __get__(self, item: Any, owner: type | None = None) -> Any:
        return item.x * 2


class Described(Item):
    twice = Doubled()


def test_descriptors_are_refused() -> None:
    def function(item: Described) -> Any:
        return item.twice

    with pytest.raises(CaptureError, match="Described.twice is a Doubled"):
        stretto.batch(function)([Described(torch.ones(2))])


@dataclass
class Leafy:
    x: Tensor
    left: Leafy | None = None
    right: Leafy | None = None


class Lean:
    bias: Any = None

    def __init__(self, x: Tensor, left: Lean | None = None) -> None:
        self.x = x
        self.left = left


def depth_of(item: Any) -> Any:
    return item.x if item.left is None else depth_of(item.left) + 1


@pytest.mark.parametrize("python", [Leafy, Lean])
def test_instances_are_left_as_they_are(python: Any) -> None:
    """CPython gives an object a dict when it is asked for it, and reads it more slowly then."""
    leaf = python(torch.ones(2))
    items = [python(torch.ones(2), python(torch.ones(2) * 2, leaf)), leaf]
    nodes = [items[0], items[0].left]
    assert_same(stretto.batch(depth_of), depth_of, items)
    assert not any(isinstance(held, dict) for node in nodes for held in gc.get_referents(node))


def test_all_that_an_object_stores_is_found() -> None:
    """Whatever its class has, others store, or is the same object under another name."""

    def function(item: Any) -> Any:
        return item.x, item.left, item.bias, getattr(item, "other", 5)

    first, other, third, fourth = (Lean(torch.ones(2) * n) for n in range(4))
    other.bias = 3
    del third.left
    third.bias = third.left = None
    fourth.other = fourth.bias = None  # pyright: ignore[reportAttributeAccessIssue]
    assert_same(stretto.batch(function), function, [first, other, third, fourth])
