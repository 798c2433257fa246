"""Scalar expressions: what one element of an operator's result is.

An operator runs over iteration variables `Var(0) .. Var(n-1)` (parallel dims first, then reduction
dims). Its value is an `Expr` over loads from buffers; a load says by an `Index` per buffer dim
which element it reads. Fusing a producer, and every view (transpose, slice, expand, flip ...), is
substitution of variables. Registers (`Reg`) are scalars that every unit computes for itself: loop
indices, list lengths, positions and conditions read from memory. Integer arithmetic of indices
wraps around at 64 bits, as that of eager's numbers; `Quotient` and `Remainder` floor. A quotient
is simplified as if nothing wrapped around, so rules make one only where that holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
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
"""A position, or a number computed from positions: the algebra of sizes (`ir/sizes.py`) whose
quantities are iteration variables, registers, elements read from memory, and symbols."""


@dataclass(frozen=True, slots=True)
class Reg(Quantity):
    """A scalar variable, the same on every unit. Names are unique in a function.

    usual: of a size that the run decides, the one that was seen; kernels are chosen for it, and
    nothing is proved by it. No text has it.
    """

    is_any: ClassVar[bool] = True
    name: str
    dtype: DType = DType.I64
    usual: int | None = field(default=None, compare=False, repr=False)

    def __hash__(self) -> int:  # the name tells nearly all apart, and sets have many of them
        return hash(self.name)


LIMIT = "limit."
"""Registers of this prefix and a slot hold the capacity of that list; the machine sets them."""


def limit_register(slot: int) -> Reg:
    """The register that tells how many items the list in `slot` has room for."""
    return Reg(f"{LIMIT}{slot}")


SPLIT = "split.at"
"""What registers are called that tell at which row a kernel's accesses to a buffer are apart: what
it reads lies before that row, what it writes from there on. A leaf assigns none behind a kernel
that uses it (`device/regions.py`)."""


def is_split(reg: Reg) -> bool:
    """Whether a register tells where accesses to a buffer are apart."""
    return f".{SPLIT}." in reg.name


SIZE = "size."


def size_name(symbol: str) -> str:
    """The name under which a run keeps the value of a symbol, among the registers."""
    return SIZE + symbol


def size_register(symbol: Symbol) -> Reg:
    """The register that holds the value of a symbol."""
    return Reg(size_name(symbol.name))


def depends_on_sizes(index: Index) -> bool:
    """Whether a number follows from the values of symbols, and is no constant."""
    quantities = [atom for atom in index.atoms() if isinstance(atom, Quantity)]
    return bool(quantities) and all(isinstance(atom, Symbol) for atom in quantities)


Extent = int | Reg | Size
"""The size of a dim: a number; a register, for the length of a list, which changes while the
program runs; or a size over symbols, which is known at the call and is no number."""


def is_known(extent: Extent) -> bool:
    """Whether a size is known at the call."""
    return not isinstance(extent, Reg)


def known_size(shape: Sequence[Extent]) -> int | Size:
    """The number of elements of dims that are known at the call."""
    total: int | Size = 1
    for dim in shape:
        assert not isinstance(dim, Reg)
        total = total * dim
    return total


@dataclass(frozen=True, slots=True)
class Dynamic(Quantity):
    """A position computed by an integer expression, as in gather or embedding (always in range)."""

    is_plain: ClassVar[bool] = False
    is_any: ClassVar[bool] = True
    value: Expr

    def inner_atoms(self) -> Iterator[Atom]:
        return expr_atoms(self.value)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A dense row-major block of memory.

    kind: "input", "output", "constant", "list" (grows at run time), "updated" (an input that the
    program changes): external memory, `slot` numbers it in the argument block; "local": lives in
    the frame of its function; "items": the same for a list, of which the first items are written,
    as many as the run tells; "param": a pointer that the caller passes. Only the first dim may be a
    register, and only for "list": it is the capacity, which the runtime chooses. Sizes over symbols
    may stand anywhere else.
    """

    name: str
    dtype: DType
    shape: tuple[Extent, ...]
    kind: str = "local"
    slot: int = -1

    def __hash__(self) -> int:  # the name tells nearly all apart, and sets have many of them
        return hash(self.name)

    @property
    def is_input(self) -> bool:
        """Whether a call gives its memory, with what is in it."""
        return self.kind in ("input", "updated")

    @property
    def is_sized(self) -> bool:
        """Whether its size depends on symbols, and so is known at the call only."""
        return any(isinstance(dim, Size) for dim in self.shape)

    @property
    def elements(self) -> int:
        """Number of elements; a dim that is no number counts as 1."""
        total = 1
        for dim in self.shape:
            total *= dim if isinstance(dim, int) else 1
        return total

    @property
    def nbytes(self) -> int:
        return self.elements * self.dtype.itemsize


