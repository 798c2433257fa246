"""The evaluation of a whole program: the state that its functions share, and its rounds.

A function is evaluated on types. The result types of recursive functions and the types in
fields and lists are not known at first: they begin empty and grow. The whole program is
evaluated in rounds until no type grows any more; the last round yields the program.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from stretto.batching.frontend.function_builder import FunctionBuilder
from stretto.batching.frontend.values import Composed
from stretto.batching.instance_program import ClassInfo, InstanceProgram
from stretto.errors import CaptureError, SourceLocation
from stretto.ir.core import Block, Variable
from stretto.ir.data import InstanceFunction
from stretto.ir.types import (
    NEVER,
    DataType,
    DictType,
    ListType,
    RecordType,
    Scalar,
    TensorType,
    TupleType,
    UnionType,
    alternatives,
    union,
)

MOST_ROUNDS = 60


MOST_FUNCTIONS = 400


class RestartRound(Exception):
    """An assumption of this round does not hold: start another round."""


@dataclass(frozen=True, slots=True)
class Read:
    """A static object that was read from `owner` by `name`, such as a setting: a guard of the
    program.

    kind: "attribute", "class" (stored in a class or its bases), "global" (owner is a dict),
    "cell", "item", or "items": all of a container.
    """

    kind: str
    owner: Any
    name: Any
    value: Any


@dataclass(eq=False, slots=True)
class OutlinedFunction:
    """A function that is called instead of inlined, for one set of static arguments and types."""

    key: Hashable
    function: InstanceFunction
    builder: FunctionBuilder


@dataclass(slots=True)
class Classes:
    """The classes of objects that a program uses, with a cell for each field."""

    infos: list[ClassInfo] = field(default_factory=list[ClassInfo])
    numbers: dict[Hashable, int] = field(default_factory=dict[Hashable, int])

    def find(self, python: type, fields: tuple[str, ...] = ()) -> int | None:
        return self.numbers.get((python, fields if python is dict else ()))


@dataclass(slots=True)
class Evaluation:
    """The state of the evaluation: fields that last over all rounds, and those of one round."""

    cells: list[DataType] = field(default_factory=list[DataType])
    classes: Classes = field(default_factory=Classes)
    reads: dict[Hashable, Read] = field(default_factory=dict[Hashable, Read])
    """Guards of the last round."""
    outlined_code: set[Hashable] = field(default_factory=set[Hashable])
    """Recursive functions, which are never inlined."""
    dynamic_parameters: set[tuple[Hashable, str]] = field(default_factory=set[tuple[Hashable, str]])
    """Parameters of recursive functions whose static scalar differs from call to call."""
    results: dict[Hashable, DataType] = field(default_factory=dict[Hashable, DataType])
    """Result types of outlined functions, as far as they are known."""
    operations: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any])
    """Cached results of torch functions for argument types."""
    deep_tuples: set[Hashable] = field(default_factory=set[Hashable])
    """Places that create tuples nested to any depth."""
    _lengths: dict[Variable, Variable] = field(default_factory=dict[Variable, Variable])
    """Representative of the rows with the same length as each variable, in this round."""
    statements: int = 0
    """Number of statements created in this round."""
    changed: bool = False
    rounds: int = 0
    outlined: dict[Hashable, OutlinedFunction] = field(
        default_factory=dict[Hashable, OutlinedFunction]
    )
    functions: dict[str, InstanceFunction] = field(default_factory=dict[str, InstanceFunction])
    keys: dict[int, Scalar] = field(default_factory=dict[int, Scalar])
    """The type of the keys of the dicts of a cell, as far as it is known."""
    _sites: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    _merged: dict[int, int] = field(default_factory=dict[int, int])
    definitions: dict[Any, Any] = field(default_factory=dict[Any, Any])
    """Syntax trees of functions, by their code or by the node of a lambda."""
    kept: list[Any] = field(default_factory=list[Any])
    """Objects whose identity is part of a key, so that they must stay alive."""
    tested: set[str] = field(default_factory=set[str])
    """Fields tested with `hasattr` in this round."""
    unreadable_fields: dict[int, CaptureError] = field(default_factory=dict[int, CaptureError])
    """Reasons why values cannot be data, by the cell of the field that holds them."""
    counts: dict[Variable, Composed] = field(default_factory=dict[Variable, Composed])
    """Numbers of this round that are computed from the number of rows of a value."""
    content: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])
    """Tensors whose content was read, by identity."""

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
        not distinguishable at run time. Raises RestartRound if cells were merged."""
        if self.merge_cells(type_):
            raise RestartRound

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
        self.cells[:] = map(self.with_merged_cells, self.cells)
        self.results = {key: self.with_merged_cells(type_) for key, type_ in self.results.items()}
        self.classes.infos[:] = [
            ClassInfo(i.python, i.kind, i.fields, tuple(map(self.merged_cell, i.cells)))
            for i in self.classes.infos
        ]
        for number, cell in enumerate(self.cells):
            if number not in self._merged:
                self.merge_cells(cell)

    # ---- key types of dicts

    def has_keys(self, cell: int, key: Scalar) -> None:
        """Record the key type of the dicts of a cell. Raises RestartRound if it was not known, and
        CaptureError if they have keys of another type."""
        known = self.keys.get(self.merged_cell(cell))
        if known is None:
            self.keys[self.merged_cell(cell)] = key
            if key is not Scalar.INT:
                self.cells[:] = map(self.with_merged_cells, self.cells)
                self.results = {
                    name: self.with_merged_cells(type_) for name, type_ in self.results.items()
                }
                raise RestartRound
        elif known is not key:
            raise CaptureError(
                f"a dict has keys of type {known.value} and of type {key.value}",
                remedy="use keys of one type",
            )

    def dict_type(self, cell: int) -> DictType:
        """Return the type of the dicts of a cell."""
        return DictType(self.keys.get(self.merged_cell(cell), Scalar.INT), self.merged_cell(cell))

    # ---- equal lengths of rows

    def note_same_length(self, rows: Variable, other: Variable) -> None:
        """Record that a variable has as many rows as another."""
        self._lengths[rows] = self.length_of(other)

    def length_of(self, rows: Variable) -> Variable:
        """Return the variable that represents all those with as many rows as `rows`."""
        return self._lengths.get(rows, rows)

    # ---- guards

    def read(self, kind: str, owner: Any, name: Any, value: Any) -> None:
        """Record a guard: the program is valid only while `name` of `owner` has this `value`."""
        key = (kind, id(owner), name)
        if key not in self.reads:
            self.reads[key] = Read(kind, owner, name, value)

    # ---- rounds

    def run(self, body: Callable[[], None]) -> InstanceProgram:
        """Evaluate `body`, which builds the main function, until nothing changes. Raises
        CaptureError."""
        self.rounds = 0
        while True:
            self.rounds += 1
            if self.rounds > MOST_ROUNDS:
                raise CaptureError(
                    "the types of this function's values keep growing",
                    remedy="annotate its data, or keep values of fewer types in one place",
                )
            self.changed = False
            self.outlined, self.functions, self.reads, self._lengths = {}, {}, {}, {}
            self.tested, self.counts = set(), {}
            self.statements = 0
            try:
                body()
            except RestartRound:
                continue
            if not self.changed:
                break
        classes = [replace(info, absent=self._absent(info)) for info in self.classes.infos]
        tested = frozenset(self.tested)
        return InstanceProgram(self.functions, classes=classes, cells=self.cells, tested=tested)

    def _absent(self, info: ClassInfo) -> tuple[str, ...]:
        """Return the names that were looked up in a class and are no fields of it. Special names
        are excluded, since Python looks them up only in classes."""
        reads = self.reads.values()
        names = (read.name for read in reads if read.kind == "class" and read.owner is info.python)
        return tuple(x for x in names if x not in info.fields and not x.startswith("__"))

    def outline(
        self, key: Hashable, name: str, location: SourceLocation | None
    ) -> tuple[OutlinedFunction, bool]:
        """Return the function for a key, and True if it is new in this round, without a body."""
        found = self.outlined.get(key)
        if found is not None:
            return found, False
        if len(self.functions) >= MOST_FUNCTIONS:
            raise CaptureError(
                f"{name} is called with arguments of more than {MOST_FUNCTIONS} kinds",
                location=location,
                remedy="pass what differs from call to call in the data of the instance",
            )
        unique = name
        while unique in self.functions:
            unique = f"{unique}_{len(self.functions)}"
        result = self.results.get(key, NEVER)
        function = InstanceFunction(unique, Block(), result, location, name)
        made = OutlinedFunction(key, function, FunctionBuilder())
        self.functions[unique] = function
        self.outlined[key] = made
        return made, True

    def returns(self, key: Hashable, type_: DataType) -> None:
        """Record the type of a result of an outlined function."""
        known = self.results.get(key, NEVER)
        grown = union((known, type_))
        if grown != known:
            self.results[key] = grown
            self.changed = True
            self.settle(grown)


def show_type(evaluation: Evaluation, type_: DataType) -> str:
    """Return a type in the user's terms."""
    names: list[str] = []
    for item in alternatives(type_):
        match item:
            case RecordType():
                info = evaluation.info(item)
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
