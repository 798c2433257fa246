"""Types of instances: the kinds of Python data that a program is called with.

Each class gets a cell per field, each field that holds lists a cell for their items, and so on:
the values found in one place in any instance share one type. The annotations of classes are
added, so that an annotated kind of data need not be in the first instances.
"""

from __future__ import annotations

import dataclasses
import enum
import gc
import types
import typing
from collections.abc import Hashable, Sequence
from typing import Any

import torch

from stretto.batching.instances.types import (
    ABSENT,
    InstanceTypes,
    in_class,
    joined,
    scalar_type,
    tensor_type,
)
from stretto.errors import CaptureError
from stretto.ir.types import (
    NEVER,
    DataType,
    DictType,
    ListType,
    RecordType,
    Scalar,
    TupleType,
    union,
)

_LONGEST = 8
"""Tuples with more items get the type of tuples of any length."""
_DEEPEST = 3
"""Tuples nested this deep get the type of tuples of any length, since the nodes of a tree may be
tuples; a list nested this deep shares the cell of the list around it."""


_PLAIN = (list, tuple, dict, str, int, float)
"""Built-in classes whose objects are data; objects of classes derived from them are not."""


class Observer:
    """Adds the types of instances to those that are known."""

    def __init__(self, known: InstanceTypes) -> None:
        self._types = known
        self._seen: dict[tuple[int, Hashable], Any] = {}
        """Objects by identity and place, kept alive so that identities stay unique."""
        self._pending: list[tuple[Any, Hashable, int, str]] = []

    def observe(self, column: Sequence[Any], place: Hashable, title: str) -> DataType:
        """Return the type of a parameter, from its values in several instances."""
        cell = self._types.cell(("parameter", place))
        for number, value in enumerate(column):
            self._pending.append((value, place, cell, f"{title}[{number}]"))
        try:
            self._drain()
        finally:
            self._pending.clear()
            self._seen.clear()
        return self._types.cells[self._types.merged_cell(cell)]

    def _drain(self) -> None:
        while self._pending:
            value, place, cell, path = self._pending.pop()
            key = (id(value), (place, cell))
            if key in self._seen and not isinstance(value, int | float | str | bool):
                continue
            self._seen[key] = value
            try:
                type_ = self._type(value, place, path)
            except CaptureError as error:
                self._leave(place, error)
                continue
            cell = self._types.merged_cell(cell)
            grown = joined((self._types.cells[cell], type_))
            self._types.cells[cell] = grown
            self._types.merge_cells(grown)

    def _leave(self, place: Hashable, error: CaptureError) -> None:
        """Record the field that holds a value that is no data: it is an error only if the program
        reads the field. Raise the error if the value is not in a field."""
        match place:
            case ("field", int() as number, str() as name):
                cell = self._types.field_cell(RecordType(number), name)
                assert cell is not None
                self._types.unreadable_fields.setdefault(cell, error)
            case ((_, *_) as around, *_):
                self._leave(around, error)
            case _:
                raise error

    def _type(self, value: Any, place: Hashable, path: str) -> DataType:
        kind = scalar_type(value)
        if kind is not None:
            return kind
        if isinstance(value, torch.Tensor):
            try:
                return tensor_type(value)
            except KeyError:
                raise CaptureError(f"{path} is a tensor of dtype {value.dtype}") from None
        plain = next((kind for kind in _PLAIN if isinstance(value, kind)), None)
        is_other = plain is not None and type(value) is not plain
        if is_other and not hasattr(value, "_fields") and not isinstance(value, enum.Enum):
            assert plain is not None
            raise CaptureError(
                f"{path} is an object of class {type(value).__name__}, a kind of {plain.__name__} "
                "that a batch does not support",
                remedy=f"pass a plain {plain.__name__}: {plain.__name__}(x)",
            )
        if type(value) is list:
            return self._list(value, place, path, is_tuple=False)
        if type(value) is tuple:
            return self._tuple(value, place, path)
        if type(value) is dict:
            return self._dict(value, place, path)
        return self._record(value, path)

    def _list(self, value: Sequence[Any], place: Hashable, path: str, is_tuple: bool) -> DataType:
        inner = (place, "items")
        if _depth(place) >= _DEEPEST:
            inner = place
        cell = self._types.cell(inner)
        for number, item in enumerate(value):
            self._pending.append((item, inner, cell, f"{path}[{number}]"))
        return ListType(cell, is_tuple)

    def _tuple(self, value: tuple[Any, ...], place: Hashable, path: str) -> DataType:
        """Return the type of a tuple: an item type each if it is short; any length and one item
        type if it is long or nested deep."""
        depth = 0
        around = place
        while isinstance(around, tuple) and len(around) == 3 and around[1] == "item":
            around, depth = around[0], depth + 1
        if len(value) > _LONGEST or depth >= _DEEPEST:
            return self._list(value, around, path, is_tuple=True)
        return TupleType(
            tuple(
                self._type(item, (place, "item", number), f"{path}[{number}]")
                for number, item in enumerate(value)
            )
        )

    def _dict(self, value: dict[Any, Any], place: Hashable, path: str) -> DataType:
        if value and all(type(key) is str for key in value):
            number = self._types.class_number(dict, "dict", tuple(value))
            return self._fields(number, value, path, lambda name: f"{path}[{name!r}]")
        kinds = {scalar_type(key) for key in value} or {Scalar.INT}
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind is None or kind in (Scalar.NONE, Scalar.FLOAT):
            raise CaptureError(
                f"{path} is a dict whose keys are not all strings, or all ints",
                remedy="use strings or ints as keys",
            )
        inner = (place, "values")
        cell = self._types.cell(inner)
        self._types.has_keys(cell, kind)
        for key, item in value.items():
            self._pending.append((item, inner, cell, f"{path}[{key!r}]"))
        return DictType(kind, cell)

    def _record(self, value: Any, path: str) -> DataType:
        python = type(value)
        is_member = isinstance(value, enum.Enum)
        values = _member_fields(value) if is_member else _fields_of(value, self._known(python))
        if values is None:
            raise CaptureError(
                f"{path} is an object of class {python.__name__}, which is not data that a batch "
                "supports",
                remedy="use a plain enum.Enum, or a string, as the tag"
                if is_member
                else "instances may hold numbers, strings, None, tensors, and tuples, lists, "
                "dicts, dataclasses and objects with attributes",
            )
        kind = "namedtuple" if isinstance(value, tuple) else "object"
        new = self._types.classes.find(python) is None
        number = self._types.class_number(python, kind, tuple(values))
        if new:
            self._annotations(number, python)
        for name in self._types.classes.infos[number].fields:
            if name not in values and hasattr(value, name):  # a class attribute, stored by others
                values[name] = getattr(value, name)
        return self._fields(number, values, path, lambda name: f"{path}.{name}")

    def _known(self, python: type) -> tuple[str, ...]:
        """Return the fields of other objects of a class."""
        number = self._types.classes.find(python)
        return () if number is None else self._types.classes.infos[number].fields

    def _fields(self, number: int, values: dict[str, Any], path: str, shown: Any) -> DataType:
        type_ = RecordType(number)
        for name, item in values.items():
            cell = self._types.field_cell(type_, name)
            assert cell is not None
            self._pending.append((item, ("field", number, name), cell, shown(name)))
        return type_

    # ---- annotations

    def _annotations(self, number: int, python: type) -> None:
        """Add the types in a class's annotations to its fields if they are simple."""
        try:
            hints = typing.get_type_hints(python)
        except (NameError, AttributeError, TypeError, SyntaxError):  # unresolvable names
            return
        type_ = RecordType(number)
        for name, hint in hints.items():
            cell = self._types.field_cell(type_, name)
            if cell is None:
                continue
            known = self._types.cells[cell]
            said = self._annotated(hint, ("field", number, name))
            self._types.cells[cell] = union((known, said))

    def _annotated(self, hint: Any, place: Hashable) -> DataType:
        """Return the types that an annotation allows, and add them to the cells of its lists and
        classes; NEVER if they cannot be derived from it alone."""
        origin = typing.get_origin(hint)
        if origin in (typing.Union, types.UnionType):
            return union(self._annotated(part, place) for part in typing.get_args(hint))
        if hint is None or hint is type(None):
            return Scalar.NONE
        if hint in (bool, int, float, str):
            return {
                bool: Scalar.BOOL, int: Scalar.INT, float: Scalar.FLOAT, str: Scalar.STR
            }[hint]  # fmt: skip
        if origin is list:
            inner = (place, "items")
            cell = self._types.cell(inner)
            (item,) = typing.get_args(hint) or (Any,)
            said = union((self._types.cells[cell], self._annotated(item, inner)))
            self._types.cells[cell] = said
            return ListType(cell)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return self._class(hint)
        return NEVER

    def _class(self, python: type) -> DataType:
        new = self._types.classes.find(python) is None
        names = tuple(item.name for item in dataclasses.fields(python))
        number = self._types.class_number(python, "object", names)
        if new:
            self._annotations(number, python)
        return RecordType(number)


