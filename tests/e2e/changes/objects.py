"""Changes of objects: attributes, slots, fields, what their methods read."""

from __future__ import annotations

import argparse
import enum
import functools
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from tests.e2e.changes.case import Case, case, restoring
from tests.e2e.changes.containers import TABLE


class Held(nn.Module):
    """Computes with whatever `use` finds in its `box`."""

    def __init__(self, box: Any, use: Callable[[Any], Any]) -> None:
        super().__init__()
        self.box = box
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return x * self.use(self.box)


def held(box: Any, use: Callable[[Any], Any], change: Callable[[Any], object]) -> Case:
    return Case(Held(box, use).eval(), lambda: change(box))


class Plain:
    shared = 2.0

    def __init__(self) -> None:
        self.scale = 2.0
        self._hidden = 2.0
        self.items = [2.0, 3.0]
        self.w0, self.w1 = 2.0, 4.0

    @property
    def doubled(self) -> float:
        return self._hidden * 2

    @property
    def of_global(self) -> float:
        return TABLE["scale"]

    @functools.cached_property
    def cached(self) -> float:
        return self._hidden * 2

    @staticmethod
    def fixed() -> float:
        return TABLE["scale"]

    @classmethod
    def of_class(cls) -> float:
        return cls.shared

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> float:
        return self.items[index]

    def __contains__(self, item: float) -> bool:
        return item in self.items

    def __iter__(self) -> Iterator[float]:
        return iter(self.items)

    def __call__(self) -> float:
        return self._hidden

    def __float__(self) -> float:
        return self._hidden

    def __bool__(self) -> bool:
        return self._hidden > 3


def setting(name: str, value: Any) -> Callable[[Any], None]:
    return lambda box: setattr(box, name, value)


@case
def attribute_of_an_object() -> Case:
    return held(Plain(), lambda box: box.scale, setting("scale", 3.0))


@case
def attribute_behind_a_property() -> Case:
    return held(Plain(), lambda box: box.doubled, setting("_hidden", 3.0))


@case
def global_behind_a_property() -> Case:
    return held(Plain(), lambda box: box.of_global, lambda box: restoring(TABLE, "scale", 3.0))


@case
def cached_property() -> Case:
    def change(box: Any) -> None:
        box._hidden = 3.0
        del box.cached

    return held(Plain(), lambda box: box.cached, change)


@case
def global_behind_a_static_method() -> Case:
    return held(Plain(), lambda box: box.fixed(), lambda box: restoring(TABLE, "scale", 3.0))


@case
def attribute_of_a_class() -> Case:
    class Shared(Plain):
        shared = 2.0

    return held(Shared(), lambda box: box.shared, lambda box: setattr(Shared, "shared", 3.0))


@case
def attribute_of_a_class_by_a_class_method() -> Case:
    class Shared(Plain):
        shared = 2.0

    return held(Shared(), lambda box: box.of_class(), lambda box: setattr(Shared, "shared", 3.0))


@case
def attribute_of_a_class_hidden_by_one_of_the_instance() -> Case:
    return held(Plain(), lambda box: box.shared, setting("shared", 3.0))


@case
def attribute_of_a_base_class_hidden_by_one_of_a_class() -> Case:
    class Shared(Plain):
        pass

    return held(Shared(), lambda box: box.shared, lambda box: setattr(Shared, "shared", 3.0))


@case
def property_replaced() -> Case:
    class Other(Plain):
        @property
        def doubled(self) -> float:
            return 1.0

    return held(
        Other(),
        lambda box: box.doubled,
        lambda box: setattr(Other, "doubled", property(lambda self: 7.0)),
    )


@case
def length_of_an_object() -> Case:
    return held(Plain(), lambda box: len(box), lambda box: box.items.append(1.0))


@case
def item_of_an_object() -> Case:
    return held(Plain(), lambda box: box[1], lambda box: box.items.__setitem__(1, 7.0))


@case
def member_of_an_object() -> Case:
    return held(Plain(), lambda box: 5 if 3.0 in box else 6, lambda box: box.items.pop())


@case
def items_of_an_object() -> Case:
    return held(Plain(), lambda box: sum(list(box)), lambda box: box.items.append(1.0))


@case
def call_of_an_object() -> Case:
    return held(Plain(), lambda box: box(), setting("_hidden", 3.0))


@case
def number_of_an_object() -> Case:
    return held(Plain(), lambda box: float(box), setting("_hidden", 3.0))


@case
def truth_of_an_object() -> Case:
    return held(Plain(), lambda box: 2 if box else 3, setting("_hidden", 4.0))


@case
def attribute_by_a_built_name() -> Case:
    return held(Plain(), lambda box: sum(getattr(box, f"w{i}") for i in range(2)), setting("w1", 9))


@case
def attribute_by_a_built_name_in_a_method() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for i in range(3):
                setattr(self, f"w{i}", float(i))

        def forward(self, x: Tensor) -> Tensor:
            for i in range(3):
                x = x * 0.5 + getattr(self, f"w{i}")
            return x

    model = Model().eval()
    return Case(model, lambda: setattr(model, "w2", 7.0))


