"""Guards in native code notice what those in Python do, and say the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from stretto.batching.frontend.evaluation import Read
from stretto.batching.frontend.guards import ReadGuards
from stretto.batching.instances.types import in_class
from stretto.options import Options
from stretto.runtime.probes import native_check


class Base:
    shared = 1

    def method(self) -> int:
        return 1


class Settings(Base):
    def __init__(self) -> None:
        self.width = 1000
        self.scale = 0.5


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.layers = nn.ModuleList([nn.Linear(2, 2)])
        self.register_buffer("count", torch.zeros(1))
        self.settings = Settings()
        self.sizes = [1, 2]
        self.table = {"a": 1, "b": 2}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x)


def outer() -> tuple[Callable[[], int], Any]:
    number = 3

    def inner(value: int = 1) -> int:
        return number + value

    assert inner.__closure__ is not None
    return inner, inner.__closure__[0]


def without_cells() -> Any:
    def function(value: int = 1) -> int:
        return value

    return function


def reads_of(model: Model, function: Any, cell: Any) -> list[Read]:
    attributes = [
        (model, "first"), (model, "layers"), (model, "count"), (model, "settings"),
        (model, "forward"), (model.first, "weight"), (model.first, "bias"),
        (model.first, "training"), (model.first, "in_features"), (model.settings, "width"),
        (model.settings, "shared"), (model.settings, "method"), (torch, "sigmoid"), (math, "pi"),
        (function, "__code__"), (function, "__defaults__"), (function, "__kwdefaults__"),
    ]  # fmt: skip
    items = [model.sizes, model.table, model._parameters, model.layers]
    return [
        *(Read("attribute", owner, name, getattr(owner, name)) for owner, name in attributes),
        *(Read("items", owner, None, tuple(owner)) for owner in items),
        Read("item", model.table, "a", 1),
        Read("global", globals(), "math", math),
        Read("cell", cell, None, cell.cell_contents),
        Read("class", Settings, "shared", in_class(Settings, "shared")),
    ]


CHANGES: dict[str, Callable[[Model, Any, Any], Any]] = {
    "a parameter": lambda m, f, c: setattr(m.first, "weight", nn.Parameter(torch.ones(2, 2))),
    "a parameter that is none": lambda m, f, c: setattr(m.first, "bias", None),
    "a buffer": lambda m, f, c: setattr(m, "count", torch.ones(1)),
    "a module": lambda m, f, c: setattr(m, "first", nn.Linear(2, 2)),
    "a mode": lambda m, f, c: m.eval(),
    "a setting": lambda m, f, c: setattr(m.settings, "width", 1001),
    "a setting that is gone": lambda m, f, c: delattr(m.settings, "width"),
    "another dict": lambda m, f, c: setattr(m.settings, "__dict__", {"width": 5}),
    "another table": lambda m, f, c: setattr(m.first, "_parameters", {}),
    "before the class": lambda m, f, c: setattr(m.settings, "shared", 2),
    "before a method": lambda m, f, c: setattr(m, "forward", abs),
    "before a parameter": lambda m, f, c: m.first.__dict__.update(weight=1),
    "another class": lambda m, f, c: setattr(m.settings, "__class__", Other),
    "a list": lambda m, f, c: m.sizes.append(3),
    "an item": lambda m, f, c: m.sizes.__setitem__(0, 7),
    "a key": lambda m, f, c: m.table.update(c=1),
    "the order of keys": lambda m, f, c: m.table.update(a=m.table.pop("a")),
    "a value": lambda m, f, c: m.table.update(a=5),
    "a layer": lambda m, f, c: m.layers.append(nn.Linear(2, 2)),
    "code": lambda m, f, c: setattr(f, "__code__", (lambda value=1: 0).__code__),
    "defaults": lambda m, f, c: setattr(f, "__defaults__", (2,)),
    "a cell": lambda m, f, c: setattr(c, "cell_contents", 4),
    "an empty cell": lambda m, f, c: delattr(c, "cell_contents"),
}


class Other(Settings):
    def method(self) -> int:
        return 2


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed(change: str, native: bool) -> None:
    model = Model()
    function, cell = outer()
    if change == "code":  # a function without free variables takes other code
        function = without_cells()
    guards = ReadGuards(
        reads_of(model, function, cell), native_check(Options()) if native else None
    )
    assert guards.hold()
    assert guards.hold()
    CHANGES[change](model, function, cell)
    assert not guards.hold()
    assert not guards.hold()


@pytest.mark.parametrize(
    "change",
    [
        lambda base: setattr(base, "shared", 5),
        lambda base: setattr(base, "width", property(lambda self: 3)),
        lambda base: setattr(base, "method", lambda self: 3),
        lambda base: setattr(base, "__getattribute__", lambda self, name: 3),
    ],
    ids=["value", "property", "method", "all"],
)
def test_a_changed_base_class_is_noticed(change: Callable[[type], None]) -> None:
    class Bottom:
        shared = 1

        def method(self) -> int:
            return 1

    class Top(Bottom):
        def __init__(self) -> None:
            self.width = 1

    item = Top()
    names = ("width", "shared", "method")
    reads = [Read("attribute", item, name, getattr(item, name)) for name in names]
    guards = ReadGuards(reads, native_check(Options()))
    assert guards.hold()
    change(Bottom)
    assert not guards.hold()


def test_equal_values_hold_and_are_probed_again() -> None:
    settings = Settings()
    guards = ReadGuards(
        [Read("attribute", settings, "width", settings.width)], native_check(Options())
    )
    for _ in range(20):
        settings.width = int("1000")  # an object of its own
        assert guards.hold()
    settings.width = int("1001")
    assert not guards.hold()
    settings.width = int("1000")
    assert guards.hold()


def test_what_has_changed_before_the_guards_are_made() -> None:
    settings = Settings()
    read = Read("attribute", settings, "width", 1000)
    settings.width = 3
    assert not ReadGuards([read], native_check(Options())).hold()
