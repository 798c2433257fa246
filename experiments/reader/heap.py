"""The heap of the interpreter: contents of objects, variables, and a trail of their changes.

Every place that a program can change is a key of a table, a plain dict: a variable of a frame, the
content of a cell, an attribute, or the content of a container (the key `ITEMS`). All changes go
through `Heap.set`, which writes the old value on a trail. An arm of a branch is run, its changes
are read off the trail, and undone.

Real objects are read and never written: their tables hold only what the program changes.
"""

from __future__ import annotations

import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


class _Named:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


MISSING: Any = _Named("missing")
"""The value of a variable, attribute or entry that has none."""
ITEMS: Any = _Named("items")
"""The key of a container's content in its table: a tuple, a dict, or a list of the Program."""
CELL: Any = _Named("cell")
"""The key of a cell's content in its table."""

Table = dict[Any, Any]
Place = tuple[int, Any]
"""The id of a table, and a key."""


class Ref:
    """A container. `kind`: its class. `table`: its content and its attributes."""

    __slots__ = ("__weakref__", "born", "kind", "table")

    def __init__(self, kind: type, table: Table, born: int) -> None:
        self.kind = kind
        self.table = table
        self.born = born

    def __repr__(self) -> str:
        return f"<{self.kind.__name__} {self.table.get(ITEMS)!r}>"


class Token:
    """Base of the classes below; see `Heap.new_object`."""


@dataclass(slots=True)
class Change:
    table: Table
    key: Any
    old: Any
    new: Any = MISSING


CONTAINERS = (list, dict, set, deque)


