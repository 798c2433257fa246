"""The heap of the interpreter: contents of objects, variables, and a trail of their changes.

Every place that a program can change is a key of a table, a plain dict: a variable of a frame, the
content of a cell, an attribute, or the content of a container (the key `ITEMS`). All changes go
through `PythonHeap.set`, which writes the old value on a trail. An arm of a branch is run, its
changes are read off the trail, and undone.

Real objects are read and never written: their tables hold only what the program changes.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from stretto.errors import SourceLocation
from stretto.frontends.python.calls.journal import Journal
from stretto.frontends.python.guards.reading import WHOLE
from stretto.frontends.python.interpreter.native_code import restorer
from stretto.frontends.python.interpreter.outside import CELL, MISSING, Marker, Outside
from stretto.frontends.python.tracing.locations import user_location
from stretto.frontends.python.tracing.signals import (
    Abort,
    CaptureSignal,
    KeepApart,
    NoAlternative,
    fail,
)
from stretto.frontends.python.tracing.tensor import Hooks
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.data import DataObject, DataTable, HeapObject, Table
from stretto.frontends.python.values.state import (
    bare_object,
    has_hidden_state,
    parts_of,
    rebuild_tuple,
)
from stretto.frontends.python.values.stores import slots_of

__all__ = [
    "ATOMS",
    "CELL",
    "CONTAINERS",
    "ITEMS",
    "MISSING",
    "RESULT",
    "DataRef",
    "HeapObject",
    "IteratorRef",
    "Place",
    "PlaceChange",
    "PythonHeap",
    "Ref",
    "Table",
    "holder_of",
    "rebuild_tuple",
]

NATIVE: Any = Marker("native")
"""The key of what is known of a native object in its table."""
ITEMS: Any = Marker("items")
"""The key of a container's content in its table: a tuple, a dict, or a list of the Program."""
MAXLEN = "maxlen"
"""The key of the most items that a deque holds."""
RESULT: Any = Marker("result")
"""The key of a value that only the interpreter reads."""
Place = tuple[int, Any]
"""The id of a table, and a key."""


class Ref(HeapObject):
    """A container: its table holds its content and its attributes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{self.kind.__name__} {self.table.get(ITEMS)!r}>"


class DataRef(Ref, DataObject):
    """A container of an instance: its content is the same at all times, as reading and changing it
    are ops."""

    __slots__ = ()

    @property
    def is_leaf(self) -> bool:  # type: ignore[override]
        return self.kind in (list, tuple, dict)


class IteratorRef(HeapObject):
    """An iterator: its table holds what it takes its items from, and how far it is."""

    __slots__ = ()


def holder_of(kind: type, table: Table, born: int) -> HeapObject:
    """Return an object of a class of containers or iterators."""
    return (Ref if issubclass(kind, CONTAINERS) else IteratorRef)(kind, table, born)


class OutsideTable(dict[Any, Any]):
    """The table of a real container, whose content is read at its first use."""

    __slots__ = ("load",)

    def __init__(self, load: Callable[[], Any]) -> None:
        super().__init__()
        self.load = load

    def __missing__(self, key: Any) -> Any:
        if key is not ITEMS:
            raise KeyError(key)
        self[ITEMS] = found = self.load()
        return found

    def get(self, key: Any, default: Any = None) -> Any:
        return self[ITEMS] if key is ITEMS else super().get(key, default)

    def keys(self) -> Any:
        self[ITEMS]
        return super().keys()

    def values(self) -> Any:
        self[ITEMS]
        return super().values()

    def items(self) -> Any:
        self[ITEMS]
        return super().items()


@dataclass(frozen=True, slots=True, eq=False)
class NativeState:
    """A native object that the program has made. sources: what it may refer to. stop: the error if
    its last change has to be taken back. restore: takes back that change; None if that is not
    possible."""

    sources: tuple[Any, ...]
    stop: Abort | None = None
    restore: Callable[[], None] | None = None


def taken_back(
    state: NativeState, stops: dict[int, CaptureSignal], table: Table, *, is_new: bool
) -> None:
    """Take back a change of a native object. stops: the errors for those that existed before."""
    if is_new:
        stops.pop(id(table), None)
    elif state.stop is not None and state.restore is not None:
        state.restore()
        stops.setdefault(id(table), state.stop)
    elif state.stop is not None:
        stops[id(table)] = NoAlternative(state.stop)


class AttributeTable(dict[Any, Any]):
    """The table of the `__dict__` of an object: its content is the attributes of the object."""

    __slots__ = ("load", "store")

    def __init__(self, load: Callable[[], Any], store: Callable[[Any], None]) -> None:
        super().__init__()
        self.load, self.store = load, store

    def __missing__(self, key: Any) -> Any:
        if key is not ITEMS:
            raise KeyError(key)
        return self.load()

    def get(self, key: Any, default: Any = None) -> Any:
        return self.load() if key is ITEMS else default


class AttributeItems(dict[Any, Any]):
    """The attributes of an object by name. read: reads one that is not there, which is logged."""

    __slots__ = ("read",)

    def __init__(self, items: dict[str, Any], read: Callable[[str], Any]) -> None:
        super().__init__(items)
        self.read = read

    def get(self, key: Any, default: Any = None) -> Any:
        if key in self:
            return self[key]
        return default

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        if not found and isinstance(key, str):
            self.read(key)
        return found


@dataclass(slots=True)
class PlaceChange:
    table: Table
    key: Any
    old: Any
    new: Any = MISSING


class HeapKey:
    """A key of a dict whose class has a hash or an equality of its own.

    equals: compares it with another key. found: whether it equals each key with which it was
    compared, by the id of that key, so that one access of a dict compares two keys once.
    """

    __slots__ = ("equals", "found", "hashed", "value")

    def __init__(self, value: Any, hashed: int, equals: Callable[[Any, Any], bool]) -> None:
        self.value, self.hashed, self.equals = value, hashed, equals
        self.found: dict[int, bool] = {}

    def __hash__(self) -> int:
        return self.hashed

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HeapKey):
            return self.equals(other, self.value)
        if other.value is self.value:
            return True
        if id(self) not in other.found:
            other.found[id(self)] = self.equals(self.value, other.value)
        return other.found[id(self)]


@dataclass(eq=False, slots=True)
class DictView:
    """A view of the keys, the values or the items of a dict. name: that of the dict's method."""

    holder: Ref
    name: str


