"""Types of the values of an InstanceProgram: Python data, and tensors of one instance.

A type is what is known of a value before any instance is read. Records and lists are mutable
objects with identity, so the type of their contents is a *cell* of the program
(`InstanceProgram.cells`), shared by all values of one origin: a class has a cell per field, and
each place that creates lists has one for their items. The type in a cell grows while a program
is evaluated, and never shrinks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from stretto.ir.types import DType


class Scalar(Enum):
    """Python values without parts. The enum value is the printed name."""

    NONE = "None"
    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    STR = "str"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class InstanceTensorType:
    """A tensor of one instance, with known dims: a row of a pool while a batch runs."""

    dtype: DType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype.value}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class RowsType:
    """A tensor of one instance whose first dim is known only at run time: [?, *shape].

    At run time it is a list of tensors, its rows, each of type `row`.
    """

    row: InstanceTensorType

    def __str__(self) -> str:
        return f"{self.row.dtype.value}[{', '.join(('?', *map(str, self.row.shape)))}]"


@dataclass(frozen=True, slots=True)
class RecordType:
    """An object of class `InstanceProgram.classes[number]`."""

    number: int

    def __str__(self) -> str:
        return f"record{self.number}"


@dataclass(frozen=True, slots=True)
class TupleType:
    """A tuple of known length."""

    items: tuple[Type, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))})"


@dataclass(frozen=True, slots=True)
class ListType:
    """A list, or if `is_tuple` a tuple of any length; its item type is in cell number `cell`."""

    cell: int
    is_tuple: bool = False

    def __str__(self) -> str:
        return f"{'tuple' if self.is_tuple else 'list'}<{self.cell}>"


@dataclass(frozen=True, slots=True)
class DictType:
    """A dict without fixed keys: keys of one scalar type, values of the type in cell `cell`."""

    key: Scalar
    cell: int

    def __str__(self) -> str:
        return f"dict<{self.key.value}, {self.cell}>"


@dataclass(frozen=True, slots=True)
class UnionType:
    """One of several types, none of which is a union. Build it with `union`."""

    items: frozenset[Type]

    def __str__(self) -> str:
        return " | ".join(sorted(map(str, self.items))) or "never"


Type = (
    Scalar
    | InstanceTensorType
    | RowsType
    | RecordType
    | TupleType
    | ListType
    | DictType
    | UnionType
)

NEVER = UnionType(frozenset())
"""The type without values: the result of a function that is not yet known to return."""


def alternatives(type_: Type) -> Iterator[Type]:
    """Yield the types that a value may have: the items of a union, or the type itself."""
    if isinstance(type_, UnionType):
        yield from type_.items
    else:
        yield type_


def union(types: Iterable[Type]) -> Type:
    """Return the type of a value that has one of `types`; tuples of one length are joined item by
    item."""
    found: set[Type] = set()
    tuples: dict[int, TupleType] = {}
    for item in (item for type_ in types for item in alternatives(type_)):
        if isinstance(item, TupleType):
            other = tuples.get(len(item.items))
            if other is not None:
                pairs = zip(other.items, item.items, strict=True)
                item = TupleType(tuple(union(pair) for pair in pairs))
            tuples[len(item.items)] = item
        else:
            found.add(item)
    found |= set(tuples.values())
    return found.pop() if len(found) == 1 else UnionType(frozenset(found))
