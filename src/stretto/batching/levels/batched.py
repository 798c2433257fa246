"""Turn a block into one for many instances: each op for n rows at once, by the rules of
`passes.batching`.

An op that has no rule, or cannot be batched with its arguments, runs in a loop over the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stretto.batching.levels.capture import CapturedBlock
from stretto.errors import CaptureError, SourceLocation, VerifyError
from stretto.ir.core import Block, Op, Value, fresh
from stretto.ir.ops import CheckOp, ConstantOp, ForOp, IfOp, LiteralOp, SizeOp, TensorOp
from stretto.ir.rewrite import clone_block, clone_op, free_values_of_op
from stretto.ir.sizes import Size
from stretto.ir.symbols import Renaming, rename_symbols, symbols_of_op
from stretto.ir.types import INDEX, TensorType
from stretto.ops.infer import Emitter
from stretto.ops.properties import is_random, stop_reason
from stretto.passes.batching.rules import Batch, NotBatchable

# ---- Loops of a block for many instances at once.
#
# A loop whose bounds are the same for all rows runs once for all of them. A carried value that is
# the same for all rows in each iteration is not batched.


class RegionBatcher(Protocol):
    """Interface of the batcher of the ops of one region (`_BlockBatcher`)."""

    batch: Batch
    loops: list[Any]
    """The operators that run once per row."""

    def inner(self, params: Sequence[Value]) -> RegionBatcher:
        """Return the batcher of a nested region with these params."""
        ...

    def visit(self, op: Op) -> None: ...


def batched_for(region: RegionBatcher, op: ForOp) -> None:
    """Emit a loop for all rows at once. Raises NotBatchable if its bounds differ between rows."""
    batch = region.batch
    start, stop = _bound(batch, op.start), _bound(batch, op.stop)
    inits = list(op.inits)
    differs = {n for n, init in enumerate(inits) if batch.is_batched(init)}
    index = Value(INDEX, op.index.hint)
    while True:
        params = [Value(_type(batch, v, n in differs), v.hint)
                  for n, v in enumerate(op.carried)]  # fmt: skip
        inner = region.inner((index, *params))
        inner.batch.invariants[op.index] = index
        for n, (value, param) in enumerate(zip(op.carried, params, strict=True)):
            known = inner.batch.twins if n in differs else inner.batch.invariants
            known[value] = param
        for body_op in op.body.ops:
            inner.visit(body_op)
        changed = {n for n, v in enumerate(op.body.yields) if inner.batch.is_batched(v)} - differs
        if not changed:
            break
        differs |= changed
    region.loops += inner.loops
    given = tuple(
        batch.expanded(v) if n in differs else batch.operand(v) for n, v in enumerate(inits)
    )
    yields = tuple(
        inner.batch.expanded(v) if n in differs else inner.batch.operand(v)
        for n, v in enumerate(op.body.yields)
    )
    results = tuple(Value(param.type, v.hint) for param, v in zip(params, op.results, strict=True))
    body = Block((index, *params), inner.batch.ops, yields)
    batch.add(ForOp(start, stop, op.step, given, body, results=results))
    for n, (value, result) in enumerate(zip(op.results, results, strict=True)):
        known = batch.twins if n in differs else batch.invariants
        known[value] = result


def _bound(batch: Batch, bound: int | Size | Value) -> int | Size | Value:
    if isinstance(bound, Value):
        if batch.is_batched(bound):
            raise NotBatchable("the number of iterations differs from row to row")
        return batch.operand(bound)
    return bound


def _type(batch: Batch, value: Value, differs: bool) -> TensorType:
    type_ = value.type
    if not isinstance(type_, TensorType):
        raise NotBatchable("it carries a list")
    return TensorType(type_.dtype, (batch.length, *type_.shape)) if differs else type_


@dataclass(frozen=True, slots=True)
class RowLoop:
    """An operator that runs once per row, and why."""

    target: str
    reason: str
    location: SourceLocation | None


@dataclass(slots=True)
class Prologue:
    """Ops whose results are the same for all rows of all steps; they run before the first step."""

    ops: list[Op] = field(default_factory=list[Op])
    constants: dict[str, Value] = field(default_factory=dict[str, Value])

    def constant(self, key: str, type_: TensorType) -> Value:
        if key not in self.constants:
            self.constants[key] = Value(type_, key)
            self.ops.append(ConstantOp(key, results=(self.constants[key],)))
        return self.constants[key]


@dataclass(frozen=True, slots=True)
class BatchedBlock:
    """A batched block: `ops` compute `outputs`, each [n, ...], from the operands given when it was
    built."""

    ops: tuple[Op, ...]
    outputs: tuple[Value, ...]
    loops: tuple[RowLoop, ...]


def batched_block(
    captured: CapturedBlock,
    operands: Sequence[Value],
    length: Size,
    lengths: Renaming,
    keys: dict[str, str],
    prologue: Prologue,
    by_row: Collection[str] = (),
) -> BatchedBlock:
    """Build the block for `length` rows.

    operands: a tensor [n, ...] for each input. lengths: maps the sizes of rows in the block's
    Program to those in the level program. keys: maps the names of its constants to those in the
    level program. by_row: operators that run once per row.
    """
    body = clone_block(captured.program.main.body, {})
    rename_symbols(body, lengths)
    maker = _BlockBatcher(Batch(length), keys, prologue, by_row)
    maker.batch.twins.update(zip(body.params, operands, strict=True))
    for op in body.ops:
        maker.visit(op)
    outputs = tuple(maker.batch.expanded(value) for value in body.yields)
    return BatchedBlock(tuple(maker.batch.ops), outputs, tuple(maker.loops))


@dataclass(slots=True)
class _BlockBatcher:
    """Batcher of the ops of a block, in order. Each value gets a batched twin, or is the same for
    all rows."""

    batch: Batch
    keys: dict[str, str]
    prologue: Prologue
    by_row: Collection[str] = ()
    loops: list[RowLoop] = field(default_factory=list[RowLoop])
    bound: frozenset[Value] = frozenset()
    """Values defined in enclosing regions, on which code of the prologue cannot depend."""

    def inner(self, params: Sequence[Value]) -> _BlockBatcher:
        """Return the batcher of a nested region with these params."""
        batch = Batch(self.batch.length, dict(self.batch.twins), dict(self.batch.invariants))
        made = (item for op in self.batch.ops for item in op.results)
        bound = self.bound.union(made, params)
        return _BlockBatcher(batch, self.keys, self.prologue, self.by_row, bound=bound)

    def visit(self, op: Op) -> None:
        known = len(self.batch.ops)
        if isinstance(op, ForOp) and self.batched_for(op):
            return
        if isinstance(op, SizeOp) or not all(isinstance(v.type, TensorType) for v in op.results):
            raise CaptureError(
                "a size that the content of a tensor decides, or a list of tensors, is used in "
                "the middle of a block",
                location=op.location,
                remedy="decide with bool(), int() or .item() of a tensor of one element",
            )
        holds = self.holds(op)
        if isinstance(op, ConstantOp):
            found = self.prologue.constant(self.keys[op.key], op.result.tensor)
            self.batch.invariants[op.result] = found
        elif holds is not None:
            self.check(op, holds)
        elif self.is_invariant(op):
            self.copy(op)
        else:
            self.compute(op)
        for made in self.batch.ops[known:]:
            made.location = op.location

    def batched_for(self, op: ForOp) -> bool:
        """Batch a loop and return True; return False if it must run once per row."""
        known, loops = len(self.batch.ops), len(self.loops)
        try:
            batched_for(self, op)
        except NotBatchable as reason:
            del self.batch.ops[known:], self.loops[loops:]
            self.loops.append(RowLoop(op.name, str(reason), op.location))
            return False
        for made in self.batch.ops[known:]:
            made.location = op.location
        return True

    def holds(self, op: Op) -> Value | None:
        """Return the condition, per row, that an op checks; None for other ops, and for a check
        that is the same for all rows."""
        if isinstance(op, CheckOp):
            return self.batch.twins.get(op.condition)
        if not isinstance(op, TensorOp) or op.target != "stretto.check_positions.default":
            return None
        positions, size, length, _, _, wraps = op.args
        if not isinstance(positions, Value) or not self.batch.is_batched(positions):
            return None
        if not isinstance(size, int) or not isinstance(length, int) or (wraps and length != 1):
            return None
        twin = self.batch.twins[positions]
        low = self.batch.emit("aten.ge.Scalar", twin, -size if wraps else 0)
        high = self.batch.emit("aten.le.Scalar", twin, size - length)
        return self.batch.emit("aten.logical_and.default", low, high)

    def check(self, op: Op, holds: Value) -> None:
        """Emit one check for all rows. If it fails, a loop over the rows finds the row that the
        message is about."""
        every = self.batch.emit("aten.all.default", holds)
        ops, self.batch.ops = self.batch.ops, []
        self.loop(op)
        found, self.batch.ops = self.batch.ops, ops
        self.batch.add(IfOp(every, Block((), [], ()), Block((), found, ())))

    def is_invariant(self, op: Op) -> bool:
        if isinstance(op, LiteralOp):
            return True
        if not isinstance(op, TensorOp) or not op.results or is_random(op):
            return False
        if stop_reason(op) is not None:
            return False
        return not any(value in self.batch.twins for value in op.operands)

    def copy(self, op: Op) -> None:
        """Compute a value that all rows share, in the prologue if possible."""
        copy = clone_op(op, dict(self.batch.invariants))
        ops = self.batch.ops if symbols_of_op(op) else self.prologue.ops
        if not all(self.is_early(value) for value in op.operands):
            ops = self.batch.ops
        ops.append(copy)
        self.batch.invariants.update(zip(op.results, copy.results, strict=True))

    def is_early(self, value: Value) -> bool:
        copy = self.batch.invariants.get(value)
        return copy not in self.bound and all(copy not in op.results for op in self.batch.ops)

    def compute(self, op: Op) -> None:
        known = len(self.batch.ops)
        try:
            self.batch.accept(op, self.twins(op))
        except (NotBatchable, VerifyError) as reason:
            del self.batch.ops[known:]
            text = reason.message if isinstance(reason, VerifyError) else str(reason)
            name = op.target if isinstance(op, TensorOp) else op.name
            self.loops.append(RowLoop(name, text, op.location))
            self.batch.twins.update(zip(op.results, self.loop(op), strict=True))

    def twins(self, op: Op) -> tuple[Value, ...]:
        """Return the results for all rows at once; raise NotBatchable if there are none."""
        known = len(self.batch.ops)
        if not isinstance(op, TensorOp):
            raise NotBatchable("it has no batched form")
        if is_random(op):
            raise NotBatchable("it draws random numbers")
        if not any(self.batch.is_batched(value) for value in op.operands):
            raise NotBatchable("it may stop the run")
        twins = self.batch.by_rule(op)
        if any(isinstance(x, TensorOp) and x.target in self.by_row for x in self.batch.ops[known:]):
            raise NotBatchable(
                "its library call takes tensors in which the run decides the first dim alone"
            )
        return twins

    def loop(self, op: Op) -> tuple[Value, ...]:
        """Return the results, computed row by row in a loop."""
        length = self.batch.length
        inits = tuple(
            self.batch.emit(
                "aten.full.default",
                (length, *value.tensor.shape),
                _zero(value.tensor),
                dtype=value.tensor.dtype.torch,
            )
            for value in op.results
        )
        index, carried, inside = Value(INDEX, "row"), tuple(map(fresh, inits)), Emitter()
        mapping = dict(self.batch.invariants)
        for value in free_values_of_op(op):
            if self.batch.is_batched(value):
                twin = self.batch.twins[value]
                mapping[value] = inside.emit("aten.select.int", twin, 0, index)
        row = inside.add(clone_op(op, mapping))
        yields = tuple(
            inside.emit("aten.select_scatter.default", whole, part, 0, index)
            for whole, part in zip(carried, row.results, strict=True)
        )
        for made in inside.ops:
            made.location = op.location
        block = Block((index, *carried), inside.ops, yields)
        results = tuple(map(fresh, inits))
        self.batch.add(ForOp(0, length, 1, inits, block, results=results))
        return results


def _zero(type_: TensorType) -> bool | int | float:
    return False if type_.dtype.value == "bool" else 0.0 if type_.dtype.is_float else 0