def known_dims(buffer: Buffer) -> tuple[int | Size, ...]:
    """The dims of a buffer, all of which are known at the call."""
    dims = tuple(dim for dim in buffer.shape if not isinstance(dim, Reg))
    assert len(dims) == len(buffer.shape)
    return dims


def input_symbols(inputs: Iterable[Buffer]) -> tuple[Symbol, ...]:
    """The symbols of a program with these inputs, by name: a call gives values in this order."""
    found = {s for b in inputs for dim in b.shape if isinstance(dim, Size) for s in dim.symbols}
    return tuple(sorted(found, key=str))


@lru_cache(4096)
def strides(shape: tuple[Extent, ...]) -> tuple[int | Size, ...]:
    """Row-major strides in elements; only the leading dim may be a register."""
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
    """The strides, of which none may depend on a symbol."""
    found = tuple(step for step in strides(shape) if isinstance(step, int))
    if len(found) != len(shape):
        raise ValueError(f"a stride is known at the call only: {shape}")
    return found


def has_fixed_strides(shape: tuple[Extent, ...]) -> bool:
    """Whether `row_major` has strides for these dims: all but the first are numbers."""
    return all(isinstance(dim, int) for dim in shape[1:])


@dataclass(frozen=True, slots=True)
class Access:
    """Element `index` of `buffer` seen with dims `shape` (row-major over the same memory)."""

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
    """A scalar function (`functions.py` names them and says their dtypes) of expressions.

    `where` evaluates only the arm it takes, so a load inside an arm may be out of range in the
    other.
    """

    function: str
    args: tuple[Expr, ...]
    dtype: DType


Expr = Const | Position | Load | Apply


def constant(expr: Expr) -> int | None:
    """The number that an expression is; None where it depends on anything."""
    match expr:
        case Const(value, _):
            return int(value)
        case Position(index) if index.is_const:
            return index.const
        case _:
            return None


def expr_atoms(expr: Expr) -> Iterator[Atom]:
    """All index atoms inside an expression."""
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
    """The expression and all that it is made of, those in dynamic positions included."""
    found: list[Expr] = []
    _add_parts(expr, found)
    return found


def index_parts(index: Index) -> list[Expr]:
    """The expressions in the dynamic positions of an index, with their parts."""
    found: list[Expr] = []
    _add_index_parts(index, found)
    return found


def checks(found: Iterable[Expr]) -> set[Expr]:
    """Those of some expressions that are checked in the run whenever they are computed."""
    return {part for part in found if isinstance(part, Apply) and part.function == "checked"}


def loads(expr: Expr) -> Iterator[Load]:
    """All loads, those inside dynamic positions included."""
    return (part for part in parts(expr) if isinstance(part, Load))


def index_loads(index: Index) -> Iterator[Load]:
    """Loads inside the dynamic positions of an index."""
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
        return  # as nearly all are
    for atom in index.atoms():
        if isinstance(atom, Dynamic):
            _add_parts(atom.value, found)


Substitution = Callable[[Var | Reg], Index]


def substitute_index(index: Index, lookup: Substitution) -> Index:
    """Replaces every variable and register, nested ones too."""
    total = Index(const=index.const)
    for atom, coefficient in index.terms:
        match atom:
            case Var() | Reg():
                replaced = lookup(atom)
            case Quotient(inner, int(divisor)):
                replaced = substitute_index(inner, lookup) // divisor
            case Remainder(inner, int(divisor)):
                replaced = substitute_index(inner, lookup) % divisor
            case Dynamic(value):
                replaced = dynamic_index(substitute(value, lookup))
            case _:
                replaced = Index.of(atom).evaluate(lambda item: _substituted(item, lookup), maximum)
        total = total + replaced * coefficient
    return total


def _substituted(quantity: Quantity, lookup: Substitution) -> Index:
    match quantity:
        case Var() | Reg():
            return lookup(quantity)
        case Dynamic(value):
            return dynamic_index(substitute(value, lookup))
        case _:
            return Index.of(quantity)


def substitute(expr: Expr, lookup: Substitution) -> Expr:
    """Replaces every variable and register of an expression."""
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
    """Variable `i` becomes `values[i]`; registers stay."""
    return substitute(
        expr, lambda atom: values[atom.number] if isinstance(atom, Var) else Index.of(atom)
    )


def dynamic_index(value: Expr) -> Index:
    """An integer expression as an index: affine where it plainly is."""
    match value:
        case Const(number, _):
            return Index(const=int(number))
        case Position(index):
            return index
        case _:
            return Index.of(Dynamic(value))
