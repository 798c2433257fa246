"""Loop batching: computations that do not depend on the previous iteration run once for all.

An op of a `for` body that depends on the loop index but on no carried value becomes one
batched op before the loop, when that makes a contraction larger: the input projections of
an RNN become one matrix product.

Changes: `for` loops anywhere in the program, inner ones first; a loop that is batched runs
from 0 in steps of 1 afterwards. It handles loops whose trip count is a number or a size,
and loops over all items of a list (these get an `if` that tests for a first item). Needs:
invariant ops hoisted, or some are missed. Guarantees: the same results up to the order of
floating-point additions inside one product; one batched tensor takes at most `limit_bytes`.

    for %t in range(0, 64) carry (%h = %h0) {     %w = linear(%x, %W)                  # [64, 256]
      %x_t = select(%x, 0, %t)                    for %t in range(0, 64) carry (%h = %h0) {
      %w = linear(%x_t, %W)                  =>     %w_t = select(%w, 0, %t)
      %u = linear(%h, %U)                           %u = linear(%h, %U)
      %s = add(%w, %u)                              %s = add(%w_t, %u)
      yield tanh(%s) }                              yield tanh(%s) }
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import ClassVar

from stretto.ir.core import Block, Op, Program, Value, fresh
from stretto.ir.ops import ForOp, IfOp, ListPushOp, TensorOp
from stretto.ir.rewrite import defined_values, free_values_of_op
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Size, symbol
from stretto.ir.types import Dim
from stretto.ops.infer import tensor_op
from stretto.ops.properties import is_contraction, is_random, is_view
from stretto.passes.analyses.loop_dependences import ListLengths, normalise, replace_loops
from stretto.passes.batching.twins import Twins, find_twins, is_source

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class BatchLoops:
    """The pass; `limit_bytes` bounds each tensor that holds a value of all iterations."""

    limit_bytes: int = 64 * MEBIBYTE
    name: ClassVar[str] = "batch_loops"

    def apply(self, program: Program) -> bool:
        return replace_loops(program, lambda loop, body: self._loop(loop, body, program))

    def _loop(self, loop: ForOp, body: Block, program: Program) -> list[Op]:
        length = batch_length(loop, program)
        if isinstance(length, str):
            program.remarks.decline(self.name, "for", length, loop.location)
            return [loop]
        twins = find_twins(loop, length, ListLengths.of(body), self.limit_bytes)
        for op, reason in twins.reasons.items():
            if isinstance(op, TensorOp) and is_contraction(op):
                program.remarks.decline(self.name, op.target, reason, op.location)
        kept = profitable(loop, twins)
        if isinstance(kept, str):
            program.remarks.decline(self.name, "for", kept, loop.location)
            return [loop]
        before = _live_ops(twins, kept)
        normalise(loop)
        _replace(loop, twins, kept, set(before))
        return _guarded(loop, before) if isinstance(loop.stop, Value) else [*before, loop]


def batch_length(loop: ForOp, program: Program) -> Dim | str:
    """Return the size of the leading dim, one element per iteration, or the reason why there is
    none."""
    trips = loop.trips()
    if trips is not None:
        return "it runs less than twice" if at_most(trips, 1) else trips
    if loop.start != 0 or loop.step != 1:
        return "its trip count is not known, and it does not count from 0 in steps of 1"
    return fresh_symbol(program, "trips")


def fresh_symbol(program: Program, stem: str) -> Size:
    """Return a symbol whose name the program does not use: `stem` and a number."""
    bodies = (function.body for function in program.functions.values())
    types = {str(value.type) for body in bodies for value in defined_values(body)}
    numbers = (number for number in count() if not any(f"{stem}{number}" in item for item in types))
    return symbol(f"{stem}{next(numbers)}")


def profitable(loop: ForOp, twins: Twins) -> frozenset[Op] | str:
    """Return the ops to compute before the loop, or the reason why batching would not pay.

    These are contractions, the ops computed from them whose results are not larger, and, if the
    loop does nothing else, all ops. Views cost nothing inside the loop and stay there.
    """
    work = [op for op in loop.body.ops if op in twins.of_op and not (is_view(op) or is_source(op))]
    staying = [op for op in loop.body.ops if op not in twins.of_op and op not in twins.index_ops]
    if work and all(isinstance(op, ListPushOp) for op in staying):
        return frozenset(work)
    kept: set[Op] = set()
    reached: set[Value] = set()
    for op in loop.body.ops:
        if op not in twins.of_op:
            continue
        if is_contraction(op) or (not reached.isdisjoint(op.operands) and not _grows(op, twins)):
            reached.update(op.results)
            if op in work:
                kept.add(op)
    return frozenset(kept) or "no contraction depends on the index alone"


def _grows(op: Op, twins: Twins) -> bool:
    """True if the results of all iterations take more bytes than their operands."""
    read = sum(twins.batch.twins[v].tensor.nbytes for v in op.operands if v in twins.batch.twins)
    return sum(value.tensor.nbytes for value in twins.of_op[op]) > read


def _live_ops(twins: Twins, kept: frozenset[Op]) -> list[Op]:
    """The ops before the loop that the twins of `kept` need."""
    needed = {value for op in kept for value in twins.of_op[op]}
    live: list[Op] = []
    for op in reversed(twins.batch.ops):
        if not needed.isdisjoint(op.results):
            live.append(op)
            needed.update(op.operands)
    return live[::-1]


def _replace(loop: ForOp, twins: Twins, kept: frozenset[Op], before: set[Op]) -> None:
    """Read the values that are computed before the loop instead of computing them; drop ops that
    are then unread."""
    made = {value for op in before for value in op.results}
    needed = set(loop.body.yields)
    ops: list[Op] = []
    for op in reversed(loop.body.ops):
        results = [value for value in op.results if value in needed]
        if isinstance(op, TensorOp) and op.results and not results and not is_random(op):
            continue
        twin = dict(zip(op.results, twins.of_op.get(op, ()), strict=False))
        free = is_view(op) or is_source(op)
        if op in kept or (twin and not free and all(twin[value] in made for value in results)):
            ops.extend(_read(loop, value, twin[value]) for value in reversed(results))
            continue
        ops.append(op)
        needed.update(free_values_of_op(op))
    loop.body.ops = ops[::-1]


def _read(loop: ForOp, value: Value, twin: Value) -> Op:
    """Return an op that reads the value of the current iteration from its twin."""
    read = tensor_op("aten.select.int", twin, 0, loop.index)
    read.results = (value,)
    return read


def _guarded(loop: ForOp, before: list[Op]) -> list[Op]:
    """Return a branch that enters the loop, with the ops before it, only if it runs at all: a list
    without items cannot be stacked."""
    runs = tensor_op("aten.gt.Scalar", loop.stop, 0)
    results = loop.results
    loop.results = tuple(map(fresh, results))
    then = Block((), [*before, loop], loop.results)
    return [
        runs,
        IfOp(runs.result, then, Block((), [], loop.inits), results=results, location=loop.location),
    ]
