"""Whether loops should run at the same time, each a step behind, or one after the other.

At the same time they wait once per step, however many they are; but each reads its weights while
the others' are in the cache, and what ran for all steps at once runs for one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from stretto.ir.core import Op, Value
from stretto.ir.ops import ForOp, IfOp, TensorOp
from stretto.ir.types import TensorType
from stretto.ops.properties import is_contraction
from stretto.passes.skew_plan import Group, Stage
from stretto.passes.target import PassCosts, Target
from stretto.text import seconds_text

_WITH_SUMMAND = ("aten.addmm.default", "aten.baddbmm.default", "aten.addmv.default")
"""Products whose first operand is added to the result."""


RAMP_GAIN = 1.25
"""By this factor loops must be faster where one is behind another: there are more small kernels in
a step, and states are selected, which the estimates leave out."""


@dataclass(frozen=True, slots=True)
class Products:
    """The products of a step. operations: multiplications and additions. nbytes: of the operands
    that are the same in each step. chain: how many wait for each other."""

    operations: int = 0
    nbytes: int = 0
    chain: int = 0

    def with_chain(self, chain: int) -> Products:
        """The same, waiting for each other as often as said."""
        return Products(self.operations, self.nbytes, chain)

    def __add__(self, other: Products) -> Products:
        """Both, in any order."""
        chain = max(self.chain, other.chain)
        return Products(self.operations + other.operations, self.nbytes + other.nbytes, chain)


def why_in_turn(group: Group, target: Target) -> str | None:
    """Why the loops of a group should run one after the other, or None. Either way one unit may
    turn out to be enough, which waits for nobody."""
    if target.is_alone:
        return "one unit waits for nobody"
    for stage in group.stages:
        if any(not isinstance(op, IfOp) for op in stage.loop.body.walk() if op.blocks):
            return "there are loops or calls in its steps"
    ways = {target, target if target.costs.uniform else Target(target.costs, 1)}
    in_turn = min(seconds_in_turn(group, way) for way in ways)
    at_once = min(seconds_at_once(group, way) for way in ways)
    if at_once * (RAMP_GAIN if group.ramp else 1.0) < in_turn:
        return None
    return (
        f"one after the other they take {seconds_text(in_turn)}, "
        f"at the same time {seconds_text(at_once)}, as estimated"
    )


def seconds_in_turn(group: Group, target: Target) -> float:
    """One loop after the other; what stands between them runs for all steps at once."""
    costs, total = target.costs, 0.0
    trips = costs.size(group.trips)
    for stage in group.stages:
        step = products_of(stage, costs)
        total += trips * step_seconds(step, target)
        work = trips * _between(group, stage, costs).operations
        total += costs.product_seconds(work, 0, target.units)
    return total


def seconds_at_once(group: Group, target: Target) -> float:
    """All loops in one."""
    costs, whole = target.costs, Products()
    for stage in group.stages:
        between = _between(group, stage, costs)
        whole += between + products_of(stage, costs, between.chain)
    return (costs.size(group.trips) + group.ramp) * step_seconds(whole, target)


def step_seconds(step: Products, target: Target) -> float:
    """A step of a loop, with the waits in it."""
    work = target.costs.product_seconds(step.operations, step.nbytes, target.units)
    if target.is_alone:
        return work + max(step.chain, 1) * target.costs.start_seconds
    return work + max(step.chain, 1) * target.costs.dependent_seconds


def _between(group: Group, stage: Stage, costs: PassCosts) -> Products:
    """What a step of a stage would take of what stands before its loop."""
    needed = set(stage.reads.values())
    ops: list[Op] = []
    for op in reversed(list(dict.fromkeys(group.makers.values()))):
        if not needed.isdisjoint(op.results):
            ops.append(op)
            needed.update(value for value in op.operands if value in group.makers)
    found = _products(ops[::-1], set(), {}, costs)
    return Products(found.operations // costs.size(group.trips), found.nbytes, found.chain)


def products_of(stage: Stage, costs: PassCosts, begun: int = 0) -> Products:
    """The products in a step of a loop. What it reads of others waits for `begun` products."""
    loop = stage.loop
    ops = [op for op in loop.body.ops if op not in stage.reads]
    chain = {value: begun for op in stage.reads for value in op.results}
    return _products(ops, {loop.index, *loop.carried, *chain}, chain, costs)


def loop_products(ops: Iterable[Op], loop: ForOp, costs: PassCosts) -> Products:
    """The products among some ops of a loop's body."""
    return _products(ops, {loop.index, *loop.carried}, {}, costs)


def products_by_row(ops: Iterable[Op], rows: Iterable[Value], costs: PassCosts) -> Products:
    """The products among ops outside of a loop, `rows` being what differs from row to row."""
    return _products(ops, set(rows), {}, costs)


def _products(
    ops: Iterable[Op], changing: set[Value], chain: dict[Value, int], costs: PassCosts
) -> Products:
    """The products among ops, which stand in their order. changing: what differs from step to step.
    chain: how many products values wait for. Both gain the results."""
    operations = nbytes = longest = 0
    for op in ops:
        reach = max((chain.get(value, 0) for value in op.operands), default=0)
        if isinstance(op, TensorOp) and is_contraction(op):
            reach += 1
            operations += 2 * _multiplications(op, costs)
            weights = dict.fromkeys(value for value in op.operands if value not in changing)
            nbytes += sum(_bytes(value, costs) for value in weights)
        changing.update(op.results)
        chain.update(dict.fromkeys(op.results, reach))
        longest = max(longest, reach)
    return Products(operations, nbytes, longest)


def _multiplications(op: TensorOp, costs: PassCosts) -> int:
    """Of a product of matrices: rows * depth, depth * columns and rows * columns elements have the
    square of rows * depth * columns as their product."""
    factors = op.operands[1:3] if op.target in _WITH_SUMMAND else op.operands[:2]
    sizes = [costs.points(value.tensor.shape) for value in (*factors, op.results[0])]
    return round(prod(sizes) ** 0.5)


def _bytes(value: Value, costs: PassCosts) -> int:
    if not isinstance(value.type, TensorType):
        return 0
    return costs.points(value.tensor.shape) * value.tensor.dtype.itemsize
