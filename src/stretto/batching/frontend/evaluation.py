"""The evaluation of a whole program: the state that its functions share, and its rounds.

A function is evaluated on types. The result types of recursive functions and the types in
fields and lists are not known at first: they begin empty and grow. The whole program is
evaluated in rounds until no type grows any more; the last round yields the program.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from stretto.batching.frontend.function_builder import FunctionBuilder
from stretto.batching.frontend.values import Composed
from stretto.batching.instance_program import ClassInfo, InstanceProgram
from stretto.batching.instances.types import InstanceTypes, TypesGrew
from stretto.errors import CaptureError, SourceLocation
from stretto.ir.core import Block, Variable
from stretto.ir.data import InstanceFunction
from stretto.ir.types import (
    NEVER,
    DataType,
    union,
)

MOST_ROUNDS = 60


MOST_FUNCTIONS = 400


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
class Evaluation(InstanceTypes):
    """The state of the evaluation: fields that last over all rounds, and those of one round."""

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
    rounds: int = 0
    outlined: dict[Hashable, OutlinedFunction] = field(
        default_factory=dict[Hashable, OutlinedFunction]
    )
    functions: dict[str, InstanceFunction] = field(default_factory=dict[str, InstanceFunction])
    definitions: dict[Any, Any] = field(default_factory=dict[Any, Any])
    """Syntax trees of functions, by their code or by the node of a lambda."""
    kept: list[Any] = field(default_factory=list[Any])
    """Objects whose identity is part of a key, so that they must stay alive."""
    tested: set[str] = field(default_factory=set[str])
    """Fields tested with `hasattr` in this round."""
    counts: dict[Variable, Composed] = field(default_factory=dict[Variable, Composed])
    """Numbers of this round that are computed from the number of rows of a value."""
    content: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])
    """Tensors whose content was read, by identity."""

    def rename_cells(self) -> None:
        InstanceTypes.rename_cells(self)
        self.results = {key: self.with_merged_cells(type_) for key, type_ in self.results.items()}

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
            except TypesGrew:
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
