"""Values of Python data that each instance of a batch has its own of.

Such a value is a value of the Program: an object of a class (`DataObject`), whose attributes are
read and set by ops of the data dialect (`ir/data.py`), or a value of several types (`DataUnion`).
Numbers and tensors of an instance are traced numbers and tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.either import Either
from stretto.ir.core import Value

Table = dict[Any, Any]


class HeapObject:
    """An object whose state is a table. kind: its class. origin: the real object, if it was made
    outside of the program."""

    __slots__ = ("__weakref__", "born", "kind", "origin", "table")

    def __init__(self, kind: type, table: Table, born: int, origin: Any = None) -> None:
        self.kind = kind
        self.table = table
        self.born = born
        self.origin = origin


class DataTable(dict[Any, Any]):
    """The table of an object of an instance: reading and setting an attribute are ops.

    names: returns the attributes that the object may have. load: reads one. store: sets one. has:
    returns whether the object has one of these.
    """

    __slots__ = ("has", "load", "names", "store")

    def __init__(
        self,
        names: Callable[[], tuple[Any, ...]],
        load: Callable[[Any], Any],
        store: Callable[[Any, Any], None],
        has: Callable[[Any], Any] = lambda _: True,
    ) -> None:
        super().__init__()
        self.names, self.load, self.store, self.has = names, load, store, has

    def __contains__(self, key: object) -> bool:
        return key in self.names()

    def __missing__(self, key: Any) -> Any:
        if key not in self.names():
            raise KeyError(key)
        return self.load(key)

    def get(self, key: Any, default: Any = None) -> Any:
        return self.load(key) if key in self.names() else default

    def keys(self) -> Any:
        return dict.fromkeys(self.names()).keys()


class DataObject(HeapObject):
    """An object of an instance. `value` is a value of the Program."""

    __slots__ = ("stored",)
    is_leaf = True
    """True if an object of this class can be made again of the value."""

    def __init__(self, kind: type, table: DataTable, value: Value) -> None:
        super().__init__(kind, table, 0)
        self.stored = value

    @property
    def value(self) -> Value:
        return tracer().use(self.stored)

    def __repr__(self) -> str:
        return f"<{self.kind.__name__} of an instance>"


class DataUnion(Either):
    """A value of an instance that is of one of several types. `stored` is that of the Program.

    split: emits the flags and options, where they are needed first; also returns a value that is
    made then.
    """

    __slots__ = ("found", "split", "stored")
    is_leaf = True

    def __init__(self, value: Value, split: Callable[[], tuple[Any, Any, Value]]) -> None:
        self.stored, self.split = value, split
        self.found: tuple[Any, Any, Value] | None = None

    def parts(self) -> tuple[Any, Any]:
        if self.found is None or not is_here(self.found[2]):
            self.found = self.split()
        return self.found[:2]

    @property
    def stretto_flags(self) -> tuple[Any, ...]:
        return tuple(self.parts()[0])

    @property
    def stretto_options(self) -> tuple[Any, ...]:
        return tuple(self.parts()[1])

    @property
    def value(self) -> Value:
        return tracer().use(self.stored)


def is_here(value: Value) -> bool:
    """True if a value may be used in the current block, without a parameter for it."""
    home = tracer().home.get(value)
    return home is not None and home.open and home.context is tracer().context
