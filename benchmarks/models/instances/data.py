"""Walks over Python data: the instances and results of models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Leaf: TypeAlias = Tensor | float | int | bool | str | None


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Leaf]]:
    """Yield each tensor, number, string and None in `value`, in order, with the path to it.

    Paths name the types on the way, so data with equal paths have the same structure. Empty
    containers are leaves, given as None.
    """
    if isinstance(value, (Tensor, float, int, str)) or value is None:
        yield path, value
        return
    items = list(_items(value))
    if not items:
        yield f"{path}{type(value).__name__}()", None
    for key, item in items:
        yield from leaves(item, f"{path}{type(value).__name__}.{key}/")


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if is_dataclass(value):
        return ((field.name, getattr(value, field.name)) for field in fields(value))
    if isinstance(value, dict):
        return iter(value.items())
    if isinstance(value, (list, tuple)):
        return enumerate(value)
    raise TypeError(f"{type(value).__name__} is no data of an instance")


def with_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Copy `value` with each tensor replaced. Objects that were shared are shared in the copy."""
    return _copied(value, function, {})


def _copied(value: Any, function: Callable[[Tensor], Tensor], memo: dict[int, Any]) -> Any:
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, Tensor):
        copy: Any = function(value)
    elif is_dataclass(value):
        changed = {
            field.name: _copied(getattr(value, field.name), function, memo)
            for field in fields(value)
        }
        copy = replace(value, **changed)  # pyright: ignore[reportArgumentType]
    elif isinstance(value, dict):
        copy = {key: _copied(item, function, memo) for key, item in value.items()}
    elif isinstance(value, (list, tuple)):
        items = [_copied(item, function, memo) for item in value]
        named = hasattr(value, "_fields")
        copy = type(value)(*items) if named else type(value)(items)
    else:
        return value
    memo[id(value)] = copy
    return copy


def in_float64(value: Any) -> Any:
    """Copy instances with their floating-point tensors converted to float64."""
    return with_tensors(value, lambda x: x.double() if x.is_floating_point() else x)


def as_arrays(value: Any) -> list[np.ndarray]:
    """Return the leaves of a result as arrays, to compare results.

    The first array holds a hash of the structure with its strings; integers and booleans
    are not converted, so they have to be equal.
    """
    found = list(leaves(value))
    words = [
        f"{path}={leaf}" if isinstance(leaf, (str, type(None))) else path for path, leaf in found
    ]
    arrays = [np.frombuffer("\n".join(words).encode(), dtype=np.uint8)]
    for _, leaf in found:
        if isinstance(leaf, Tensor):
            arrays.append(leaf.detach().to(torch.device("cpu")).numpy())
        elif isinstance(leaf, (bool, int, float)):
            arrays.append(np.asarray(leaf))
    return arrays
