"""The structure of a Program: SSA values, ops, blocks and functions.

A Program is a table of functions and a table of constants. A function is one block; control ops
hold further blocks. Everything is by value: no op changes a tensor, a list op returns a new list.
Values of an enclosing block may be used inside a nested one; a function sees only its own
parameters and constants. Ops are declared by their fields (`ops.py`); what they mean is kept in
tables keyed by op class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, get_type_hints

import torch

from stretto.errors import SourceLocation
from stretto.ir.sizes import Size
from stretto.ir.types import ListType, TensorType, Type
from stretto.remarks import Remarks


class Value:
    """One SSA value. Identity is equality; `hint` only makes printed names readable."""

    __slots__ = ("hint", "type")

    def __init__(self, type: Type, hint: str = "") -> None:
        self.type = type
        self.hint = hint

    @property
    def tensor(self) -> TensorType:
        """The type, when it is a tensor; TypeError otherwise."""
        if not isinstance(self.type, TensorType):
            raise TypeError(f"expected a tensor, found {self.type}")
        return self.type

    @property
    def list(self) -> ListType:
        """The type, when it is a list; TypeError otherwise."""
        if not isinstance(self.type, ListType):
            raise TypeError(f"expected a list, found {self.type}")
        return self.type

    def __repr__(self) -> str:
        return f"<%{self.hint}: {self.type}>"


Lookup = Callable[[Value], Value]

Attribute = None | bool | int | float | str | torch.dtype | Size
Argument = Value | Attribute | tuple["Argument", ...]
"""What an argument of a tensor op may be. A Value where ATen wants a number is a run-time scalar; a
Size stands where ATen wants an int, as in `aten.expand.default(%x, (s0, 64))`."""


def argument_values(argument: Argument) -> tuple[Value, ...]:
    """Every value inside an argument, left to right."""
    if isinstance(argument, Value):
        return (argument,)
    if isinstance(argument, tuple):
        return tuple(value for item in argument for value in argument_values(item))
    return ()


def map_argument(argument: Argument, lookup: Callable[[Value], Argument]) -> Argument:
    """The same argument with each value replaced."""
    if isinstance(argument, Value):
        return lookup(argument)
    if isinstance(argument, tuple):
        return tuple(map_argument(item, lookup) for item in argument)
    return argument


@dataclass(eq=False, slots=True)
class Op:
    """Base of all ops. Subclasses are dataclasses whose fields say operands, attributes and blocks.

    The operands are every value in the fields, in their order, that the op itself reads (not what
    its blocks read).
    """

    results: tuple[Value, ...] = field(kw_only=True, default=())
    location: SourceLocation | None = field(kw_only=True, default=None)

    name: ClassVar[str] = ""

    @property
    def parts(self) -> tuple[Argument, ...]:
        """What the fields hold besides blocks."""
        return tuple(getattr(self, name) for name in argument_fields(type(self)))

    @property
    def operands(self) -> tuple[Value, ...]:
        return argument_values(self.parts)

    @property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(getattr(self, name) for name in block_fields(type(self)))

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    def substitute(self, lookup: Lookup) -> None:
        """Replaces operands in place, those of ops in blocks excluded."""
        for name in argument_fields(type(self)):
            setattr(self, name, map_argument(getattr(self, name), lookup))


@cache
def argument_fields(kind: type[Op]) -> tuple[str, ...]:
    """The fields of a class of ops that hold operands or attributes."""
    blocks = block_fields(kind)
    return tuple(one.name for one in fields(kind) if not one.kw_only and one.name not in blocks)


@cache
def block_fields(kind: type[Op]) -> tuple[str, ...]:
    """The fields of a class of ops that hold nested blocks."""
    hints: dict[str, Any] = get_type_hints(kind)
    return tuple(one.name for one in fields(kind) if hints[one.name] is Block)


@dataclass(eq=False, slots=True)
class Block:
    """Parameters, ops in order, and the values that the block yields to its op or function."""

    params: tuple[Value, ...] = ()
    ops: list[Op] = field(default_factory=list[Op])
    yields: tuple[Value, ...] = ()

    def walk(self) -> Iterator[Op]:
        """All ops, outer before inner, in order."""
        for op in self.ops:
            yield op
            for block in op.blocks:
                yield from block.walk()


@dataclass(eq=False, slots=True)
class Function:
    """A named block. Functions may call each other and themselves."""

    name: str
    body: Block

    @property
    def params(self) -> tuple[Value, ...]:
        return self.body.params

    @property
    def result_types(self) -> tuple[Type, ...]:
        return tuple(value.type for value in self.body.yields)


@dataclass(slots=True)
class Folded:
    """Which memory constants were computed from, and which the results are in.

    Storages by address: `sources` of tensors whose content went into other constants, into literals
    or into the structure of a Program; `results` of constants that no one but the Program has.
    """

    sources: set[int] = field(default_factory=set[int])
    results: set[int] = field(default_factory=set[int])

    def note(self, sources: Iterable[torch.Tensor], result: torch.Tensor | None) -> None:
        """`result` was computed from `sources`; None for a number. A view is not computed."""
        memory = {tensor.untyped_storage().data_ptr() for tensor in sources}
        if result is None:
            self.sources |= memory
        elif (address := result.untyped_storage().data_ptr()) not in memory:
            self.sources |= memory
            self.results.add(address)


@dataclass(eq=False, slots=True)
class Program:
    """Functions by name, with `main` as the entry, and the tensors that `constant` ops name."""

    functions: dict[str, Function]
    constants: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    folded: Folded = field(default_factory=Folded)
    remarks: Remarks = field(default_factory=Remarks)
    is_guarded: bool = False
    """Whether who calls it has compared the sizes of the inputs: what the ranges of symbols do not
    tell of them is checked in the run."""
    skipped: frozenset[str] = frozenset()
    """Names of passes that do not run on it, to see what they are worth."""

    @property
    def main(self) -> Function:
        return self.functions["main"]

    def walk(self) -> Iterator[Op]:
        for function in self.functions.values():
            yield from function.body.walk()
