"""Collects the guards of a capture: all that `reach` says that traced code may have read."""

# pyright: reportPrivateUsage=false
# a module's tables, the hooks of all modules, and whether autocast is on, are private

from __future__ import annotations

import builtins
import os
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _device  # pyright: ignore[reportAttributeAccessIssue]

from stretto.frontends.python.guards.guards import GuardedEntries, GuardedItems, Guards, content_of
from stretto.frontends.python.guards.reach import (
    HOOKS,
    MODULE_INTERNALS,
    TENSORS,
    Code,
    ReachableObjects,
    is_foreign_module,
    is_of_user,
    original,
    read_attribute,
    user_classes,
)
from stretto.frontends.python.guards.reading import Exempt
from stretto.frontends.python.source.bytecode import names_read
from stretto.frontends.python.tracing.frames import UNDEFINED, read_cell
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.values.state import stored_items, stored_keys


def guards_of(
    roots: Iterable[Any],
    code: Code,
    missing: Iterable[tuple[Any, str]],
    exempt: Exempt,
) -> Guards:
    """Guards of all that code which ran in a capture may have read.

    roots: the captured function and its arguments. missing: attributes that were looked for and not
    there. exempt: what needs no guard.
    """
    reach = ReachableObjects([*roots, *exempt.leaves], code.executed, set(code.names))
    reach.skipped = {id(item) for item in exempt.objects}
    for function in code.traced:
        reach.read(function, traced=True)
    reach.walk()
    layout = _Collector(reach, exempt)
    layout.entries("torch", vars(_device), ("CURRENT_DEVICE",))
    if _ENVIRONMENT & (reach.names | reach.loaded):
        layout.box(os.environ._data)  # type: ignore[attr-defined]
    for value in list(reach.seen.values()):
        layout.visit(value)
    for holder, name in missing:
        table = read_attribute(holder, "__dict__", None)
        if table is not None:
            layout.entries(f"a {type(holder).__name__}", table, (name,))
    return layout.made()


