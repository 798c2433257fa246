"""Operators, kernels and tasks.

An *operator* computes one buffer (or a part of it): parallel dims, reduction dims, a
scalar expression. A *kernel* is one or more operators cut into tiles by a common grid;
a *task* is one tile: it runs the kernel's stages in order, each restricted to its box.
Tasks of one kernel are independent of each other.
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
    """How an operator combines the values along its reduction dims."""

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
"""Combines whose result is the i64 position in the row-major order of the reduction dims. The
first of equal elements wins, and NaN wins over all, as in torch."""
SCANS = (Combine.CUMSUM, Combine.CUMPROD)
"""Combines that scan along the only reduction dim; `out` may use its variable."""
SORTS = (Combine.ARGSORT, Combine.ARGSORT_DESCENDING)
"""Combines that sort the values along the first of two reduction dims, stably and with NaN as the
largest. They store the positions of the first elements, as many as the second dim has: `value`
uses the variable of the first dim, `out` that of the second."""

ATTEND = "attend"
"""The function in the value of an attention, applied to (product, scale, bias, value). An
attention has two reduction dims, the keys and the depth. The score of a key is the sum
of `product` over the depth, times `scale`, plus `bias`. The result is the sum over the
keys of `value` times the softmax of the scores, or 0 where all scores are -inf.

