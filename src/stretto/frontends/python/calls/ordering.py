"""`sorted`, `min` and `max` where what is compared are numbers of tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from stretto.frontends.python.control.branches import stage_ifexp
from stretto.frontends.python.lists.choices import item_of_sequence
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.values.scalars import number_kind, to_number


def in_order(items: Any, *, key: Any = None, reverse: bool = False) -> Any:
    """`sorted` of numbers and of tuples of numbers, or of anything by these: equal ones keep their
    order."""
    if not isinstance(items, list | tuple):
        return NotImplemented
    given: list[Any] = list(items)  # pyright: ignore[reportUnknownArgumentType]
    keys = given if key is None else [Hooks.call(key, item) for item in given]
    columns = _columns(keys)
    if columns is None:
        return NotImplemented
    if columns[0] is keys and key is None and set(map(number_kind, keys)) in ({int}, {float}):
        values, _ = torch.sort(_column(keys), stable=True, descending=bool(reverse))
        return [_number(value) for value in values]
    places = _order(columns, bool(reverse))
    return [item_of_sequence(given, _number(place)) for place in places]


def extreme(items: tuple[Any, ...], *, reverse: bool) -> Any:
    """`min` or, `reverse`, `max` of tuples of numbers: the first one that no other is better
    than."""
    columns = _columns(list(items))
    if columns is None:
        return NotImplemented
    return item_of_sequence(list(items), _number(_order(columns, reverse)[0]))


def _columns(keys: list[Any]) -> list[list[Any]] | None:
    """What keys are compared by, the first first: numbers, or the items of tuples. None where no
    tensor is among these, or what is compared are no numbers."""
    columns = [keys]
    if keys and all(type(item) is tuple for item in keys):
        if len(set(map(len, keys))) != 1:
            return None
        columns = [list(column) for column in zip(*keys, strict=True)]
    found = list[list[Any]]()
    for column in columns:
        if all(type(item) is str for item in column):
            ranks = {text: rank for rank, text in enumerate(sorted(set(column)))}
            column = [ranks[text] for text in column]
        if not _are_comparable(column):
            return None
        found.append(column)
        numbers = [item for item in column if not isinstance(item, torch.Tensor)]
        if len(numbers) == len(column) == len(set(numbers)):
            break  # no two are equal, so what comes behind is not compared
    has_tensor = any(isinstance(item, TracedTensor) for column in found for item in column)
    return found if has_tensor else None


def _order(columns: list[list[Any]], reverse: bool) -> Any:
    """The places of the keys in their order: sorted by the last column first."""
    places: Any = None
    for column in reversed(columns):
        numbers = _column(column)
        given = numbers if places is None else numbers[places]
        _, order = torch.sort(given, stable=True, descending=reverse)
        places = order if places is None else places[order]
    return places


def _column(numbers: list[Any]) -> Any:
    dtype = torch.float64 if any(map(_is_float, numbers)) else torch.int64
    return torch.stack([_as_tensor(item, dtype) for item in numbers])


def by_key(is_better: Callable[[Any, Any], Any], items: tuple[Any, ...], key: Any) -> Any:
    """`min` or `max` by a key: the first one that no other is better than."""
    keys = [Hooks.call(key, item) for item in items]
    if any(type(item) is tuple for item in keys):
        columns = _columns(keys)
        if columns is None:
            return NotImplemented
        places = _order(columns, is_better is operator.gt)
        return item_of_sequence(list(items), _number(places[0]))
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
