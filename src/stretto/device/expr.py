"""Scalar expressions: the value of one element of an operator's result.

An operator iterates over variables `Var(0) .. Var(n-1)` (parallel dims first, then reduction dims).
Its value is an `Expr` over loads from buffers; each load has one `Index` per buffer dim. Fusing a
producer, and every view (transpose, slice, expand, flip ...), is a substitution of variables.
Registers (`Reg`) are scalars that every unit computes for itself: loop indices, list lengths,
positions and conditions read from memory. Integer arithmetic of indices wraps around at 64 bits, as
in eager mode; `Quotient` and `Remainder` floor. Quotients are simplified as if nothing wrapped
around, so rules create one only where that is true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import ClassVar

from stretto.ir.size_bounds import maximum
from stretto.ir.sizes import (
    Atom,
    Quantity,
    Quotient,
    Remainder,
    Size,
    Symbol,
    Var,
)
from stretto.ir.types import DType

Index = Size
"""A position, or a number computed from positions: an element of the algebra of sizes
(`ir/sizes.py`) whose quantities are iteration variables, registers, elements read from memory,
and symbols."""


@dataclass(frozen=True, slots=True)
class Reg(Quantity):
    """A scalar variable, equal on every unit. Names are unique in a function.

    usual: for a size that is decided at run time, the value that was seen. Kernels are
    chosen for it, but no proof relies on it, and no text shows it.
    """

    is_any: ClassVar[bool] = True
    name: str
    dtype: DType = DType.I64
    usual: int | None = field(default=None, compare=False, repr=False)

    def __hash__(self) -> int:  # names are nearly unique, and sets hold many registers
        return hash(self.name)


LIMIT = "limit."
"""Name prefix of the registers that hold the capacity of the list in a slot; the machine sets
them."""


def limit_register(slot: int) -> Reg:
    """Return the register that holds the capacity, in items, of the list in `slot`."""
    return Reg(f"{LIMIT}{slot}")


SPLIT = "split.at"
"""Name part of split registers. Such a register holds a row at which a kernel's accesses to a
buffer divide: it reads only below that row and writes only from that row on. A leaf assigns no
split register after a kernel that uses it (`device/regions.py`)."""


def is_split(reg: Reg) -> bool:
    """Return True if a register holds the row that separates a kernel's reads from its writes."""
    return f".{SPLIT}." in reg.name


SIZE = "size."


def size_name(symbol: str) -> str:
    """Return the register name under which a run stores the value of a symbol."""
    return SIZE + symbol


def size_register(symbol: Symbol) -> Reg:
    """Return the register that holds the value of a symbol."""
    return Reg(size_name(symbol.name))


def depends_on_sizes(index: Index) -> bool:
    """Return True if an index depends on symbols and on no other quantity."""
    quantities = [atom for atom in index.atoms() if isinstance(atom, Quantity)]
    return bool(quantities) and all(isinstance(atom, Symbol) for atom in quantities)


Extent = int | Reg | Size
"""The size of a dim: a number; a register, for a list length that changes during the run; or a
size over symbols, which is known once the program is called."""


def is_known(extent: Extent) -> bool:
    """Return True if an extent is known at the call, i.e. is not a register."""
    return not isinstance(extent, Reg)


def known_size(shape: Sequence[Extent]) -> int | Size:
    """Return the number of elements of dims that are all known at the call."""
    total: int | Size = 1
    for dim in shape:
        assert not isinstance(dim, Reg)
        total = total * dim
    return total