CONTAINERS = (list, dict, set, deque)
ATOMS = frozenset(
    (type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device)
)


class PythonHeap:
    """Tables of all places, and the trail of their changes."""

    def __init__(self, outside: Outside | None = None) -> None:
        self.outside = Outside() if outside is None else outside
        self.trail: list[tuple[Table, Any, Any]] = []
        self.tables: dict[int, tuple[Any, Table]] = {}
        self.own: dict[int, Any] = {}
        """The objects that the program has made, by id: nothing of them is in the real object."""
        self.refs: dict[int, tuple[Any, Any]] = {}
        self.namespaces: dict[int, tuple[Any, Ref]] = {}
        """For each object, by its id, its `__dict__` if the program has asked for it."""
        self.natives: dict[int, tuple[Any, Table]] = {}
        """The native objects that the program has made, by id."""
        self.read: set[Place] = set()
        """Places outside of the program whose value it has read."""
        self.with_deletions: set[int] = set()
        """Ids of the tables from which the program has deleted something."""
        self.items_of: dict[int, tuple[Any, Table, AttributeItems]] = {}
        """For each object, by its id, its attributes when they were last read all at once, and a
        copy of its table then."""
        self.count = 0
        self.births: dict[int, int] = {}
        """When the tables of frames, cells and objects of the program were made, by id."""
        self.kept: list[Any] = []
        self.changed_at: dict[Place, SourceLocation | None] | None = None
        """The user's lines that change places outside of the program, if they are asked for."""
        self.copies: dict[int, dict[int, Any]] = {}
        """For the table of an object, by id, the objects of which it may be one."""
        self.journal = Journal()

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
        """Change a place of the program."""
        if self.copies and id(table) in self.copies:
            self.check_copies(table)
        self.put(table, key, value)

    def put(self, table: Table, key: Any, value: Any) -> None:
        """Set a place to what it holds after a branch, or in an iteration."""
        if isinstance(table, AttributeTable):
            table.store(value)
            return
        if isinstance(table, DataTable):
            table.store(key, value)
            return
        old = table.get(key, MISSING)
        self.trail.append((table, key, old))
        if self.changed_at is not None and not self.is_born_after(table, 0):
            self.changed_at[id(table), key] = user_location()
        if value is MISSING:
            self.with_deletions.add(id(table))
        if old is MISSING:  # what is deleted and set again comes last
            table.pop(key, None)
        table[key] = value

    # -- copies ---------------------------------------------------------------------------------
    #
    # An object that leaves a branch or a loop may represent one of several. That is right as long
    # as neither is changed, or compared by identity, while another one can be reached. Otherwise
    # the capture is repeated with such objects kept apart.

    def note_copies(self, holders: list[Any]) -> None:
        """Record that some of the objects may be one object."""
        known = {id(holder): holder for holder in holders}
        for holder in holders:
            known |= self.copies.get(id(self.table_of(holder)), {})
        for holder in holders:
            self.copies.setdefault(id(self.table_of(holder)), {}).update(known)
        for holder in known.values():
            self.copies.setdefault(id(self.table_of(holder)), {}).update(known)

    def check_copies(self, table: Table) -> None:
        others = {
            id(holder)
            for holder in self.copies[id(table)].values()
            if self.table_of(holder) is not table
        }
        if any(id(value) in others for value in Hooks.values_in_use()):
            self.keep_apart()

    def are_same(self, first: Any, second: Any) -> bool:
        """Return `first is second`."""
        if first is not second and self.are_copies(first, second):
            self.keep_apart("compared by identity")
        return first is second

    def keep_apart(self, done: str = "changed") -> NoReturn:
        if not tracer().keeps_apart:
            raise KeepApart
        self.fail_shared(done)

    def fail_shared(self, done: str = "changed") -> NoReturn:
        fail(
            f"an object is {done} that two variables may share after a branch or loop on a tensor",
            "use one variable for it, or make a new one instead of changing it",
        )

    def are_copies(self, first: Any, second: Any) -> bool:
        """True if two objects may be one."""
        if not self.copies or not (isinstance(first, HeapObject) or self.is_own(first)):
            return False
        return id(second) in self.copies.get(id(self.table_of(first)), {})

    def mark(self) -> int:
        return len(self.trail)

    def changes(self, mark: int, tables: Set[int] | None = None) -> dict[Place, PlaceChange]:
        """Return what has changed since the mark: for each place its value before and now. tables:
        the ids of those to look at; None for all."""
        found: dict[Place, PlaceChange] = {}
        for table, key, old in self.trail[mark:]:
            place = id(table), key
            if (tables is None or place[0] in tables) and place not in found:
                found[place] = PlaceChange(table, key, old)
        for change in found.values():
            change.new = change.table.get(change.key, MISSING)
        return found

    def undo(self, mark: int) -> None:
        """Take back the changes since the mark. Fails if a native object, which existed then, was
        changed."""
        stops: dict[int, CaptureSignal] = {}
        while len(self.trail) > mark:
            table, key, old = self.trail.pop()
            if key is NATIVE:
                taken_back(table[key], stops, table, is_new=old is MISSING)
            if old is MISSING:
                table.pop(key, None)
            else:
                table[key] = old
        for stop in stops.values():
            raise stop

    # -- native objects that the program has made -----------------------------------------------

    def note_native(self, value: Any, sources: list[Any]) -> None:
        """Note an object that native code has made, and that may refer to `sources`."""
        if id(value) not in self.natives and not self.outside.knows(value):
            table = self.new_table()
            self.natives[id(value)] = value, table
            self.set(table, NATIVE, NativeState(tuple(sources)))

    def may_be_reached(self, reference: Callable[[], Any]) -> bool:
        """True if a native object is there, and something refers to it other than the tables that
        keep it alive. reference: a weak one."""
        value = reference()
        kept = sum(id(value) in known for known in (self.tables, self.natives))
        return value is not None and sys.getrefcount(value) > kept + 2  # the variable, the argument

    def change_native(self, target: Any, stop: Abort) -> None:
        """Note that a native object is changed. Raises `stop` if it existed before the call; it is
        raised later if the change has to be taken back."""
        pending, seen = [target], set[int]()
        while pending:
            item = pending.pop()
            if id(item) in seen:
                continue
            seen.add(id(item))
            _, table = self.natives.get(id(item), (None, {}))
            known = table.get(NATIVE)
            if known is None:
                raise stop
            self.set(table, NATIVE, NativeState(known.sources, stop, restorer(item)))
            pending += known.sources

    def table_of(self, holder: Any) -> Table:
        """Return the table of an object, a cell or a namespace: what the program has read of it,
        or set."""
        if issubclass(type(holder), HeapObject):
            return holder.table
        known = self.tables.get(id(holder))
        if known is None:
            self.tables[id(holder)] = known = holder, {}
        return known[1]

    def field(self, holder: Any, key: Any) -> Any:
        """Return the value of a place; MISSING if it has none."""
        table = self.table_of(holder)
        found = table.get(key, MISSING)
        if found is not MISSING or key in table or id(holder) in self.own:
            return found
        real = holder.origin if issubclass(type(holder), HeapObject) else holder
        if real is None:
            return MISSING
        self.read.add((id(table), key))
        found = self.outside.read(real, key)
        if found is not MISSING:
            table[key] = found = self.adopt(found)
        return found

    def assign(self, holder: Any, key: Any, value: Any) -> None:
        """Change a place. The old value of one outside is read if it may stay in some runs."""
        if len(tracer().regions) > 1 and not isinstance(holder, DataObject):
            self.field(holder, key)
        self.set(self.table_of(holder), key, value)

    # -- objects --------------------------------------------------------------------------------

    def new_like(self, value: Any) -> Any:
        """Return an object of the same class, whose table is empty."""
        if isinstance(value, HeapObject):
            made = holder_of(value.kind, self.new_table(), self.count)
            if tracer().data is not None:
                tracer().data.note_site(made.table, value.kind, like=value.table)
            return made
        return self.new_object(type(value))

    def new(self, kind: type, items: Any) -> Ref:
        data = tracer().data
        if data is not None and data.is_data_here(kind, items):
            return data.new_container(kind, items)
        table = self.new_table()
        if data is not None:
            data.note_site(table, kind)
        table[ITEMS] = items
        return Ref(kind, table, self.count)

    def new_container(self, kind: type) -> Ref:
        """Return an empty container of a class."""
        return self.new(kind, {} if issubclass(kind, dict | set) else ())

    def list(self, items: Any) -> Ref:
        return self.new(list, tuple(items))

    def list_of(self, content: Any) -> Ref:
        """Return a new list of a Python list's items, or with a list of the Program."""
        return self.new(list, tuple(content) if isinstance(content, list) else content)

    def new_object(self, kind: type) -> Any:
        """Return an object of a user's class, whose attributes are all in its table."""
        data = tracer().data
        if data is not None and kind in tracer().hints.data_classes:
            return data.new_record(kind)
        check_state(kind)
        return self.take(bare_object(kind))

    def take(self, made: Any) -> Any:
        """Make an object one of the program."""
        self.own[id(made)] = made
        self.note(self.table_of(made))
        return made

    def namespace_of(self, holder: Any) -> Ref:
        """Return `__dict__` of an object: a dict whose entries are the attributes of the object."""
        if id(holder) not in self.namespaces:
            table = AttributeTable(
                lambda: self._attributes(holder), lambda items: self._set_all(holder, items)
            )
            self.namespaces[id(holder)] = holder, Ref(dict, table, 0)
        return self.namespaces[id(holder)][1]

    def names(self, holder: Any) -> dict[str, None]:
        """Return the names of all attributes that an object has or had."""
        names = [name for name in self.table_of(holder) if isinstance(name, str)]
        if isinstance(holder, types.FunctionType):
            names = [name for name in names if name not in vars(types.FunctionType)]
        real = holder.origin if isinstance(holder, HeapObject) else holder
        if real is not None and not self.is_own(real):
            table = self.table_of(holder)
            moved: list[str] = []
            if id(table) in self.with_deletions:
                moved = [change.key for change in self.moved().values() if change.table is table]
            first = [name for name in self.outside.names(real) if name not in moved]
            names = [*first, *(name for name in names if name not in moved), *moved]
        return dict.fromkeys(names)

    def moved(self, mark: int = 0) -> dict[Place, PlaceChange]:
        """Return the places that were deleted and set again since the mark, in their new order."""
        found: dict[Place, PlaceChange] = {}
        known = set[Place]()
        for table, key, old in self.trail[mark:] if self.with_deletions else ():
            if id(table) not in self.with_deletions:
                continue
            place = id(table), key
            if old is MISSING and place in known:
                found.pop(place, None)
                found[place] = PlaceChange(table, key, old)
            known.add(place)
        return {p: change for p, change in found.items() if change.key in change.table}

    def check_order(self, mark: int, born: int) -> None:
        """Fail if attributes of an object from before have another order since the mark, after an
        arm or an iteration: it would depend on the run. born: the count of tables at the mark."""
        moved = self.moved(mark)
        if not moved:
            return
        objects = {
            id(t) for holder, t in self.tables.values() if type(holder) is not types.CellType
        }
        for change in moved.values():
            if id(change.table) in objects and not self.is_born_after(change.table, born):
                fail(
                    f"the attribute '{change.key}' is deleted and set again in a branch or loop, "
                    "which decides the order of the attributes",
                    "set it without deleting it",
                )

    def _attributes(self, holder: Any) -> dict[Any, Any]:
        table = self.table_of(holder)
        known = self.items_of.get(id(holder))
        if known is not None and _are_same(known[1], table):
            return known[2]
        names = self.names(holder)
        slots = dict(slots_of(holder.kind if isinstance(holder, Ref) else type(holder)))
        found = {name: self.field(holder, name) for name in names if name not in slots}
        present = {name: item for name, item in found.items() if item is not MISSING}
        made = AttributeItems(present, lambda name: self.field(holder, name))
        self.items_of[id(holder)] = holder, dict(table), made
        return made

    def _set_all(self, holder: Any, items: dict[Any, Any]) -> None:
        before = self._attributes(holder)
        if not all(isinstance(name, str) for name in items):
            fail("a key of the `__dict__` of an object is not a text", "keep it in a dict")
        for name in {**before, **items}:
            after = items.get(name, MISSING)
            if before.get(name, MISSING) is not after:  # a name that is not there is read, too
                self.assign(holder, name, after)

    def new_cell(self) -> types.CellType:
        cell = types.CellType()
        self.own[id(cell)] = cell
        self.note(self.table_of(cell))
        return cell

    # -- what tools of the tracer ask ------------------------------------------------------------

    def knows(self, value: object) -> bool:
        """True if an object existed before the call."""
        return self.outside.knows(value)

    @property
    def seen(self) -> dict[int, Any]:
        """All objects of the outside that the program has reached, by id."""
        return self.outside.met

    def filled(self, value: Any, seen: set[int]) -> Any:
        """Return a value for code outside, with the objects of the program in it: their
        attributes are written into the real objects."""
        if isinstance(value, Ref | tuple):
            items = value if isinstance(value, tuple) else value.table[ITEMS]
            for item in items.values() if isinstance(items, dict) else items:
                self.filled(item, seen)
            return self.real(value)
        if not self.is_own(value) or isinstance(value, types.FunctionType) or id(value) in seen:
            return value
        seen.add(id(value))
        for name, item in self.table_of(value).items():
            if isinstance(name, str) and item is not MISSING:
                object.__setattr__(value, name, self.filled(item, seen))
        if isinstance(value, BaseException):
            value.args = self.filled(value.args, seen)
        return value

    def referents(self, value: Any) -> list[Any]:
        """Return the values to which a value refers."""
        match value:
            case HeapObject():
                table: Table = value.table
            case types.FunctionType():
                named = (value.__kwdefaults__ or {}).values()
                table = self.table_of(value)
                held = [*(value.__closure__ or ()), *(value.__defaults__ or ()), *named]
                return held + list(dict.values(table))
            case types.MethodType():
                return [value.__self__, value.__func__]
            case functools.partial():
                return [value.func, *value.args, *value.keywords.values()]
            case dict():
                return list(value.values())
            case torch.Tensor():
                return []
            case _:
                parts = parts_of(value)
                if parts is not None:
                    return list(parts)
                table = self.tables.get(id(value), (None, {}))[1]
        return list(dict.values(table))

    def is_own(self, holder: Any) -> bool:
        return id(holder) in self.own

    def adopt(self, value: Any) -> Any:
        """Return the value of the interpreter for one from outside: containers become references,
        and tensors that each call reads anew those of the Program."""
        kind = type(value)
        if kind in ATOMS:
            return value
        found = self.refs.get(id(value))
        outside = self.outside
        if found is not None:
            if id(value) in outside.arguments:
                outside.shared.add(id(value))
            return found[1]
        if isinstance(value, torch.Tensor):
            if id(value) in outside.given:
                return tracer().promote(value)
            return outside.traced.get(id(value), value)
        if isinstance(value, CONTAINERS):
            made = Ref(kind, OutsideTable(lambda: self._content(value)), 0, value)
            if isinstance(value, defaultdict):
                made.table["default_factory"] = value.default_factory
            if isinstance(value, deque):
                made.table[MAXLEN] = value.maxlen
            self.refs[id(value)] = value, made
            outside.meet(value)
            return made
        if isinstance(value, tuple) and not isinstance(value, torch.Size):
            items = [self.adopt(item) for item in tuple.__iter__(value)]
            same = all(a is b for a, b in zip(items, value, strict=True))
            made = value if same else rebuild_tuple(value, items)
            self.refs[id(value)] = value, made
            return made
        outside.meet(value)
        return value

    def _content(self, value: Any) -> Any:
        self.outside.log.box(value)
        if isinstance(value, dict):
            kind: Any = OrderedDict if isinstance(value, OrderedDict) else dict
            self.outside.note_holding(tuple(kind.values(value)), lambda: (value, WHOLE))
            items = kind.items(value)
            found = {k: self.adopt(self.outside.found_in(value, item)) for k, item in items}
            numbers = self.outside.numbers
            if numbers:
                found = {key: numbers.get((id(value), key), item) for key, item in found.items()}
            return found
        if isinstance(value, set):
            return dict.fromkeys(set.__iter__(value))
        kind = deque if isinstance(value, deque) else list
        self.outside.note_holding(tuple(kind.__iter__(value)), lambda: (value, WHOLE))
        items = kind.__iter__(value)
        return tuple([self.adopt(self.outside.found_in(value, item)) for item in items])

    def received(self, value: Any) -> Any:
        """Return the value of the interpreter for a result of native code: containers are new."""
        if isinstance(value, torch.Tensor):
            return self.adopt(value)
        if type(value) in ATOMS or isinstance(value, torch.Size):
            return value
        if id(value) in self.refs:
            return self.refs[id(value)][1]
        if isinstance(value, set):
            return self.new(type(value), dict.fromkeys(value))
        if isinstance(value, dict):
            made = self.new(type(value), {k: self.received(v) for k, v in value.items()})
            if isinstance(value, defaultdict):
                made.table["default_factory"] = value.default_factory
            return made
        if isinstance(value, list | deque):
            return self.new(type(value), tuple([self.received(item) for item in value]))
        if isinstance(value, tuple):
            items = [self.received(item) for item in value]
            same = all(a is b for a, b in zip(items, value, strict=True))
            return value if same else rebuild_tuple(value, items)
        return value

    def _like(self, value: Ref, items: Any, of_list: Any) -> Any:
        """Return an object of a user's subclass of a container."""
        maker: Any = value.kind.__new__
        made = maker(value.kind)
        _fill(made, items)
        for name, item in value.table.items():
            if isinstance(name, str) and name not in (MAXLEN, "default_factory"):
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
                if value.kind is defaultdict:
                    return defaultdict(None, made)
                if value.kind in (dict, OrderedDict, Counter):
                    return value.kind(made)
                return self._like(value, made, of_list)
            if not isinstance(items, tuple):
                return items if of_list is None else of_list(items)
            made = [self.real(item, of_list) for item in items]
            if value.kind is deque:
                return deque(made, value.table.get(MAXLEN))
            return list(made) if value.kind is list else self._like(value, made, of_list)
        if isinstance(value, DictView):
            return getattr(self.real(value.holder, of_list), value.name)()
        if isinstance(value, tuple) and not isinstance(value, torch.Size):
            items = [self.real(item, of_list) for item in value]
            same = all(a is b for a, b in zip(items, value, strict=True))
            return value if same else rebuild_tuple(value, items)
        if isinstance(value, slice):
            return slice(*(self.real(x) for x in (value.start, value.stop, value.step)))
        return value


def _are_same(before: Table, table: Table) -> bool:
    """True if two tables have the same keys, in the same order, with the same objects."""
    if len(before) != len(table):
        return False
    pairs = zip(before, before.values(), table, dict.values(table), strict=True)
    return all(key == name and old is new for key, old, name, new in pairs)


def check_state(kind: type) -> None:
    """Fail for the class of an object that the attributes alone do not make again, and for one
    that does something when the last reference to an object is gone."""
    if isinstance(getattr(kind, "__del__", None), types.FunctionType):
        fail(
            f"an object of class {kind.__name__}, which has __del__, is made",
            "make it outside of the compiled function, or write a context manager",
        )
    if has_hidden_state(kind):
        fail(
            f"an object of class {kind.__name__}, which holds more than attributes, is copied or "
            "leaves the branch, the loop or the function that makes it",
            "keep what it holds in variables",
        )


def _fill(made: Any, items: Any) -> None:
    if isinstance(items, dict):
        kind = OrderedDict if isinstance(made, OrderedDict) else dict
        for key, item in items.items():
            kind.__setitem__(made, key, item)
    elif isinstance(made, deque):
        deque.extend(made, items)
    else:
        list.extend(made, items)
