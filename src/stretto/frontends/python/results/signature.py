"""Signatures: the properties of the arguments for which a program is specialised, as a key."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any

import numpy as np
import torch

from stretto.frontends.python.guards.reading import Identity

_HASHED_BY_VALUE = (
    bool,
    int,
    str,
    bytes,
    type(None),
    range,
    torch.Size,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


def key_of(leaf: Any) -> Any:
    """The key of an argument, or of an item of a container among the arguments.

    A tensor is represented by its type. A value whose content cannot change is represented by that
    content, so that an equal one finds the same program. Any other object is represented by itself;
    the key keeps it alive.
    """
    if isinstance(leaf, torch.Tensor):
        return (leaf.shape, leaf.dtype, leaf.device)
    return value_key(leaf)


def value_key(value: Any) -> Any:
    """The key of a value that is no input: here a tensor, too, is represented by itself."""
    kind = type(value)
    if kind in _HASHED_BY_VALUE:
        return (kind, value)
    if kind is float:
        return (float, value.hex())
    if kind is complex:
        return (complex, value.real.hex(), value.imag.hex())
    if kind is slice:
        return (slice, value_key(value.start), value_key(value.stop), value_key(value.step))
    if kind is tuple:
        return (tuple, *map(value_key, value))
    if kind is frozenset:
        return (frozenset, frozenset(map(value_key, value)))
    if isinstance(value, np.generic) and value.dtype != object:
        return (kind, value.dtype.str, value.tobytes())
    if _is_frozen(kind):
        return (kind, *((name, value_key(item)) for name, item in _contents(value)))
    return (kind, Identity(value))


def _is_frozen(kind: type) -> bool:
    """Whether attributes of objects of a class, a dataclass, cannot be set."""
    parameters = getattr(kind, "__dataclass_params__", None)
    return parameters is not None and parameters.frozen and "__dataclass_fields__" in vars(kind)


def _contents(value: Any) -> list[tuple[str, Any]]:
    """Fields of a frozen dataclass, and what else it was given when it was made."""
    found = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    for name, item in getattr(value, "__dict__", {}).items():
        if not isinstance(getattr(type(value), name, None), cached_property):
            found[name] = item
    return sorted(found.items())
