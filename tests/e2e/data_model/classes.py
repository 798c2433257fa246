"""How objects and classes are made, contexts, dispatch, dataclasses and enumerations."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import functools
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from tests.e2e.data_model.uses import Use, signed, use


@use
def made_by_new() -> Use:
    class Made:
        def __new__(cls, x: Tensor) -> Any:
            made = super().__new__(cls)
            made.first = signed(x)
            return made

        def __init__(self, x: Tensor) -> None:
            self.second = signed(x + 1)

    return lambda x: Made(x).first + Made(x).second


@use
def new_of_another_class() -> Use:
    class Made:
        def __new__(cls, x: Tensor) -> Any:
            return signed(x)

        def __init__(self, x: Tensor) -> None:
            raise AssertionError("not called")

    return lambda x: Made(x)


class Meta(type):
    def __call__(cls, x: Tensor) -> Any:
        if x.sum() > 0:
            x = x * 3
        return super().__call__(x)

    def __getattr__(cls, name: str) -> Any:
        return len(name)

    def __instancecheck__(cls, item: Any) -> bool:
        return isinstance(item, int)

    def __getitem__(cls, item: Tensor) -> Tensor:
        return signed(item)

    def __len__(cls) -> int:
        return 7

    def __iter__(cls) -> Any:
        return iter((1, 2))


class OfMeta(metaclass=Meta):
    def __init__(self, x: Tensor) -> None:
        self.x = x


@use
def call_of_metaclass() -> Use:
    return lambda x: OfMeta(x).x


@use
def attributes_of_metaclass() -> Use:
    return lambda x: x + OfMeta.abc + isinstance(3, OfMeta) + 2 * isinstance("", OfMeta)


@use
def container_of_metaclass() -> Use:
    return lambda x: OfMeta[x] + len(OfMeta) + sum(OfMeta)


@use
def instance_check_of_traced_number() -> Use:
    return lambda x: x + isinstance(int(x[0] > 0), OfMeta)


@use
def class_get_item() -> Use:
    class Made:
        def __class_getitem__(cls, x: Tensor) -> Tensor:
            return signed(x)

    return lambda x: Made[x]


@use
def class_made_inside() -> Use:
    class Base:
        def __init_subclass__(cls, scale: float = 1.0) -> None:
            cls.scale = scale * 2

    def fn(x: Tensor) -> Tensor:
        class Made(Base, scale=3.0):
            def __add__(self, other: Tensor) -> Tensor:
                if other.sum() > 0:
                    return other * self.scale
                return other

        return Made() + x

    return fn


class Scaled:
    """A context."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __enter__(self) -> Any:
        self.x = signed(self.x)
        return self

    def __exit__(self, *error: object) -> bool:
        if self.x.sum() > 0:
            self.x = self.x + 100
        return error[0] is ValueError


@use
def context() -> Use:
    def fn(x: Tensor) -> Tensor:
        held = Scaled(x)
        with held as inner:
            y = inner.x * 2
        return y + held.x

    return fn


@use
def context_that_handles() -> Use:
    def fn(x: Tensor) -> Tensor:
        held = Scaled(x)
        with held:
            raise ValueError("handled")
        return held.x

    return fn


@use
def context_by_generator() -> Use:
    log: list[Tensor] = []

    @contextlib.contextmanager
    def scope(x: Tensor) -> Iterator[Tensor]:
        yield x * 2

    def fn(x: Tensor) -> Tensor:
        with scope(x) as y:
            x = x + y
        return x

    assert not log
    return fn


@use
def single_dispatch() -> Use:
    @functools.singledispatch
    def kind(value: Any, x: Tensor) -> Tensor:
        return x

    @kind.register
    def _(value: int, x: Tensor) -> Tensor:
        return signed(x)

    @kind.register
    def _(value: str, x: Tensor) -> Tensor:
        return signed(x - 1)

    return lambda x: kind(1, x) + kind("a", x) + kind(2.0, x)


