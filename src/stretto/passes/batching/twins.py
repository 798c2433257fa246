"""Search for the values of a loop body that can be computed for all iterations before the loop."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass, field

from stretto.errors import VerifyError
from stretto.ir.core import Op, Value
from stretto.ir.ops import (
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
from stretto.ops.arguments import int_argument, value_argument
from stretto.ops.properties import is_random, is_view, properties, stop_reason
from stretto.passes.analyses.loop_dependences import Affine, Length, ListLengths, affine_result
from stretto.passes.batching.rules import Batch, NotBatchable


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
    return _TwinFinder(loop, length, lengths, limit_bytes).run()


def is_source(op: Op) -> bool:
    """True for an op that reads an item of a list, which is as cheap as a view."""
    return isinstance(op, ListGetOp)


class _TwinFinder:
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
        for value in op.operands:
            if value in self.affine and value not in self.batch.twins:
                self.batch.twins[value] = self.numbers(self.affine[value])
        return self.batch.by_rule(op)

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
        nbytes = max((twin.tensor.nbytes for twin in twins), default=0)
        if not is_view(op) and not is_source(op) and nbytes > self.limit_bytes:
            raise NotBatchable(f"the batched result takes {nbytes} bytes")
        self.batch.accept(op, twins)
        self.found.of_op[op] = twins
