"""Places outside of a program that it has read, as guards of its capture.

Each place that is read is logged with the value that it had: an attribute, an entry of a
namespace or of a class, the content of a container, a cell. A program stays right while all of
them have the same values.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Mapping
from threading import get_ident
from types import CellType, FunctionType
from typing import Any

import numpy as np
import torch
from torch.utils import _device

from stretto.frontends.python.guards.guards import GuardedEntries, GuardedItems, Guards, content_of
from stretto.frontends.python.guards.reading import Exempt
from stretto.frontends.python.guards.user_code import is_of_user
from stretto.frontends.python.values.state import stored_items, stored_keys

# pyright: reportPrivateUsage=false
# whether autocast is on, and the current device, are private

Entry = tuple[str, Any, Any, str, Any]
"""The holder as text, its owner, the namespace or object, a name, and the value."""


class ReadLog:
    """The places that a capture has read, each with its first value."""

    def __init__(self) -> None:
        self.entries: dict[tuple[int, str], Entry] = {}
        self.attributes: dict[tuple[int, str], Entry] = {}
        self.missing: dict[tuple[int, str], tuple[Any, Any, str, str]] = {}
        self.kinds: dict[int, tuple[Any, type]] = {}
        self.boxes: dict[int, Any] = {}
        self.arrays: dict[int, Any] = {}
        self.settings: set[Callable[[], Any]] = set()
        self.looked_up: dict[tuple[type, str], Any] = {}

    # -- what is read ---------------------------------------------------------------------------

    def entry(self, holder: str, owner: Any, table: Mapping[str, Any], name: str) -> None:
        """Log an entry of a namespace: one that is there, or one that is not."""
        key = id(owner) if issubclass(type(owner), type) else id(table), name
        if key in self.entries or key in self.missing:
            return
        if name in table:
            self.entries[key] = holder, owner, table, name, table[name]
        else:
            self.missing[key] = owner, table, name, holder

    def attribute(self, holder: str, subject: Any, name: str, value: Any) -> None:
        """Log an attribute that is not in a namespace, such as a slot or the content of a cell."""
        self.attributes.setdefault((id(subject), name), (holder, subject, subject, name, value))

    def no_attribute(self, holder: str, subject: Any, name: str) -> None:
        """Log a slot that is not set."""
        self.missing.setdefault(
            (id(subject), name), (subject, UnsetAttributes(subject), name, holder)
        )

    def function(self, function: FunctionType) -> None:
        """Log what a function does when it is called."""
        if (id(function), "__code__") not in self.attributes:
            for name in ("__code__", "__defaults__", "__kwdefaults__"):
                self.attribute(function.__name__, function, name, getattr(function, name))

    def cell(self, cell: CellType, name: str, value: Any) -> None:
        self.attribute(
            f"the variable '{name}' of an enclosing function", cell, "cell_contents", value
        )

    def class_entry(self, kind: type, name: str, missing: Any) -> Any:
        """Look a name up in a class and its bases, log it, and return it."""
        key = kind, name
        if key in self.looked_up:
            return self.looked_up[key]
        found = missing
        for base in kind.__mro__:
            table = vars(base)
            if is_of_user(base):
                self.entry(base.__name__, base, table, name)
            if name in table:
                found = table[name]
                break
        self.looked_up[key] = found
        return found

    def kind(self, value: Any) -> None:
        """Log the class of an object."""
        if id(value) not in self.kinds:
            self.kinds[id(value)] = value, type(value)

    def box(self, container: Any) -> None:
        """Log all that a container holds."""
        self.boxes.setdefault(id(container), container)

    def array(self, value: Any) -> None:
        if isinstance(value, np.ndarray | bytearray | array):
            self.arrays.setdefault(id(value), value)

    def environment(self) -> None:
        self.box(os.environ._data)  # type: ignore[attr-defined]

    def native(self, function: Any) -> None:
        """Log the setting that a native function reads."""
        if getattr(function, "__name__", "") in _NAMES_OF_SETTINGS and function in SETTINGS:
            self.settings.add(function)
        if function is os.getenv:
            self.environment()

    # -- guards ---------------------------------------------------------------------------------

    def guards(self, exempt: Exempt) -> Guards:
        """Return the guards. exempt: state that needs none, since each call reads it anew."""
        skipped = {id(item) for item in exempt.objects}
        places: dict[int, GuardedEntries] = {}
        self.entry("torch", _device, vars(_device), "CURRENT_DEVICE")
        for is_table, log in ((True, self.entries), (False, self.attributes)):
            for (anchor, name), (holder, owner, subject, _, value) in log.items():
                if id(owner) in skipped or exempt.has(anchor, name):
                    continue
                place = places.setdefault(anchor, GuardedEntries(holder, subject, is_table, {}))
                place.values[name] = value
        absent = [
            (table, name, holder)
            for (anchor, _), (owner, table, name, holder) in self.missing.items()
            if id(owner) not in skipped and not exempt.has(anchor, name)
        ]
        boxes = [
            box for key, box in self.boxes.items() if key not in skipped and not exempt.has(key)
        ]
        items = [(box, stored_items(box)) for box in boxes]
        return Guards(
            {read: read() for read in (torch.get_default_dtype, autocast(), *self.settings)},
            tuple(places.values()),
            tuple(absent),
            tuple(pair for key, pair in self.kinds.items() if key not in skipped),
            tuple((box, len(held)) for box, held in items),
            tuple(
                GuardedItems(box, stored_keys(box) if isinstance(box, dict) else None, held)
                for box, held in items
                if held
            ),
            tuple((item, content_of(item)) for item in self.arrays.values()),
            tuple(item.copy() for item in self.arrays.values() if isinstance(item, np.ndarray)),
        )


class UnsetAttributes:
    """The attributes of an object as a container of the names of those that are set."""

    __slots__ = ("owner",)

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    def __contains__(self, name: str) -> bool:
        try:
            object.__getattribute__(self.owner, name)
        except AttributeError:
            return False
        return True


def autocast() -> Callable[[], Any]:
    """Return the function that reads whether autocast is on, and how."""
    return _autocast if torch._C._is_any_autocast_enabled() else torch._C._is_any_autocast_enabled


def _autocast() -> tuple[Any, ...]:
    enabled = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in enabled)


SETTINGS: frozenset[Any] = frozenset(
    (
        torch.is_grad_enabled,
        torch.is_inference_mode_enabled,
        torch.are_deterministic_algorithms_enabled,
        torch.get_float32_matmul_precision,
        torch.get_num_threads,
        get_ident,
    )
)
"""Settings that a program depends on if it asks for them."""
_NAMES_OF_SETTINGS = frozenset(function.__name__ for function in SETTINGS)
