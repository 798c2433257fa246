"""Containers and objects with attributes: how their contents are read and set."""

from __future__ import annotations

import argparse
import struct
import sys
import types
from collections import ChainMap, OrderedDict, UserDict, UserList, UserString, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import cache
from operator import is_
from types import FunctionType
from typing import Any

import torch
from torch import nn

from stretto.frontends.python.tracing.frames import UNDEFINED
from stretto.frontends.python.tracing.tensor import Hooks, Storage, TracedTensor
from stretto.frontends.python.tracing.tracer import active
from stretto.frontends.python.values.data import DataUnion
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.stores import (
    Holder,
    read_slot,
    slots_of,
)
from stretto.frontends.python.values.texts import TracedText, is_text


@dataclass(eq=False, slots=True, weakref_slot=True)
class TracedList:
    """A list whose length may depend on the run. `memory` holds a value of ListType.

    `numbers`: its items are Python numbers.
    """

    memory: Storage
    numbers: bool = False
    fake: torch.Tensor | None = None
    """A fake tensor like each item."""

    def __getitem__(self, index: Any) -> Any:
        return Hooks.python.getitem(self, index)

    def __repr__(self) -> str:
        return str(Hooks.call(repr, self))

    def __iter__(self) -> Iterator[Any]:
        return iter(Hooks.list_items(self))

    def __len__(self) -> int:
        return Hooks.list_length(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | TracedList):
            return NotImplemented
        return other is self or Hooks.compared_lists(self, "==", other)

    __hash__ = object.__hash__


TracedList.__name__ = "list"  # the name that Python's error messages show to the user


def is_box(value: Any) -> bool:
    """True for a mutable container, or an object of a user's class, whose contents are part of the
    state."""
    known = _box_class(type(value))
    if known is not None:
        return known
    state = active()  # the heap tracks the user's modules
    return state is not None and not state.heap.knows(value)


@cache
def _box_class(kind: type) -> bool | None:
    """True if all values of a class are boxes, False if none is; None if it depends on the
    value."""
    if issubclass(kind, list | dict | set | deque | Holder):
        return True
    if issubclass(kind, nn.Module):
        return None
    # Members of an enumeration are compared by identity.
    if issubclass(kind, type | Enum | torch.Tensor | TracedList | FunctionType | Either):
        return False
    return _is_record_class(kind)


_RECORDS = (
    types.SimpleNamespace, argparse.Namespace, UserDict, UserList, UserString, ChainMap,
)  # fmt: skip
"""Classes of the standard library whose whole state is in attributes."""
_FOREIGN = frozenset(("torch", "stretto", "numpy", *sys.stdlib_module_names)) - {"__main__"}


def _is_record_class(kind: type) -> bool:
    """True for a class whose whole state is in attributes that Python code can read and set."""
    if issubclass(kind, tuple) or kind.__flags__ & _IS_IMMUTABLE:
        return kind in _RECORDS
    if has_hidden_state(kind):
        return False
    package: Any = getattr(kind, "__module__", "")
    package = package.split(".")[0] if isinstance(package, str) else "builtins"
    if package == "stretto" and (getattr(kind, MODELLED, False) or not kind.__dictoffset__):
        return getattr(kind, MODELLED, False)
    return package not in _FOREIGN or kind in _RECORDS or is_dataclass(kind)


_IS_IMMUTABLE = 1 << 8
"""The type flag of C classes whose attributes cannot be set."""
MODELLED = "__stretto_modelled__"
"""Marks classes of this package whose objects are part of the user's state."""
_POINTER = struct.calcsize("P")


def has_hidden_state(kind: type) -> bool:
    """True for a class whose objects hold more than attributes: the fields of a base
    written in C."""
    slots = sum(1 for _ in slots_of(kind))
    most = object.__basicsize__ + _POINTER * (slots + 2)  # the table of attributes, weak references
    return kind.__basicsize__ > most or kind.__itemsize__ > 0


def bare_object(kind: type) -> Any:
    """Return an object of a class without attributes, as the class in C behind it makes it."""
    entries = (vars(base).get("__new__") for base in kind.__mro__)
    return next(x for x in entries if isinstance(x, types.BuiltinFunctionType))(kind)


def attributes_of(value: Any) -> dict[str, Any]:
    """Return a copy of the attributes of an object, slots included."""
    found = dict(vars(value)) if hasattr(value, "__dict__") else dict[str, Any]()
    for name, slot in _slots(type(value)):
        held = read_slot(slot, value)
        if held is not UNDEFINED:
            found[name] = held
    return found


@cache
def _slots(kind: type) -> tuple[tuple[str, Any], ...]:
    return tuple(slots_of(kind))


def _refill_attributes(value: Any, values: dict[Any, Any]) -> None:
    slots = dict(_slots(type(value)))
    for name, slot in slots.items():
        before, after = read_slot(slot, value), values.get(name, UNDEFINED)
        if after is UNDEFINED and before is not UNDEFINED:
            slot.__delete__(value)
        elif after is not before:
            slot.__set__(value, after)
    if hasattr(value, "__dict__"):
        rest = {name: item for name, item in values.items() if name not in slots}
        _refill_table(vars(value), rest)


CONTAINERS: tuple[type[Any], ...] = (OrderedDict, dict, list, tuple, set, frozenset, deque)


def container_of(value: Any) -> type[Any] | None:
    """Return the built-in container class of an object. Its methods are used to read the object,
    as a user's overrides may do anything, such as import a package or read a file."""
    return _container_class(type(value))


@cache
def _container_class(kind: type) -> type[Any] | None:
    return next((base for base in CONTAINERS if issubclass(kind, base)), None)