def _depth(place: Hashable) -> int:
    """Return the number of consecutive lists that a place is nested in."""
    depth = 0
    while isinstance(place, tuple) and len(place) == 2 and place[1] == "items":
        place, depth = place[0], depth + 1
    return depth


def _member_fields(member: enum.Enum) -> dict[str, Any] | None:
    """Return the fields of a member of an enumeration: its name, and its value if the values are
    scalars. None if members are numbers or strings themselves, or flags."""
    if isinstance(member, int | float | str | tuple | enum.Flag):
        return None
    found: dict[str, Any] = {"_name_": member.name}
    if all(scalar_type(other.value) is not None for other in type(member)):
        found["_value_"] = member.value
    return found


def _fields_of(value: Any, known: Sequence[str]) -> dict[str, Any] | None:
    """Return the fields of an object that is data; None for any other object. known: the fields of
    other objects of its class."""
    if isinstance(value, tuple):
        return value._asdict()  # type: ignore[attr-defined]
    if isinstance(value, torch.nn.Module | type | types.ModuleType) or callable(value):
        return None
    found = dict[str, Any]()
    if dataclasses.is_dataclass(value):
        names = [item.name for item in dataclasses.fields(value)]
        found = {name: getattr(value, name) for name in names if hasattr(value, name)}
    slots = _slots(type(value))
    found |= {name: getattr(value, name) for name in slots or () if hasattr(value, name)}
    likely = found or _likely_fields(value, known)
    if likely and _holds_only(value, likely):
        return likely
    if slots is None and not found and not hasattr(value, "__dict__"):
        return None
    return found | {k: v for k, v in getattr(value, "__dict__", {}).items() if k not in found}


def _likely_fields(value: Any, known: Sequence[str]) -> dict[str, Any]:
    """Return those of the known fields that an object has and its class does not."""
    names = [name for name in known if in_class(type(value), name) is ABSENT]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _holds_only(value: Any, fields: dict[str, Any]) -> bool:
    """Return True if an object stores these fields and nothing else. Avoids `__dict__`: reading it
    makes CPython create the dict, which takes memory and slows down each later access."""
    python = type(value)
    is_plain = python.__getattribute__ is object.__getattribute__
    if not is_plain or in_class(python, "__getattr__") is not ABSENT:
        return False
    held = sorted(id(item) for item in gc.get_referents(value))
    return held == sorted([id(python), *map(id, fields.values())])


def _slots(python: type) -> list[str] | None:
    """Return the fields in `__slots__` of a class and its bases; None if no class has any."""
    bases = [base for base in reversed(python.__mro__) if "__slots__" in vars(base)]
    slots = [n for base in bases for n, x in vars(base).items() if _is_slot(x)]
    return slots if bases else None


def _is_slot(found: Any) -> bool:
    return isinstance(found, types.MemberDescriptorType)
