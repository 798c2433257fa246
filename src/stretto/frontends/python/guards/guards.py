"""Guards: state that a Program was captured with, besides its arguments and constants.

Traced code reads globals, closure variables, attributes, items and settings of torch. The
values become part of the Program, which is stale once any of them changes. The interpreter logs
what it reads. Here that is checked by identity: in few Python steps, or by native code if there is
much to check. Values are compared only where identity fails.
"""

from __future__ import annotations

import gc
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from operator import is_
from types import MappingProxyType
from typing import Any

import numpy as np

from stretto.frontends.python.tracing.frames import UNDEFINED
from stretto.frontends.python.values.state import (
    container_of,
    equal_leaves,
    stored_items,
    stored_keys,
)

_PLAIN_BOXES: frozenset[type] = frozenset((dict, list, set, deque, OrderedDict))
"""Containers that are true if they hold something."""
_GONE = (KeyError, AttributeError, ValueError, RuntimeError)
"""Exceptions raised by reading a deleted entry, a variable without a value, or a container that
another thread changes."""


@dataclass(frozen=True, slots=True, eq=False)
class GuardedEntries:
    """Entries of a namespace, or attributes of an object, by name, with the values they had."""

    holder: str
    subject: Any
    is_table: bool
    values: dict[str, Any]
    by_value: set[str] = field(default_factory=set[str])
    """Entries that once returned an equal but different object, as some descriptors always do."""

    def read(self, name: str) -> Any:
        """Return the current value, or UNDEFINED."""
        try:
            return self.subject[name] if self.is_table else getattr(self.subject, name)
        except _GONE:
            return UNDEFINED


@dataclass(slots=True, eq=False)
class GuardedItems:
    """A container with the items it had, and the keys of a dict. by_value: some once were equal
    but different objects."""

    subject: Any
    keys: list[Any] | None
    items: list[Any]
    by_value: bool = False

    def has_changed(self) -> bool:
        return self.changed() is not None

    def changed(self) -> str | None:
        """Return what has another value now, or None."""
        keys = self.keys
        if keys is not None and not all(map(equal_values, stored_keys(self.subject), keys)):
            return "the keys"
        for number, (item, was) in enumerate(self._pairs()):
            if not equal_values(item, was):
                return f"item {keys[number] if keys is not None else number!r}"
        return None

    def is_same(self) -> bool:
        """Return True if all keys and items are the same objects."""
        if self.keys is not None and not all(map(is_, stored_keys(self.subject), self.keys)):
            return False
        return all(item is was for item, was in self._pairs())

    def _pairs(self) -> Iterator[tuple[Any, Any]]:
        return zip(stored_items(self.subject), self.items, strict=True)


@dataclass(slots=True, eq=False)
class Guards:
    """Values on which the Program depends: it is right as long as none of them changes.

    Settings are functions whose results are compared. `absent` lists entries that did not
    exist: namespace, name, and its holder. Objects are compared by class, containers by size,
    boxes also by their items, arrays by their whole content.
    """

    settings: dict[Callable[[], Any], Any]
    places: tuple[GuardedEntries, ...]
    absent: tuple[tuple[Any, str, str], ...]
    objects: tuple[tuple[Any, type], ...]
    sizes: tuple[tuple[Any, int], ...]
    boxes: tuple[GuardedItems, ...]
    arrays: tuple[tuple[Any, Any], ...]
    kept: tuple[Any, ...]
    """Copies of arrays, which keep alive the objects that `arrays` identifies by id."""
    native: NativeCheck | None = None
    """Makes a quick native check of probes, for programs whose calls are quick."""
    check: Callable[[], bool] | None = None

    def hold(self) -> bool:
        """Return True if nothing has changed. Checked on each call, so it must be quick."""
        check = self.check
        if check is None:
            check = self.check = self._made_check()
        try:
            return check() or self._are_equal()
        except _GONE:
            return self._are_equal()

    def _made_check(self) -> Callable[[], bool]:
        if self.native is None:
            return check_of(self)
        probes, rest = probes_of(self)
        if len(probes.rows) < _MANY:
            self.native = None
            return check_of(self)
        probes_hold, rest_holds = self.native(probes), check_of(rest)
        return lambda: probes_hold() and rest_holds()

    def _are_equal(self) -> bool:
        """Return True if everything has the same value, even as another object. Those objects are
        compared by value from then on."""
        if self.changed() is not None:
            return False
        for place in self.places:
            place.by_value.update(
                n for n, value in place.values.items() if place.read(n) is not value
            )
        for box in self.boxes:
            box.by_value = box.by_value or not box.is_same()
        self.check = None
        return True

    def changed(self) -> str | None:
        """Return a description of the first value that has changed, or None."""
        for read, value in self.settings.items():
            if not equal_values(read(), value):
                return f"{read.__name__.strip('_')} of torch"
        for place in self.places:
            for name, value in place.values.items():
                if not equal_values(place.read(name), value):
                    return f"{name} of {place.holder}"
        for table, name, holder in self.absent:
            if name in table:
                return f"{name} of {holder}"
        for value, kind in self.objects:
            if type(value) is not kind:
                return f"the class of a {kind.__name__}"
        for container, size in self.sizes:
            if len(stored_items(container)) != size:
                return f"the length of a {type(container).__name__}"
        for box in self.boxes:
            change = box.changed()
            if change is not None:
                return f"{change} of a {type(box.subject).__name__}"
        for item, content in self.arrays:
            if content_of(item) != content:
                return f"the content of a {type(item).__name__}"
        return None


