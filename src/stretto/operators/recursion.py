"""Recursions that are computed level by level: rows of results, the table of all calls.

See `passes/height_steps`.
"""

from __future__ import annotations

import torch

from stretto.device.expr import Apply, ComputedPosition, Const, Expr, Index, Position, dynamic_index
from stretto.device.operator import Combine
from stretto.ir.types import DType
from stretto.lowering.emit import apply, emit, where
from stretto.lowering.lazy import Lazy, cast, variables
from stretto.lowering.rules import TensorOpCall, rule, static_dims
from stretto.ops.custom_operators import define
from stretto.ops.positions import window_out_of_range
from stretto.ops.table import Fails, describe

# ---- properties ------------------------------------------------------------------------------

describe("rows_before rows_of call_table number_row", "stretto", fails=Fails.NEVER)


_ZERO = Const(0, DType.I64)


@rule("stretto.rows_before.default")
def _rows_before(call: TensorOpCall) -> Lazy:
    """Positions are clamped to rows before the window, so no row from the window on is read."""
    return _before(call, _stored(call, "positions"))


@rule("stretto.rows_of.default")
def _rows_of(call: TensorOpCall) -> Lazy:
    """Both tensors are indexed with positions clamped into range; only the wanted row is read."""
    positions, source = _stored(call, "positions"), call.cheap("source")
    last = Position(Index.of(source.shape[0]) + -1)
    place, *others = variables(call.shape)
    position = positions.at(place)
    row = apply("minimum", apply("maximum", position, _ZERO), last)
    given = source.view(call.shape, Index.of(ComputedPosition(row)), *others)
    made = _before(call, Lazy(DType.I64, positions.shape, apply("neg", positions.expr)))
    return Lazy(given.dtype, call.shape, where(_is_place(position), given.expr, made.expr))


def _stored(call: TensorOpCall, name: str) -> Lazy:
    lazy = call.tensor(name)
    return lazy if lazy.is_stored else call.stored(name)


def _before(call: TensorOpCall, positions: Lazy) -> Lazy:
    """Return rows of a tensor that are all before its window, at clamped positions."""
    size, length = call.tensor("self").shape[0], call.dim("length")
    failure = window_out_of_range(size, length)
    split = call.low.split(call.arguments["start"], size, failure, length)
    place = apply("maximum", positions.at(*variables(call.shape[:1])), _ZERO)
    place = apply("minimum", place, Position(Index.of(split) + -1))
    row = Index.of(ComputedPosition(place))
    return call.cheap("self").view(call.shape, row, *variables(call.shape)[1:])


@rule("stretto.call_table.default")
def _call_table(call: TensorOpCall) -> Lazy:
    """One reduction: each number is taken from the one activation whose rank is that of the row."""
    (last,) = static_dims(call.tensor("numbers").shape[1:])
    numbers, ranks, ends = (_stored(call, name) for name in ("numbers", "ranks", "ends"))
    row, column = variables(call.shape)
    (each,) = variables(ranks.shape, len(call.shape))
    known = apply("minimum", Position(column), Const(last - 1, DType.I64))
    number = numbers.at(each, dynamic_index(known))
    item = where(_is_column(column, last), Position(each), _place(call, ranks, number))
    item = where(_is_column(column, 0), ends.at(each), item)
    is_here = Apply("eq", (ranks.at(each), Position(row)), DType.BOOL)
    value = where(is_here, item, _ZERO)
    return emit(call.low, "table", call.shape, ranks.shape, Combine.SUM, value, call.result)


@rule("stretto.number_row.default")
def _number_row(call: TensorOpCall) -> Lazy:
    """Each element selects its number by its position: nothing is loaded."""
    (place,) = variables(call.shape)
    *others, row = (cast(lazy.at(), DType.I64) for lazy in call.tensors("numbers"))
    for number, item in reversed([*enumerate(others)]):
        row = where(_is_column(place, number), item, row)
    return Lazy(DType.I64, call.shape, row)


def _is_column(column: Index, number: int) -> Expr:
    return Apply("eq", (Position(column), Const(number, DType.I64)), DType.BOOL)


def _place(call: TensorOpCall, ranks: Lazy, number: Expr) -> Expr:
    """Return the position of the result of a call, given the `number` that the walk recorded for
    it."""
    activation = apply("sub", Const(-1, DType.I64), number)
    rank = ranks.at(dynamic_index(apply("maximum", activation, _ZERO)))
    found = apply("add", rank, cast(call.scalar("first"), DType.I64))
    found = apply("neg", found) if call.flag("signed") else found
    return where(_is_place(number), number, found)