@case
def attribute_by_a_built_name_behind_a_property() -> Case:
    class Chosen(Plain):
        which = 1

        @property
        def chosen(self) -> float:
            return getattr(self, f"w{self.which}")

    return held(Chosen(), lambda box: box.chosen, setting("w1", 9.0))


@case
def attribute_by_a_path() -> Case:
    box = types.SimpleNamespace(inner=Plain())
    return held(
        box,
        lambda box: functools.reduce(getattr, ("in" + "ner", "sca" + "le"), box),
        lambda box: setattr(box.inner, "scale", 9.0),
    )


@case
def attribute_in_the_dict() -> Case:
    return held(Plain(), lambda box: box.__dict__["sca" + "le"], setting("scale", 3.0))


@case
def attribute_in_vars() -> Case:
    return held(Plain(), lambda box: vars(box)["sca" + "le"], setting("scale", 3.0))


@case
def attribute_with_a_default() -> Case:
    return held(Plain(), lambda box: getattr(box, "extra", 2.0), setting("extra", 3.0))


@case
def attribute_that_is_asked_for() -> Case:
    return held(Plain(), lambda box: 2 if hasattr(box, "extra") else 3, setting("extra", 3.0))


@case
def attribute_that_is_deleted() -> Case:
    return held(
        Plain(),
        lambda box: box.scale if hasattr(box, "scale") else 9,
        lambda box: delattr(box, "scale"),
    )


class Slotted:
    __slots__ = ("items", "later", "scale")

    def __init__(self) -> None:
        self.scale = 2.0
        self.items = [2.0]


@case
def slot() -> Case:
    return held(Slotted(), lambda box: box.scale, setting("scale", 3.0))


@case
def list_in_a_slot() -> Case:
    return held(Slotted(), lambda box: box.items[0], lambda box: box.items.__setitem__(0, 3.0))


@case
def slot_that_is_set_later() -> Case:
    return held(Slotted(), lambda box: getattr(box, "later", 2.0), setting("later", 3.0))


class SlottedChild(Slotted):
    __slots__ = ("own",)

    def __init__(self) -> None:
        super().__init__()
        self.own = 4.0


@case
def slot_of_a_base_class() -> Case:
    return held(SlottedChild(), lambda box: box.scale * box.own, setting("scale", 3.0))


class Mode(enum.Enum):
    FAST = 2
    SLOW = 3


@dataclass
class Config:
    scale: float = 2.0
    mode: Mode = Mode.FAST
    sizes: list[int] = field(default_factory=lambda: [1, 2])


@dataclass(slots=True)
class SlottedConfig:
    scale: float = 2.0


@dataclass(frozen=True)
class FrozenConfig:
    scale: float = 2.0


@case
def field_of_a_dataclass() -> Case:
    return held(Config(), lambda box: box.scale, setting("scale", 3.0))


@case
def field_of_a_slotted_dataclass() -> Case:
    return held(SlottedConfig(), lambda box: box.scale, setting("scale", 3.0))


@case
def enum_in_a_dataclass() -> Case:
    return held(Config(), lambda box: box.mode.value, setting("mode", Mode.SLOW))


@case
def enum_that_is_compared() -> Case:
    return held(Config(), lambda box: 5 if box.mode is Mode.FAST else 6, setting("mode", Mode.SLOW))


@case
def list_in_a_dataclass() -> Case:
    return held(Config(), lambda box: box.sizes[-1], lambda box: box.sizes.append(5))


@case
def frozen_dataclass_replaced() -> Case:
    model = Held(FrozenConfig(), lambda box: box.scale).eval()
    return Case(model, lambda: setattr(model, "box", FrozenConfig(3.0)))


@case
def simple_namespace() -> Case:
    return held(types.SimpleNamespace(scale=2.0), lambda box: box.scale, setting("scale", 3.0))


@case
def parsed_arguments() -> Case:
    return held(argparse.Namespace(scale=2.0), lambda box: box.scale, setting("scale", 3.0))


class Dynamic:
    def __init__(self) -> None:
        self.table = {"scale": 2.0}

    def __getattr__(self, name: str) -> Any:
        return self.table[name]


@case
def attribute_that_is_computed() -> Case:
    return held(Dynamic(), lambda box: box.scale, lambda box: box.table.update(scale=3.0))


class Descriptor:
    def __init__(self) -> None:
        self.value = 2.0

    def __get__(self, instance: object, owner: type) -> float:
        return self.value


@case
def attribute_behind_a_descriptor() -> Case:
    class Described:
        part = Descriptor()

    return held(
        Described(),
        lambda box: box.part,
        lambda box: setattr(vars(Described)["part"], "value", 3.0),
    )


class DictLike(dict[str, float]):
    pass


@case
def entry_of_a_dict_of_a_class() -> Case:
    return held(DictLike(a=2.0), lambda box: box["a"], lambda box: box.update(a=3.0))
