"""Attention in one kernel that never stores the scores (Dao et al., FlashAttention, 2022).

The header attention.h has the code for blocks of rows and tiles of keys. A task goes through its
rows in chunks, and for each chunk through the keys. Keys that a causal mask hides from all rows of
a block are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from stretto.device.costs import count_applies
from stretto.device.expr import Access, Apply, Const, Expr, Index, Load, Position, Var
from stretto.device.operator import Combine, Operator, Stage
from stretto.ir.sizes import Product
from stretto.ir.types import DType
from stretto.kernels.contraction import FLOATS
from stretto.machines.cpu.printer.cpp_terms import VALUE_TYPES, ScalarPrinter, element, iteration
from stretto.machines.cpu.printer.nest import ZERO, CppNestPrinter
from stretto.machines.cpu.template import (
    CpuTemplate,
    CpuTemplateFamily,
    Shared,
    TemplateCandidate,
    TemplateRequest,
    required,
)
from stretto.machines.statements import Branch, Do, Raw, Store
from stretto.machines.terms import Term, call, filled, literal, variable
from stretto.operators.attention import Attention

TILE_ROWS = 6
"""Rows of the register tile of its products; tasks take whole tiles. With whole blocks, 128 rows
would be 96 for one unit and 32 for the other."""
COLUMNS = 64
"""Columns of the register tile of its products. A shared instance multiplies values with this
number of columns, or a multiple."""
CHUNK = 480
"""Number of rows for which a tile of keys is transposed once."""
EXPONENTIAL = 8
"""Number of elements of pointwise work that cost as much as the softmax of a score."""
TURN = 24
"""Number of rows whose products with a tile take as long as transposing it."""


@dataclass(frozen=True, slots=True)
class Streams:
    """An attention with operands in a layout that loops can read.

    row, column: the dims that only the query, and only the value, has. is_causal: keys after a row
    have no weight, whatever `bias` says.
    """

    scale: Const
    bias: Expr
    query: Access
    key: Access
    value: Access
    row: int
    column: int
    is_causal: bool


@dataclass(frozen=True, slots=True)
class Fused(CpuTemplate):
    """Attention by blocks of `rows` rows and tiles of `keys` keys."""

    name: ClassVar[str] = "attention"
    header: ClassVar[str] = "attention.h"
    rows: int
    keys: int
    streams: Streams

    @classmethod
    def facts(cls, operator: Operator) -> dict[str, object]:
        return {"streams": required(streams_of(operator), "attention of operands in memory")}

    def shared(self, stage: Stage) -> tuple[Shared, ...]:
        operator = stage.operator
        kind = VALUE_TYPES[operator.out.buffer.dtype]
        columns = operator.dims[self.streams.column]
        whole = isinstance(columns, int) and columns % COLUMNS == 0
        depths = ("false", "true") if whole else ("false",)
        return tuple(
            Shared(self.header, "STRETTO_SHARED_ROWS", (kind, "6", str(COLUMNS), unit))
            for unit in depths
        )

    def write(self, nest: CppNestPrinter) -> None:
        found, dims = self.streams, range(len(nest.operator.dims))
        outer = [n for n in dims if n not in (found.row, found.column)]
        _Writer(self, nest, nest.operator, {n: iteration(n) for n in outer}).declare()
        nest.nest(outer, lambda: _Writer(self, nest, nest.operator, _fixed(nest, outer)).chunks())


def _fixed(nest: CppNestPrinter, outer: list[int]) -> dict[int, Term]:
    return {n: iteration(n) for n in outer if nest.operator.dims[n] != 1}


FIRST, ROWS, KEY, WIDTH, BLOCK, HEIGHT, LAST, ATTENTION = map(
    variable, ("chunk", "rows", "tile", "width", "block", "height", "last", "attention")
)


@dataclass(frozen=True, slots=True)
class _Writer:
    """Printer of a stage, for one place in the batch."""

    template: Fused
    nest: CppNestPrinter
    operator: Operator
    fixed: dict[int, Term]

    def declare(self) -> None:
        """Declare the working memory of the task."""
        template, (_, depth) = self.template, self.operator.reduce
        columns = self.operator.dims[template.streams.column]
        kind = VALUE_TYPES[self.operator.out.buffer.dtype]
        sizes = f"{kind}, {depth}, {columns}, {template.rows}, {template.keys}, {CHUNK}"
        self.nest.out.add(Raw(literal(f"stretto::Attention<{sizes}> attention;"), ATTENTION))

    def chunks(self) -> None:
        """Print the loop over chunks of rows."""
        nest = self.nest
        first, last = nest.bounds(nest.stage.box[self.template.streams.row])
        with nest.loop(FIRST, first, last, step=CHUNK):
            self._least(ROWS, last - FIRST, CHUNK)
            self._do("begin", *self._out(FIRST), ROWS)
            self._tiles()
            self._do("end", *self._out(FIRST), ROWS)

    def _tiles(self) -> None:
        """Print the loop over tiles of keys for a chunk, and over its blocks of rows."""
        nest, keys = self.nest, self.nest.extent(self.operator.reduce[0])
        if self.template.streams.is_causal:
            end = FIRST + ROWS
            self._assign(LAST, filled("{} < {} ? {} : {}", keys, end, keys, end))
            keys = LAST
        with nest.loop(KEY, ZERO, keys, step=self.template.keys):
            self._least(WIDTH, keys - KEY, self.template.keys)
            self._do("turn", *self._at(self.template.streams.key, self._key, KEY), WIDTH)
            with nest.loop(BLOCK, FIRST, FIRST + ROWS, step=self.template.rows):
                self._least(HEIGHT, FIRST + ROWS - BLOCK, self.template.rows)
                if not self.template.streams.is_causal:
                    self._block()
                    return
                with nest.out.within(Branch(filled("{} < {}", KEY, BLOCK + HEIGHT), ())):
                    self._block()

    def _block(self) -> None:
        """Print the work of a block of rows with a tile of keys: scores, bias, mask and update."""
        streams = self.template.streams
        self._do("multiply", *self._at(streams.query, streams.row, BLOCK), HEIGHT)
        scale = ScalarPrinter(self.nest.names, self.nest.out).expr(streams.scale)
        falls = streams.is_causal and streams.scale.value <= 0  # It would change the sign of -inf.
        if falls or streams.bias != Const(0.0, streams.bias.dtype):
            self._add_bias(scale)
            scale = literal(1)
        if streams.is_causal:
            self._do("hide", BLOCK - KEY, HEIGHT, WIDTH)
        value = self._at(streams.value, self._key, KEY)[0], self._step(streams.value, self._key)
        out = self._out(BLOCK)
        self._do("update", BLOCK - FIRST, HEIGHT, WIDTH, scale, *value, *out)

    def _add_bias(self, scale: Term) -> None:
        nest, row, key = self.nest, iteration(self.template.streams.row), iteration(self._key)
        scores = filled("{}.scores", ATTENTION)
        with (
            nest.loop(row, BLOCK, BLOCK + HEIGHT),
            nest.loop(key, KEY, KEY + WIDTH, "#pragma omp simd"),
        ):
            place = element(scores, (row - BLOCK) * self.template.keys + (key - KEY))
            bias = ScalarPrinter(nest.names, nest.out).expr(self.template.streams.bias)
            nest.out.add(Store(None, place, place * scale + bias))

    # ---- Terms -------------------------------------------------------------------------------

    @property
    def _key(self) -> int:
        """The variable of the keys."""
        return len(self.operator.dims)

    def _at(self, access: Access, dim: int, position: Term) -> tuple[Term, Term, Term]:
        """Return the start of an operand, and its strides along a dim and the depth."""
        start = self.nest.pointer(access, {**self.fixed, dim: position})
        return start, self._step(access, dim), self._step(access, self._key + 1)

    def _out(self, row: Term) -> tuple[Term, Term]:
        """Return the place of a row of the result, and the stride of rows."""
        out, streams = self.operator.out, self.template.streams
        return self.nest.pointer(out, {**self.fixed, streams.row: row}), self._step(
            out, streams.row
        )

    def _step(self, access: Access, dim: int) -> Term:
        return self.nest.index(Index(const=access.offset.coefficient(Var(dim))))

    def _do(self, method: str, *arguments: Term) -> None:
        self.nest.out.add(Do(call(f"{ATTENTION.text}.{method}", *arguments)))

    def _assign(self, target: Term, value: Term) -> None:
        self.nest.out.assign(target, value, "const int64_t")

    def _least(self, target: Term, value: Term, most: int) -> None:
        """Assign the smaller of a value and a limit."""
        self._assign(
            target, filled("{} < {} ? {} : {}", value, literal(most), value, literal(most))
        )


# ---- Selection -----------------------------------------------------------------------------------


def streams_of(operator: Operator) -> Streams | None:
    """Return the streams of an attention, or None if an operand has an unsuitable layout."""
    if operator.combine is not Combine.ATTENTION or operator.accumulate:
        return None
    parts = Attention.of(operator)
    out = operator.out
    pair = parts.product.args if isinstance(parts.product, Apply) else ()
    operands = [load.access for load in (*pair, parts.value) if isinstance(load, Load)]
    if len(operands) != 3 or not isinstance(operator.reduce[1], int):
        return None
    dtypes = {access.buffer.dtype for access in (*operands, out)}
    if len(dtypes) != 1 or not dtypes <= {*FLOATS}:
        return None
    query, key, value = operands
    if len(operator.dims) in query.offset.vars():
        query, key = key, query
    row = _last(parts.rows, having=query, lacking=(key, value))
    column = _last(parts.columns, having=value, lacking=(query, key))
    if row is None or column is None or not isinstance(operator.dims[column], int):
        return None
    if any(access.offset.coefficient(Var(column)) != 1 for access in (value, out)):
        return None
    inner = {row, column, len(operator.dims), len(operator.dims) + 1}
    if not all(_is_strided(access, inner) for access in (*operands, out)):
        return None
    before = _before(parts.bias, row, len(operator.dims))
    bias = parts.bias if before is None else before
    return Streams(parts.scale, bias, query, key, value, row, column, before is not None)


def _is_strided(access: Access, dims: set[int]) -> bool:
    """True if the strides along these dims are numbers, and those along the others are known at
    the call."""
    for atom, _ in access.offset.terms:
        found = Index.of(atom).vars()
        known = isinstance(atom, Product) and not found & dims
        if found and not isinstance(atom, Var) and not known:
            return False
    return True


def _last(dims: tuple[int, ...], having: Access, lacking: tuple[Access, ...]) -> int | None:
    """Return the last dim that one access depends on and the others do not, or None."""
    found = [
        dim
        for dim in dims
        if dim in having.offset.vars() and not any(dim in other.offset.vars() for other in lacking)
    ]
    return found[-1] if found else None


def _before(bias: Expr, row: int, key: int) -> Expr | None:
    """Return the bias of keys that are not after the row, if the others have a bias of -inf; else
    None."""
    if not isinstance(bias, Apply) or bias.function != "where":
        return None
    condition, inner, other = bias.args
    order = (Position(Index.of(Var(key))), Position(Index.of(Var(row))))
    hides = isinstance(other, Const) and other.value == -inf
    return inner if hides and condition == Apply("le", order, DType.BOOL) else None


def _candidate(request: TemplateRequest) -> TemplateCandidate | None:
    operator, costs = request.operator, request.costs
    found = streams_of(operator)
    if found is None or not _takes_whole_columns(request, found):
        return None
    template = Fused(48, 128, found)
    keys, depth = (costs.size(extent) for extent in operator.reduce)
    columns, rows = (costs.size(operator.dims[n]) for n in (found.column, found.row))
    share = operator.out.buffer.dtype.itemsize / 4
    scores = costs.points(operator.dims) // columns * keys
    turned = (1 + TURN * max(1, -(-rows // CHUNK)) / rows) * depth + columns
    work = EXPONENTIAL + count_applies(found.bias)
    seconds = scores * share * (2 * turned / costs.flops + work * costs.element_seconds)
    multiples = [1] * len(operator.dims)
    multiples[found.row] = min(TILE_ROWS, rows)
    multiples[found.column] = 0
    return TemplateCandidate(template, tuple(multiples), seconds, last=found.row, repeated=TURN)


def _takes_whole_columns(request: TemplateRequest, found: Streams) -> bool:
    """True if every box has all columns: computing a part of them takes nearly as long as all."""
    columns = request.operator.dims[found.column]
    return all(
        box[found.column].offset == 0 and box[found.column].extent == columns
        for box in request.member.boxes
    )


FAMILY = CpuTemplateFamily((Fused,), _candidate, rank=0)
