"""Mutable locations that are neither containers nor objects with attributes: cells, names, slots.

Each has contents by key, like a dict, so that it can be copied, compared and restored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CellType, FunctionType, MemberDescriptorType
from typing import Any

from stretto.frontends.python.tracing.frames import UNDEFINED, read_cell, write_cell


class Holder(ABC):
    """Base of such locations; `read` copies the contents, `write` replaces them."""

    __slots__ = ()

    @abstractmethod
    def read(self) -> dict[Any, Any]: ...

    @abstractmethod
    def write(self, values: dict[Any, Any]) -> None: ...


@dataclass(eq=False, slots=True)
class CellVariable(Holder):
    """A variable of a function that encloses a traced one."""

    cell: CellType
    name: str

    def read(self) -> dict[Any, Any]:
        value = read_cell(self.cell)
        return {} if value is UNDEFINED else {self.name: value}

    def write(self, values: dict[Any, Any]) -> None:
        write_cell(self.cell, values.get(self.name, UNDEFINED))


@dataclass(eq=False, slots=True)
class NamespaceEntries(Holder):
    """Some entries of a module's namespace."""

    table: dict[str, Any]
    names: tuple[str, ...]

    def read(self) -> dict[Any, Any]:
        return {name: self.table[name] for name in self.names if name in self.table}

    def write(self, values: dict[Any, Any]) -> None:
        _assign(self.read(), values, self.table.__setitem__, self.table.__delitem__)


@dataclass(eq=False, slots=True)
class SlotAttributes(Holder):
    """Attributes of an object that its classes declare by `__slots__`."""

    owner: object

    def read(self) -> dict[Any, Any]:
        found = ((name, slot) for name, slot in slots_of(type(self.owner)))
        values = ((name, read_slot(slot, self.owner)) for name, slot in found)
        return {name: value for name, value in values if value is not UNDEFINED}

    def write(self, values: dict[Any, Any]) -> None:
        members = dict(slots_of(type(self.owner)))
        _assign(
            self.read(),
            values,
            lambda name, value: members[name].__set__(self.owner, value),
            lambda name: members[name].__delete__(self.owner),
        )


@dataclass(eq=False, slots=True)
class ClassAttributes(Holder):
    """Plain values of a user's class."""

    owner: type

    def read(self) -> dict[Any, Any]:
        return {
            name: value
            for name, value in vars(self.owner).items()
            if not name.startswith(("__", "_abc_")) and not isinstance(value, _METHODS)
        }

    def write(self, values: dict[Any, Any]) -> None:
        _assign(
            self.read(),
            values,
            lambda name, value: type.__setattr__(self.owner, name, value),
            lambda name: type.__delattr__(self.owner, name),
        )


_METHODS = (FunctionType, staticmethod, classmethod, property, MemberDescriptorType)


def slots_of(kind: type) -> Iterable[tuple[str, Any]]:
    """Yield names and descriptors of the slots that a class and its bases declare."""
    for base in kind.__mro__:
        if "__slots__" in vars(base):
            for name, value in vars(base).items():
                if isinstance(value, MemberDescriptorType):
                    yield name, value


def read_slot(slot: Any, owner: object) -> Any:
    """Return the value of an object's slot; UNDEFINED if it is not set."""
    try:
        return slot.__get__(owner)
    except AttributeError:
        return UNDEFINED


def _assign(
    now: dict[Any, Any],
    values: dict[Any, Any],
    put: Callable[[Any, Any], object],
    remove: Callable[[Any], object],
) -> None:
    for name in now.keys() - values.keys():
        remove(name)
    for name, value in values.items():
        if name not in now or now[name] is not value:
            put(name, value)


def anchor(box: Any) -> int:
    """Return the id of the object from which guards read the entries of a box."""
    match box:
        case CellVariable():
            return id(box.cell)
        case NamespaceEntries():
            return id(box.table)
        case SlotAttributes() | ClassAttributes():
            return id(box.owner)
        case list() | dict():
            return id(box)  # pyright: ignore[reportUnknownArgumentType]
        case _:
            return id(getattr(box, "__dict__", box))
