"""Operators, kernels and tasks.

An *operator* computes one buffer (or a part of it): parallel dims, reduction dims, a scalar
expression. A *kernel* is one or more operators cut into tiles by a common grid; a *task* is one
tile: it runs the kernel's stages in order, each restricted to its box. Tasks of one kernel are
independent of each other.
"""

from __future__ import annotations

import re
from abc import ABC
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from math import prod
from typing import ClassVar, Self

from stretto.device.expr import Access, Buffer, Expr, Extent, Load, Reg, index_loads, loads
from stretto.errors import SourceLocation
from stretto.ir.ops import Argument
from stretto.ir.sizes import Size


class Combine(StrEnum):
    """What an operator makes of the values along its reduction dims."""

    NONE = ""
    SUM = "sum"
    PROD = "prod"
    MAX = "max"
    MIN = "min"
    ANY = "any"
    ALL = "all"
    ARGMAX = "argmax"
    ARGMIN = "argmin"
    CUMSUM = "cumsum"
    CUMPROD = "cumprod"
    ARGSORT = "argsort"
    ARGSORT_DESCENDING = "argsort_descending"
    ATTENTION = "attention"
    KERNEL = "kernel"


POSITIONS = (Combine.ARGMAX, Combine.ARGMIN)
"""These give the i64 position in the row-major order of the reduction dims. The first of equal
elements wins, and NaN wins over all, as in torch."""
SCANS = (Combine.CUMSUM, Combine.CUMPROD)
"""These scan the only reduction dim; `out` may use its variable."""
SORTS = (Combine.ARGSORT, Combine.ARGSORT_DESCENDING)
"""These sort the values along the first of two reduction dims, with equal ones in their order and
NaN as the largest. They store the positions of the first elements, as many as the second dim has:
`value` uses the variable of the first dim, `out` that of the second."""

ATTEND = "attend"
"""The function that the value of an attention applies, to (product, scale, bias, value). An
attention has two reduction dims, the keys and the depth. The score of a key is the sum of `product`
over the depth, times `scale`, plus `bias`. The result is the sum over the keys of `value` times the
softmax of the scores, or of 0 where all of them are -inf.

An operator that combines by KERNEL calls the kernel of a user (`user_kernels.py`): `value` applies
it to loads, numbers and sizes. An element of the result depends on what these load along the
reduction dims, in a way that only the kernel knows."""


@dataclass(frozen=True, slots=True)
class Operator:
    """out[dims] = combine over `reduce` of value.

    Floating sums accumulate in f32 for f16, bf16 and f32 operands, in f64 for f64. `out.index` uses
    parallel variables only (scans and sorts excepted). A store with `Dynamic` positions may hit one
    element twice; such an operator runs as a single task, in order. `accumulate` adds to what is
    there. `source` is the user's line. `origin` says for people which operator of the
    user's it is, as `layers.3.q_proj.linear` or `decode:41.softmax`; nothing depends on it.
    """

    name: str
    dims: tuple[Extent, ...]
    reduce: tuple[Extent, ...]
    combine: Combine
    value: Expr
    out: Access
    accumulate: bool = False
    source: str = ""
    origin: str = field(default="", compare=False)

    def reads(self) -> tuple[Load, ...]:
        found = list(loads(self.value))
        for index in self.out.index:
            found.extend(index_loads(index))
        return tuple(found)


DRAWS = "draws"


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """An ATen operator run by torch on whole buffers.

    In `args` a Buffer stands for its tensor, a Reg for a number. A call that draws random numbers
    has a keyword DRAWS: a buffer that it reads, and writes as its last result. So no two of them
    run at the same time, or in another order than the Program says. A call runs on unit 0, on all
    threads of torch.
    """

    name: str
    target: str
    args: tuple[LibraryArgument, ...]
    kwargs: tuple[tuple[str, LibraryArgument], ...]
    outs: tuple[Buffer, ...]
    reason: str
    source: str = ""
    origin: str = field(default="", compare=False)

    @property
    def inputs(self) -> tuple[LibraryOperand, ...]:
        """What the call reads, in order: buffers and numbers inside its arguments.

        A buffer is followed by those of its dims that are no numbers.
        """
        return (*_operands(self.args), *_operands(tuple(value for _, value in self.kwargs)))

    @property
    def operands(self) -> tuple[LibraryOperand, ...]:
        """What a machine hands over: the inputs, then the results in the same way."""
        return (*self.inputs, *_operands(self.outs))


