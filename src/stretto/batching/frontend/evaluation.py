"""The evaluation of a whole program: what its functions share, and how often they are evaluated.

A function is evaluated on types. What a recursive function returns, what a field of a class holds
and what is in a list are not known at first: their types begin with nothing and grow. The whole
program is evaluated again until nothing grows any more; the last round is the program.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stretto.batching.frontend.builder import Builder
from stretto.batching.program import ClassInfo, Function, InstanceProgram, Variable
from stretto.batching.types import (
    NEVER,
    ListType,
    RecordType,
    Scalar,
    TensorType,
    Type,
    alternatives,
    union,
)
from stretto.errors import CaptureError, SourceLocation

MOST_ROUNDS = 60
MOST_FUNCTIONS = 400


class Again(Exception):
    """What was assumed does not hold: the program is evaluated once more."""


@dataclass(frozen=True, slots=True)
class Read:
    """A static object that was read from `owner` by `name`, as a setting: a guard of the program.

    kind: "attribute", "global" (owner is a dict), "cell" or "item".
    """

    kind: str
    owner: Any
    name: Any
    value: Any


@dataclass(eq=False, slots=True)
class Outlined:
    """A function that is called, not inlined, for one set of static arguments and types."""

    number: int
    key: Hashable
    function: Function
    builder: Builder


@dataclass(slots=True)
class Classes:
    """The classes of objects that a program knows, with a cell for each field."""

    infos: list[ClassInfo] = field(default_factory=list[ClassInfo])
    numbers: dict[Hashable, int] = field(default_factory=dict[Hashable, int])

    def find(self, python: type, fields: tuple[str, ...] = ()) -> int | None:
        return self.numbers.get((python, fields if python is dict else ()))


@dataclass(slots=True)
class Evaluation:
    """State of the evaluation that lasts from round to round, and that of a round."""

    cells: list[Type] = field(default_factory=list[Type])
    classes: Classes = field(default_factory=Classes)
    reads: dict[Hashable, Read] = field(default_factory=dict[Hashable, Read])
    """Guards of the last round."""
    outlined_code: set[Hashable] = field(default_factory=set[Hashable])
    """Functions that are recursive: they are never inlined."""
    dynamic_parameters: set[tuple[Hashable, str]] = field(default_factory=set[tuple[Hashable, str]])
    """Parameters of recursive functions whose static scalar differs from call to call."""
    results: dict[Hashable, Type] = field(default_factory=dict[Hashable, Type])
    """What outlined functions return, as far as it is known."""
    operations: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any])
    """What torch functions make of arguments of some types."""
    changed: bool = False
    rounds: int = 0
    outlined: dict[Hashable, Outlined] = field(default_factory=dict[Hashable, Outlined])
    functions: list[Function] = field(default_factory=list[Function])
    _sites: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    definitions: dict[Any, Any] = field(default_factory=dict[Any, Any])
    """Syntax trees of functions, by their code or by the node of a lambda."""
    kept: list[Any] = field(default_factory=list[Any])
    """Objects whose identity is part of a key."""

    # ---- cells and classes

    def cell(self, site: Hashable) -> int:
        """The cell of a place where lists are made, the same in each round."""
        if site not in self._sites:
            self._sites[site] = self.new_cell()
        return self._sites[site]

    def new_cell(self, type_: Type = NEVER) -> int:
        self.cells.append(type_)
        return len(self.cells) - 1

    def grow(self, cell: int, type_: Type) -> None:
        """From now on a cell may hold values of a type, too."""
        grown = union((self.cells[cell], type_))
        if grown != self.cells[cell]:
            self.cells[cell] = grown
            self.changed = True

    def class_number(self, python: type, kind: str, fields: Sequence[str]) -> int:
        """The number of a class; fields that it did not have yet are added."""
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

    def item_type(self, type_: ListType) -> Type:
        return self.cells[type_.cell]

    # ---- static data that is read

    def read(self, kind: str, owner: Any, name: Any, value: Any) -> None:
        """Notes that the program holds as long as the same is found there."""
        key = (kind, id(owner), name)
        if key not in self.reads:
            self.reads[key] = Read(kind, owner, name, value)

    # ---- rounds

    def run(self, body: Callable[[], None]) -> InstanceProgram:
        """Evaluates `body`, which makes function 0, until nothing changes. Raises CaptureError."""
        while True:
            self.rounds += 1
            if self.rounds > MOST_ROUNDS:
                raise CaptureError(
                    "the types of this function's values do not settle",
                    remedy="annotate its data, or keep values of fewer types in one place",
                )
            self.changed = False
            self.outlined, self.functions, self.reads = {}, [], {}
            try:
                body()
            except Again:
                continue
            if not self.changed:
                break
        return InstanceProgram(self.functions, self.classes.infos, self.cells)

    def outline(
        self, key: Hashable, name: str, location: SourceLocation | None
    ) -> tuple[Outlined, bool]:
        """The function for a key, and whether it is new in this round: then it has no body yet."""
        found = self.outlined.get(key)
        if found is not None:
            return found, False
        if len(self.functions) >= MOST_FUNCTIONS:
            raise CaptureError(
                f"{name} is called with arguments of more than {MOST_FUNCTIONS} kinds",
                location=location,
                remedy="pass what differs from call to call in the data of the instance",
            )
        function = Function(name, (), self.results.get(key, NEVER), (), location)
        made = Outlined(len(self.functions), key, function, Builder())
        self.functions.append(function)
        self.outlined[key] = made
        return made, True

    def returns(self, key: Hashable, type_: Type) -> None:
        """Notes what an outlined function returns."""
        known = self.results.get(key, NEVER)
        grown = union((known, type_))
        if grown != known:
            self.results[key] = grown
            self.changed = True


def show_type(evaluation: Evaluation, type_: Type) -> str:
    """A type in the words of the user."""
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


def is_native(variable: Variable) -> bool:
    """Whether a variable is kept in a register: it has one scalar or tensor type."""
    return isinstance(variable.type, TensorType) or variable.type in (
        Scalar.BOOL,
        Scalar.INT,
        Scalar.FLOAT,
    )


def is_parameter(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