An operator that combines by KERNEL calls a user's kernel (`user_kernels.py`): `value`
applies it to loads, numbers and sizes. An element of the result depends on what these
load along the reduction dims, in a manner that only the kernel defines.
"""


@dataclass(frozen=True, slots=True)
class Operator:
    """out[dims] = combine over `reduce` of value.

    Floating sums accumulate in f32 for f16, bf16 and f32 operands, in f64 for f64. `out.index` uses
    parallel variables only (scans and sorts excepted). A store with `Dynamic` positions may write
    one element twice; such an operator runs as a single task, in order. `accumulate` adds to the
    old value. `source` is the user's line. `origin` names the user's operator for readers, as
    `layers.3.q_proj.linear` or `decode:41.softmax`; nothing depends on it.
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

    In `args` a Buffer represents its tensor and a Reg a number. A call that draws random
    numbers has a keyword DRAWS: a buffer that it reads, and writes as its last result. So
    no two such calls run concurrently or out of the order of the Program. A call runs on
    unit 0, with all threads of torch.
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
        """Buffers and numbers that the call reads, in the order of its arguments.

        A buffer is followed by those of its dims that are not numbers.
        """
        return (*_operands(self.args), *_operands(tuple(value for _, value in self.kwargs)))

    @property
    def operands(self) -> tuple[LibraryOperand, ...]:
        """The operands that a machine passes: the inputs, then the results, both as in `inputs`."""
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

    An extent that is known only at the call may instead be cut into a fixed number of `parts`: part
    p of P has those of the T tiles from ceil(p*T / P) up to where the next part begins. The numbers
    of tiles differ by at most one; with fewer tiles than parts, some parts are empty. So tasks are
    placed, waits are found and races are excluded for every size at once.

    An extent that is a register may be cut in the same manner. Its part boundaries change with the
    register: parts are compared with each other only within one execution of a leaf, where no
    kernel that is cut by a register may precede an assignment of that register.
    """

    extent: Extent
    tile: int
    parts: int | None = None

    @property
    def tiles(self) -> int:
        """Number of tiles, or of parts if there are any. Raises TypeError if it is not known."""
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
    """A dim whose values are counted from the value of a register; those below it are negative.
    Like the parts of a cut by a register, they are compared only within one execution of a leaf."""

    extent: Reg

    parts: ClassVar[None] = None
    is_cut_by_register: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Piece:
    """Tiles first .. last - 1 of a grid dim that is cut into parts, or values of a split."""

    dim: TileDim | Split
    first: int
    last: int

    @property
    def is_whole(self) -> bool:
        return self.first == 0 and self.last == self.dim.parts


@dataclass(frozen=True, slots=True)
class Span:
    """The range of one parallel dim of an operator that a task computes.

    With `grid` = g: offset + (the task's range in grid dim g). With `grid` None: offset ..
    offset + extent.
    """

    extent: Extent
    grid: int | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Template(ABC):
    """A method of computing a stage. Every machine has a closed union of its own templates.

    A template is a frozen dataclass. Its integer fields are choices (a register tile, the
    block of a thread block), `panels` is a packed constant that it reads, and the others
    are facts that an analysis found about the operator; the text of a program omits facts.
    """

    name: ClassVar[str]

    @property
    def holds_rows(self) -> bool:
        """True if threads hold their results in registers, from which a following stage may take
        them."""
        return False

    @property
    def packed(self) -> Buffer | None:
        """The packed constant that is read instead of one of the operator's constants; None if
        there is none."""
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
        """Return the fields that follow from the operator. Raise ValueError if the template cannot
        compute it."""
        return {}

    @classmethod
    def parsed(cls, operator: Operator, choices: dict[str, int], packed: Buffer | None) -> Self:
        """Build the template from parsed fields. Raise ValueError as `facts` does, and for unknown
        fields."""
        panels = {} if packed is None else {"panels": packed}
        try:
            return cls(**choices, **panels, **cls.facts(operator))
        except TypeError as error:
            raise ValueError(str(error)) from error

    def executed(self, operator: Operator) -> Operator:
        """Return the operator with the loads that the template performs, as of packed panels."""
        return operator


@dataclass(frozen=True, slots=True)
class Loops(Template):
    """The fallback template of every machine: plain loops over the box."""

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
        """True if the number of tasks is known before the call."""
        return all(isinstance(dim.extent, int) or dim.parts is not None for dim in self.grid)

    @property
    def tasks(self) -> int:
        """Number of tasks (static grids only)."""
        return prod((dim.tiles for dim in self.grid), start=1)

    def tile(self, task: int) -> Tile:
        """Return the range of each grid dim that task number `task` computes; the last grid dim
        varies fastest."""
        ranges: list[tuple[int, int] | Piece] = []
        for dim in reversed(self.grid):
            task, position = divmod(task, dim.tiles)
            ranges.append(tile_range(dim, position, position + 1))
        return tuple(reversed(ranges))


Tile = tuple[tuple[int, int] | Piece, ...]
"""For each grid dim (first, last + 1), or a piece if the dim is cut into parts."""


def tile_range(dim: TileDim, first: int, last: int) -> tuple[int, int] | Piece:
    """Return the range of tiles first .. last - 1 of a grid dim."""
    if dim.parts is not None:
        return Piece(dim, first, last)
    assert isinstance(dim.extent, int)
    return first * dim.tile, min(last * dim.tile, dim.extent)


def whole_tile(kernel: Kernel) -> Tile:
    """Return the ranges that all tasks of a kernel with a static grid cover."""
    return tuple(tile_range(dim, 0, dim.tiles) for dim in kernel.grid)


def as_executed(kernel: Kernel) -> Kernel:
    """Return the kernel with the loads that its templates perform."""
    stages = tuple(
        replace(stage, operator=stage.template.executed(stage.operator)) for stage in kernel.stages
    )
    return replace(kernel, stages=stages)


# ---- Names of operators and kernels: the user's module, or function and line, and the operator, as
# `layers.3.q_proj.linear` or `decode:41.softmax`.
#
# Names are for readers. They change when a line is moved or a module is renamed, so nothing stored
# on disk may depend on them: printed texts show them in comments, which cache keys omit, and name
# functions by `label` alone.


MAX_NAME_LENGTH = 80
"""Maximum length of a name, excluding the number that distinguishes equal names; longer ones are
cut at the front."""

_FOREIGN = re.compile(r"[^A-Za-z0-9_.:]+")
_NAMESPACES = ("aten", "stretto", "prims")


def operator_name(target: str) -> str:
    """Return the short name of an operator: `mm` for `aten.mm.default`, `rotary` for
    `mylib.rotary.default`."""
    parts = target.split(".")
    is_known = len(parts) == 3 or (len(parts) > 1 and parts[0] in _NAMESPACES)
    return parts[1] if is_known else target


def origin(place: SourceLocation | None, operator: str) -> str:
    """Return the name of an operator that occurs at a place of the user's program."""
    operator = operator.lstrip("_")
    if place is None:
        return _plain(operator)
    if place.module:
        return _plain(f"{place.module}.{operator}")
    function = (place.function or "").rpartition(".")[2].strip("<>") or "line"
    return _plain(f"{function}:{place.line}.{operator}")


def beside(known: str, operator: str) -> str:
    """Return the name of an operator that the compiler adds next to the one named `known`."""
    return ".".join(name for name in (known.rpartition(".")[0], operator) if name)


def label(name: str) -> str:
    """Return the operator part of a name as an identifier: `linear` for
    `layers.3.q_proj.linear.2`."""
    words = (word for word in reversed(re.split(r"[.:]", name)) if not word.isdigit())
    return next(words, "") or "kernel"


class UniqueNames:
    """Makes names unique by appending numbers."""

    def __init__(self) -> None:
        self.taken = set[str]()
        self.counts = Counter[str]()

    def of(self, wanted: str) -> str:
        """Return `wanted`, cut at the front if it is too long, with a number appended if it is
        already taken."""
        base = name = _bounded(_plain(wanted) or "kernel")
        while name in self.taken:
            self.counts[base] += 1
            name = f"{base}.{self.counts[base] + 1}"
        self.taken.add(name)
        return name


def _plain(name: str) -> str:
    return _FOREIGN.sub("_", name)


def _bounded(name: str) -> str:
    """Shorten a long name to its last words, or a long word to its last letters."""
    if len(name) <= MAX_NAME_LENGTH:
        return name
    kept = name[-MAX_NAME_LENGTH:]
    return kept.partition(".")[2] or kept
