"""Partial unrolling: iterations that need nothing of each other run several at a time.

The bodies of so many iterations are one body, whose operators are scheduled together: units that
would wait for those of one iteration work on the others, and small kernels of different iterations
run on different units.

Changes: `for` loops without control flow inside that carry nothing but lists they fill, where the
machine's costs say that waits are a part of an iteration worth saving. Needs: what can run for all
iterations at once is batched. Guarantees: the same ops on the same values, in the same order of
iterations; those that are left over come behind the loop.

    for %t in (0, 7, 1) carry (%l) {         for %s in (0, 2, 1) carry (%l) {
      yield list.push(%l, f(x[%t])) }    =>    %m = list.push(%l, f(x[3 * %s]))
                                               %n = list.push(%m, f(x[3 * %s + 1]))
                                               yield list.push(%n, f(x[3 * %s + 2])) }
                                             list.push(%l, f(x[6]))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.ir.core import Block, Op, Program, Value
from stretto.ir.ops import ForOp, ListPushOp, LiteralOp
from stretto.ir.rewrite import clone_op
from stretto.ir.types import INDEX, ListType
from stretto.ops.infer import tensor_op
from stretto.ops.properties import is_view
from stretto.passes.analyses.loops import normalise, replace_loops
from stretto.passes.manager import Target
from stretto.passes.skew_plan import loop_products

MOST_OPS = 200
"""A body does not become longer."""


@dataclass(frozen=True, slots=True)
class Unroll:
    """target: decides how many iterations are one; none where it is not known. factor: so many in
    any case; 0 asks the target. least_share: of a step, which waits must take."""

    target: Target | None = None
    factor: int = 0
    least_share: float = 0.1
    name: ClassVar[str] = "unroll"

    def apply(self, program: Program) -> bool:
        def new(loop: ForOp, _: Block) -> list[Op]:
            factor = self._factor(loop)
            if isinstance(factor, str):
                program.remarks.decline(self.name, "for", factor, loop.location)
                return [loop]
            normalise(loop)
            return unroll(loop, factor)

        return replace_loops(program, new)

    def _factor(self, loop: ForOp) -> int | str:
        trips = loop.trip_count()
        if trips is None or trips < 2:
            return "it is not known to run twice"
        if (reason := why_not(loop)) is not None:
            return reason
        if self.factor:
            return min(self.factor, trips)
        if self.target is None or self.target.is_alone:
            return "one unit waits for nobody"
        costs, units = self.target.costs, self.target.units
        step = loop_products(loop.body.ops, loop, costs)
        waits = max(step.chain, 1) * costs.dependent_seconds
        work = costs.product_seconds(step.operations, step.nbytes, units)
        if waits < self.least_share * (work + waits):
            return "waits take little of an iteration"
        most = MOST_OPS // len(loop.body.ops)
        factor = min(trips, max(units, 4), most)
        return factor if factor > 1 else "its body is long"


def why_not(loop: ForOp) -> str | None:
    """Why the iterations of a loop need each other, or None."""
    if loop.parallel:
        return "its iterations run on units of their own"
    if any(op.blocks for op in loop.body.ops):
        return "its iteration has control flow"
    for value, yielded in zip(loop.carried, loop.body.yields, strict=True):
        if not isinstance(value.type, ListType):
            return "it carries a tensor"
        if not any(
            isinstance(op, ListPushOp) and op.list is value and op.result is yielded
            for op in loop.body.ops
        ):
            return "it does more to a list than to push one item"
        if sum(value in op.operands for op in loop.body.ops) != 1:
            return "it reads a list that it fills"
    if all(isinstance(op, ListPushOp) or is_view(op) for op in loop.body.ops):
        return "it computes nothing"
    return None


def unroll(loop: ForOp, factor: int) -> list[Op]:
    """A loop over `factor` iterations at a time, and those that are left over behind it."""
    trips = loop.trip_count()
    assert trips is not None
    rounds = trips // factor
    results = loop.results if rounds * factor == trips else _fresh_all(loop.results)
    index = Value(INDEX, loop.index.hint)
    params = _fresh_all(loop.carried)
    body, current = Block((index, *params)), params
    for place in range(factor):
        current = _iteration(loop, _position(body.ops, index, factor, place), current, body.ops)
    body.yields = current
    new = ForOp(0, rounds, 1, loop.inits, body, results=results, location=loop.location)
    ops: list[Op] = [new]
    current = results
    for place in range(rounds * factor, trips):
        number = LiteralOp(place, results=(Value(INDEX),))
        ops.append(number)
        last = loop.results if place == trips - 1 else None
        current = _iteration(loop, number.result, current, ops, last)
    return ops


def _position(ops: list[Op], index: Value, factor: int, place: int) -> Value:
    """The iteration number of copy `place` of the body."""
    ops.append(tensor_op("aten.mul.Tensor", index, factor))
    if place:
        ops.append(tensor_op("aten.add.Tensor", ops[-1].results[0], place))
    return ops[-1].results[0]


def _iteration(
    loop: ForOp,
    index: Value,
    carried: tuple[Value, ...],
    ops: list[Op],
    results: tuple[Value, ...] | None = None,
) -> tuple[Value, ...]:
    """Appends an iteration to ops; gives what it yields. results: the values to yield it as."""
    mapping = {loop.index: index, **dict(zip(loop.carried, carried, strict=True))}
    copies = [clone_op(op, mapping) for op in loop.body.ops]
    yielded = tuple(mapping[value] for value in loop.body.yields)
    if results is not None:
        named = dict(zip(yielded, results, strict=True))
        for op in copies:
            op.results = tuple(named.get(value, value) for value in op.results)
        yielded = results
    ops.extend(copies)
    return yielded


def _fresh_all(values: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(Value(value.type, value.hint) for value in values)