class Heap:
    def __init__(self) -> None:
        self.trail: list[tuple[Table, Any, Any]] = []
        self.tables: dict[int, tuple[Any, Table]] = {}
        self.own: set[int] = set()
        """Ids of objects that the program has made: nothing of them is in the real object."""
        self.refs: dict[int, tuple[Any, Any]] = {}
        self.reads: list[tuple[Any, Any, Any]] = []
        self.count = 0
        self.births: dict[int, int] = {}
        """When the tables of frames, cells and objects of the program were made, by id."""
        self.kept: list[Any] = []

    def new_table(self) -> Table:
        table: Table = {}
        self.note(table)
        return table

    def note(self, table: Table) -> None:
        self.count += 1
        self.births[id(table)] = self.count
        self.kept.append(table)

    def is_born_after(self, table: Table, count: int) -> bool:
        return self.births.get(id(table), 0) > count

    # -- tables ---------------------------------------------------------------------------------

    def set(self, table: Table, key: Any, value: Any) -> None:
        self.trail.append((table, key, table.get(key, MISSING)))
        table[key] = value

    def mark(self) -> int:
        return len(self.trail)

    def changes(self, mark: int) -> dict[Place, Change]:
        """Return what has changed since the mark: for each place its value before and now."""
        found: dict[Place, Change] = {}
        for table, key, old in self.trail[mark:]:
            place = id(table), key
            if place not in found:
                found[place] = Change(table, key, old)
        for change in found.values():
            change.new = change.table.get(change.key, MISSING)
        return found

    def undo(self, mark: int) -> None:
        while len(self.trail) > mark:
            table, key, old = self.trail.pop()
            if old is MISSING:
                table.pop(key, None)
            else:
                table[key] = old

    def table_of(self, holder: Any) -> Table:
        """Return the table of a real object: attributes that the program has set."""
        if isinstance(holder, Ref):
            return holder.table
        key = id(holder)
        if key not in self.tables:
            self.tables[key] = holder, {}
        return self.tables[key][1]

    # -- objects --------------------------------------------------------------------------------

    def new(self, kind: type, items: Any) -> Ref:
        table = self.new_table()
        table[ITEMS] = items
        return Ref(kind, table, self.count)

    def list(self, items: Any) -> Ref:
        return self.new(list, tuple(items))

    def new_object(self, kind: type) -> Any:
        """Return an object of a user's class, whose attributes are all in its table."""
        made = object.__new__(kind)
        self.own.add(id(made))
        self.note(self.table_of(made))
        return made

    def new_cell(self) -> types.CellType:
        cell = types.CellType()
        self.note(self.table_of(cell))
        return cell

    def finished(self, value: Any, seen: set[int] | None = None) -> Any:
        """Return a result for the caller: objects of the program get their attributes."""
        seen = set() if seen is None else seen
        if self.is_own(value) and not isinstance(value, types.FunctionType):
            if id(value) not in seen:
                seen.add(id(value))
                for name, item in self.table_of(value).items():
                    if isinstance(name, str):
                        object.__setattr__(value, name, self.finished(item, seen))
            return value
        if isinstance(value, Ref):
            items = value.table[ITEMS]
            if isinstance(items, dict) and not issubclass(value.kind, set):
                held = {k: self.finished(v, seen) for k, v in items.items()}
                made = Ref(value.kind, {**value.table, ITEMS: held}, 0)
                return self.real(made)
            if isinstance(items, tuple):
                return self.real(Ref(value.kind, {ITEMS: tuple(self.finished(x, seen) for x in items)}, 0))
            return self.real(value)
        if isinstance(value, tuple) and not isinstance(value, torch.Size):
            return rebuild_tuple(value, [self.finished(x, seen) for x in value])
        return value

    def is_own(self, holder: Any) -> bool:
        return id(holder) in self.own

    def adopt(self, value: Any) -> Any:
        """Return the value of the interpreter for a real one: containers become references, whose
        content is read from the real container at their first use."""
        if isinstance(value, CONTAINERS):
            found = self.refs.get(id(value))
            if found is None:
                made = Ref(type(value), {}, 0)
                self.refs[id(value)] = found = value, made
                made.table[ITEMS] = self._content(value)
            return found[1]
        if isinstance(value, tuple) and not isinstance(value, torch.Size):
            found = self.refs.get(id(value))
            if found is None:
                items = [self.adopt(item) for item in value]
                same = all(a is b for a, b in zip(items, value, strict=True))
                made = value if same else rebuild_tuple(value, items)
                self.refs[id(value)] = found = value, made
            return found[1]
        return value

    def _content(self, value: Any) -> Any:
        if isinstance(value, dict):
            pairs = dict.items(value) if not isinstance(value, OrderedDict) else value.items()
            return {key: self.adopt(item) for key, item in pairs}
        if isinstance(value, set):
            return dict.fromkeys(set.__iter__(value))
        return tuple(self.adopt(item) for item in value)

    def _like(self, value: Ref, items: Any, of_list: Any) -> Any:
        """Return an object of a user's subclass of a container."""
        made = value.kind.__new__(value.kind)
        _fill(made, items)
        for name, item in value.table.items():
            if isinstance(name, str):
                object.__setattr__(made, name, self.real(item, of_list))
        return made

    def real(self, value: Any, of_list: Callable[[Any], Any] | None = None) -> Any:
        """Return a value for native code: containers are made anew."""
        if isinstance(value, Ref):
            items = value.table[ITEMS]
            if isinstance(items, dict):
                made = {k: self.real(v, of_list) for k, v in items.items()}
                if issubclass(value.kind, set):
                    return value.kind(items)
                if issubclass(value.kind, defaultdict):
                    return defaultdict(None, made)
                if value.kind in (dict, OrderedDict, Counter):
                    return value.kind(made)
                return self._like(value, made, of_list)
            if not isinstance(items, tuple):
                return items if of_list is None else of_list(items)
            made = [self.real(item, of_list) for item in items]
            return value.kind(made) if value.kind in CONTAINERS else self._like(value, made, of_list)
        if isinstance(value, tuple) and not isinstance(value, torch.Size):
            items = [self.real(item, of_list) for item in value]
            same = all(a is b for a, b in zip(items, value, strict=True))
            return value if same else rebuild_tuple(value, items)
        if isinstance(value, slice):
            return slice(*(self.real(x) for x in (value.start, value.stop, value.step)))
        return value


def _fill(made: Any, items: Any) -> None:
    if isinstance(items, dict):
        kind = OrderedDict if isinstance(made, OrderedDict) else dict
        for key, item in items.items():
            kind.__setitem__(made, key, item)
    else:
        list.extend(made, items)


def rebuild_tuple(like: Any, items: list[Any]) -> Any:
    kind = type(like)
    if kind is tuple:
        return tuple(items)
    return kind(*items) if hasattr(kind, "_fields") else kind(items)
