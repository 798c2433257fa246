"""Modules, objects that torch's functions ask, and functions that others call."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from tests.e2e.data_model.uses import Use, signed, use


class Wrapped:
    """An object that torch's functions ask."""

    def __init__(self, data: Tensor) -> None:
        self.data = data

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [item.data if isinstance(item, cls) else item for item in args]
        if plain[0].sum() > 0:
            plain[0] = plain[0] * 2
        return cls(func(*plain, **(kwargs or {})))


@use
def torch_function() -> Use:
    return lambda x: torch.add(Wrapped(x), 1).data + torch.sub(x, Wrapped(x)).data


@use
def torch_function_of_cat() -> Use:
    class Sequence:
        def __init__(self, items: list[Tensor]) -> None:
            self.items = items

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            (one,) = args
            return func(one.items, **(kwargs or {}))

    return lambda x: torch.stack(Sequence([x, x + 1]))


class Twice(nn.Module):
    def __call__(self, x: Tensor, scale: float = 2.0) -> Tensor:
        y = super().__call__(x)
        if y.sum() > 0:
            return y * scale
        return y

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


@use
def module_call() -> Use:
    twice = Twice().eval()
    return lambda x: twice(x) + twice(x, scale=4.0)


@use
def module_itself() -> Use:
    return Twice().eval()


@use
def module_inside() -> Use:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.twice = Twice()
            self.rest = nn.Sequential(Twice(), nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            return self.rest(self.twice(x, 3.0))

    return Outer().eval()


@use
def module_without_forward() -> Use:
    class Other(nn.Module):
        def __call__(self, x: Tensor, *others: Tensor, **named: Tensor) -> Tensor:
            return signed(x) + len(others) + len(named)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.other = Other()

        def forward(self, x: Tensor) -> Tensor:
            return self.other(x, x, a=x)

    return Outer().eval()


@use
def module_with_hooks() -> Use:
    twice = Twice().eval()
    twice.register_forward_hook(lambda module, given, result: signed(result) + 1)
    twice.register_forward_pre_hook(lambda module, given: (given[0] - 1,))
    return lambda x: twice(x)


@use
def module_attributes() -> Use:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.module, name)

        def __len__(self) -> int:
            return 2

        def __getitem__(self, x: Tensor) -> Tensor:
            return signed(self.module(x))

        def forward(self, x: Tensor) -> Tensor:
            return self.module(x) + self.weight.sum() + len(self)

    torch.manual_seed(0)
    linear = nn.Linear(3, 3).eval()
    with torch.no_grad():
        linear.weight.copy_(torch.eye(3))
    wrapper = Wrapper(linear)
    return lambda x: wrapper(x) + wrapper[x] + wrapper.bias


@use
def layer_of_torch_module() -> Use:
    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return signed(x)

    layers = nn.ModuleList([Layer(), Layer()])
    table = nn.ModuleDict({"a": Layer()})

    def fn(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return table["a"](x) + len(layers)

    return fn


@use
def mapped_function() -> Use:
    return lambda x: torch.stack(list(map(signed, [x, -x]))).sum(0)


@use
def sorted_by_key() -> Use:
    class Held:
        def __init__(self, rank: int, x: Tensor) -> None:
            self.rank, self.x = rank, x

        def __lt__(self, other: Any) -> bool:
            return self.rank < other.rank

    def fn(x: Tensor) -> Tensor:
        items = sorted([Held(2, x), Held(1, x * 2)])
        return items[0].x * 2 + min(Held(3, x), Held(0, -x)).x

    return fn


@use
def sorted_by_tensor() -> Use:
    class Held:
        def __init__(self, x: Tensor) -> None:
            self.x = x

        def __lt__(self, other: Any) -> bool:
            return bool(self.x.sum() < other.x.sum())

    return lambda x: sorted([Held(x), Held(-x)])[0].x


@use
def total_order() -> Use:
    @functools.total_ordering
    class Held:
        def __init__(self, x: Tensor) -> None:
            self.x = x

        def __eq__(self, other: object) -> bool:
            return bool((self.x == other.x).all())

        def __lt__(self, other: Any) -> bool:
            return bool(self.x.sum() < other.x.sum())

    def fn(x: Tensor) -> Tensor:
        if Held(x) >= Held(-x):
            return x + 1
        return x - 1

    return fn