def _operands(argument: LibraryArgument) -> Iterator[LibraryOperand]:
    match argument:
        case Buffer():
            yield argument
            yield from (dim for dim in argument.shape if not isinstance(dim, int))
        case Reg():
            yield argument
        case tuple():
            for item in argument:
                yield from _operands(item)
        case _:
            pass


LibraryOperand = Buffer | Reg | Size
LibraryArgument = Buffer | Reg | Argument | tuple["LibraryArgument", ...]


@dataclass(frozen=True, slots=True)
class TileDim:
    """A grid dim: `extent` values cut into tiles of `tile` (the last may be smaller).

    An extent that is known at the call only may instead be cut into a fixed number of `parts`: part
    p of P has those of the T tiles from ceil(p*T / P) up to where the next part begins. The numbers
    of tiles differ by at most one, and parts of fewer tiles than there are parts have none. So
    tasks are placed, waits are found and races are excluded for every size at once.

    So may an extent that is a register. Where its parts begin then changes with the register: parts
    are compared with each other in one execution of a leaf only, in which no kernel that a register
    cuts may come before an assignment of it.
    """

    extent: Extent
    tile: int
    parts: int | None = None

    @property
    def tiles(self) -> int:
        """Number of tiles, where it is known."""
        if self.parts is not None:
            return self.parts
        if not isinstance(self.extent, int):
            raise TypeError("a dynamic grid dim has no static number of tiles")
        return -(-self.extent // self.tile)

    @property
    def is_cut_by_register(self) -> bool:
        return self.parts is not None and isinstance(self.extent, Reg)


@dataclass(frozen=True, slots=True)
class Split:
    """A dim of which values are counted from that of a register on; those below it are negative.
    They are compared in one execution of a leaf only, as the parts of a cut by a register."""

    extent: Reg

    parts: ClassVar[None] = None
    is_cut_by_register: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Piece:
    """The tiles first .. last - 1 of a grid dim that is cut into parts, or values of a split."""

    dim: TileDim | Split
    first: int
    last: int

    @property
    def is_whole(self) -> bool:
        return self.first == 0 and self.last == self.dim.parts


@dataclass(frozen=True, slots=True)
class Span:
    """The range of one parallel dim of an operator that a task computes.

    With `grid` = g: offset + (the task's range in grid dim g). With `grid` None: offset .. offset +
    extent.
    """

    extent: Extent
    grid: int | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Template(ABC):
    """How a stage is computed. Every machine has a closed union of templates of its own.

    A template is a frozen dataclass. Its integer fields are choices (a register tile, the block of
    a thread block), `panels` is a packed constant that it reads, the others are facts that an
    analysis found about the operator: the text of a program shows no facts.
    """

    name: ClassVar[str]

    @property
    def holds_rows(self) -> bool:
        """Do the threads that compute a result have it in registers, for a next stage to take?"""
        return False

    @property
    def packed(self) -> Buffer | None:
        """The constant that is read in place of one of the operator's: a packed form of it."""
        return None

    @property
    def choices(self) -> tuple[tuple[str, int], ...]:
        """The integer fields that differ from their defaults, by name."""
        found = ((field, getattr(self, field.name)) for field in fields(self))
        return tuple(
            (field.name, value)
            for field, value in found
            if isinstance(value, int) and value != field.default
        )

    @classmethod
    def facts(cls, operator: Operator) -> dict[str, object]:
        """The other fields. Raises ValueError for an operator that the template cannot compute."""
        return {}

    @classmethod
    def parsed(cls, operator: Operator, choices: dict[str, int], packed: Buffer | None) -> Self:
        """Raises as `facts`, and ValueError for fields that the template does not have."""
        panels = {} if packed is None else {"panels": packed}
        try:
            return cls(**choices, **panels, **cls.facts(operator))
        except TypeError as error:
            raise ValueError(str(error)) from error

    def executed(self, operator: Operator) -> Operator:
        """The operator with the loads that the template performs: of packed panels, if it does."""
        return operator


@dataclass(frozen=True, slots=True)
class Loops(Template):
    """Loops over the box, in the way that a machine computes what it has no better template for."""

    name: ClassVar[str] = "loops"


PLAIN_TEMPLATES: dict[str, type[Template]] = {Loops.name: Loops}
"""The templates that every machine has, by their names in texts."""


@dataclass(frozen=True, slots=True)
class Stage:
    operator: Operator
    box: tuple[Span, ...]
    template: Template = Loops()


@dataclass(frozen=True, slots=True)
class Kernel:
    """Stages over a common grid. `seconds` is the estimated time of one full task on one unit."""

    name: str
    grid: tuple[TileDim, ...]
    stages: tuple[Stage, ...]
    seconds: float = 0.0
    call: LibraryCall | None = None

    @property
    def is_static(self) -> bool:
        """Whether the number of tasks is known before the call."""
        return all(isinstance(dim.extent, int) or dim.parts is not None for dim in self.grid)

    @property
    def tasks(self) -> int:
        """Number of tasks (static grids only)."""
        return prod((dim.tiles for dim in self.grid), start=1)

    def tile(self, task: int) -> Tile:
        """What task number `task` computes of each grid dim, last grid dim fastest."""
        ranges: list[tuple[int, int] | Piece] = []
        for dim in reversed(self.grid):
            task, position = divmod(task, dim.tiles)
            ranges.append(tile_range(dim, position, position + 1))
        return tuple(reversed(ranges))


Tile = tuple[tuple[int, int] | Piece, ...]
"""What of each grid dim: first, last + 1; a piece of what is cut into parts."""


def tile_range(dim: TileDim, first: int, last: int) -> tuple[int, int] | Piece:
    """The tiles first .. last - 1 of a grid dim."""
    if dim.parts is not None:
        return Piece(dim, first, last)
    assert isinstance(dim.extent, int)
    return first * dim.tile, min(last * dim.tile, dim.extent)


def whole_tile(kernel: Kernel) -> Tile:
    """What all tasks of a kernel with a static grid compute."""
    return tuple(tile_range(dim, 0, dim.tiles) for dim in kernel.grid)


def as_executed(kernel: Kernel) -> Kernel:
    """The kernel with the loads that its templates perform."""
    stages = tuple(
        replace(stage, operator=stage.template.executed(stage.operator)) for stage in kernel.stages
    )
    return replace(kernel, stages=stages)


# ---- What operators and kernels are called: after the user's module, or function and line, and
# the operator, as `layers.3.q_proj.linear` or `decode:41.softmax`.
#
# Names are for people. They change when a line is moved or a module is renamed, so nothing that
# is kept on disk may depend on them: printed texts show them in comments, which cache keys leave
# out, and name functions after `label` alone.


MOST_LETTERS = 80
"""Of a name, without the number that tells equal ones apart; what is left out is at its front."""

_FOREIGN = re.compile(r"[^A-Za-z0-9_.:]+")
_NAMESPACES = ("aten", "stretto", "prims")


def operator_name(target: str) -> str:
    """`aten.mm.default` as `mm`, and `mylib.rotary.default` as `rotary`."""
    parts = target.split(".")
    is_known = len(parts) == 3 or (len(parts) > 1 and parts[0] in _NAMESPACES)
    return parts[1] if is_known else target


def origin(place: SourceLocation | None, operator: str) -> str:
    """The name of an operator that the user's program has at a place."""
    operator = operator.lstrip("_")
    if place is None:
        return _plain(operator)
    if place.module:
        return _plain(f"{place.module}.{operator}")
    function = (place.function or "").rpartition(".")[2].strip("<>") or "line"
    return _plain(f"{function}:{place.line}.{operator}")


def beside(known: str, operator: str) -> str:
    """The name of an operator that the compiler adds at the place of another one."""
    return ".".join(name for name in (known.rpartition(".")[0], operator) if name)


def label(name: str) -> str:
    """The operator of a name, as an identifier: `layers.3.q_proj.linear.2` as `linear`."""
    words = (word for word in reversed(re.split(r"[.:]", name)) if not word.isdigit())
    return next(words, "") or "kernel"


class UniqueNames:
    """Tells equal names apart by numbers behind them."""

    def __init__(self) -> None:
        self.taken = set[str]()
        self.counts = Counter[str]()

    def of(self, wanted: str) -> str:
        """`wanted`, cut at its front if it is long, with a number from the second time on."""
        base = name = _bounded(_plain(wanted) or "kernel")
        while name in self.taken:
            self.counts[base] += 1
            name = f"{base}.{self.counts[base] + 1}"
        self.taken.add(name)
        return name


def _plain(name: str) -> str:
    return _FOREIGN.sub("_", name)


def _bounded(name: str) -> str:
    """The last words of a long name, and of a long word its last letters."""
    if len(name) <= MOST_LETTERS:
        return name
    kept = name[-MOST_LETTERS:]
    return kept.partition(".")[2] or kept
