"""What a program has done: what its calls returned or raised, and the state that they left behind.

An observation is plain data that shares no memory with the program: tensors are copies, objects are
`Thing`s. Two runs of one program can then be compared part by part (`compare.py`).
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


@dataclass(frozen=True, slots=True)
class Thing:
    """An object with attributes, or a container other than list and tuple."""

    kind: str
    parts: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One call: what it returned, or the exception, and the arguments and globals afterwards."""

    result: Any
    error: BaseException | None
    state: Any


def observe(value: Any, seen: frozenset[int] = frozenset()) -> Any:
    """A copy of a value as plain data."""
    if isinstance(value, torch.Tensor):
        if type(value) not in PLAIN:
            return Thing(type(value).__name__, ())  # such as one that capture has left behind
        if value.layout is not torch.strided:
            return observe(value.detach().to_dense(), seen)
        return value.detach().clone()
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return value
    if isinstance(value, torch.dtype | torch.device | torch.Size | type | slice):
        return repr(value)
    if isinstance(value, Thing):
        return value
    if id(value) in seen:
        return "..."
    seen = seen | {id(value)}
    if type(value) in (tuple, list):
        return type(value)(observe(item, seen) for item in value)
    if isinstance(value, tuple | list):
        parts = tuple((str(n), observe(item, seen)) for n, item in enumerate(value))
        return Thing(type(value).__name__, parts)
    if isinstance(value, Mapping):
        parts = tuple((repr(key), observe(item, seen)) for key, item in value.items())
        return Thing(type(value).__name__, parts)
    if isinstance(value, set | frozenset):
        return Thing(type(value).__name__, (("items", sorted(map(repr, value))),))
    return Thing(type(value).__name__, _attributes(value, seen))


def _attributes(value: Any, seen: frozenset[int]) -> tuple[tuple[str, Any], ...]:
    if isinstance(value, torch.nn.Module):
        groups = (value._parameters, value._buffers, value._modules)  # pyright: ignore[reportPrivateUsage]
        found = {name: item for group in groups for name, item in group.items()}
        found |= {name: item for name, item in vars(value).items() if not name.startswith("_")}
    else:
        found = dict(getattr(value, "__dict__", {}))
    return tuple((name, observe(item, seen)) for name, item in sorted(found.items()))


SILENT = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)


def observe_globals(namespace: Mapping[str, Any]) -> Any:
    """The values of a module's globals: no functions, classes and modules."""
    found = {
        name: value
        for name, value in sorted(namespace.items())
        if not name.startswith("_") and not isinstance(value, SILENT)
    }
    return observe(found)
