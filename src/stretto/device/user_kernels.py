"""Kernels of users: what is declared of them, and which are known.

A user kernel computes a box of the result of an operator of torch. In the device language it is an
operator that combines by `Combine.KERNEL`: the loads of its value are the declared regions, so what
tasks read, where they wait and whether they race is found as for every other operator. What it
computes is known to its source alone.

(Rammer, section 3.1, takes a legacy kernel as one rTask; here its regions make tasks of it.)
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch

from stretto.device.expr import Apply
from stretto.device.functions import FUNCTIONS, Result, ScalarFunction
from stretto.device.operator import Combine, Operator
from stretto.errors import SourceLocation

PREFIX = "kernel."
"""What the names of the functions begin with that stand for user kernels in expressions."""


@dataclass(frozen=True, slots=True)
class Linear:
    """An affine expression of the indices of a task."""

    terms: tuple[tuple[str, int], ...] = ()
    const: int = 0

    @property
    def name(self) -> str | None:
        """The index that this is, if it is nothing more."""
        plain = len(self.terms) == 1 and self.terms[0][1] == 1 and not self.const
        return self.terms[0][0] if plain else None


@dataclass(frozen=True, slots=True)
class Part:
    """`length` values of a dim from `start` on; the whole dim where `start` is None."""

    start: Linear | None
    length: int = 1


@dataclass(frozen=True, slots=True)
class Region:
    """The part of a tensor that an element of the result depends on, or is.

    leads: further dims stand before `parts`, the same for all tensors that have them.
    """

    tensor: str
    leads: bool
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class TritonPart:
    """A definition of a module: a function, a constant or an import. name: what it defines. text: a
    function begins with one line of decorators. location: of the user's `def`."""

    name: str
    text: str
    location: SourceLocation | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TritonCode:
    """A Triton function of the user and all that it refers to, under names that no other part of a
    module has. entry: the name of the function. parts: definitions, each before its uses. known:
    the numbers that are compiled into it."""

    entry: str
    parts: tuple[TritonPart, ...]
    known: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class UserKernel:
    """A kernel for the operator `target` of torch.

    reads, write: the regions. numbers: the parameters that are no tensors, with their dtypes in
    C++. operations, nbytes: the cost of one element of the result. dtypes: those that floating
    tensors may have. multiples: of the indices that are cut, what tiles are multiples of.
    cpp, triton: the sources. location: where the one in C++ begins.
    """

    target: str
    reads: tuple[Region, ...]
    write: Region
    numbers: tuple[tuple[str, str], ...] = ()
    operations: float = 1.0
    nbytes: float | None = None
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    multiples: tuple[tuple[str, int], ...] = ()
    cpp: str | None = None
    triton: TritonCode | None = None
    location: SourceLocation | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        """As torch has it: `library::operator`, with the overload where it is not the default."""
        library, operator, overload = self.target.split(".")
        return f"{library}::{operator}" + ("" if overload == "default" else f".{overload}")

    @property
    def entry(self) -> str:
        """The function of the sources that is called."""
        return self.target.split(".")[1]

    @property
    def languages(self) -> frozenset[str]:
        """What it has a source in."""
        found = {"cpp": self.cpp, "triton": self.triton}
        return frozenset(name for name, source in found.items() if source is not None)

    @property
    def digest(self) -> str:
        """Of all that is declared, the sources among it, wherever they stand."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]

    @property
    def function(self) -> str:
        """What stands for it in expressions."""
        return f"{PREFIX}{self.target.removesuffix('.default')}.{self.digest}"

    @property
    def arity(self) -> int:
        """The tensors, the numbers, then the dims of the tensors behind the leading ones."""
        return len(self.reads) + len(self.numbers) + sum(len(read.parts) for read in self.reads)


_BY_TARGET: dict[str, UserKernel] = {}
_BY_FUNCTION: dict[str, UserKernel] = {}


def register(kernel: UserKernel) -> None:
    """The kernel of its operator from now on. Programs that are compiled keep theirs."""
    _BY_TARGET[kernel.target] = _BY_FUNCTION[kernel.function] = kernel
    FUNCTIONS[kernel.function] = ScalarFunction(
        kernel.function, kernel.arity, Result.CHOSEN, None, is_expensive=True
    )


def kernel_for(target: str) -> UserKernel | None:
    """The kernel of an operator, if it has one."""
    return _BY_TARGET.get(target)


def kernel_of(operator: Operator) -> UserKernel:
    """What an operator that combines by KERNEL calls. Raises ValueError where nothing has been
    registered that it names."""
    value = operator.value
    if operator.combine is not Combine.KERNEL or not isinstance(value, Apply):
        raise ValueError("the operator calls no kernel of a user")
    found = _BY_FUNCTION.get(value.function)
    if found is None:
        raise ValueError(f"no kernel {value.function} is registered")
    return found


def whole_dims(operator: Operator) -> frozenset[int]:
    """The dims of an operator that each task computes as a whole: what a kernel of a user has no
    index for. Raises as `kernel_of`."""
    if operator.combine is not Combine.KERNEL:
        return frozenset()
    parts = kernel_of(operator).write.parts
    leads = len(operator.dims) - len(parts)
    return frozenset(dim for dim, part in enumerate(parts, leads) if part.start is None)


def index_multiples(operator: Operator) -> dict[int, int]:
    """What tiles of the dims of an operator are multiples of, where it calls a kernel of a user
    that asks for some. Raises as `kernel_of`."""
    if operator.combine is not Combine.KERNEL:
        return {}
    kernel = kernel_of(operator)
    wanted, leads = dict(kernel.multiples), len(operator.dims) - len(kernel.write.parts)
    names = (
        (dim, part.start.name)
        for dim, part in enumerate(kernel.write.parts, leads)
        if part.start is not None
    )
    return {dim: wanted[name] for dim, name in names if name in wanted}