# ---- probes --------------------------------------------------------------------------------------


class ProbeKind(IntEnum):
    """Kinds of comparison that a probe makes, in the order of `runtime/probes.cpp`."""

    ENTRY = 0
    DICT_SIZE = 1
    LIST_SIZE = 2
    SET_SIZE = 3
    ITEM = 4
    FIRST_PAIR = 5
    PAIR = 6
    TYPE = 7
    VERSION = 8
    WORD = 9


@dataclass(slots=True, eq=False)
class Probes:
    """Comparisons that need no Python.

    They compare an entry of a dict (0: there is none), a length, an item of a list, the next
    key and value of a dict, a class, the version of a class (it changes with the class), or a
    word of memory (key: its offset from the subject, in bytes).

    rows: kind, subject, key, expected. Each is a number: the address of an object, a length, or
    the position of an item. kept: the objects at these addresses. Equal rows are stored once,
    except pairs, which are compared in their order.
    """

    rows: list[tuple[int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int]])
    kept: list[Any] = field(default_factory=list[Any])
    _known: set[tuple[int, int, int, int]] = field(
        default_factory=set[tuple[int, int, int, int]], init=False
    )

    def add(self, kind: ProbeKind, subject: Any, key: Any, expected: Any) -> None:
        """Add a comparison whose key and expected value are objects."""
        self.kept += (subject, key, expected)
        self._append((kind, id(subject), id(key), id(expected)))

    def _append(self, row: tuple[int, int, int, int]) -> None:
        if row not in self._known or row[0] in (ProbeKind.FIRST_PAIR, ProbeKind.PAIR):
            self._known.add(row)
            self.rows.append(row)

    def add_numbers(self, kind: ProbeKind, subject: Any, key: int, expected: int) -> None:
        self.kept.append(subject)
        self._append((kind, id(subject), key, expected))

    def add_word(self, address: int, place: int, expected: int) -> None:
        """Add a comparison of 64 bits of memory that earlier rows prove to be allocated."""
        self._append((ProbeKind.WORD, address, place, expected))

    def entry(self, table: dict[str, Any], name: str, value: Any) -> None:
        self.add(ProbeKind.ENTRY, table, name, value)

    def no_entry(self, table: dict[str, Any], name: str) -> None:
        self.kept.append(name)
        self.add_numbers(ProbeKind.ENTRY, table, id(name), 0)

    def box(self, box: GuardedItems) -> None:
        if box.keys is None:
            for number, item in enumerate(box.items):
                self.kept.append(item)
                self.add_numbers(ProbeKind.ITEM, box.subject, number, id(item))
            return
        kind = ProbeKind.FIRST_PAIR
        for key, item in zip(box.keys, box.items, strict=True):
            self.add(kind, box.subject, key, item)
            kind = ProbeKind.PAIR


_MANY = 50
"""The number of comparisons from which native code takes less time than Python."""
NativeCheck = Callable[[Probes], Callable[[], bool]]
_SIZES = {
    dict: ProbeKind.DICT_SIZE,
    OrderedDict: ProbeKind.DICT_SIZE,
    list: ProbeKind.LIST_SIZE,
    set: ProbeKind.SET_SIZE,
}


def probes_of(guards: Guards) -> tuple[Probes, Guards]:
    """Return the comparisons that native code can do, and the guards of the rest."""
    probes = Probes()
    for value, kind in guards.objects:
        probes.add(ProbeKind.TYPE, value, None, kind)
    rest = replace(guards, native=None, check=None, objects=())
    others = list[GuardedEntries]()
    for place in guards.places:
        table = None if place.by_value else _dict_of(place.subject)
        if table is None:
            others.append(place)
            continue
        for name, value in place.values.items():
            probes.entry(table, name, value)
    rest.places = tuple(others)
    missing = list[tuple[Any, str, str]]()
    for item in guards.absent:
        table = _dict_of(item[0])
        if table is None:
            missing.append(item)
        else:
            probes.no_entry(table, item[1])
    rest.absent = tuple(missing)
    rest.sizes = tuple(item for item in guards.sizes if type(item[0]) not in _SIZES)
    for container, size in guards.sizes:
        if type(container) in _SIZES:
            probes.add_numbers(_SIZES[type(container)], container, 0, size)
    rest.boxes = tuple(box for box in guards.boxes if not _is_probed(box))
    for box in filter(_is_probed, guards.boxes):
        probes.box(box)
    return probes, rest


