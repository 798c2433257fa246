"""Rules for Python's functions and methods that compare items, where a tensor decides the outcome:
`sorted`, `min`, `max`, `index` and `count`."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, ItemsView, KeysView, Sequence, ValuesView
from typing import Any

import torch

from stretto.errors import OnlyInPython
from stretto.frontends.python.lists import methods, operations
from stretto.frontends.python.lists.sources import item_of_sequence
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.values.raises import check
from stretto.frontends.python.values.scalars import number_kind, to_number
from stretto.frontends.python.values.state import TracedList


def in_order(items: Any, *, key: Any = None, reverse: bool = False) -> Any:
    """`sorted` of numbers or tuples of numbers, or of any items by such keys. It is stable."""
    if isinstance(items, TracedList) and items.numbers and key is None:
        return _list_in_order(items, bool(reverse))
    given = items_of(items)
    if given is None:
        return NotImplemented
    return by_keys(given, given if key is None else [Hooks.call(key, x) for x in given], reverse)


def by_keys(given: list[Any], keys: list[Any], reverse: Any) -> Any:
    """Return the items of a list in the order of their keys."""
    columns = _columns(keys)
    if columns is None:
        return NotImplemented
    places = _order(columns, bool(reverse))
    if columns[0] is keys and keys is given and set(map(number_kind, keys)) in ({int}, {float}):
        return [_number(value) for value in _column(keys)[places]]
    return [item_of_sequence(given, _number(place)) for place in places]


_COLLECTIONS = (list, tuple, range, dict, deque, KeysView, ValuesView, ItemsView)


def items_of(items: Any) -> list[Any] | None:
    """Return the items of a collection of known length as a list; None for anything else."""
    return list(items) if isinstance(items, _COLLECTIONS) else None  # pyright: ignore


def _list_in_order(items: TracedList, reverse: bool) -> Any:
    """`sorted` of a list of numbers whose length data decide."""
    stacked = operations.stack(items, least=0)
    _check_numbers(stacked)
    values: Any = torch.sort(stacked, stable=True, descending=reverse)[0]
    return operations.numbers(values)


def extreme(items: tuple[Any, ...], *, reverse: bool) -> Any:
    """`min` (or, with `reverse`, `max`) of tuples of numbers: the first best one."""
    columns = _columns(list(items))
    if columns is None:
        return NotImplemented
    return item_of_sequence(list(items), _number(_order(columns, reverse)[0]))


def check_identity(items: Sequence[Any], value: Any) -> None:
    """Make a run in which a float is NaN fall back to Python, which finds NaN by identity; not if
    the float itself is one of the items."""
    is_float = isinstance(value, TracedTensor) and value.number and value.is_floating_point()
    if is_float and not any(item is value for item in items):
        operations.check_nan(value)


def _columns(keys: list[Any]) -> list[list[Any]] | None:
    """Return what keys are compared by, first column first: numbers, ranks of strings, tuple items.

    None if no column has a tensor, or some items are not comparable as numbers.
    """
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
            break  # no two are equal, so later columns are never compared
    has_tensor = any(isinstance(item, TracedTensor) for column in found for item in column)
    return found if has_tensor else None


def _order(columns: list[list[Any]], reverse: bool) -> Any:
    """Return the positions of the keys in sorted order. Sorts stably by the last column first."""
    places: Any = None
    for column in reversed(columns):
        numbers = _column(column)
        if len(columns) == 1 and numbers.is_floating_point() and 1 < len(column) < _SHORT:
            return _order_of_floats(numbers, reverse)
        _check_numbers(numbers)
        given = numbers if places is None else numbers[places]
        _, order = torch.sort(given, stable=True, descending=reverse)
        places = order if places is None else places[order]
    return places


_SHORT = 64
"""Python sorts lists shorter than this by insertion sort."""


def _order_of_floats(numbers: Any, reverse: bool) -> Any:
    """Return the sorted positions of floats. If NaN is among them, they follow Python's own
    comparisons in its insertion sort."""
    return Hooks.python.branch(
        numbers.isnan().any(),
        lambda: Hooks.own(methods.places_by_insertion)(numbers, len(numbers), reverse),
        lambda: torch.sort(numbers, stable=True, descending=reverse)[1],
    )


def _check_numbers(numbers: Any) -> None:
    """Make a run with NaN fall back to Python, whose order depends on which items it compares."""
    if numbers.is_floating_point():
        is_known = torch.logical_not(numbers.isnan().any())
        check(is_known, OnlyInPython.__name__, "NaN is among numbers that Python sorts")


def _column(numbers: list[Any]) -> Any:
    dtype = torch.float64 if any(map(_is_float, numbers)) else torch.int64
    return torch.stack([_as_tensor(item, dtype) for item in numbers])


def by_key(is_better: Callable[[Any, Any], Any], items: tuple[Any, ...], key: Any) -> Any:
    """`min` or `max` by a key: the first best item."""
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
        best = Hooks.python.branch(chosen, lambda x=item: x, lambda x=best: x)
        best_key = Hooks.python.branch(chosen, lambda x=its_key: x, lambda x=best_key: x)
    return best


def _are_comparable(keys: list[Any]) -> bool:
    """Return True if all keys are numbers or tensors of one element."""
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