def _is_place(number: Expr) -> Expr:
    return Apply("ge", (number, _ZERO), DType.BOOL)


# ---- the operators ---------------------------------------------------------------------------
#
# `stretto.rows_before(x, positions, start, length)` gives rows of `x` that are all before the
# window of `length` rows at `start`. The window must be inside `x`, after its first row. Positions
# are clamped to 0 .. `start` - 1. In `stretto.rows_of(x, source, positions, start, length)` a
# position >= 0 is a row of `source`, which must exist, and a negative one, -p, is row p of `x` as
# above. The results have separate memory.
#
# `stretto.call_table(numbers, ranks, ends, first, length, signed)` sorts the records of n
# activations by a recursion's walk, [n, 1 + k], by their `ranks` [n], and pads them with rows of
# zeros: [length, 2 + k]. Column 0 has the `ends`, the last one the numbers of the activations. The
# columns between have positions: one >= 0 is unchanged, and -1 - i, which refers to activation i,
# becomes its rank + `first`, negated if `signed`.
#
# `stretto.number_row(numbers)` puts single integers [] into one tensor, computed in one operation.


def _compute_rows_before(
    self: torch.Tensor, positions: torch.Tensor, start: int, length: int
) -> torch.Tensor:
    if not 1 <= start <= self.size(0) - length:
        raise IndexError(f"no window of {length} rows is at {start} > 0 of {self.size(0)} rows")
    return self.index_select(0, positions.clamp(0, start - 1))


def _rows_before_shape(
    self: torch.Tensor, positions: torch.Tensor, start: int, length: int
) -> torch.Tensor:
    if positions.dim() != 1 or positions.dtype != torch.int64 or self.dim() < 1:
        raise ValueError(f"expected rows, i64 positions: {self.shape}, {positions.dtype}")
    return self.new_empty((positions.size(0), *self.shape[1:]))


def _compute_rows_of(
    self: torch.Tensor, source: torch.Tensor, positions: torch.Tensor, start: int, length: int
) -> torch.Tensor:
    _rows_of_shape(self, source, positions, start, length)
    made = _compute_rows_before(self, -positions, start, length)
    given = source.index_select(0, positions.clamp_min(0))
    is_given = (positions >= 0).view(-1, *[1] * (self.dim() - 1))
    return torch.where(is_given, given, made)


def _rows_of_shape(
    self: torch.Tensor, source: torch.Tensor, positions: torch.Tensor, start: int, length: int
) -> torch.Tensor:
    if self.dtype != source.dtype or self.shape[1:] != source.shape[1:]:
        raise ValueError(f"the rows differ in dtype or shape: {self.shape} and {source.shape}")
    return _rows_before_shape(self, positions, start, length)


def _compute_call_table(
    numbers: torch.Tensor,
    ranks: torch.Tensor,
    ends: torch.Tensor,
    first: int,
    length: int,
    signed: bool,
) -> torch.Tensor:
    table = _call_table_shape(numbers, ranks, ends, first, length, signed).zero_()
    places = numbers[:, 1:]
    found = ranks[(-1 - places).clamp_min(0)] + first
    places = torch.where(places >= 0, places, -found if signed else found)
    numbered = torch.arange(len(ranks), dtype=torch.int64)
    table[ranks] = torch.cat((ends[:, None], places, numbered[:, None]), 1)
    return table


def _call_table_shape(
    numbers: torch.Tensor,
    ranks: torch.Tensor,
    ends: torch.Tensor,
    first: int,
    length: int,
    signed: bool,
) -> torch.Tensor:
    if (numbers.dim(), ranks.dim(), ends.dim()) != (2, 1, 1):
        raise ValueError(f"wrong ranks of a table: {numbers.shape}, {ranks.shape}, {ends.shape}")
    return numbers.new_empty((length, numbers.size(1) + 1))


define(
    "rows_before(Tensor self, Tensor positions, SymInt start, SymInt length) -> Tensor",
    _compute_rows_before,
    _rows_before_shape,
)
define(
    "rows_of(Tensor self, Tensor source, Tensor positions, SymInt start, SymInt length) -> Tensor",
    _compute_rows_of,
    _rows_of_shape,
)
define(
    "call_table(Tensor numbers, Tensor ranks, Tensor ends, SymInt first, SymInt length, "
    "bool signed) -> Tensor",
    _compute_call_table,
    _call_table_shape,
)
define("number_row(Tensor[] numbers) -> Tensor", torch.stack, torch.stack)