def _dict_of(table: Any) -> dict[str, Any] | None:
    """Return the dict of a namespace or of a class (`vars` returns only a proxy); None for other
    mappings."""
    if type(table) is MappingProxyType:
        (table,) = gc.get_referents(table)
    return table if type(table) is dict else None


def _is_probed(box: GuardedItems) -> bool:
    return type(box.subject) in (dict, list) and not box.by_value


# ---- the check in Python -------------------------------------------------------------------------


def check_of(guards: Guards) -> Callable[[], bool]:
    """Return a function that checks that everything has the same identity as before.

    It is generated as Python source with the objects as its globals: a call costs some 20 ns
    per value, less than half of the cost of any loop over the values.
    """
    tools: list[Any] = [all, map, is_, content_of, equal_values]
    known: dict[str, Any] = {tool.__name__: tool for tool in tools}
    lines = ["def check():"]

    def name(value: Any) -> str:
        known[f"o{len(known)}"] = value
        return f"o{len(known) - 1}"

    def stored(container: Any, plain: str, method: str) -> str:
        """Return the expression for the contents of a container, without calling methods of a
        derived class."""
        kind = container_of(container)
        if type(container) is kind:
            return plain.format(name(container))
        return f"{name(getattr(kind, method))}({name(container)})"

    def stale_if(conditions: list[str]) -> None:
        lines.append(f"  if {' or '.join(conditions)}: return False")

    for place in guards.places:
        lines.append(f"  s = {name(place.subject)}; v = {name(place.values)}")
        reads = {n: f"s[{n!r}]" if place.is_table else f"s.{n}" for n in place.values}
        by_value = [n for n in place.values if n in place.by_value]
        same = [f"{read} is not v[{n!r}]" for n, read in reads.items() if n not in place.by_value]
        stale_if([*same, *(f"not equal_values({reads[n]}, v[{n!r}])" for n in by_value)])
    if guards.settings:
        stale_if([f"{name(read)}() != {name(value)}" for read, value in guards.settings.items()])
    for table, missing, _ in guards.absent:
        stale_if([f"{missing!r} in {name(table)}"])
    for value, kind in guards.objects:
        stale_if([f"type({name(value)}) is not {name(kind)}"])
    empty = [box for box, size in guards.sizes if size == 0 and type(box) in _PLAIN_BOXES]
    if empty:
        stale_if([name(box) for box in empty])  # takes half the time of `len`
    for box, size in guards.sizes:
        if size == 0 and type(box) in _PLAIN_BOXES:
            continue
        stale_if([f"{stored(box, 'len({})', '__len__')} != {size}"])
    for box in guards.boxes:
        if box.by_value:
            stale_if([f"{name(box.has_changed)}()"])
            continue
        keys = stored(box.subject, "{}", "__iter__")
        items = keys if box.keys is None else stored(box.subject, "{}.values()", "values")
        conditions = [f"not all(map(is_, {items}, {name(box.items)}))"]
        if box.keys is not None:
            conditions += [f"not all(map(is_, {keys}, {name(box.keys)}))"]
        stale_if(conditions)
    for item, content in guards.arrays:
        stale_if([f"content_of({name(item)}) != {name(content)}"])
    exec("\n".join([*lines, "  return True"]), known)
    return known["check"]


# ---- values --------------------------------------------------------------------------------------


def content_of(item: Any) -> Any:
    """Return the content of an array as a value to compare. Methods overridden by a class of
    arrays are not called."""
    if isinstance(item, np.ma.MaskedArray):
        return content_of(np.ma.getdata(item)), content_of(np.ma.getmaskarray(item))  # pyright: ignore
    if isinstance(item, np.ndarray):
        item = item.view(np.ndarray)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        is_object = item.dtype == object  # pyright: ignore[reportUnknownMemberType]
        content = tuple(map(id, item.ravel().tolist())) if is_object else item.tobytes()  # pyright: ignore
        return (item.shape, item.dtype, content)  # pyright: ignore[reportUnknownMemberType]
    return bytes(item)


def equal_values(first: Any, second: Any) -> bool:
    """Return True if two objects are the same object, or equal plain values."""
    if equal_leaves(first, second):
        return True
    if type(first) is not type(second):
        return False
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(equal_values, first, second))  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(first, np.generic):
        return first.dtype == second.dtype and first.tobytes() == second.tobytes()
    return False
