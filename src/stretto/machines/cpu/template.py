"""Interface of a CPU template: the data that selection needs, and how it is printed.

Each file of `templates/` has a `FAMILY`: dataclasses derived from `CpuTemplate`, and a function
that tells which of them applies, what it requires of the tiles and what it costs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from stretto.device.expr import Apply, Expr, Load
from stretto.device.operator import Operator, Stage, Template, TileDim
from stretto.kernels.contraction import stride
from stretto.kernels.groups import Member, divisible
from stretto.kernels.panels import Packings
from stretto.machines.cpu.costs import CpuCosts
from stretto.machines.cpu.printer.nest import CppNestPrinter

T = TypeVar("T")


@dataclass(frozen=True, slots=True, order=True)
class Shared:
    """An instance of a function template that is compiled separately, once for all programs.

    header: contains the template and `macro`, which declares or defines an instance.
    """

    header: str
    macro: str
    arguments: tuple[str, ...]

    @property
    def declaration(self) -> str:
        return f"{self.macro}({', '.join(('extern', *self.arguments))})"

    @property
    def text(self) -> str:
        """The source of the instance."""
        return f'#include "{self.header}"\n{self.macro}({", ".join(("", *self.arguments))})\n'


@dataclass(frozen=True, slots=True)
class Strip:
    """A few values of grid dim `grid`: `size` is small enough for the output of one stage to be in
    the first-level cache when the next stage reads it. Any part of a tile may be computed
    separately."""

    grid: int
    size: int


@dataclass(frozen=True, slots=True)
class CpuTemplate(Template):
    """A template of the CPU machine. `header`: the header that its code needs besides those of all
    programs."""

    header: ClassVar[str]

    def shared(self, stage: Stage) -> tuple[Shared, ...]:
        """Return the instances that the printed code of a stage calls."""
        return ()

    def definitions(self, stage: Stage) -> tuple[str, ...]:
        """Return source that must precede the code of all stages, once per program."""
        return ()

    def strip(self, stage: Stage) -> Strip | None:
        """Return the strips in which the stages of a task are to be computed; None for all at
        once."""
        return None

    def streamed(self, stage: Stage, grid: Sequence[TileDim]) -> int:
        """Return the bytes of constants that a task reads once, if in any order; else 0. `write`
        then reads them backwards if `nest.back` is true."""
        return 0

    @abstractmethod
    def write(self, nest: CppNestPrinter) -> None:
        """Add the statements of a stage."""


def required(found: T | None, what: str) -> T:
    """Return what an operator is. Raise ValueError if it is none (None); `what` says which."""
    if found is None:
        raise ValueError(f"the operator is no {what}")
    return found


@dataclass(frozen=True, slots=True)
class TemplateRequest:
    """An operator and its boxes, for `units` units; `packings` collects constants to be packed."""

    member: Member
    units: int
    packings: Packings
    costs: CpuCosts

    @property
    def operator(self) -> Operator:
        return self.member.operator

    @property
    def product_seconds(self) -> float:
        """Seconds of a sum of products in a register-tiled template."""
        operator, costs = self.operator, self.costs
        flops = 2.0 * costs.points(operator.dims) * costs.points(operator.reduce)
        return flops / costs.flops * (operator.out.buffer.dtype.itemsize / 4)


@dataclass(frozen=True, slots=True)
class TemplateCandidate:
    """A template with its cost, and its requirements on the tiles.

    multiples: tiles are multiples of this, per dim of the operator (0: the whole dim). seconds: of
    the whole operator on one unit. first, last: the dim to be cut before, and after, all others.
    repeated: each task repeats work that costs as much as that many indices of `last`. rows: the
    dims each tile of which reads the whole right operand of a product. reading: the seconds of that
    read, if the operand is too large for a cache.
    """

    template: Template
    multiples: tuple[int, ...]
    seconds: float
    first: int | None = None
    last: int | None = None
    repeated: int = 0
    rows: tuple[int, ...] = ()
    reading: float = 0.0


@dataclass(frozen=True, slots=True)
class CpuTemplateFamily:
    """The templates of a file. `rank`: if several families apply, the lowest is taken."""

    templates: tuple[type[Template], ...]
    candidate: Callable[[TemplateRequest], TemplateCandidate | None]
    rank: int = 1


# ---- Operands across the result: contiguous along another dim than the result.
#
# A loop along the contiguous dim of the result would read one element of each line of the cache.
# Such operands are transposed a block at a time, through vector registers.


ALONG, ACROSS = 64, 16
"""Elements of a block along the contiguous dim of the result, and along that of the operands."""
LEAST = 4
"""Smallest number of elements of a dim for which transposition pays."""
MOST = 4
"""Number of operands of a stage that are transposed; each takes up to 8 KiB of the stack."""


@dataclass(frozen=True, slots=True)
class Transposed:
    """Operands to transpose: `loads` are contiguous along dim `across`, and neither constant nor
    contiguous along dim `along`, along which the result is contiguous."""

    along: int
    across: int
    loads: tuple[Load, ...]


def transposed_operands(operator: Operator) -> Transposed | None:
    """Return the operands of an operator without reduction that are contiguous across its result,
    at most `MOST`, all along the same dim (the most frequent one); None if there are none."""
    if operator.combine or operator.accumulate or not divisible(operator):
        return None
    dims = [n for n, dim in enumerate(operator.dims) if not isinstance(dim, int) or dim >= LEAST]
    along = next((n for n in reversed(dims) if stride(operator.out, n) == 1), None)
    if along is None:
        return None
    found: dict[Load, int] = {}
    for load in dict.fromkeys(_computed_loads(operator.value)):
        if load.access.offset.is_affine and stride(load.access, along) not in (0, 1):
            across = next((n for n in dims if n != along and stride(load.access, n) == 1), None)
            if across is not None:
                found[load] = across
    if not found:
        return None
    across = Counter(found.values()).most_common(1)[0][0]
    chosen = tuple(load for load, dim in found.items() if dim == across)
    return Transposed(along, across, chosen[:MOST])


def _computed_loads(expr: Expr) -> Iterator[Load]:
    """Yield the loads that are computed whenever the expression is: not those in an arm of
    `where`."""
    match expr:
        case Load():
            yield expr
        case Apply("where", (condition, *_), _):
            yield from _computed_loads(condition)
        case Apply(_, args, _):
            for arg in args:
                yield from _computed_loads(arg)
        case _:
            pass