@use
def single_dispatch_method() -> Use:
    class Held:
        @functools.singledispatchmethod
        def kind(self, value: Any, x: Tensor) -> Tensor:
            return x

        @kind.register
        def _(self, value: int, x: Tensor) -> Tensor:
            return signed(x)

    held = Held()
    return lambda x: held.kind(1, x) + held.kind("a", x)


@use
def partial_methods() -> Use:
    class Held:
        def scaled(self, factor: float, x: Tensor) -> Tensor:
            return signed(x) * factor

        doubled = functools.partialmethod(scaled, 2.0)

    held = Held()
    return lambda x: held.doubled(x)


@use
def dataclass() -> Use:
    @dataclasses.dataclass
    class Held:
        x: Tensor
        scale: float = 2.0
        items: list[Tensor] = dataclasses.field(default_factory=list)

        def __post_init__(self) -> None:
            if self.x.sum() > 0:
                self.x = self.x * self.scale
            self.items.append(self.x)

    def fn(x: Tensor) -> Tensor:
        one, two = Held(x), Held(x, 3.0)
        other = dataclasses.replace(one, scale=1.0, items=[])
        return one.items[0] + two.x + len(two.items) + other.x + dataclasses.asdict(one)["scale"]

    return fn


@use
def frozen_dataclass() -> Use:
    @dataclasses.dataclass(frozen=True, order=True)
    class Held:
        count: int
        x: Tensor = dataclasses.field(compare=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "x", signed(self.x))

    def fn(x: Tensor) -> Tensor:
        one, two = Held(1, x), Held(2, x)
        try:
            one.count = 4
        except dataclasses.FrozenInstanceError:
            x = x + 1
        return x + max(one, two).x + (one < two) + (one == two) + len({one: 1})

    return fn


@use
def named_tuple() -> Use:
    class Pair(NamedTuple):
        first: Tensor
        second: Tensor

        @property
        def total(self) -> Tensor:
            return signed(self.first + self.second)

        def __add__(self, other: Any) -> Any:
            return Pair(signed(self.first), self.second + other.second)

    def fn(x: Tensor) -> Tensor:
        one = Pair(x, x + 1)
        two = one._replace(second=x * 2) + one
        return one.total + two.second + two[0]

    return fn


class Mode(enum.Enum):
    UP = 1
    DOWN = 2

    def of(self, x: Tensor) -> Tensor:
        return signed(x) if self is Mode.UP else x

    @property
    def sign(self) -> int:
        return 1 if self is Mode.UP else -1


@use
def enumeration() -> Use:
    def fn(x: Tensor) -> Tensor:
        return Mode(1).of(x) * Mode["DOWN"].sign + sum(mode.value for mode in Mode)

    return fn


@use
def enumeration_by_tensor() -> Use:
    return lambda x: Mode(int(x[0] > 0) + 1).of(x)


@use
def changed_by_its_maker() -> Use:
    def fn(x: Tensor) -> Any:
        class Base:
            n = 0

        class Made(Base):
            n = 5

            def step(self) -> Tensor:
                return x

        del Made.n
        for v in x:
            if v > 0:
                Made.n += 1  # in the runs that come here first, this hides the one of the base
            else:
                Base.n += 10
        Made.step = lambda self: signed(x)  # type: ignore[method-assign]
        if x[1] > 0:
            Made.step = lambda self: x * self.n  # type: ignore[method-assign]
        return Made().step() + Made.n + Base.n

    return fn


@use
def namespaces_of_iterations() -> Use:
    def fn(x: Tensor) -> Any:
        made, found = [], types.SimpleNamespace(n=0, h=x)
        for v in x:
            inner = types.SimpleNamespace(n=1)
            if v > 0:
                inner.n += 1
            while found.n < v:
                found = types.SimpleNamespace(n=found.n + inner.n, h=signed(x))
            made.append(copy.copy(inner))
        return found.h * found.n + sum([one.n for one in made])

    return fn
