"""The world outside of a program: read when the program needs it, logged, and never changed.

A *holder* has values under keys: a cell, a namespace (the dict of a module), a class, or an object
with attributes. Containers are read as a whole. Values that a call reads anew, because the program
changes their places, are replaced by params of the Program.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from torch import nn

from stretto.frontends.python.guards.user_code import is_of_user
from stretto.frontends.python.interpreter.reads import ReadLog
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.values.state import is_box
from stretto.frontends.python.values.stores import (
    CellVariable,
    ClassAttributes,
    NamespaceEntries,
    SlotAttributes,
    slots_of,
)


class Marker:
    """A value that only the interpreter has."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


MISSING: Any = Marker("missing")
"""The value of a variable, attribute or entry that has none."""
CELL: Any = Marker("cell")
"""The key of a cell's content."""


class Outside:
    """Reads the real objects. boxes: the mutable locations that are known from earlier attempts
    of a capture, by the id of their holder."""

    def __init__(self, boxes: dict[Any, Any] | None = None) -> None:
        self.log = ReadLog()
        self.boxes: dict[Any, Any] = {} if boxes is None else boxes
        self.met: dict[int, Any] = {}
        """All objects that the program has reached, by id."""
        self.arguments: set[int] = set()
        """Ids of the containers among the arguments."""
        self.shared: set[int] = set()
        """Ids of those that the program has reached in another way, too."""
        self.traced: dict[int, TracedTensor] = {}
        """Tensors of the Program in place of real ones, by the id of the real one."""
        self.given: dict[int, TracedTensor] = {}
        """Likewise for tensors among the arguments."""
        self.visited: set[int] = set()
        """Ids of the objects that each call reads: which arguments they hold is checked there."""
        self.holding: dict[tuple[int, Any], tuple[Any, Any, Any]] = {}
        """The locations at which such tensors were found, each with its key and what it holds."""
        self.numbers: dict[tuple[int, Any], TracedTensor] = {}
        """Numbers of the Program in place of integers, by the id of their box and their key."""
        self.cells: dict[int, str] = {}
        """Names of the variables that cells hold, by the id of the cell."""

    def knows(self, value: object) -> bool:
        """True if an object existed before the call."""
        return self.met.get(id(value)) is value

    def meet(self, value: Any) -> None:
        """Note an object that the program has reached."""
        if id(value) not in self.met:
            self.met[id(value)] = value
            kind = type(value)
            if isinstance(value, nn.Module) or is_of_user(kind):
                self.log.kind(value)
            self.log.array(value)

    def read(self, holder: Any, key: Any) -> Any:
        """Return the real value of a place; MISSING if it has none."""
        found = self._read(holder, key)
        if id(found) in self.given:
            return self.found_in(self.box(holder, key), found)
        self.note_holding(found, lambda: (self.box(holder, key), self.key_in_box(holder, key)))
        if self.numbers:
            return self.numbers.get(
                (id(self.box(holder, key)), self.key_in_box(holder, key)), found
            )
        return found

    def note_holding(self, found: Any, place: Callable[[], tuple[Any, Any]]) -> None:
        """Note the location of a tensor that each call reads anew: another call may find another
        one there."""
        if not self.traced:
            return
        for item in found if isinstance(found, tuple) else (found,):
            if id(item) in self.traced:
                box, name = place()
                self.holding[id(box), name] = box, name, item

    def found_in(self, box: Any, value: Any) -> Any:
        """Return what an object holds: the tensor of the Program for one of the arguments, if each
        call checks that the object holds it."""
        return self.given.get(id(value), value) if id(box) in self.visited else value

    def peek(self, holder: Any, key: Any) -> Any:
        """Return the real value of a place without logging it."""
        log, self.log = self.log, ReadLog()
        try:
            return self._read(holder, key)
        finally:
            self.log = log

    def _read(self, holder: Any, key: Any) -> Any:
        log = self.log
        match holder:
            case types.CellType():
                try:
                    found = holder.cell_contents
                except ValueError:
                    return MISSING
                log.cell(holder, self.cells.get(id(holder), "of a closure"), found)
                return found
            case NamespaceEntries(table=table):
                name = table.get("__name__", "that has no name")
                log.entry(f"module {name}", table, table, key)
                return table.get(key, MISSING)
            case type():
                log.entry(holder.__name__, holder, vars(holder), key)
                return vars(holder).get(key, MISSING)
            case _:
                return self._attribute(holder, key)

    def _attribute(self, holder: Any, name: str) -> Any:
        log, shown = self.log, f"a {type(holder).__name__}"
        table = instance_table(holder)
        if table is not None:
            log.entry(shown, holder, table, name)
            if name in table:
                return table[name]
        slot = slot_of(type(holder), name)
        if slot is None:
            return MISSING
        try:
            found = slot.__get__(holder)
        except AttributeError:
            log.no_attribute(shown, holder, name)
            return MISSING
        log.attribute(shown, holder, name, found)
        return found

    def names(self, holder: Any) -> Iterable[str]:
        """Return the names of all attributes of an object."""
        table = instance_table(holder)
        slots = [n for n, _ in slots_of(type(holder)) if hasattr(holder, n)]
        return [*(table or ()), *slots]

    # -- boxes: mutable locations as the plan of changes names them ------------------------------

    def namespace(self, table: dict[str, Any]) -> NamespaceEntries:
        """Return the holder of a module's variables."""
        if id(table) not in self.boxes:
            self.boxes[id(table)] = NamespaceEntries(table, ())
        return self.boxes[id(table)]

    def box(self, holder: Any, key: Any) -> Any:
        """Return the mutable location that a place belongs to."""
        if isinstance(holder, NamespaceEntries):
            if key not in holder.names:
                holder.names = (*holder.names, key)
            return holder
        known = id(holder), slot_of(type(holder), key) is not None
        if known not in self.boxes:
            self.boxes[known] = self._box(holder, is_slot=known[1])
            self.met.setdefault(id(holder), holder)
        return self.boxes[known]

    def _box(self, holder: Any, *, is_slot: bool) -> Any:
        if isinstance(holder, types.CellType):
            return CellVariable(holder, self.cells.get(id(holder), "of a closure"))
        if isinstance(holder, type):
            return ClassAttributes(holder)
        if is_box(holder) and not isinstance(holder, list | dict | set | deque):
            return holder
        table = instance_table(holder)
        return SlotAttributes(holder) if is_slot or table is None else table

    def key_in_box(self, holder: Any, key: Any) -> Any:
        """Return the key by which the location of a place knows it."""
        return self.cells.get(id(holder), "of a closure") if key is CELL else key


@cache
def slot_of(kind: type, name: str) -> Any:
    """Return the descriptor of an attribute that objects hold outside of their `__dict__`; None if
    there is none."""
    for base in kind.__mro__:
        found = vars(base).get(name)
        if isinstance(found, types.MemberDescriptorType):
            return found
    return None


def instance_table(holder: Any) -> dict[str, Any] | None:
    """Return the `__dict__` of an object, without calling methods of its class; None if there is
    none."""
    try:
        return object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return None
