"""Guards: objects that are the same for all instances, on which a program depends, and which may
change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from stretto.batching.frontend.evaluation import Evaluation, Read
from stretto.batching.host.places import class_version, version_at
from stretto.batching.instances.types import ABSENT, in_class, scalar_type
from stretto.frontends.python.guards.guards import NativeCheck, ProbeKind, Probes

_BY_VALUE = (tuple, torch.Size, torch.dtype, torch.device, complex, bytes, slice, range,
             MethodType)  # fmt: skip


def holds(reads: Iterable[Read]) -> bool:
    """Return True if everything a program was built from is unchanged: attributes, globals, closure
    cells and items by identity, scalars and tuples by value. Fast, since it runs at each call."""
    return all(_holds(read) for read in reads)


def _holds(read: Read) -> bool:
    found = _found(read)
    if found is read.value:
        return True
    if type(found) is not type(read.value):
        return False
    if read.kind == "items":
        return len(found) == len(read.value) and all(map(_is_same, found, read.value))
    return _is_same(found, read.value)


def _is_same(found: Any, value: Any) -> bool:
    if found is value:
        return True
    by_value = scalar_type(value) is not None or isinstance(value, _BY_VALUE)
    return by_value and type(found) is type(value) and bool(found == value)


def _found(read: Read) -> Any:
    try:
        match read.kind:
            case "attribute":
                return getattr(read.owner, read.name)
            case "class":
                return in_class(read.owner, read.name)
            case "cell":
                return read.owner.cell_contents
            case "items":
                return tuple(read.owner)
            case _:
                return read.owner[read.name]
    except (AttributeError, KeyError, IndexError, ValueError, TypeError):
        return ABSENT


def note_attribute(evaluation: Evaluation, owner: Any, name: str, value: Any) -> None:
    """Record a guard for an attribute of a static object, if a later read of it can be compared."""
    if isinstance(owner, torch.Tensor):
        return
    read = Read("attribute", owner, name, value)
    if _holds(read):
        evaluation.read("attribute", owner, name, value)


def note_class(evaluation: Evaluation, python: type, name: str) -> Any:
    """Record a guard for, and return, the class entry of a name that no object of the class
    stores."""
    found = in_class(python, name)
    evaluation.read("class", python, name, found)
    return found


def note_function(evaluation: Evaluation, function: FunctionType) -> None:
    """Record guards for the code and the defaults of a function, which can be replaced."""
    for name in ("__code__", "__defaults__", "__kwdefaults__"):
        evaluation.read("attribute", function, name, getattr(function, name))


def note_cell(evaluation: Evaluation, cell: CellType, value: Any) -> None:
    """Record a guard for the value of a free variable of a function."""
    evaluation.read("cell", cell, None, value)


def note_items(evaluation: Evaluation, value: Any) -> None:
    """Record a guard for the items of a mutable container."""
    if isinstance(value, list | dict | set | torch.nn.ModuleList | torch.nn.ModuleDict):
        evaluation.read("items", value, None, tuple(value))


def note_module(evaluation: Evaluation, module: torch.nn.Module) -> None:
    """Record guards for all that a module called as a whole holds: submodules, parameters and
    settings."""
    for part in module.modules():
        settings = {k: v for k, v in vars(part).items() if not k.startswith("_")}
        note_attribute(evaluation, part, "forward", part.forward)
        for name, value in settings.items():
            note_attribute(evaluation, part, name, value)
            note_items(evaluation, value)
        tables: Any = (part._parameters, part._buffers, part._modules)  # pyright: ignore
        for table in tables:
            note_items(evaluation, table)
            for name, value in table.items():
                evaluation.read("item", table, name, value)


# ---- Guards in native code: they read objects directly where Python stores them.
#
# A call checks some fifty attributes, globals and items, few of which are in the caches: one pass
# over the dicts that hold them takes a tenth of the time of Python's own lookups. Attributes can
# be read from the dict of an object while its class and the bases of that are unchanged, which is
# checked by a version number in the class.


MOST_REMADE = 8
"""Number of times the probes are rebuilt because an object they read was replaced or moved,
although the program still holds."""

_TABLES = ("_parameters", "_buffers", "_modules")
"""Attributes of a module that hold what is not in its dict, in the order of its lookup."""


class ReadGuards:
    """Check that everything a program was built from is unchanged; see `holds`.

    native: makes a check of native probes, which gives the same answer.
    """

    def __init__(self, reads: Sequence[Read], native: NativeCheck | None) -> None:
        self._reads = tuple(reads)
        self._native = native
        self._remade = 0
        self._quick: Callable[[], bool] = _never
        self._make()

    def hold(self) -> bool:
        """Return True if all guards hold. Fast, since it runs at each call."""
        if self._quick():
            return True
        if not holds(self._reads):
            return False
        if self._remade < MOST_REMADE:
            self._remade += 1
            self._make()
        return True

    def _make(self) -> None:
        if self._native is None:
            return
        maker = _Maker()
        rest = tuple(read for read in self._reads if not maker.takes(read))
        direct = tuple(maker.direct)
        probes_hold = self._native(maker.probes) if maker.probes.rows else _always

        def quick() -> bool:
            try:
                is_same = all(getattr(owner, name) is value for owner, name, value in direct)
            except ValueError:  # an empty cell
                return False
            return is_same and probes_hold() and holds(rest)

        # The probes were built from current values: use them only if these are the guarded ones.
        self._quick = quick if holds(self._reads) else _never


def _always() -> bool:
    return True


def _never() -> bool:
    return False


class _Maker:
    """Builder of probes for guards that can be read without running Python code."""

    def __init__(self) -> None:
        self.probes = Probes()
        self.direct: list[tuple[Any, str, Any]] = []
        """Attributes that are not stored in a dict: owner, name, value."""
        self._with_dict = set[int]()
        """Owners whose `__dict__` is in `direct`."""

    def takes(self, read: Read) -> bool:
        """Add probes for a guard; return False if they cannot check it completely."""
        owner, name = read.owner, read.name
        match read.kind:
            case "attribute" if isinstance(owner, FunctionType):
                self.direct.append((owner, name, read.value))
                return name in ("__code__", "__defaults__", "__kwdefaults__")
            case "cell":
                self.direct.append((owner, "cell_contents", read.value))
                return True
            case "attribute":
                return self._attribute(owner, name)
            case "class":
                return self._class(owner)
            case "items":
                return self._items(owner)
            case "global" | "item":
                return self._item(owner, name)
            case _:
                return False

    def _class(self, python: type) -> bool:
        """Add a probe that detects changes of a class; return False if that is not possible."""
        version = class_version(python) if version_at() else 0
        if version:
            self.probes.add_numbers(ProbeKind.VERSION, python, version_at(), version)
        return version != 0

    def _attribute(self, owner: Any, name: str) -> bool:
        python = type(owner)
        table = getattr(owner, "__dict__", None)
        if isinstance(owner, type) or type(table) is not dict:
            return False
        if python.__getattribute__ not in (object.__getattribute__, ModuleType.__getattribute__):
            return False
        stored = in_class(python, name)
        if any(hasattr(type(stored), method) for method in ("__set__", "__delete__")):
            return False  # a property, or another descriptor that takes precedence over the dict
        if not self._class(python):
            return False
        self.probes.add(ProbeKind.TYPE, owner, None, python)
        if not isinstance(owner, ModuleType) and id(owner) not in self._with_dict:
            self._with_dict.add(id(owner))
            self.direct.append((owner, "__dict__", table))
        if name in table:
            self.probes.entry(table, name, table[name])
            return True
        if stored is not ABSENT:
            self.probes.no_entry(table, name)
            return isinstance(stored, FunctionType) or not hasattr(type(stored), "__get__")
        return self._of_module(owner, table, name)

    def _of_module(self, owner: Any, table: dict[str, Any], name: str) -> bool:
        """Add probes for a parameter, a buffer or a submodule of a module; return False if that is
        not possible."""
        is_plain = isinstance(owner, torch.nn.Module)
        if not is_plain or type(owner).__getattr__ is not torch.nn.Module.__getattr__:
            return False
        self.probes.no_entry(table, name)
        for title in _TABLES:
            inner = table.get(title)
            if not isinstance(inner, dict):
                return False
            self.probes.entry(table, title, inner)
            if name in inner:
                self.probes.entry(inner, name, inner[name])
                return True
            self.probes.no_entry(inner, name)
        return False

    def _item(self, owner: Any, name: Any) -> bool:
        if type(owner) is dict and type(name) in (str, int) and name in owner:
            self.probes.entry(owner, name, owner[name])
            return True
        return False

    def _items(self, owner: Any) -> bool:
        if type(owner) is list:
            self.probes.add_numbers(ProbeKind.LIST_SIZE, owner, 0, len(owner))
            for number, item in enumerate(owner):
                self.probes.kept.append(item)
                self.probes.add_numbers(ProbeKind.ITEM, owner, number, id(item))
            return True
        if type(owner) is dict:
            self.probes.add_numbers(ProbeKind.DICT_SIZE, owner, 0, len(owner))
            kind = ProbeKind.FIRST_PAIR
            for key, item in owner.items():
                self.probes.add(kind, owner, key, item)
                kind = ProbeKind.PAIR
            return True
        return False
