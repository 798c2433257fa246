"""Types of a Program: tensors with static or symbolic dims, lists of tensors, and Python data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from math import prod

import torch

from stretto.ir.sizes import Size, Symbol


class DType(Enum):
    """Element types that a Program may use; the value is the printed name."""

    F32 = "f32"
    F64 = "f64"
    F16 = "f16"
    BF16 = "bf16"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U8 = "u8"
    BOOL = "bool"

    @property
    def torch(self) -> torch.dtype:
        return _TO_TORCH[self]

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _TO_TORCH[self].itemsize

    @property
    def is_float(self) -> bool:
        return self in (DType.F32, DType.F64, DType.F16, DType.BF16)

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers, False for bool."""
        return not self.is_float and self is not DType.BOOL

    @staticmethod
    def from_torch(dtype: torch.dtype) -> DType:
        """Return the DType of `dtype`; raise KeyError if a Program cannot hold it (complex,
        quantised)."""
        return _FROM_TORCH[dtype]


_TO_TORCH: dict[DType, torch.dtype] = {
    DType.F32: torch.float32,
    DType.F64: torch.float64,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.I64: torch.int64,
    DType.I32: torch.int32,
    DType.I16: torch.int16,
    DType.I8: torch.int8,
    DType.U8: torch.uint8,
    DType.BOOL: torch.bool,
}
_FROM_TORCH: dict[torch.dtype, DType] = {theirs: ours for ours, theirs in _TO_TORCH.items()}


Dim = int | Size
"""A constant dim is an int. The symbols of a Size are bound by a function's parameters or by ops
(`symbols_bound_by`)."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor. A scalar is a tensor without dims."""

    dtype: DType
    shape: tuple[Dim, ...] = ()

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        return all(isinstance(dim, int) for dim in self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes, symbolic dims counted as 1."""
        return prod(dim for dim in self.shape if isinstance(dim, int)) * self.dtype.itemsize

    @property
    def is_scalar(self) -> bool:
        return not self.shape

    def static_shape(self) -> tuple[int, ...]:
        """Return the shape as ints; raise TypeError if a dim is symbolic."""
        dims = tuple(dim for dim in self.shape if isinstance(dim, int))
        if len(dims) != len(self.shape):
            raise TypeError(f"{self} has a symbolic dim")
        return dims

    def at(self, sizes: Mapping[Symbol, int]) -> TensorType:
        """Return the type with the symbols replaced by these sizes."""
        dims = (
            dim if isinstance(dim, int) else dim.evaluate(sizes.__getitem__) for dim in self.shape
        )
        return TensorType(self.dtype, tuple(dims))

    def __str__(self) -> str:
        return f"{self.dtype.value}[{', '.join(str(dim) for dim in self.shape)}]"


@dataclass(frozen=True, slots=True)
class TensorListType:
    """A list of tensors of one type, which grows by `list.push`; its length is dynamic."""

    element: TensorType

    def __str__(self) -> str:
        return f"list<{self.element}>"


Type = TensorType | TensorListType

INDEX = TensorType(DType.I64)
"""The type of loop indices, list lengths and positions."""

FLAG = TensorType(DType.BOOL)
"""The type of conditions."""


# ---- Types of Python data -------------------------------------------------------------------
#
# A type is what is known of a value before any instance is read. Records and lists are mutable
# objects with identity, so the type of their contents is a *cell* of the program
# (`InstanceProgram.cells`), shared by all values of one origin: a class has a cell per field, and
# each place that creates lists has one for their items. The type in a cell grows while a program
# is evaluated, and never shrinks.


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
class RowsType:
    """A tensor of one instance whose first dim is known only at run time: [?, *shape].

    At run time it is a list of tensors, its rows, each of type `row`.
    """

    row: TensorType

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

    items: tuple[DataType, ...]

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

    items: frozenset[DataType]

    def __str__(self) -> str:
        return " | ".join(sorted(map(str, self.items))) or "never"


DataType = TensorType | Scalar | RowsType | RecordType | TupleType | ListType | DictType | UnionType

NEVER = UnionType(frozenset())
"""The type without values: the result of a function that is not yet known to return."""


def alternatives(type_: DataType) -> Iterator[DataType]:
    """Yield the types that a value may have: the items of a union, or the type itself."""
    if isinstance(type_, UnionType):
        yield from type_.items
    else:
        yield type_


def union(types: Iterable[DataType]) -> DataType:
    """Return the type of a value that has one of `types`; tuples of one length are joined item by
    item."""
    found: set[DataType] = set()
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