@dataclass(frozen=True, slots=True)
class ComputedPosition(Quantity):
    """A position computed by an integer expression, as in gather or embedding (always in range)."""

    is_plain: ClassVar[bool] = False
    is_any: ClassVar[bool] = True
    value: Expr

    def inner_atoms(self) -> Iterator[Atom]:
        return expr_atoms(self.value)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A dense row-major block of memory.

    kind: "input", "output", "constant", "list" (grows at run time) and "updated" (an input
    that the program changes) are external memory, with their number in the argument block
    in `slot`. "local" is in the frame of its function; "items" as well, for list items of
    which only the first ones, a number decided at run time, are written. "param" is a
    pointer that the caller passes. Only the first dim may be a register, and only for
    "list": it is the capacity, chosen by the runtime. Any dim may be a size over symbols.
    """

    name: str
    dtype: DType
    shape: tuple[Extent, ...]
    kind: str = "local"
    slot: int = -1

    def __hash__(self) -> int:  # names are nearly unique, and sets hold many buffers
        return hash(self.name)

    @property
    def is_input(self) -> bool:
        """True if the caller supplies the memory and its contents."""
        return self.kind in ("input", "updated")

    @property
    def is_sized(self) -> bool:
        """True if the size depends on symbols and is thus known only at the call."""
        return any(isinstance(dim, Size) for dim in self.shape)

    @property
    def elements(self) -> int:
        """Number of elements, with dims that are not numbers counted as 1."""
        return prod(dim for dim in self.shape if isinstance(dim, int))

    @property
    def nbytes(self) -> int:
        return self.elements * self.dtype.itemsize


def known_dims(buffer: Buffer) -> tuple[int | Size, ...]:
    """Return the dims of a buffer, all of which must be known at the call."""
    dims = tuple(dim for dim in buffer.shape if not isinstance(dim, Reg))
    assert len(dims) == len(buffer.shape)
    return dims


def input_symbols(inputs: Iterable[Buffer]) -> tuple[Symbol, ...]:
    """Return the symbols in the shapes of these inputs, sorted by name; a call passes their values
    in this order."""
    found = {s for b in inputs for dim in b.shape if isinstance(dim, Size) for s in dim.symbols}
    return tuple(sorted(found, key=str))


@lru_cache(4096)
def strides(shape: tuple[Extent, ...]) -> tuple[int | Size, ...]:
    """Return the row-major strides in elements. Raise ValueError if a dim other than the first is
    a register."""
    found: list[int | Size] = []
    step: int | Size = 1
    for position, dim in reversed(list(enumerate(shape))):
        found.append(step)
        if not isinstance(dim, Reg):
            step = step * dim
        elif position != 0:
            raise ValueError(f"only the leading dim may be a register: {shape}")
    return tuple(reversed(found))


@lru_cache(4096)
def row_major(shape: tuple[Extent, ...]) -> tuple[int, ...]:
    """Return the row-major strides as numbers. Raise ValueError if one depends on a symbol."""
    found = tuple(step for step in strides(shape) if isinstance(step, int))
    if len(found) != len(shape):
        raise ValueError(f"a stride is known at the call only: {shape}")
    return found


def has_fixed_strides(shape: tuple[Extent, ...]) -> bool:
    """Return True if `row_major` accepts these dims: all but the first are numbers."""
    return all(isinstance(dim, int) for dim in shape[1:])


@dataclass(frozen=True, slots=True)
class Access:
    """Element `index` of `buffer` viewed with dims `shape` (row-major over the same memory)."""

    buffer: Buffer
    shape: tuple[Extent, ...]
    index: tuple[Index, ...]

    @property
    def offset(self) -> Index:
        """The position in elements from the start of the buffer."""
        total = Index()
        for index, stride in zip(self.index, strides(self.shape), strict=True):
            total = total + index * stride
        return total


@dataclass(frozen=True, slots=True)
class Const:
    """A number. `value` is a Python bool, int or float (nan and inf allowed)."""

    value: bool | int | float
    dtype: DType

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Const) or self.dtype is not other.dtype:
            return False
        return repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash(repr(self.value))


@dataclass(frozen=True, slots=True)
class Position:
    """An index as an i64 value."""

    index: Index

    @property
    def dtype(self) -> DType:
        return DType.I64


@dataclass(frozen=True, slots=True)
class Load:
    """One element of a buffer; the index must be in range wherever it is evaluated."""

    access: Access

    @property
    def dtype(self) -> DType:
        return self.access.buffer.dtype


@dataclass(frozen=True, slots=True)
class Apply:
    """A scalar function applied to expressions; `functions.py` lists the functions and their
    dtypes.

    `where` evaluates only the selected arm, so a load inside one arm may be out of range
    where the other is selected.
    """

    function: str
    args: tuple[Expr, ...]
    dtype: DType


Expr = Const | Position | Load | Apply


def constant(expr: Expr) -> int | None:
    """Return the integer value of an expression, or None unless it is a constant."""
    match expr:
        case Const(value, _):
            return int(value)
        case Position(index) if index.is_const:
            return index.const
        case _:
            return None


def expr_atoms(expr: Expr) -> Iterator[Atom]:
    """Yield all index atoms inside an expression."""
    match expr:
        case Const():
            pass
        case Position(index):
            yield from index.atoms()
        case Load(access):
            for index in access.index:
                yield from index.atoms()
        case Apply(_, args, _):
            for arg in args:
                yield from expr_atoms(arg)


def expr_regs(expr: Expr) -> set[Reg]:
    return {atom for atom in expr_atoms(expr) if isinstance(atom, Reg)}


def parts(expr: Expr) -> list[Expr]:
    """Return the expression and all its subexpressions, including those in dynamic positions."""
    found: list[Expr] = []
    _add_parts(expr, found)
    return found


def index_parts(index: Index) -> list[Expr]:
    """Return the expressions in the dynamic positions of an index, with their subexpressions."""
    found: list[Expr] = []
    _add_index_parts(index, found)
    return found


def checks(found: Iterable[Expr]) -> set[Expr]:
    """Return the `checked` applications among some expressions: evaluating one performs a check."""
    return {part for part in found if isinstance(part, Apply) and part.function == "checked"}


def loads(expr: Expr) -> Iterator[Load]:
    """Yield all loads, including those inside dynamic positions."""
    return (part for part in parts(expr) if isinstance(part, Load))


def index_loads(index: Index) -> Iterator[Load]:
    """Yield the loads inside the dynamic positions of an index."""
    return (part for part in index_parts(index) if isinstance(part, Load))


def _add_parts(expr: Expr, found: list[Expr]) -> None:
    found.append(expr)
    match expr:
        case Apply(_, args, _):
            for arg in args:
                _add_parts(arg, found)
        case Load(access):
            for index in access.index:
                _add_index_parts(index, found)
        case Position(index):
            _add_index_parts(index, found)
        case Const():
            pass


def _add_index_parts(index: Index, found: list[Expr]) -> None:
    if all(type(atom) is Var or type(atom) is Reg for atom, _ in index.terms):
        return  # the common case
    for atom in index.atoms():
        if isinstance(atom, ComputedPosition):
            _add_parts(atom.value, found)


Substitution = Callable[[Var | Reg], Index]


def substitute_index(index: Index, lookup: Substitution) -> Index:
    """Replace every variable and register, including nested ones."""
    total = Index(const=index.const)
    for atom, coefficient in index.terms:
        match atom:
            case Var() | Reg():
                replaced = lookup(atom)
            case Quotient(inner, int(divisor)):
                replaced = substitute_index(inner, lookup) // divisor
            case Remainder(inner, int(divisor)):
                replaced = substitute_index(inner, lookup) % divisor
            case ComputedPosition(value):
                replaced = dynamic_index(substitute(value, lookup))
            case _:
                replaced = Index.of(atom).evaluate(lambda item: _substituted(item, lookup), maximum)
        total = total + replaced * coefficient
    return total


def _substituted(quantity: Quantity, lookup: Substitution) -> Index:
    match quantity:
        case Var() | Reg():
            return lookup(quantity)
        case ComputedPosition(value):
            return dynamic_index(substitute(value, lookup))
        case _:
            return Index.of(quantity)


def substitute(expr: Expr, lookup: Substitution) -> Expr:
    """Replace every variable and register of an expression."""
    match expr:
        case Const():
            return expr
        case Position(index):
            return Position(substitute_index(index, lookup))
        case Load(access):
            indices = tuple(substitute_index(index, lookup) for index in access.index)
            return Load(Access(access.buffer, access.shape, indices))
        case Apply(function, args, dtype):
            return Apply(function, tuple(substitute(arg, lookup) for arg in args), dtype)


def substitute_vars(expr: Expr, values: tuple[Index, ...]) -> Expr:
    """Replace variable `i` by `values[i]`; registers are unchanged."""
    return substitute(
        expr, lambda atom: values[atom.number] if isinstance(atom, Var) else Index.of(atom)
    )


def dynamic_index(value: Expr) -> Index:
    """Return an integer expression as an index, which is affine for constants and positions."""
    match value:
        case Const(number, _):
            return Index(const=int(number))
        case Position(index):
            return index
        case _:
            return Index.of(ComputedPosition(value))
