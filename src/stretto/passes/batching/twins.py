"""Search for the values of a loop body that can be computed for all iterations before the loop."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass, field
from math import prod

from stretto.errors import VerifyError
from stretto.ir.core import Op, Value, argument_values
from stretto.ir.ops import (
    Argument,
    ConstantOp,
    ForOp,
    ListGetOp,
    ListLengthOp,
    ListStackOp,
    LiteralOp,
    TensorOp,
)
from stretto.ir.rewrite import clone_op
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Size
from stretto.ir.symbols import bound_symbols, symbols_of_op
from stretto.ir.types import INDEX, Dim, TensorType
from stretto.ops.arguments import argument, int_argument, value_argument
from stretto.ops.infer import named_arguments
from stretto.ops.properties import is_random, is_view, properties, stop_reason
from stretto.ops.table import ShiftDims
from stretto.passes.analyses.loops import Affine, Length, ListLengths, affine_result
from stretto.passes.batching.rules import (
    Batch,
    NotBatchable,
    batches,
    rebuilt,
    rule_for,
    shift_dims,
    shifted,
    times,
)


@dataclass(frozen=True, slots=True)
class Twins:
    """The values of one loop that can be batched. `reasons` says why each other op must stay in
    the loop."""

    batch: Batch
    of_op: dict[Op, tuple[Value, ...]] = field(default_factory=dict[Op, tuple[Value, ...]])
    index_ops: set[Op] = field(default_factory=set[Op])
    """Arithmetic on the loop index, and ops that are the same in every iteration."""
    reasons: dict[Op, str] = field(default_factory=dict[Op, str])


def find_twins(loop: ForOp, length: Dim, lengths: ListLengths, limit_bytes: int) -> Twins:
    """Return the twins of all ops of the body that depend on no carried value and have a rule."""
    return _Finder(loop, length, lengths, limit_bytes).run()


def type_bytes(type: TensorType) -> int:
    """Return the bytes of a tensor, symbolic dims counted as 1."""
    return type.dtype.itemsize * prod(dim for dim in type.shape if isinstance(dim, int))


def is_source(op: Op) -> bool:
    """True for an op that reads an item of a list, which is as cheap as a view."""
    return isinstance(op, ListGetOp)


class _Finder:
    """Walks one body in order. A value is invariant, affine, batched, or unknown."""

    def __init__(self, loop: ForOp, length: Dim, lengths: ListLengths, limit_bytes: int) -> None:
        self.loop = loop
        self.lengths = lengths
        self.limit_bytes = limit_bytes
        self.batch = Batch(length)
        self.trips = loop.trips()
        """The trip count, if it is known at the call; None if it is the length of a list."""
        self.names = bound_symbols(loop.body)
        self.found = Twins(self.batch)
        start = 0 if isinstance(loop.start, Value) else loop.start
        self.affine = {loop.index: Affine(loop.step, start)}
        """The values that are affine in the iteration number and differ between iterations."""
        self.literals = {
            value: Affine(0, int(op.value))
            for value, op in lengths.makers.items()
            if isinstance(op, LiteralOp) and value.type == INDEX
        }
        self.inside = {value for op in loop.body.ops for value in op.results}
        self.inside.update(loop.body.params)

    def run(self) -> Twins:
        for op in self.loop.body.ops:
            reason = self.visit(op)
            if reason is not None:
                self.found.reasons[op] = reason
        return self.found

    def visit(self, op: Op) -> str | None:
        """Record the twins, invariants or affine forms of the op's results, or return why there
        are none."""
        if self.names and not self.names.isdisjoint(symbols_of_op(op)):
            return "its size is known in the iteration only"
        affine = affine_result(op, ChainMap(self.affine, self.literals))
        if affine is not None and affine.scale == 0:
            self.literals[op.result] = affine
        elif affine is not None:
            self.affine[op.result] = affine
            self.found.index_ops.add(op)
            return None
        if op.blocks:
            return "it has nested control flow"
        unknown = [value for value in op.operands if not self.is_known(value)]
        if unknown:
            hint = unknown[0].hint
            name = f"%{hint}" if hint else "a value"
            return f"it depends on {name}, which an iteration passes to the next"
        if isinstance(op, (ConstantOp, LiteralOp)) or self.is_invariant(op):
            return self.copy(op)
        try:
            return self.accept(op, self.twins(op))
        except NotBatchable as reason:
            return str(reason)
        except VerifyError as error:
            return error.message

    def is_known(self, value: Value) -> bool:
        return (
            value not in self.inside
            or value in self.affine
            or value in self.batch.twins
            or value in self.batch.invariants
        )

    def is_invariant(self, op: Op) -> bool:
        if not isinstance(op, TensorOp) or is_random(op):
            return False
        return not any(value in self.batch.twins or value in self.affine for value in op.operands)

    def copy(self, op: Op) -> str | None:
        if isinstance(op, TensorOp) and not at_most(1, self.batch.length):
            reason = stop_reason(op)
            if reason is not None:
                return reason
        mapping = dict(self.batch.invariants)
        copy = self.batch.add(clone_op(op, mapping))
        self.batch.invariants.update(zip(op.results, copy.results, strict=True))
        self.found.index_ops.add(op)

    def twins(self, op: Op) -> tuple[Value, ...]:
        if isinstance(op, ListGetOp):
            return self.items(op)
        if not isinstance(op, TensorOp) or is_random(op):
            raise NotBatchable(f"`{op.name}` cannot be batched")
        known, source = properties(op.target), value_argument(op, "self")
        if known.rearranges and known.positions and not self.batch.is_batched(source):
            position = value_argument(op, known.positions.name)
            if source is not None and position in self.affine:
                return self.slices(op, source, self.affine[position])
        return self.by_rule(op)

    def by_rule(self, op: TensorOp) -> tuple[Value, ...]:
        rule = rule_for(op.target)
        if rule is None:
            raise NotBatchable(f"`{op.target}` has no batched form")
        for value in op.operands:
            if value in self.affine and value not in self.batch.twins:
                self.batch.twins[value] = self.numbers(self.affine[value])
        return rule(self.batch, op)

    def numbers(self, affine: Affine) -> Value:
        """Return the values of an affine integer in all iterations, as a tensor."""
        if isinstance(self.trips, int) and isinstance(affine.offset, int):
            stop = affine.offset + affine.scale * self.trips
            return self.batch.emit("aten.arange.start_step", affine.offset, stop, affine.scale)
        if self.trips is None:
            raise NotBatchable("the trip count is not known")
        counted = self.batch.emit("aten.arange.default", self.trips)
        if affine.scale != 1:
            counted = self.batch.emit("aten.mul.Scalar", counted, affine.scale)
        if affine.offset != 0:
            counted = self.batch.emit("aten.add.Scalar", counted, affine.offset)
        return counted

    def items(self, op: ListGetOp) -> tuple[Value, ...]:
        """Return the twin of reading an item of a list that the loop does not change."""
        if op.list in self.inside:
            raise NotBatchable("the list grows in the loop")
        if op.index not in self.affine:
            raise NotBatchable("the position in the list is not affine in the index")
        length, affine = self.lengths.length(op.list), self.affine[op.index]
        if self.trips is not None:
            if length is None or length.loop is not None:
                raise NotBatchable("the length of the list is not known")
            return self.rows(self.stack(op.list, length.items), 0, affine)
        if affine != Affine(1, 0) or not self.runs_over(op.list, length):
            raise NotBatchable("the loop does not run over all items of the list")
        return (self.stack(op.list, self.batch.length),)

    def runs_over(self, items: Value, length: Length | None) -> bool:
        """True if the loop's trip count is the length of the list."""
        stop = self.loop.stop
        maker = self.lengths.makers.get(stop) if isinstance(stop, Value) else None
        if isinstance(maker, ListLengthOp) and maker.list is items:
            return True
        return length == Length(0, (self.loop.start, stop, self.loop.step))

    def stack(self, items: Value, length: Dim) -> Value:
        element = items.list.element
        result = Value(TensorType(element.dtype, (length, *element.shape)), items.hint)
        return self.batch.add(ListStackOp(items, results=(result,))).result

    def slices(self, op: TensorOp, source: Value, affine: Affine) -> tuple[Value, ...]:
        """Return the twin of a select or narrow of an invariant tensor at a position that is
        affine in the iteration."""
        dim = int_argument(op, "dim")
        assert dim is not None
        dim %= source.tensor.rank
        operand = self.batch.operand(source)
        if op.result.tensor.rank < source.tensor.rank:
            return self.rows(operand, dim, affine)
        return self.windows(operand, dim, affine, int_argument(op, "length"))

    def rows(self, source: Value, dim: int, affine: Affine) -> tuple[Value, ...]:
        """Return the twin of `select(source, dim, position)`: a slice, with `dim` first."""
        size, step = source.tensor.shape[dim], abs(affine.scale)
        if self.trips is None or (step > 1 and not isinstance(self.trips, int)):
            raise NotBatchable("the trip count is not known")
        low, high = affine.offset, affine.last(self.trips)
        if affine.scale < 0:
            low, high = high, low
        if at_most(high, -1):
            low, high = low + size, high + size
        if not at_most(0, low) or not at_most(high + 1, size):
            raise NotBatchable("the position leaves the tensor or passes zero")
        part = self.sliced(source, dim, low, high + 1, step)
        if affine.scale < 0:
            part = self.batch.emit("aten.flip.default", part, (dim,))
        rest = (other for other in range(source.tensor.rank) if other != dim)
        return (self.batch.permute(part, (dim, *rest)),)

    def windows(
        self, source: Value, dim: int, affine: Affine, width: int | None
    ) -> tuple[Value, ...]:
        """Return the twin of `narrow(source, dim, position, width)`; the windows must be
        contiguous."""
        length, shape = self.trips, source.tensor.shape
        if length is None or width is None:
            raise NotBatchable("the trip count or the size is not known")
        end = length * width + affine.offset
        is_inside = at_most(0, affine.offset) and at_most(end, shape[dim])
        if affine.scale != width or not is_inside:
            raise NotBatchable("the slices do not lie side by side")
        part = self.sliced(source, dim, affine.offset, end, 1)
        split = self.batch.reshape(part, (*shape[:dim], length, width, *shape[dim + 1 :]))
        rest = (other for other in range(split.tensor.rank) if other != dim)
        return (self.batch.permute(split, (dim, *rest)),)

    def sliced(self, source: Value, dim: int, start: Dim, stop: Dim, step: int) -> Value:
        start, stop = Size.of(start).dim, Size.of(stop).dim
        if (start, stop, step) == (0, source.tensor.shape[dim], 1):
            return source
        return self.batch.emit("aten.slice.Tensor", source, dim, start, stop, step)

    def accept(self, op: Op, twins: tuple[Value, ...]) -> None:
        for value, twin in zip(op.results, twins, strict=True):
            expected = TensorType(value.tensor.dtype, (self.batch.length, *value.tensor.shape))
            if twin.type != expected:
                raise NotBatchable(f"the batched result would be {twin.type}, not {expected}")
            if not is_view(op) and not is_source(op) and type_bytes(expected) > self.limit_bytes:
                raise NotBatchable(f"the batched result takes {type_bytes(expected)} bytes")
            twin.hint = twin.hint or value.hint
        self.batch.twins.update(zip(op.results, twins, strict=True))
        self.found.of_op[op] = twins


