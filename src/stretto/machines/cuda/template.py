"""Interface of a GPU template: its properties for selection, and its printer.

Each file of `templates/` has a `FAMILY`: a dataclass that derives from `CudaTemplate`, and a
function that decides whether it applies, which block it takes and what it costs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from stretto.device.costs import count_applies
from stretto.device.expr import Access, Load, Var, expr_atoms
from stretto.device.operator import Operator, Stage, Template
from stretto.ir.types import DType
from stretto.kernels.contraction import MatrixProduct, product_of
from stretto.machines.cuda.costs import CudaCosts
from stretto.machines.cuda.printer.stage_nest import GridBound, TritonNestPrinter
from stretto.machines.statements import Naming, StatementBuilder

# ---- Facts about an operator, and about a box of it: sizes, traffic and costs.


UNROLL = 4
"""Maximum number of rows of a product that have separate totals."""


@dataclass(frozen=True, slots=True)
class Stencil:
    """Facts about an operator that do not depend on its tile; `product` if it is one."""

    operator: Operator
    product: MatrixProduct | None
    loads: tuple[tuple[Load, frozenset[int]], ...]
    applies: int
    costs: CudaCosts

    @staticmethod
    def of(operator: Operator, costs: CudaCosts) -> Stencil:
        found = dict.fromkeys(operator.reads())
        reads = tuple((load, _variables(load)) for load in found)
        applies = 1 + count_applies(operator.value)
        return Stencil(operator, block_product(operator), reads, applies, costs)

    @property
    def is_matrix(self) -> bool:
        """True for a product with enough rows and columns for tensor cores."""
        if self.product is None or prod(self.depths) < 16:
            return False
        dims = self.operator.dims
        sides = (self.product.rows, self.product.columns)
        return min(self.costs.points(dims[n] for n in side) for side in sides) > UNROLL

    @property
    def sides(self) -> tuple[int, ...]:
        """The innermost dims of rows and columns of a product for tensor cores; empty for other
        operators."""
        if self.product is None or not self.is_matrix:
            return ()
        return (self.product.rows[-1], self.product.columns[-1])

    def is_contiguous(self, dim: int) -> bool:
        """Return True if neighbours along a dim are adjacent in memory: the results, and for a
        reduction an operand too."""
        if self.operator.out.offset.coefficient(Var(dim)) != 1:
            return False
        found = [load.access.offset.coefficient(Var(dim)) for load, _ in self.loads]
        return not self.operator.combine or 1 in found

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(self.costs.size(extent) for extent in self.operator.reduce)


def block_product(operator: Operator) -> MatrixProduct | None:
    """Return the product that an operator is, if it is in f32, the dtype in which tensor cores
    accumulate."""
    return product_of(operator) if operator.value.dtype is DType.F32 else None


def _variables(load: Load) -> frozenset[int]:
    """Return the numbers of the iteration variables that a load depends on."""
    return frozenset(atom.number for atom in expr_atoms(load) if isinstance(atom, Var))


def power(value: int) -> int:
    """Return the smallest power of two that is at least `value`."""
    return 1 << max(value - 1, 0).bit_length()


def whole_seconds(stencil: Stencil) -> float:
    """Return a lower bound of one unit's seconds for all of an operator."""
    costs = stencil.costs
    sizes = tuple(costs.size(extent) for extent in stencil.operator.dims)
    points = prod((*sizes, *stencil.depths))
    work = (
        2 * points / costs.half_flops
        if stencil.is_matrix
        else points * stencil.applies / costs.flops
    )
    return max(traffic(stencil, sizes) / costs.bandwidth, work)


def traffic(stencil: Stencil, sizes: tuple[int, ...]) -> float:
    """Return the bytes that a box reads and writes."""
    out = stencil.operator.out
    total = prod(sizes) * out.buffer.dtype.itemsize * waste(out, stencil, sizes)
    extents = (*sizes, *stencil.depths)
    for load, numbers in stencil.loads:
        elements = prod((extents[n] for n in numbers), start=1)
        total += elements * load.dtype.itemsize * waste(load.access, stencil, sizes)
    return total


def waste(access: Access, stencil: Stencil, sizes: tuple[int, ...]) -> float:
    """Return the ratio of the bytes that memory moves for a box's elements to their own bytes."""
    run = 1
    offset = access.offset
    sides = [
        (abs(offset.coefficient(Var(n))), size)
        for n, size in enumerate((*sizes, *stencil.depths))
        if offset.coefficient(Var(n))
    ]
    for step, size in sorted(sides):
        if step > run:
            break
        run += step * max(size - 1, 0)
    sector = stencil.costs.sector_bytes
    elements = prod(d if isinstance(d, int) else sector for d in access.shape)
    return max(1.0, min(sector // access.buffer.dtype.itemsize, elements) / run)


Parts = tuple[StatementBuilder, Naming, Stage, tuple[GridBound, ...], list[int]]
"""Arguments of a TritonNestPrinter."""


@dataclass(frozen=True, slots=True)
class CudaTemplate(Template):
    """A template of the CUDA machine. has_epilogue: True if pointwise stages after it can be
    computed on its blocks."""

    has_epilogue: ClassVar[bool] = False

    @abstractmethod
    def printer(self, parts: Parts) -> TritonNestPrinter:
        """Return the printer of a stage of this template."""


@dataclass(frozen=True, slots=True)
class TemplateChoice:
    """A template for a box. seconds: of the box; beside: seconds that it adds if an equal one is
    already in flight."""

    template: CudaTemplate
    seconds: float
    beside: float


@dataclass(frozen=True, slots=True)
class CudaTemplateFamily:
    """The template of a file. choice: returns the choice for a box of these sizes, None if it does
    not apply. rank: of several that apply, the lowest is taken."""

    template: type[CudaTemplate]
    choice: Callable[[Stencil, tuple[int, ...]], TemplateChoice | None]
    rank: int = 1
