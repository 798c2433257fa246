"""Descriptors, properties, slots, `super`, and methods that look attributes up."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from tests.e2e.data_model.uses import Use, signed, use


class Data:
    """A data descriptor."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = "_" + name

    def __get__(self, holder: Any, owner: Any = None) -> Any:
        if holder is None:
            return self
        value = holder.__dict__[self.name]
        if value.sum() > 0:
            return value * self.scale
        return value

    def __set__(self, holder: Any, value: Tensor) -> None:
        if value.sum() > 0:
            holder.__dict__[self.name] = value + 1
        else:
            holder.__dict__[self.name] = value - 1

    def __delete__(self, holder: Any) -> None:
        holder.__dict__[self.name] = torch.zeros(3)


class NonData:
    def __get__(self, holder: Any, owner: Any = None) -> Any:
        return signed(holder.x)


class Described:
    data = Data(2.0)
    shadowed = NonData()
    computed = NonData()

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.data = x
        self.__dict__["shadowed"] = x * 7
        self.__dict__["data"] = x * 100


@use
def data_descriptor() -> Use:
    return lambda x: Described(x).data


@use
def data_descriptor_set_and_deleted() -> Use:
    def fn(x: Tensor) -> Tensor:
        one, two = Described(x), Described(x)
        one.data = x - 1
        one.data += 1
        del two.data
        return one.data + two.data

    return fn


@use
def other_descriptors() -> Use:
    return lambda x: Described(x).shadowed + Described(x).computed


@use
def descriptor_by_names() -> Use:
    def fn(x: Tensor) -> Tensor:
        held = Described(x)
        setattr(held, "data", x - 2)  # noqa: B010
        return getattr(held, "data") + getattr(held, "nothing", x)  # noqa: B009

    return fn


@use
def descriptor_of_class() -> Use:
    return lambda x: x * Described.data.scale


class Dynamic:
    """Attributes by methods."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __getattr__(self, name: str) -> Any:
        if name.startswith("missing"):
            raise AttributeError(name)
        if self.x.sum() > 0:
            return self.x * len(name)
        return self.x

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "x" and value.sum() > 0:
            value = value * 10
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        super().__setattr__(name, torch.ones(3))


@use
def get_attribute_that_lacks() -> Use:
    return lambda x: Dynamic(x).abc + getattr(Dynamic(x), "ab")  # noqa: B009


@use
def lacks_attribute() -> Use:
    def fn(x: Tensor) -> Tensor:
        held = Dynamic(x)
        return (
            x + hasattr(held, "missing") + 2 * hasattr(held, "other") + getattr(held, "missing", 4)
        )

    return fn


@use
def set_attribute_by_method() -> Use:
    def fn(x: Tensor) -> Tensor:
        held = Dynamic(x)
        held.y = x + 1
        held.y += 1
        del held.x
        return held.y + held.x

    return fn


@use
def get_every_attribute() -> Use:
    class Every:
        def __init__(self, x: Tensor) -> None:
            self.x = x

        def __getattribute__(self, name: str) -> Any:
            if name == "doubled":
                x = self.x
                if x.sum() > 0:
                    return x * 2
                return x
            return super().__getattribute__(name)

    return lambda x: Every(x).doubled + Every(x).x


@use
def properties() -> Use:
    class Held:
        def __init__(self, x: Tensor) -> None:
            self._x = x

        @property
        def x(self) -> Tensor:
            return signed(self._x)

        @x.setter
        def x(self, value: Tensor) -> None:
            if value.sum() > 0:
                self._x = value
            else:
                self._x = value * 4

        @x.deleter
        def x(self) -> None:
            self._x = self._x * 0 if self._x.sum() > 0 else self._x

    def fn(x: Tensor) -> Tensor:
        held, other = Held(x), Held(x)
        held.x = x - 1
        held.x += 2
        del other.x
        return held.x + other.x

    return fn


@use
def cached() -> Use:
    class Held:
        def __init__(self, x: Tensor) -> None:
            self.x = x
            self.count = 0

        @functools.cached_property
        def y(self) -> Tensor:
            self.count += 1
            return signed(self.x)

    def fn(x: Tensor) -> Tensor:
        held = Held(x)
        return held.y + held.y * held.count

    return fn


@use
def slotted() -> Use:
    class Slotted:
        __slots__ = ("x", "y")

        def __init__(self, x: Tensor) -> None:
            self.x = signed(x)
            self.y = x

    def fn(x: Tensor) -> Tensor:
        held = Slotted(x)
        held.y = held.y + 1
        return held.x + held.y

    return fn


@use
def class_and_static_methods() -> Use:
    class Made:
        scale = 3.0

        def __init__(self, x: Tensor) -> None:
            self.x = x

        @classmethod
        def of(cls, x: Tensor) -> Any:
            return cls(signed(x) * cls.scale)

        @staticmethod
        def shifted(x: Tensor) -> Tensor:
            return signed(x - 1)

    return lambda x: Made.of(x).x + Made.shifted(x) + Made.of(x).of(x).x


@use
def super_calls() -> Use:
    class Base:
        def __init__(self, x: Tensor) -> None:
            self.x = x

        def value(self) -> Tensor:
            return signed(self.x)

        @property
        def shown(self) -> Tensor:
            return signed(self.x + 1)

        def __add__(self, other: Any) -> Tensor:
            return signed(self.x + other)

    class Derived(Base):
        def __init__(self, x: Tensor) -> None:
            super().__init__(x * 2)

        def value(self) -> Tensor:
            return super().value() + 1

        @property
        def shown(self) -> Tensor:
            return super().shown * 2

        def __add__(self, other: Any) -> Tensor:
            return super().__add__(other) - 1

    return lambda x: Derived(x).value() + Derived(x).shown + (Derived(x) + 2)