# ---- Rules for contractions: the rows of all iterations become one product.
#
# If one operand is the same in every iteration, the iterations become rows of the other one, so
# that a weight is read once for all of them. If both differ, the product becomes a batched one.


WIDE = 16
"""Number of columns from which N separate products are faster than one product of the matrices put
side by side (docs/explanation/performance.md)."""


def _operands(op: TensorOp, *names: str) -> list[Value]:
    values = [value for name in names if (value := value_argument(op, name)) is not None]
    assert len(values) == len(names)
    return values


def _weighted(batch: Batch, op: TensorOp) -> Value:
    """Return the input of a product. Raises Stays unless weight and bias are the same in every
    iteration."""
    if any(batch.is_batched(value_argument(op, name)) for name in ("weight", "bias")):
        raise NotBatchable("the weight differs from iteration to iteration")
    return _operands(op, "input")[0]


@batches("aten.linear.default")
def _linear(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    source, weight = _operands(op, "input", "weight")
    bias = value_argument(op, "bias")
    if batch.is_batched(weight):
        return (_linear_of_each(batch, source, weight, bias, op.result.tensor.shape),)
    if bias is not None and (batch.is_batched(bias) or not batch.is_batched(source)):
        operands = batch.operand(source), batch.operand(weight)
        product = batch.emit("aten.linear.default", *operands)
        return (batch.emit("aten.add.Tensor", product, batch.aligned(bias, op.result.tensor.rank)),)
    return rebuilt(batch, op, {"input": batch.twins[_weighted(batch, op)]})


def _linear_of_each(
    batch: Batch, source: Value, weight: Value, bias: Value | None, shape: tuple[Dim, ...]
) -> Value:
    """Return the twin of a linear layer whose weight differs: one matrix product per iteration."""
    if weight.tensor.rank != 2 or not source.tensor.rank:
        raise NotBatchable("the weight is not a matrix")
    rows: Dim = 1
    for dim in source.tensor.shape[:-1]:
        rows = times(rows, dim)
    inner = source.tensor.shape[-1]
    left = batch.reshape(batch.expanded(source), (batch.length, rows, inner))
    right = batch.permute(batch.twins[weight], (0, 2, 1))
    product = batch.split_rows(batch.emit("aten.bmm.default", left, right), shape)
    if bias is None:
        return product
    return batch.emit("aten.add.Tensor", product, batch.aligned(bias, len(shape)))


@batches(
    "aten.convolution.default", "aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default"
)
def _convolution(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    source = _weighted(batch, op)
    has_batch = source.tensor.rank == _operands(op, "weight")[0].tensor.rank
    rows = batch.merge_rows(batch.twins[source]) if has_batch else batch.twins[source]
    (product,) = rebuilt(batch, op, {"input": rows})
    return (batch.split_rows(product, op.result.tensor.shape) if has_batch else product,)


@batches("aten.mm.default")
def _mm(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    left, right = _operands(op, "self", "mat2")
    return (_matrix_product(batch, left, right, op.result.tensor.shape),)


def _matrix_product(batch: Batch, left: Value, right: Value, shape: tuple[Dim, ...]) -> Value:
    """Return the twin of a product of two matrices whose result has `shape`."""
    if batch.is_batched(left) and batch.is_batched(right):
        return batch.emit("aten.bmm.default", batch.twins[left], batch.twins[right])
    if batch.is_batched(left):
        rows = batch.merge_rows(batch.twins[left])
        product = batch.emit("aten.mm.default", rows, batch.operand(right))
        return batch.split_rows(product, shape)
    # [M, K] x [T, K, N]. If N fills a machine's vectors, each matrix is multiplied in place. With
    # fewer columns, those of all iterations are put side by side, at the cost of two
    # transpositions.
    inner, columns = right.tensor.shape
    if isinstance(columns, int) and columns >= WIDE:
        # Not a matmul: torch 2.11 and 2.12 infer its shape only for the one size that stands for
        # all.
        return batch.emit("aten.bmm.default", batch.expanded(left), batch.twins[right])
    turned = batch.permute(batch.twins[right], (1, 0, 2))
    flat = batch.reshape(turned, (inner, times(batch.length, columns)))
    product = batch.emit("aten.mm.default", batch.operand(left), flat)
    return batch.permute(batch.reshape(product, (shape[0], batch.length, columns)), (1, 0, 2))


@batches("aten.addmm.default")
def _addmm(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    alpha, beta = argument(op, "alpha"), argument(op, "beta")
    is_scaled = alpha != 1 or beta != 1
    if is_scaled and (beta == 0 or not op.result.tensor.dtype.is_float):
        raise NotBatchable("the product is scaled")
    bias, left, right = _operands(op, "self", "mat1", "mat2")
    result = op.result.tensor
    one_row = bias.tensor.rank == 1 or bias.tensor.shape[:1] == (1,)
    if one_row and not is_scaled and not batch.is_batched(bias) and not batch.is_batched(right):
        rows = batch.merge_rows(batch.twins[left])
        row_bias, weight = batch.operand(bias), batch.operand(right)
        product = batch.emit("aten.addmm.default", row_bias, rows, weight)
        return (batch.split_rows(product, result.shape),)
    if not batch.is_batched(left) and not batch.is_batched(right):
        product = batch.emit("aten.mm.default", batch.operand(left), batch.operand(right))
    else:
        product = _matrix_product(batch, left, right, result.shape)
    added = batch.aligned(bias, result.rank)
    if is_scaled:
        product = batch.emit("aten.mul.Scalar", product, alpha)
        added = batch.emit("aten.mul.Scalar", added, beta)
    return (batch.emit("aten.add.Tensor", product, added),)


@batches("aten.mv.default")
def _mv(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    matrix, vector = _operands(op, "self", "vec")
    if not batch.is_batched(matrix):
        return (batch.emit("aten.linear.default", batch.twins[vector], batch.operand(matrix)),)
    if batch.is_batched(vector):
        return (_matmul_of_each(batch, matrix, vector, op.result.tensor.shape),)
    flat = batch.merge_rows(batch.twins[matrix])
    product = batch.emit("aten.mv.default", flat, batch.operand(vector))
    return (batch.split_rows(product, matrix.tensor.shape[:1]),)


@batches("aten.matmul.default")
def _matmul(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    left, right = _operands(op, "self", "other")
    ranks = left.tensor.rank, right.tensor.rank
    if not batch.is_batched(right) and ranks[1] == 2:
        return (batch.emit("aten.matmul.default", batch.twins[left], batch.operand(right)),)
    if ranks == (2, 1) and not batch.is_batched(left):
        return (batch.emit("aten.linear.default", batch.twins[right], batch.operand(left)),)
    return (_matmul_of_each(batch, left, right, op.result.tensor.shape),)


@batches("aten.dot.default")
def _dot(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    left, right = _operands(op, "self", "tensor")
    return (_matmul_of_each(batch, left, right, op.result.tensor.shape),)


def _matmul_of_each(batch: Batch, left: Value, right: Value, shape: tuple[Dim, ...]) -> Value:
    """Return the twin of a product per iteration, of matrices that broadcast; a vector becomes a
    matrix of one row or column, so that one operator serves all products."""
    rank = max(2, left.tensor.rank, right.tensor.rank)

    def matrices(value: Value, vector: tuple[Dim, ...]) -> Value:
        own = vector if value.tensor.rank == 1 else value.tensor.shape
        if batch.is_batched(value):
            own = (batch.length, *(1,) * (rank - len(own)), *own)
        return batch.reshape(batch.operand(value), own)

    operands = (
        matrices(left, (1, left.tensor.shape[-1])),
        matrices(right, (right.tensor.shape[0], 1)),
    )
    return batch.split_rows(batch.emit("aten.matmul.default", *operands), shape)


@batches("aten.bmm.default")
def _bmm(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    left, right = _operands(op, "self", "mat2")
    shape, length = op.result.tensor.shape, batch.length
    count, rows, columns = shape
    if batch.is_batched(left) and batch.is_batched(right):
        parts = (batch.merge_rows(batch.twins[value]) for value in (left, right))
        return (batch.split_rows(batch.emit("aten.bmm.default", *parts), shape),)
    if batch.is_batched(left):
        turned = batch.permute(batch.twins[left], (1, 0, 2, 3))
        flat = batch.reshape(turned, (count, times(length, rows), left.tensor.shape[2]))
        product = batch.emit("aten.bmm.default", flat, batch.operand(right))
        split = batch.reshape(product, (count, length, rows, columns))
        return (batch.permute(split, (1, 0, 2, 3)),)
    turned = batch.permute(batch.twins[right], (1, 2, 0, 3))
    flat = batch.reshape(turned, (count, right.tensor.shape[1], times(length, columns)))
    product = batch.emit("aten.bmm.default", batch.operand(left), flat)
    split = batch.reshape(product, (count, rows, length, columns))
    return (batch.permute(split, (2, 0, 1, 3)),)


# ---- Rules for positions that differ between iterations.
#
# If the tensor differs too, the iteration number becomes a position in its leading dim.


def _numbers(batch: Batch, rank: int) -> Value:
    """Return the iteration numbers, shaped to broadcast with twins of positions of `rank` dims."""
    counted = batch.emit("aten.arange.default", batch.length)
    return batch.reshape(counted, (batch.length, *(1,) * rank))


def _dim(op: TensorOp, rank: int) -> int:
    dim = argument(op, "dim")
    if not isinstance(dim, int) or rank == 0:
        raise NotBatchable("its operand has no dims")
    return dim % rank


@batches("aten.select.int")
def _select(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    source, index = value_argument(op, "self"), value_argument(op, "index")
    if source is None or index is None or not batch.is_batched(index):
        return shift_dims(batch, op, ShiftDims())
    return (_taken(batch, source, _dim(op, source.tensor.rank), index),)


@batches("aten.index_select.default")
def _index_select(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    source, index = value_argument(op, "self"), value_argument(op, "index")
    if source is None or index is None or index.tensor.rank != 1:
        raise NotBatchable("its operand has no dims")
    dim = _dim(op, source.tensor.rank)
    if not batch.is_batched(index):
        return rebuilt(batch, op, {"self": batch.twins[source], "dim": dim + 1})
    taken = _taken(batch, source, dim, index)  # [n, k, ...], where k replaces `dim`
    order = [0, *range(2, dim + 2), 1, *range(dim + 2, source.tensor.rank + 1)]
    return (batch.permute(taken, tuple(order)),)


def _taken(batch: Batch, source: Value, dim: int, index: Value) -> Value:
    """Return the elements of `dim` at positions that differ between iterations: [n, *positions,
    *other dims]."""
    first = (dim, *(other for other in range(source.tensor.rank) if other != dim))
    if not batch.is_batched(source):
        operand = batch.permute(batch.operand(source), first)
        return batch.emit("aten.index.Tensor", operand, (batch.twins[index],))
    operand = batch.permute(batch.twins[source], (0, *(place + 1 for place in first)))
    numbers = _numbers(batch, index.tensor.rank)
    return batch.emit("aten.index.Tensor", operand, (numbers, batch.twins[index]))


@batches("aten.index.Tensor")
def _index(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    """Indexing of the leading dims only: positions that differ between iterations put the
    iteration first in the result."""
    source, indices = value_argument(op, "self"), argument(op, "indices")
    values = argument_values(indices)
    if source is None or not isinstance(indices, tuple) or len(values) != len(indices):
        raise NotBatchable("a dim before an index is not indexed")
    if any(value.tensor.dtype.value in ("bool", "u8") for value in values):
        raise NotBatchable("it is indexed by a mask")
    if batch.is_batched(source) and not any(map(batch.is_batched, values)):
        return rebuilt(batch, op, {"self": batch.twins[source], "indices": (None, *indices)})
    rank = max(value.tensor.rank for value in values)
    aligned: tuple[Value, ...] = tuple(batch.aligned(value, rank) for value in values)
    if batch.is_batched(source):
        aligned = (_numbers(batch, rank), *aligned)
        return rebuilt(batch, op, {"self": batch.twins[source], "indices": aligned})
    return rebuilt(batch, op, {"indices": aligned})


@batches("aten.select_scatter.default")
def _select_scatter(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    index = value_argument(op, "index")
    if index is None or not batch.is_batched(index):
        return _along_dim(batch, op)
    source, part = value_argument(op, "self"), value_argument(op, "src")
    assert source is not None and part is not None
    rank = source.tensor.rank
    dim = _dim(op, rank)
    first = (0, dim + 1, *(other + 1 for other in range(rank) if other != dim))
    turned = batch.permute(batch.expanded(source), first)
    indices = (_numbers(batch, 0), batch.twins[index])
    put = batch.emit("aten.index_put.default", turned, indices, batch.expanded(part))
    return (batch.permute(put, tuple(first.index(place) for place in range(rank + 1))),)


@batches(
    *("aten.gather.default", "aten.scatter.src", "aten.scatter.value", "aten.scatter_add.default"),
    *("aten.scatter_reduce.two", "aten.slice_scatter.default"),
)
def _along_dim(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    """Operators along a dim whose tensors all have one rank: every tensor gets the leading dim,
    and `dim` is one higher."""
    changed: dict[str, Argument] = {"dim": shifted(argument(op, "dim"))}
    for parameter, item in named_arguments(op.target, op.args, op.kwargs):
        if isinstance(item, Value):
            if not parameter.is_tensor:
                raise NotBatchable("a number differs from iteration to iteration")
            if item.tensor.rank == 0 and parameter.name != "src":
                raise NotBatchable("its operand has no dims")
            changed[parameter.name] = batch.expanded(item)
    return rebuilt(batch, op, changed)
