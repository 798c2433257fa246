"""Which objects of instances cannot change, so that they are read once, not in each batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from stretto.batching.host.places import is_stored
from stretto.batching.program import ClassInfo, InstanceProgram
from stretto.batching.types import (
    ListType,
    RecordType,
    Scalar,
    TupleType,
    Type,
    alternatives,
)


class Frozen:
    """What a program knows as frozen: frozen dataclasses, named tuples and tuples, whose parts are
    frozen too, down to numbers, strings and None. Not tensors: each batch numbers its own.

    classes: the numbers of frozen classes. tuples: whether all types of tuples are frozen; where
    some are not, one tuple might be met as both, so none counts.
    """

    def __init__(self, program: InstanceProgram) -> None:
        self._program = program
        self.classes = {n for n, info in enumerate(program.classes) if _is_fixed(info)}
        self.tuples = True
        self._cells = set(range(len(program.cells)))
        while True:  # types refer to each other: what is not frozen is taken out until all agree
            known = len(self.classes), self.tuples, len(self._cells)
            self._cells = {n for n in self._cells if self._is_frozen(program.cells[n])}
            self.tuples = self.tuples and all(map(self._is_one_frozen, self._tuple_types()))
            self.classes = {
                n for n in self.classes if self._cells.issuperset(program.classes[n].cells)
            }
            if (len(self.classes), self.tuples, len(self._cells)) == known:
                return

    def _is_frozen(self, type_: Type) -> bool:
        return all(map(self._is_one_frozen, alternatives(type_)))

    def _is_one_frozen(self, type_: Type) -> bool:
        match type_:
            case Scalar():
                return True
            case RecordType(number):
                return number in self.classes
            case TupleType(items):
                return self.tuples and all(map(self._is_frozen, items))
            case ListType(cell, True):
                return self.tuples and cell in self._cells
            case _:
                return False

    def _tuple_types(self) -> Iterable[Type]:
        """All types of tuples that instances may have."""
        pending = [parameter.type for parameter in self._program.functions[0].parameters]
        pending += self._program.cells
        while pending:
            for type_ in alternatives(pending.pop()):
                if isinstance(type_, TupleType):
                    pending += type_.items
                if isinstance(type_, TupleType) or (isinstance(type_, ListType) and type_.is_tuple):
                    yield type_


def _is_fixed(info: ClassInfo) -> bool:
    """Whether the fields of an object stay the same objects."""
    if info.kind == "namedtuple":
        return True
    params = vars(info.python).get("__dataclass_params__")
    if info.kind != "object" or not params or not params.frozen:
        return False
    names = {field.name for field in dataclasses.fields(info.python)}
    return all(name in names and is_stored(info.python, name) for name in info.fields)
