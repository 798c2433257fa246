"""`sorted`, `min` and `max` where what is compared are numbers of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stretto.frontends.python.control.branches import stage_ifexp
from stretto.frontends.python.lists.choices import item_of_sequence
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.values.scalars import number_kind, to_number


def in_order(items: Any, *, key: Any = None, reverse: bool = False) -> Any:
    """`sorted` of numbers, or of anything by numbers: equal ones keep their order."""
    if not isinstance(items, list | tuple):
        return NotImplemented
    given: list[Any] = list(items)  # pyright: ignore[reportUnknownArgumentType]
    keys = given if key is None else [Hooks.call(key, item) for item in given]
    if not any(isinstance(item, TracedTensor) for item in keys) or not _are_comparable(keys):
        return NotImplemented
    are_floats = any(_is_float(item) for item in keys)
    dtype = torch.float64 if are_floats else torch.int64
    numbers = torch.stack([_as_tensor(item, dtype) for item in keys])
    values, places = torch.sort(numbers, stable=True, descending=bool(reverse))
    if key is None and set(map(number_kind, keys)) in ({int}, {float}):
        return [_number(value) for value in values]
    return [item_of_sequence(given, _number(place)) for place in places]


def by_key(is_better: Callable[[Any, Any], Any], items: tuple[Any, ...], key: Any) -> Any:
    """`min` or `max` by a key: the first one that no other is better than."""
    keys = [Hooks.call(key, item) for item in items]
    if not any(isinstance(item, TracedTensor) for item in keys):
        return NotImplemented
    best, best_key = items[0], keys[0]
    for item, its_key in zip(items[1:], keys[1:], strict=True):
        chosen = is_better(its_key, best_key)
        best = stage_ifexp(chosen, lambda x=item: x, lambda x=best: x)
        best_key = stage_ifexp(chosen, lambda x=its_key: x, lambda x=best_key: x)
    return best


def _are_comparable(keys: list[Any]) -> bool:
    """Whether all are numbers, or tensors without dims."""
    return all(
        isinstance(item, bool | int | float)
        or (isinstance(item, torch.Tensor) and item.numel() == 1)
        for item in keys
    )


def _number(value: Any) -> Any:
    return to_number(value)


def _is_float(item: Any) -> bool:
    return item.dtype.is_floating_point if isinstance(item, torch.Tensor) else type(item) is float


def _as_tensor(item: Any, dtype: torch.dtype) -> Any:
    if not isinstance(item, torch.Tensor):
        return torch.tensor(item, dtype=dtype)
    return item.reshape(()).to(dtype)
