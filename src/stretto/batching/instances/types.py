"""The types of instances: classes of objects, and cells for what objects and lists hold.

A type in a cell grows while instances are observed and a function is captured, and never shrinks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from stretto.batching.instance_program import ClassInfo
from stretto.errors import CaptureError
from stretto.ir.types import (
    NEVER,
    DataType,
    DictType,
    DType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    UnionType,
    alternatives,
    union,
)


class TypesGrew(BaseException):
    """A type that the capture has relied on has changed: start it again."""


_SCALARS: dict[type, Scalar] = {
    type(None): Scalar.NONE,
    bool: Scalar.BOOL,
    int: Scalar.INT,
    float: Scalar.FLOAT,
    str: Scalar.STR,
}


def scalar_type(value: object) -> Scalar | None:
    """Return the type of a scalar Python object; None for any other object."""
    return _SCALARS.get(type(value))


def tensor_type(tensor: torch.Tensor) -> TensorType:
    """Return the type of a tensor with known dims. Raises KeyError for a dtype that no Program
    carries."""
    return TensorType(DType.from_torch(tensor.dtype), tuple(int(dim) for dim in tensor.shape))


ABSENT = object()
"""Placeholder for the value of a name that does not exist."""


def joined(types: Iterable[DataType]) -> DataType:
    """Return the union of types, where tensors that differ only in their first dim become rows."""
    kinds = {kind for type in types for kind in alternatives(type)}
    tensors = [kind for kind in kinds if isinstance(kind, TensorType | RowsType)]
    rows = set(map(_row, tensors))
    if len(tensors) > 1 and len(rows) == 1 and None not in rows:
        kinds -= set(tensors)
        kinds |= {RowsType(row) for row in rows if row is not None}
    return union(kinds)


def tensor_as_data(type: TensorType) -> TensorType | RowsType:
    """Return the type of a tensor as data: one whose first size data decide is rows. Raises
    CaptureError if they decide another one."""
    if type.is_static:
        return type
    row = TensorType(type.dtype, type.shape[1:])
    if not row.is_static:
        raise CaptureError(
            f"data decide sizes of a tensor {type} other than the first one",
            remedy="make it a tensor whose first size differs from instance to instance",
        )
    return RowsType(row)


def _row(kind: TensorType | RowsType) -> TensorType | None:
    if isinstance(kind, RowsType):
        return kind.row
    return TensorType(kind.dtype, kind.shape[1:]) if kind.shape else None


def in_class(python: type, name: str) -> Any:
    """Return the stored entry of a name in a class or its bases; `ABSENT` if none has it."""
    return next((vars(base)[name] for base in python.__mro__ if name in vars(base)), ABSENT)


@dataclass(slots=True)
class Classes:
    """The classes of objects that a program uses, with a cell for each field."""

    infos: list[ClassInfo] = field(default_factory=list[ClassInfo])
    numbers: dict[Hashable, int] = field(default_factory=dict[Hashable, int])

    def find(self, python: type, fields: tuple[str, ...] = ()) -> int | None:
        return self.numbers.get((python, fields if python is dict else ()))


@dataclass(slots=True)
class InstanceTypes:
    """Classes of objects, and the types in cells."""

    cells: list[DataType] = field(default_factory=list[DataType])
    classes: Classes = field(default_factory=Classes)
    changed: bool = False
    """True if a type has grown, since this was set to False."""
    keys: dict[int, Scalar] = field(default_factory=dict[int, Scalar])
    """The type of the keys of the dicts of a cell, as far as it is known."""
    unreadable_fields: dict[int, CaptureError] = field(default_factory=dict[int, CaptureError])
    """Reasons why values cannot be data, by the cell of the field that holds them."""
    _sites: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    _merged: dict[int, int] = field(default_factory=dict[int, int])

    def snapshot(self) -> Callable[[], None]:
        """Save the state and return a function that restores it, so that instances that could not
        be compiled have no effect on later ones."""
        known = {item.name: copy(getattr(self, item.name)) for item in fields(self)}
        known["classes"] = Classes(list(self.classes.infos), dict(self.classes.numbers))

        def restore() -> None:
            for name, value in known.items():
                setattr(self, name, value)

        return restore

    # ---- cells and classes

    def cell(self, site: Hashable) -> int:
        """Return the cell of a place that creates lists, the same in each round."""
        if site not in self._sites:
            self._sites[site] = self.new_cell()
        return self.merged_cell(self._sites[site])

    def new_cell(self, type_: DataType = NEVER) -> int:
        self.cells.append(type_)
        return len(self.cells) - 1

    def grow(self, cell: int, type_: DataType) -> None:
        """Add a type to those that a cell may hold."""
        grown = union((self.cells[cell], type_))
        if grown != self.cells[cell]:
            self.cells[cell] = grown
            self.changed = True
            self.settle(grown)

    def class_number(self, python: type, kind: str, fields: Sequence[str]) -> int:
        """Return the number of a class; add the class or its fields if they are new."""
        key = (python, tuple(fields) if kind == "dict" else ())
        number = self.classes.numbers.get(key)
        if number is None:
            number = self.classes.numbers[key] = len(self.classes.infos)
            cells = tuple(self.new_cell() for _ in fields)
            self.classes.infos.append(ClassInfo(python, kind, tuple(fields), cells))
            self.changed = True
        info = self.classes.infos[number]
        new = tuple(name for name in fields if name not in info.fields)
        if new:
            cells = (*info.cells, *(self.new_cell() for _ in new))
            self.classes.infos[number] = ClassInfo(python, kind, (*info.fields, *new), cells)
            self.changed = True
        return number

    def info(self, type_: RecordType) -> ClassInfo:
        return self.classes.infos[type_.number]

    def field_cell(self, type_: RecordType, name: str) -> int | None:
        info = self.info(type_)
        return info.cells[info.fields.index(name)] if name in info.fields else None

    def foreign_in(self, cell: int) -> CaptureError | None:
        """Return the reason why the values of a field cannot be read; None if all can."""
        found = (
            x
            for n, x in self.unreadable_fields.items()
            if self.merged_cell(n) == self.merged_cell(cell)
        )
        return next(found, None)

    def item_type(self, type_: ListType) -> DataType:
        return self.cells[type_.cell]

    # ---- merging of the cells of lists and dicts

    def merged_cell(self, number: int) -> int:
        """Return the cell into which a cell has been merged, or the cell itself."""
        while number in self._merged:
            number = self._merged[number]
        return number

    def with_merged_cells(self, type_: DataType) -> DataType:
        """Return a type with merged cells replaced."""
        match type_:
            case ListType(cell, is_tuple):
                return ListType(self.merged_cell(cell), is_tuple)
            case DictType(_, cell):
                cell = self.merged_cell(cell)
                return DictType(self.keys.get(cell, type_.key), cell)
            case TupleType(items):
                return TupleType(tuple(map(self.with_merged_cells, items)))
            case UnionType(items):
                return union(map(self.with_merged_cells, items))
            case _:
                return type_

    def settle(self, type_: DataType) -> None:
        """Merge the cells of lists, and those of dicts, that one variable may hold, since they are
        not distinguishable at run time. Raises TypesGrew if cells were merged."""
        if self.merge_cells(type_):
            raise TypesGrew

    def merge_cells(self, type_: DataType) -> bool:
        """Merge the cells of the lists and of the dicts that a value of a type may be; return True
        if any were merged."""
        if isinstance(type_, TupleType):
            return True in list(map(self.merge_cells, type_.items))
        if not isinstance(type_, UnionType):
            return False
        found: dict[Hashable, set[int]] = {}
        merged = False
        for item in type_.items:
            match item:
                case ListType(cell, is_tuple):
                    found.setdefault(is_tuple, set()).add(self.merged_cell(cell))
                case DictType(_, cell):
                    found.setdefault("dict", set()).add(self.merged_cell(cell))
                case _:
                    merged |= self.merge_cells(item)
        for cells in found.values():
            if len(cells) > 1:
                self._merge(sorted(cells))
                merged = True
        return merged

    def rename_cells(self) -> None:
        """Replace merged cells in all types."""
        self.cells[:] = map(self.with_merged_cells, self.cells)

    def _merge(self, cells: list[int]) -> None:
        first, *others = cells
        self._merged |= dict.fromkeys(others, first)
        kinds = {self.keys[cell] for cell in cells if cell in self.keys}
        if len(kinds) > 1:
            raise CaptureError(
                "one variable or field holds dicts with keys of different types",
                remedy="use keys of one type",
            )
        if kinds:
            self.keys[first] = kinds.pop()
        self.cells[first] = union(self.cells[cell] for cell in cells)
        self.rename_cells()
        self.classes.infos[:] = [
            ClassInfo(i.python, i.kind, i.fields, tuple(map(self.merged_cell, i.cells)))
            for i in self.classes.infos
        ]
        for number, cell in enumerate(self.cells):
            if number not in self._merged:
                self.merge_cells(cell)

    # ---- key types of dicts

    def has_keys(self, cell: int, key: Scalar) -> None:
        """Record the key type of the dicts of a cell. Raises TypesGrew if it was not known, and
        CaptureError if they have keys of another type."""
        known = self.keys.get(self.merged_cell(cell))
        if known is None:
            self.keys[self.merged_cell(cell)] = key
            if key is not Scalar.INT:
                self.rename_cells()
                raise TypesGrew
        elif known is not key:
            raise CaptureError(
                f"a dict has keys of type {known.value} and of type {key.value}",
                remedy="use keys of one type",
            )

    def dict_type(self, cell: int) -> DictType:
        """Return the type of the dicts of a cell."""
        return DictType(self.keys.get(self.merged_cell(cell), Scalar.INT), self.merged_cell(cell))


def show_type(known: InstanceTypes, type_: DataType) -> str:
    """Return a type in the user's terms."""
    names: list[str] = []
    for item in alternatives(type_):
        match item:
            case RecordType():
                info = known.info(item)
                shown = f"dict with {', '.join(map(repr, info.fields))}"
                names.append(shown if info.kind == "dict" else info.python.__name__)
            case ListType():
                names.append("tuple" if item.is_tuple else "list")
            case Scalar():
                names.append(item.value)
            case TensorType():
                names.append(f"tensor {item}")
            case _:
                names.append(str(item))
    return " | ".join(sorted(names)) or "never"