@dataclass(slots=True, eq=False)
class _Collector:
    """Collects what was reached."""

    reach: ReachableObjects
    exempt: Exempt
    places: dict[int, GuardedEntries] = field(default_factory=dict[int, GuardedEntries])
    absent: dict[tuple[int, str], tuple[Any, str, str]] = field(
        default_factory=dict[tuple[int, str], tuple[Any, str, str]]
    )
    known: set[type] = field(default_factory=set[type])
    objects: list[tuple[Any, type]] = field(default_factory=list[tuple[Any, type]])
    sizes: dict[int, tuple[Any, int]] = field(default_factory=dict[int, tuple[Any, int]])
    boxes: dict[int, GuardedItems] = field(default_factory=dict[int, GuardedItems])
    arrays: list[Any] = field(default_factory=list[Any])

    def entries(
        self,
        holder: str,
        table: Mapping[str, Any],
        names: Iterable[str],
        anchor: int | None = None,
    ) -> None:
        """Guards entries of a namespace, whether they exist or not. anchor: the id under which
        exemptions name the namespace."""
        for name in names:
            if self.exempt.has(id(table) if anchor is None else anchor, name):
                continue
            if name in table:
                self._place(holder, table, name, table[name], is_table=True)
            else:
                self.absent[id(table), name] = (table, name, holder)

    def attributes(self, holder: str, subject: Any, names: Iterable[str]) -> None:
        for name in names:
            if not self.exempt.has(id(subject), name):
                self._place(holder, subject, name, getattr(subject, name), is_table=False)

    def _place(self, holder: str, subject: Any, name: str, value: Any, *, is_table: bool) -> None:
        if not isinstance(value, TracedTensor):
            place = self.places.setdefault(
                id(subject), GuardedEntries(holder, subject, is_table, {})
            )
            place.values[name] = value

    def box(self, value: Any) -> None:
        if self.exempt.has(id(value)):
            return
        keys: list[Any] | None = stored_keys(value) if isinstance(value, dict) else None
        items = stored_items(value)
        if not any(isinstance(item, TracedTensor) for item in items):
            self.sizes[id(value)] = (value, len(items))
            if items:
                self.boxes[id(value)] = GuardedItems(value, keys, items)

    def made(self) -> Guards:
        return Guards(
            {read: read() for read in _settings(self.reach.names | self.reach.loaded)},
            tuple(self.places.values()),
            tuple(self.absent.values()),
            tuple(self.objects),
            tuple(self.sizes.values()),
            tuple(self.boxes.values()),
            tuple((item, content_of(item)) for item in self.arrays),
            tuple(item.copy() for item in self.arrays if isinstance(item, np.ndarray)),
        )

    # ---- what there is to an object ------------------------------------------------------------

    def visit(self, value: Any) -> None:
        if original(value) is not value:
            return
        match value:
            case FunctionType():
                self.function(value)
                return
            case ModuleType():
                names, table = self.reach.entries_of_module(value), vars(value)
                own = [name for name in names if not is_foreign_module(table[name])]
                self.entries(f"module {value.__name__}", table, own)
                return
            case type():
                self.classes(value)
                return
            case list() | dict() | set() | deque():
                self.box(value)
            case np.ndarray() | bytearray() | array():
                self.arrays.append(value)
            case nn.Module():
                self.module(value)
            case _:
                pass
        if not isinstance(value, _NO_INSTANCES):
            self.instance(value)

    def function(self, function: FunctionType) -> None:
        if id(function) not in self.reach.functions:
            return
        name = function.__name__
        self.attributes(name, function, ("__code__", "__defaults__", "__kwdefaults__"))
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for free, cell in cells:
            if read_cell(cell) is not UNDEFINED:
                self.attributes(f"the variable '{free}' of {name}", cell, ("cell_contents",))
        table = function.__globals__
        names = names_read(function.__code__)
        read = names.globals | names.stored  # a store of what is there changes nothing
        own = (n for n in read if n in table and not is_foreign_module(table[n]))
        hidden = (n for n in read if n not in table and hasattr(builtins, n))
        self.entries(f"module {function.__module__}", table, (*own, *hidden))

    def classes(self, kind: type) -> None:
        """Guards entries of a class and its bases, also those that a new entry could hide."""
        if kind in self.known:
            return
        self.known.add(kind)
        if issubclass(kind, nn.Module):
            for base in kind.__mro__[: kind.__mro__.index(nn.Module)]:
                self.entries(base.__name__, vars(base), ("forward",))
        classes = user_classes(kind)
        found = [self.reach.class_entries(base) for base in classes]
        for number, base in enumerate(classes):
            later = set[str]().union(*found[number:])
            earlier = set[str]().union(*found[:number])
            names = {*found[number], *(later - earlier)}
            self.entries(base.__name__, vars(base), sorted(names), id(base))

    def module(self, module: nn.Module) -> None:
        table = vars(module)
        self.entries(f"a {type(module).__name__}", table, ("forward", "training"))
        for box in (table["_modules"], *(table[name] for name in HOOKS), *_GLOBAL_HOOKS):
            self.box(box)
        for name in TENSORS:
            if not self.exempt.has(id(table[name])):
                self.sizes[id(table[name])] = (table[name], len(table[name]))
            self.entries(f"the {name[1:]} of a {type(module).__name__}", table[name], table[name])

    def instance(self, value: Any) -> None:
        kind, reach = type(value), self.reach
        self.classes(kind)
        holder = f"a {kind.__name__}"
        table = read_attribute(value, "__dict__", None)
        if table is not None:
            names = {*reach.attributes(value)}
            for base in user_classes(kind):
                names |= {n for n in reach.class_entries(base) if not n.startswith("__")}
            self.entries(holder, table, sorted(names - MODULE_INTERNALS))
        if is_of_user(kind) or isinstance(value, nn.Module):
            self.objects.append((value, kind))
        slots = reach.slots(value)
        self.attributes(holder, value, (n for n, item in slots.items() if item is not UNDEFINED))
        for name in sorted(name for name, item in slots.items() if item is UNDEFINED):
            if not self.exempt.has(id(value), name):
                self.absent[id(value), name] = (_SlotsSet(value), name, holder)


class _SlotsSet:
    """The slots of an object, as a container of the names of those that are set."""

    __slots__ = ("owner",)

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    def __contains__(self, name: str) -> bool:
        return read_attribute(self.owner, name, UNDEFINED) is not UNDEFINED


_NO_INSTANCES = (
    torch.Tensor, partial, property, staticmethod, classmethod, np.generic, TracedTensor
)  # fmt: skip
_GLOBAL_HOOKS = (
    torch.nn.modules.module._global_forward_hooks,
    torch.nn.modules.module._global_forward_pre_hooks,
)


def _settings(names: set[str]) -> tuple[Callable[[], Any], ...]:
    """The settings that operators depend on besides their arguments, and those that code with these
    names asks for."""
    autocast = _autocast if torch._C._is_any_autocast_enabled() else _is_autocast_enabled
    asked = (_SETTINGS[name] for name in sorted(_SETTINGS.keys() & names))
    return (torch.get_default_dtype, autocast, *asked)


def _autocast() -> tuple[Any, ...]:
    enabled = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in enabled)


_is_autocast_enabled = torch._C._is_any_autocast_enabled
_SETTINGS: dict[str, Callable[[], Any]] = {
    "is_grad_enabled": torch.is_grad_enabled,
    "is_inference_mode_enabled": torch.is_inference_mode_enabled,
    "are_deterministic_algorithms_enabled": torch.are_deterministic_algorithms_enabled,
    "get_float32_matmul_precision": torch.get_float32_matmul_precision,
    "get_num_threads": torch.get_num_threads,
}
"""Settings that only code with these names depends on."""
_ENVIRONMENT = frozenset(("environ", "getenv"))
