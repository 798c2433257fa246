"""Data structures of a Program: SSA values, ops, blocks and functions.

A Program is a table of functions and a table of constants. A function has one block; control ops
hold nested blocks. All values are immutable: no op changes a tensor, and a list op returns a new
list. A nested block may use values of its enclosing blocks; a function sees only its own parameters
and the constants. Each op class declares its operands, attributes and blocks as fields (`ops.py`);
its meaning is defined by tables keyed by op class (verification, printing, evaluation, lowering).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

import torch

from stretto.errors import SourceLocation
from stretto.ir.sizes import Size
from stretto.ir.types import DataType, TensorListType, TensorType, Type
from stretto.remarks import Remarks


class Value:
    """An SSA value, compared by identity. `hint` only makes printed names readable."""

    __slots__ = ("hint", "type")

    def __init__(self, type: Type, hint: str = "") -> None:
        self.type = type
        self.hint = hint

    @property
    def tensor(self) -> TensorType:
        """Return the type as a TensorType; raise TypeError if it is not one."""
        if not isinstance(self.type, TensorType):
            raise TypeError(f"expected a tensor, found {self.type}")
        return self.type

    @property
    def list(self) -> TensorListType:
        """Return the type as a TensorListType; raise TypeError if it is not one."""
        if not isinstance(self.type, TensorListType):
            raise TypeError(f"expected a list, found {self.type}")
        return self.type

    def __repr__(self) -> str:
        return f"<%{self.hint}: {self.type}>"


class Variable(Value):
    """A value of Python data, or a tensor of one instance, that several ops may assign.

    `type` holds for all that is assigned to it. A function that has variables is not in SSA form;
    jumps may leave its blocks (`ir/data.py`).
    """

    __slots__ = ()

    if TYPE_CHECKING:
        type: DataType  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, name: str, type: DataType) -> None:
        super().__init__(type, name)  # pyright: ignore[reportArgumentType]

    @property
    def name(self) -> str:
        return self.hint


@dataclass(frozen=True, slots=True)
class Literal:
    """None, a bool, an int, a float or a str."""

    value: bool | int | float | str | None


Operand = Variable | Literal
"""An operand of an op on Python data (`ir/data.py`)."""


def fresh(value: Value) -> Value:
    """Return a new value of the same type and hint."""
    if isinstance(value, Variable):
        return Variable(value.name, value.type)
    return Value(value.type, value.hint)


Lookup = Callable[[Value], Value]

Attribute = None | bool | int | float | str | torch.dtype | Size
Argument = Value | Literal | Attribute | tuple["Argument", ...]
"""An argument of a tensor op. A Value in place of an ATen number is a run-time scalar; a Size may
replace an ATen int, as in `aten.expand.default(%x, (s0, 64))`."""


def argument_values(argument: Argument) -> tuple[Value, ...]:
    """Return every Value in an argument, left to right."""
    found: list[Value] = []
    _add_values(argument, found)
    return tuple(found)


def _add_values(argument: Argument, found: list[Value]) -> None:
    if isinstance(argument, Value):
        found.append(argument)
    elif isinstance(argument, tuple):
        for item in argument:
            _add_values(item, found)


def map_argument(argument: Argument, lookup: Callable[[Value], Argument]) -> Argument:
    """Return the argument with each Value replaced by `lookup` of it."""
    if isinstance(argument, Value):
        return lookup(argument)
    if isinstance(argument, tuple):
        return tuple(map_argument(item, lookup) for item in argument)
    return argument


@dataclass(eq=False, slots=True, match_args=False)
class Op:
    """Base class of all ops. Subclasses are dataclasses; their fields declare operands,
    attributes, blocks.

    The operands are all Values in the fields, in field order. They are the values that the op
    itself reads, without those that only its blocks read.
    """

    results: tuple[Value, ...] = field(kw_only=True, default=())
    location: SourceLocation | None = field(kw_only=True, default=None)

    name: ClassVar[str] = ""

    @property
    def parts(self) -> tuple[Argument, ...]:
        """The contents of all fields except blocks."""
        return tuple(getattr(self, name) for name in argument_fields(type(self)))

    @property
    def operands(self) -> tuple[Value, ...]:
        return argument_values(self.parts)

    @property
    def blocks(self) -> tuple[Block, ...]:
        names = block_fields(type(self))
        if not names:
            return ()
        found: list[Block] = []
        for name in names:
            held: Block | tuple[Block, ...] = getattr(self, name)
            found += (held,) if isinstance(held, Block) else held
        return tuple(found)

    @property
    def result(self) -> Value:
        """The only result of an op that has exactly one."""
        (value,) = self.results
        return value

    def substitute(self, lookup: Lookup) -> None:
        """Replace the op's own operands in place; operands of ops in its blocks are left alone."""
        for name in argument_fields(type(self)):
            setattr(self, name, map_argument(getattr(self, name), lookup))

    def walk(self) -> Iterator[Op]:
        """Iterate over the op and all ops in its blocks, in order, outer before inner."""
        yield self
        for block in self.blocks:
            yield from block.walk()


@cache
def argument_fields(kind: type[Op]) -> tuple[str, ...]:
    """Return the names of the fields of an op class that hold operands or attributes."""
    blocks = block_fields(kind)
    return tuple(one.name for one in fields(kind) if not one.kw_only and one.name not in blocks)


@cache
def block_fields(kind: type[Op]) -> tuple[str, ...]:
    """Return the names of the fields of an op class that hold a nested block, or several."""
    hints: dict[str, Any] = get_type_hints(kind)
    return tuple(one.name for one in fields(kind) if hints[one.name] in (Block, tuple[Block, ...]))


@dataclass(eq=False, slots=True)
class Block:
    """Parameters, ops in order, and the values that the block yields to its op or function."""

    params: tuple[Value, ...] = ()
    ops: list[Op] = field(default_factory=list[Op])
    yields: tuple[Value, ...] = ()

    def walk(self) -> Iterator[Op]:
        """Iterate over all ops in order, an op before the ops in its blocks."""
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
    """Memory of tensors that constant folding has read, and memory of its results.

    Both are sets of storage addresses. `sources`: tensors whose contents were computed into
    other constants, literals or the structure of a Program. `results`: constants that only the
    Program owns.
    """

    sources: set[int] = field(default_factory=set[int])
    results: set[int] = field(default_factory=set[int])

    def note(self, sources: Iterable[torch.Tensor], result: torch.Tensor | None) -> None:
        """Record that `result` was computed from `sources`; None for a number. A view of a source
        is not recorded, because it shares the memory."""
        memory = {tensor.untyped_storage().data_ptr() for tensor in sources}
        if result is None:
            self.sources |= memory
        elif (address := result.untyped_storage().data_ptr()) not in memory:
            self.sources |= memory
            self.results.add(address)


@dataclass(eq=False, slots=True)
class Program:
    """Functions by name, with `main` as the entry, and the tensors that `constant` ops refer to."""

    functions: dict[str, Function]
    constants: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    folded: Folded = field(default_factory=Folded)
    remarks: Remarks = field(default_factory=Remarks)
    is_guarded: bool = False
    """True if the caller's guards compare the sizes of the inputs. Then ops may need relations
    between these that the symbols' ranges do not guarantee; without guards the verifier rejects
    them."""
    skipped: frozenset[str] = frozenset()
    """Names of passes that do not run on this Program, to measure the benefit of a pass."""

    @property
    def main(self) -> Function:
        return self.functions["main"]

    def walk(self) -> Iterator[Op]:
        for function in self.functions.values():
            yield from function.body.walk()
