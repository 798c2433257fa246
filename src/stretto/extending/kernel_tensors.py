"""The tensors that a user's kernel function receives: their starts, sizes and strides.

An operator that calls a kernel has one load per tensor, at the first of the values that an
element of the result depends on. A machine passes the whole tensor without its leading dims to
the function, so positions count from the tensor's start, whatever part of it a task has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from stretto.device.expr import Apply, Buffer, Expr, Index, Load, Position, Reg, substitute_index
from stretto.device.operator import Operator
from stretto.device.user_kernels import DeclaredRegion, UserKernel, kernel_of
from stretto.ir.sizes import Var


@dataclass(frozen=True, slots=True)
class UserView:
    """A tensor argument. start: the position of its first element in the buffer, in terms of the
    variables of the leading dims. steps: the strides of the other dims, in elements."""

    name: str
    buffer: Buffer
    start: Index
    sizes: tuple[Expr, ...]
    steps: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class UserCall:
    """A call of the user's function. indices: the dims of the result that have an index."""

    kernel: UserKernel
    leads: int
    indices: tuple[int, ...]
    reads: tuple[UserView, ...]
    numbers: tuple[Expr, ...]
    result: UserView

    @staticmethod
    def of(operator: Operator) -> UserCall:
        """Return the call that an operator makes; raises the errors of `kernel_of`."""
        return _ViewReader(operator, kernel_of(operator)).call()


@dataclass(frozen=True, slots=True)
class _ViewReader:
    operator: Operator
    kernel: UserKernel

    @property
    def leads(self) -> int:
        return len(self.operator.dims) - len(self.kernel.write.parts)

    def call(self) -> UserCall:
        value, operator, kernel = self.operator.value, self.operator, self.kernel
        assert isinstance(value, Apply)
        arguments = iter(value.args)
        loads = [next(arguments) for _ in kernel.reads]
        numbers = tuple(next(arguments) for _ in kernel.numbers)
        windows = count(len(operator.dims))
        reads: list[UserView] = []
        for region, load in zip(kernel.reads, loads, strict=True):
            assert isinstance(load, Load)
            sizes = tuple(next(arguments) for _ in region.parts)
            steps = tuple(self._steps(region, load.access.offset, windows))
            start = self._start(region, load.access.offset, steps)
            reads.append(UserView(region.tensor, load.access.buffer, start, sizes, steps))
        dims = range(self.leads, len(operator.dims))
        out, parts = operator.out, enumerate(kernel.write.parts, self.leads)
        result = UserView(
            kernel.write.tensor,
            out.buffer,
            self._at_zero(out.offset),
            tuple(Position(Index.of(operator.dims[dim])) for dim in dims),
            tuple(_step(out.offset, dim) for dim in dims),
        )
        indices = tuple(dim for dim, part in parts if part.start is not None)
        return UserCall(kernel, self.leads, indices, tuple(reads), numbers, result)

    def _start(self, region: DeclaredRegion, offset: Index, steps: tuple[Index, ...]) -> Index:
        """Return the position of the first element: the access at 0, less the region's constant
        offsets."""
        start = self._at_zero(offset)
        for part, step in zip(region.parts, steps, strict=True):
            if part.start is not None and part.start.const and part.start.terms:
                start = start + step * -part.start.const
        return start

    def _at_zero(self, offset: Index) -> Index:
        def lookup(atom: Var | Reg) -> Index:
            keeps = isinstance(atom, Reg) or atom.number < self.leads
            return Index.of(atom) if keeps else Index()

        return substitute_index(offset, lookup)

    def _steps(
        self, region: DeclaredRegion, offset: Index, windows: Iterator[int]
    ) -> Iterator[Index]:
        for part in region.parts:
            window = None if part.start is not None and part.length == 1 else next(windows)
            if window is not None:
                yield _step(offset, window)
            elif part.start is not None and part.start.terms:
                (name, factor), *_ = part.start.terms
                yield _step(offset, self._variable(name), factor)
            else:
                yield Index()

    def _variable(self, index: str) -> int:
        parts = enumerate(self.kernel.write.parts, self.leads)
        return next(n for n, part in parts if part.start is not None and part.start.name == index)


def _step(offset: Index, variable: int, factor: int = 1) -> Index:
    """Return the distance to the next element, if one step of the variable is `factor` elements."""

    def at(place: int) -> Index:
        return substitute_index(
            offset,
            lambda atom: Index(const=place) if atom == Var(variable) else Index.of(atom),
        )

    step = at(1) - at(0)
    terms = tuple((atom, times // factor) for atom, times in step.terms)
    return Index(terms, step.const // factor)
