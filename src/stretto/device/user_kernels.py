"""Kernels of users: their declarations and the registry.

A user kernel computes a box of the result of an operator of torch. In the device language it is an
operator that combines by `Combine.KERNEL`: the loads of its value are the declared regions, so the
reads, waits and races of its tasks are found as for every other operator. Only its source defines
what it computes.

(Rammer, section 3.1, takes a legacy kernel as one rTask; here its regions make tasks of it.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from stretto.device.expr import Apply
from stretto.device.functions import FUNCTIONS, ResultDtype, ScalarFunction
from stretto.device.operator import Combine, Kernel, Operator
from stretto.errors import SourceLocation

PREFIX = "kernel."
"""Prefix of the function names that represent user kernels in expressions."""


@dataclass(frozen=True, slots=True)
class Linear:
    """An affine expression of the indices of a task."""

    terms: tuple[tuple[str, int], ...] = ()
    const: int = 0

    @property
    def name(self) -> str | None:
        """The index's name if the expression is a plain index, else None."""
        plain = len(self.terms) == 1 and self.terms[0][1] == 1 and not self.const
        return self.terms[0][0] if plain else None


@dataclass(frozen=True, slots=True)
class DeclaredPart:
    """`length` values of a dim from `start` on; the whole dim if `start` is None."""

    start: Linear | None
    length: int = 1


@dataclass(frozen=True, slots=True)
class DeclaredRegion:
    """The part of a tensor that an element of the result depends on, or that a task computes.

    leads: `parts` are preceded by further dims, equal for all tensors that have them.
    """

    tensor: str
    leads: bool
    parts: tuple[DeclaredPart, ...]


@dataclass(frozen=True, slots=True)
class TritonPart:
    """A definition in a module: a function, a constant or an import. name: the defined name. text:
    its source; that of a function begins with one line of decorators. location: that of the
    user's `def`."""

    name: str
    text: str
    location: SourceLocation | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TritonCode:
    """A Triton function of the user and everything that it refers to, under names that no other
    part of a module uses. entry: the name of the function. parts: definitions, each before its
    uses. constexprs: the numbers that are compiled into it."""

    entry: str
    parts: tuple[TritonPart, ...]
    constexprs: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class UserKernel:
    """A kernel for the operator `target` of torch.

    reads, write: the regions. numbers: the parameters that are not tensors, with their C++ types.
    operations, nbytes: the cost of one element of the result. dtypes: those that floating tensors
    may have. multiples: for indices that are cut into tiles, numbers that the tiles must be
    multiples of. cpp, triton: the sources. location: where the C++ source begins.
    """

    target: str
    reads: tuple[DeclaredRegion, ...]
    write: DeclaredRegion
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
        """The operator's name in torch's notation: `library::operator`, with the overload unless
        it is the default."""
        library, operator, overload = self.target.split(".")
        return f"{library}::{operator}" + ("" if overload == "default" else f".{overload}")

    @property
    def entry(self) -> str:
        """The name of the function in the sources that is called."""
        return self.target.split(".")[1]

    @property
    def languages(self) -> frozenset[str]:
        """The languages of its sources: "cpp", "triton"."""
        found = {"cpp": self.cpp, "triton": self.triton}
        return frozenset(name for name, source in found.items() if source is not None)

    @property
    def digest(self) -> str:
        """A hash of the declaration and the sources, independent of their locations."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]

    @property
    def function(self) -> str:
        """The function name that represents the kernel in expressions."""
        return f"{PREFIX}{self.target.removesuffix('.default')}.{self.digest}"

    @property
    def arity(self) -> int:
        """Number of arguments: the tensors, the numbers, then the dims of the tensors after the
        leading ones."""
        return len(self.reads) + len(self.numbers) + sum(len(read.parts) for read in self.reads)


_BY_TARGET: dict[str, UserKernel] = {}
_BY_FUNCTION: dict[str, UserKernel] = {}


def register(kernel: UserKernel) -> None:
    """Make this the kernel of its operator. Programs that are already compiled retain the earlier
    one."""
    _BY_TARGET[kernel.target] = _BY_FUNCTION[kernel.function] = kernel
    FUNCTIONS[kernel.function] = ScalarFunction(
        kernel.function, kernel.arity, ResultDtype.CHOSEN, None, is_expensive=True
    )


def kernel_for(target: str) -> UserKernel | None:
    """Return the kernel registered for an operator of torch, or None."""
    return _BY_TARGET.get(target)


def kernel_of(operator: Operator) -> UserKernel:
    """Return the user kernel that a KERNEL operator calls. Raise ValueError if the operator is of
    another kind or its kernel is not registered."""
    value = operator.value
    if operator.combine is not Combine.KERNEL or not isinstance(value, Apply):
        raise ValueError("the operator calls no kernel of a user")
    found = _BY_FUNCTION.get(value.function)
    if found is None:
        raise ValueError(f"no kernel {value.function} is registered")
    return found


def called_kernels(kernels: Iterable[Kernel]) -> tuple[UserKernel, ...]:
    """Return the users' kernels that some kernels call, in order."""
    operators = (stage.operator for kernel in kernels for stage in kernel.stages)
    calls = (kernel_of(one) for one in operators if one.combine is Combine.KERNEL)
    return tuple(dict.fromkeys(calls))


def whole_dims(operator: Operator) -> frozenset[int]:
    """Return the dims that each task must compute as a whole, because the user's kernel has no
    index for them; none for other operators. Raises as `kernel_of`."""
    if operator.combine is not Combine.KERNEL:
        return frozenset()
    parts = kernel_of(operator).write.parts
    leads = len(operator.dims) - len(parts)
    return frozenset(dim for dim, part in enumerate(parts, leads) if part.start is None)


def index_multiples(operator: Operator) -> dict[int, int]:
    """Return the number that tiles must be a multiple of, for each dim for which the user's kernel
    requires one. Raises as `kernel_of`."""
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