def stored_keys(value: dict[Any, Any]) -> list[Any]:
    """Return the keys of a dict, without calling the user's overrides."""
    kind: Any = container_of(value)
    return [*kind.keys(value)]


def stored_items(value: Any) -> list[Any]:
    """Return the items of a container or tuple, or the values of a dict, without calling
    overrides."""
    if isinstance(value, tuple):
        return list(tuple.__iter__(value))
    kind: Any = container_of(value)
    return [*(kind.values(value) if issubclass(kind, dict) else kind.__iter__(value))]


def contents(box: Any) -> dict[Any, Any]:
    """Return a copy of a container's contents by key."""
    match box:
        case dict() if type(box) is dict:  # pyright: ignore[reportUnknownArgumentType]
            return dict(box)  # pyright: ignore[reportUnknownArgumentType]
        case dict():
            return dict(zip(stored_keys(box), stored_items(box), strict=True))  # pyright: ignore[reportUnknownArgumentType]
        case list() | deque():
            return dict(enumerate(stored_items(box)))
        case set():
            return {item: item for item in stored_items(box)}
        case Holder():
            return box.read()
        case _:
            return attributes_of(box)


def refill(box: Any, values: dict[Any, Any]) -> None:
    """Put contents back in place. Methods that a user's class overrides are not called."""
    match box:
        case list():
            list.__setitem__(box, slice(None), values.values())  # pyright: ignore
        case deque():
            deque.clear(box)  # pyright: ignore[reportUnknownArgumentType]
            deque.extend(box, values.values())  # pyright: ignore[reportUnknownArgumentType]
        case set():
            set.clear(box)  # pyright: ignore[reportUnknownArgumentType]
            set.update(box, values.values())  # pyright: ignore[reportUnknownArgumentType]
        case Holder():
            box.write(values)
        case dict():
            _refill_table(box, values)  # pyright: ignore[reportUnknownArgumentType]
        case _:
            _refill_attributes(box, values)


def _refill_table(table: dict[Any, Any], values: dict[Any, Any]) -> None:
    """Change as few entries as possible, so that other threads find the rest at all times."""
    kind = OrderedDict if isinstance(table, OrderedDict) else dict
    for key in [key for key in stored_keys(table) if key not in values]:
        kind.__delitem__(table, key)  # type: ignore[arg-type]
    if not all(
        map(is_, stored_keys(table), values)
    ):  # the remaining keys are not a prefix of the new ones
        kind.clear(table)  # type: ignore[arg-type]
    for key, value in values.items():
        if dict.get(table, key, UNDEFINED) is not value:
            kind.__setitem__(table, key, value)  # type: ignore[arg-type]


def parts_of(value: Any) -> Sequence[Any] | None:
    """Return the parts of an immutable composite (a tuple, a text that shows values, or an
    Either); None for other values."""
    if is_text(value):
        return value.stretto_values
    if isinstance(value, DataUnion):
        return None
    if isinstance(value, Either):
        pairs = zip(value.stretto_flags, value.stretto_options, strict=True)
        return [part for pair in pairs for part in pair]
    return stored_items(value) if isinstance(value, tuple) else None


def rebuild_tuple(old: Any, items: list[Any]) -> Any:
    """Return a composite of the same class with other parts, without calling methods of a user's
    class."""
    if is_text(old):
        return TracedText(old.stretto_pieces, items)
    if isinstance(old, Either):
        return Either(items[::2], items[1::2])
    kind = type(old)
    try:
        made = tuple.__new__(kind, items)
    except TypeError:  # a torch class: an operator's return type, or torch.Size
        is_known = kind is not torch.Size or all(isinstance(n, int | torch.SymInt) for n in items)
        return kind(items) if is_known else tuple(items)
    if hasattr(old, "__dict__"):
        vars(made).update(vars(old))
    return made


def are_of_one_form(first: Any, second: Any) -> bool:
    """True if the parts of two immutable composites correspond to each other."""
    parts, others = parts_of(first), parts_of(second)
    if parts is None or others is None or type(first) is not type(second):
        return False
    if is_text(first):
        return first.stretto_pieces == second.stretto_pieces
    return len(parts) == len(others)


def children(value: Any) -> Iterator[Any]:
    """Yield the direct contents of a composite or container."""
    parts = parts_of(value)
    if parts is not None:
        yield from parts
    elif is_box(value):
        yield from contents(value).values()


_PLAIN = (bool, int, complex, str, bytes, range, slice, frozenset, Enum, torch.dtype, torch.device)


def equal_leaves(first: Any, second: Any) -> bool:
    """True if two leaves are the same Python value (tensors: the same object)."""
    if first is second:
        return True
    if first is UNDEFINED or second is UNDEFINED or type(first) is not type(second):
        return False
    if is_text(first):
        return False
    if isinstance(first, float):
        return repr(first) == repr(second)
    return isinstance(first, _PLAIN) and bool(first == second)


def _shown_dim(dim: Any) -> str:
    """Return a size as error messages show it, without settling it."""
    return str(dim.node) if isinstance(dim, torch.SymInt) else str(dim)


def describe(value: Any) -> str:
    """Return a description of a value for error messages."""
    if value is UNDEFINED:
        return "undefined"
    if isinstance(value, TracedTensor):
        kind = "number" if value.number is not None else "tensor"
        dims = ", ".join(map(_shown_dim, value.shape))
        return f"a {kind} {str(value.dtype).removeprefix('torch.')}[{dims}]"
    if isinstance(value, TracedList):
        return "a list"
    if is_text(value):
        return "a text"
    if isinstance(value, Either):
        return " or ".join(map(describe, value.stretto_options))
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)}"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return f"a {type(value).__name__}"
